"""Drawings of the figures of the skeleton benchmark, from their tables of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engram.reproduce.papers.cgl_preset import METHODS
from engram.reproduce.papers.drawing import Legend, looks

if TYPE_CHECKING:
    import pandas as pd

DRAWN = (*METHODS, "JOINT")
AXES = {"average_accuracy": "average accuracy", "forgetting": "average forgetting"}


def line_of_bound(tasks: int) -> tuple[list[float], list[float]]:
    """Where forgetting ends for each accuracy if the last task is learnt perfectly.

    Examples
    --------
    >>> x, y = line_of_bound(5)
    >>> [round(v, 6) for v in (x[0], y[0], x[-1], y[-1])]
    [0.2, 1.0, 1.0, 0.0]
    """
    x = np.linspace(1 / tasks, 1, 9)  # left of 1 / tasks the bound is above 1
    y = 1 - tasks / (tasks - 1) * x + 1 / (tasks - 1)
    return x.tolist(), y.tolist()


def draw_scatter(data: pd.DataFrame) -> Any:
    """A plane per kind of orders, a point per order, the bound as a dotted line."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    kinds = list(dict.fromkeys(data["orders"]))
    titles = [f"{kind} orders" for kind in kinds]
    figure = make_subplots(rows=1, cols=len(kinds), subplot_titles=titles, shared_yaxes=True)
    styles, legend = looks(DRAWN, data["method"]), Legend()
    for (kind, method), rows in data.groupby(["orders", "method"], sort=False):
        look, place = styles[str(method)], kinds.index(kind) + 1
        trace = go.Scatter(
            x=rows["average_accuracy"].tolist(), y=rows["forgetting"].tolist(), mode="markers",
            name=str(method), legendgroup=str(method), showlegend=legend(str(method)),
            text=rows["order"].tolist(), hovertemplate="AA %{x:.3f}, AF %{y:.3f}<br>%{text}",
            marker={"symbol": look.symbol, "color": look.color, "opacity": 0.6, "size": 6},
        )  # fmt: skip
        figure.add_trace(trace, row=1, col=place)
    x, y = line_of_bound(int(data["tasks"].max()))
    for place in range(1, len(kinds) + 1):
        bound = go.Scatter(
            x=x, y=y, mode="lines", name="upper bound", legendgroup="bound",
            showlegend=place == 1, line={"dash": "dot", "color": "green"},
        )  # fmt: skip
        figure.add_trace(bound, row=1, col=place)
    figure.update_xaxes(title=AXES["average_accuracy"])
    figure.update_yaxes(title=AXES["forgetting"], col=1)
    return figure


def draw_classes(data: pd.DataFrame) -> Any:
    """A row of boxes per kind of orders: the accuracies of each class over the orders."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    kinds = list(dict.fromkeys(data["orders"]))
    titles = [f"{kind} orders" for kind in kinds]
    figure = make_subplots(rows=len(kinds), cols=1, subplot_titles=titles, shared_xaxes=True)
    styles, legend = looks(DRAWN, data["method"]), Legend()
    for (kind, method), rows in data.groupby(["orders", "method"], sort=False):
        place = kinds.index(kind) + 1
        trace = go.Box(
            x=rows["class"].tolist(), y=rows["accuracy"].tolist(), name=str(method),
            legendgroup=str(method), showlegend=legend(str(method)), offsetgroup=str(method),
            marker={"color": styles[str(method)].color, "size": 3},
        )  # fmt: skip
        figure.add_trace(trace, row=place, col=1)
    figure.update_layout(boxmode="group", height=360 * len(kinds))
    figure.update_xaxes(title="class", dtick=1, row=len(kinds), col=1)
    figure.update_yaxes(title="accuracy", range=[-0.02, 1.02])
    return figure


def draw_evolution(data: pd.DataFrame, axis: str) -> Any:
    """Accuracy and forgetting side by side, a line per method."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    metrics = list(dict.fromkeys(data["metric"]))
    titles = [AXES[name] for name in metrics]
    figure = make_subplots(rows=1, cols=len(metrics), subplot_titles=titles)
    styles, legend = looks(DRAWN, data["method"]), Legend()
    for (metric, method), rows in data.groupby(["metric", "method"], sort=False):
        look, place = styles[str(method)], metrics.index(metric) + 1
        trace = go.Scatter(
            x=rows[axis].tolist(), y=rows["value"].tolist(), mode="lines+markers",
            name=str(method), legendgroup=str(method), showlegend=legend(str(method)),
            line={"color": look.color, "dash": look.dash},
            marker={"symbol": look.symbol, "color": look.color},
            error_y={"array": rows["std"].tolist(), "thickness": 1},
        )  # fmt: skip
        figure.add_trace(trace, row=1, col=place)
    figure.update_xaxes(title=axis, type="log", dtick=np.log10(2))
    return figure
