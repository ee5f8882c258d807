"""Drawings of the figures of the RWalk paper, from their tables of numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engram.reproduce.papers import drawing
from engram.reproduce.papers.drawing import Legend, line, looks

if TYPE_CHECKING:
    import pandas as pd

    from engram.report.style import Style

# -S rows follow in the same order, so that the ninth symbol is the last that is needed
METHODS = ("Vanilla", "EWC", "PI", "RWalk", "iCaRL-hb1", "iCaRL")


def draw_task_level(data: pd.DataFrame) -> Any:
    """One row of plots per panel, one column per task and one for the mean."""
    return drawing.draw_task_level(data, _looks(data["method"]))


def draw_plane(data: pd.DataFrame) -> Any:
    """A plane per data set; hollow markers are the paper's numbers."""
    from plotly.subplots import make_subplots

    names = list(dict.fromkeys(data["dataset"]))
    figure = make_subplots(rows=1, cols=len(names), subplot_titles=names)
    styles, legend = _looks(data["method"]), Legend()
    for row in data.to_dict("records"):
        name = str(row["method"])
        trace = line([row["forgetting"]], [row["intransigence"]], name, styles, legend)
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
        trace = line(x, rows["accuracy"], str(method), styles, legend)
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
