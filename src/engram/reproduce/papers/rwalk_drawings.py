"""Drawings of the figures of the RWalk paper, from their tables of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engram.reproduce.papers.drawing import Legend, looks

if TYPE_CHECKING:
    import pandas as pd

    from engram.report.style import Style

# -S rows follow in the same order, so that the ninth symbol is the last that is needed
METHODS = ("Vanilla", "EWC", "PI", "RWalk", "iCaRL-hb1", "iCaRL")


def draw_task_level(data: pd.DataFrame) -> Any:
    """One row of plots per panel, one column per task and one for the mean."""
    from plotly.subplots import make_subplots

    panels, tasks = list(dict.fromkeys(data["panel"])), int(data["task"].max())
    columns = [*range(1, tasks + 1), 0]
    titles = [f"task {t}" if t else "mean" for t in columns]
    figure = make_subplots(
        rows=len(panels), cols=len(columns), shared_yaxes=True, shared_xaxes=True,
        column_titles=titles, row_titles=panels, horizontal_spacing=0.01, vertical_spacing=0.03,
    )  # fmt: skip
    styles, legend = _looks(data["method"]), Legend()
    for (panel, method, task), rows in data.groupby(["panel", "method", "task"], sort=False):
        figure.add_trace(
            _line(rows["stage"], rows["accuracy"], str(method), styles, legend),
            row=panels.index(panel) + 1, col=columns.index(task) + 1,
        )  # fmt: skip
    figure.update_yaxes(range=[0, 1.02])
    figure.update_yaxes(title="accuracy", col=1)
    # the same axis everywhere: a task learnt late begins far to the right
    ticks = sorted({1, (1 + tasks) // 2, tasks})
    figure.update_xaxes(range=[0.6, tasks + 0.4], tickvals=ticks)
    figure.update_xaxes(title="tasks learnt", row=len(panels))
    figure.update_layout(height=240 * len(panels), legend={"orientation": "h", "y": -0.14})
    return figure


def draw_plane(data: pd.DataFrame) -> Any:
    """A plane per data set; hollow markers are the paper's numbers."""
    from plotly.subplots import make_subplots

    names = list(dict.fromkeys(data["dataset"]))
    figure = make_subplots(rows=1, cols=len(names), subplot_titles=names)
    styles, legend = _looks(data["method"]), Legend()
    for row in data.to_dict("records"):
        name = str(row["method"])
        trace = _line([row["forgetting"]], [row["intransigence"]], name, styles, legend)
        trace.update(mode="markers", marker={"size": 11})
        if row["source"] == "paper":
            trace.marker.symbol = f"{trace.marker.symbol}-open"
        trace.hovertemplate = f"{row['source']}<br>F %{{x:.3f}}, I %{{y:.3f}}"
        figure.add_trace(trace, row=1, col=names.index(row["dataset"]) + 1)
    both = "paper" in set(data["source"])  # without its points there is nothing to tell apart
    for name, symbol in (("ours", "circle"), ("the paper", "circle-open")) if both else ():
        figure.add_trace(_key(name, symbol), row=1, col=1)
    figure.update_xaxes(title="forgetting", zeroline=True)
    figure.update_yaxes(title="intransigence", zeroline=True)
    return figure


def draw_grid(data: pd.DataFrame, axis: str) -> Any:
    """A plot per data set, a line per method."""
    from plotly.subplots import make_subplots

    names = list(dict.fromkeys(data["dataset"]))
    figure = make_subplots(rows=1, cols=len(names), subplot_titles=names)
    styles, legend = _looks(data["method"]), Legend()
    named, methods = (list(dict.fromkeys(data[key])) for key in (axis, "method"))
    for (dataset, method), rows in data.groupby(["dataset", "method"], sort=False):
        place = names.index(dataset) + 1
        x = rows[axis].tolist()
        if axis == "strategy":  # side by side, or the intervals would cover each other
            beside = 0.08 * (methods.index(str(method)) - (len(methods) - 1) / 2)
            x = [named.index(name) + beside for name in x]
        trace = _line(x, rows["accuracy"], str(method), styles, legend)
        if rows["std"].notna().any():
            trace.error_y = {"array": rows["std"].fillna(0).tolist(), "thickness": 1}
        if axis == "strategy":
            trace.mode = "markers"
        figure.add_trace(trace, row=1, col=place)
    figure.update_xaxes(title="samples per class" if axis == "samples" else axis)
    if axis == "strategy":
        figure.update_xaxes(tickvals=list(range(len(named))), ticktext=named)
    figure.update_yaxes(title="average accuracy")
    return figure


def _looks(names: Any) -> dict[str, Style]:
    """One look per method in all figures; with samples (-S) another marker in the same colour."""
    named = list(dict.fromkeys(map(str, names)))
    found = looks((*METHODS, *(f"{name}-S" for name in METHODS)), named)
    for name in METHODS:
        own = found[name]
        found[f"{name}-S"] = replace(found[f"{name}-S"], color=own.color, dash=own.dash)
    return found


def _key(name: str, symbol: str) -> Any:
    """An entry of the legend without data."""
    import plotly.graph_objects as go

    marker = {"symbol": symbol, "color": "gray", "size": 11}
    return go.Scatter(x=[None], y=[None], name=name, mode="markers", marker=marker)


def _line(x: Any, y: Any, name: str, styles: Mapping[str, Style], legend: Legend) -> Any:
    import plotly.graph_objects as go

    look = styles[name]
    return go.Scatter(
        x=list(x), y=list(y), name=name, legendgroup=name, showlegend=legend(name),
        mode="lines+markers", line={"color": look.color, "dash": look.dash},
        marker={"symbol": look.symbol, "color": look.color},
    )  # fmt: skip
