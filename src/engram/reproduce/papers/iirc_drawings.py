"""Drawings of the figures of IIRC, from their tables of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engram.reproduce.papers.drawing import Legend, line, looks
from engram.reproduce.papers.iirc_preset import ROWS, VARIANTS

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = 2  # plots side by side
BAND = 0.15  # opacity


def draw_curves(data: pd.DataFrame) -> Any:
    """A plot per panel, a line per method, and a band of one deviation where there are several."""
    from plotly.subplots import make_subplots

    panels = list(dict.fromkeys(data["panel"]))
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = make_subplots(rows=rows, cols=columns, subplot_titles=panels)
    styles, legend = looks([*ROWS, *VARIANTS], data["method"]), Legend()
    for (panel, method), part in data.groupby(["panel", "method"], sort=False):
        place = panels.index(panel)
        where = {"row": place // columns + 1, "col": place % columns + 1}
        name = str(method)
        if part["std"].notna().any():
            figure.add_trace(band(part, name, styles[name].color), **where)
        figure.add_trace(line(part["stage"], part["value"], name, styles, legend), **where)
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(title="task", row=rows)
    figure.update_layout(height=360 * rows)
    return figure


def band(part: pd.DataFrame, name: str, color: str) -> Any:
    """One standard deviation around a line, as a filled outline."""
    import plotly.graph_objects as go

    reach = part["std"].fillna(0.0)
    low, high = part["value"] - reach, part["value"] + reach
    stages = part["stage"].tolist()
    return go.Scatter(
        x=[*stages, *stages[::-1]], y=[*high.tolist(), *low.tolist()[::-1]], fill="toself",
        fillcolor=color, opacity=BAND, line={"width": 0}, mode="lines", hoverinfo="skip",
        legendgroup=name, showlegend=False,
    )  # fmt: skip


def draw_confusion(data: pd.DataFrame) -> Any:
    """A row of plots per method, a column per stage; labels in order of introduction."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    methods, stages = (list(dict.fromkeys(data[name])) for name in ("method", "stage"))
    figure = make_subplots(
        rows=len(methods), cols=len(stages), row_titles=methods,
        column_titles=[f"after task {stage}" for stage in stages],
        horizontal_spacing=0.02, vertical_spacing=0.02,
    )  # fmt: skip
    for (method, stage), part in data.groupby(["method", "stage"], sort=False):
        names = list(dict.fromkeys(part["true"]))
        shares = part["share"].to_numpy(np.float64).reshape(len(names), len(names))
        short = [name.split("/", 1)[-1] for name in names]
        drawn = go.Heatmap(z=shares, x=short, y=short, zmin=0, zmax=1, coloraxis="coloraxis")
        figure.add_trace(
            drawn, row=methods.index(method) + 1, col=stages.index(stage) + 1
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed", showticklabels=len(stages) == 1)
    figure.update_xaxes(showticklabels=len(stages) == 1)
    side = 620 if len(stages) == 1 else 300
    figure.update_layout(
        height=side * len(methods), coloraxis={"colorscale": "Blues", "cmin": 0, "cmax": 1}
    )
    return figure


def draw_histogram(data: pd.DataFrame) -> Any:
    """A bar per superclass, the largest first."""
    import plotly.graph_objects as go

    bars = go.Bar(x=data["superclass"].tolist(), y=data["subclasses"].tolist())
    figure = go.Figure(bars)
    figure.update_yaxes(title="subclasses")
    figure.update_xaxes(title="superclass")
    return figure
