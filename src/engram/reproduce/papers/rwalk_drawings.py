"""Drawings of the figures of the RWalk paper, from their tables of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


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
    looks = _looks(data["method"])
    shown: set[str] = set()
    for (panel, method, task), rows in data.groupby(["panel", "method", "task"], sort=False):
        figure.add_trace(
            _line(rows["stage"], rows["accuracy"], str(method), looks, str(method) not in shown),
            row=panels.index(panel) + 1, col=columns.index(task) + 1,
        )  # fmt: skip
        shown.add(str(method))
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
    looks, shown = _looks(data["method"]), set()
    for row in data.to_dict("records"):
        name = str(row["method"])
        trace = _line([row["forgetting"]], [row["intransigence"]], name, looks, name not in shown)
        trace.update(mode="markers", marker={"size": 11})
        if row["source"] == "paper":
            trace.marker.symbol = f"{trace.marker.symbol}-open"
        trace.hovertemplate = f"{row['source']}<br>F %{{x:.3f}}, I %{{y:.3f}}"
        figure.add_trace(trace, row=1, col=names.index(row["dataset"]) + 1)
        shown.add(name)
    for name, symbol in (("ours", "circle"), ("the paper", "circle-open")):
        figure.add_trace(_key(name, symbol), row=1, col=1)
    figure.update_xaxes(title="forgetting", zeroline=True)
    figure.update_yaxes(title="intransigence", zeroline=True)
    return figure


def draw_grid(data: pd.DataFrame, axis: str) -> Any:
    """A plot per data set, a line per method."""
    from plotly.subplots import make_subplots

    names = list(dict.fromkeys(data["dataset"]))
    figure = make_subplots(rows=1, cols=len(names), subplot_titles=names)
    looks = _looks(data["method"])
    named, methods = list(dict.fromkeys(data[axis])), list(looks)
    for (dataset, method), rows in data.groupby(["dataset", "method"], sort=False):
        place = names.index(dataset) + 1
        x = rows[axis].tolist()
        if axis == "strategy":  # side by side, or the intervals would cover each other
            beside = 0.08 * (methods.index(str(method)) - (len(methods) - 1) / 2)
            x = [named.index(name) + beside for name in x]
        trace = _line(x, rows["accuracy"], str(method), looks, place == 1)
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


def _looks(names: Any) -> Mapping[str, Any]:
    from engram.report.style import styles

    return styles(list(dict.fromkeys(map(str, names))))


def _key(name: str, symbol: str) -> Any:
    """An entry of the legend without data."""
    import plotly.graph_objects as go

    marker = {"symbol": symbol, "color": "gray", "size": 11}
    return go.Scatter(x=[None], y=[None], name=name, mode="markers", marker=marker)


def _line(x: Any, y: Any, name: str, looks: Mapping[str, Any], legend: bool) -> Any:
    import plotly.graph_objects as go

    look = looks[name]
    return go.Scatter(
        x=list(x), y=list(y), name=name, legendgroup=name, showlegend=legend,
        mode="lines+markers", line={"color": look.color, "dash": look.dash},
        marker={"symbol": look.symbol, "color": look.color},
    )  # fmt: skip
