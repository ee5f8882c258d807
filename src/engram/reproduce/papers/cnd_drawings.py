"""Drawings of the figures of the continual-novelty paper, from their tables of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engram.records.features import DRAWN
from engram.reproduce.papers.cnd_numbers import NAMES
from engram.reproduce.papers.cnd_preset import ROWS
from engram.reproduce.papers.drawing import Legend, line, looks

if TYPE_CHECKING:
    import pandas as pd

SETS = {"inside": "#0072B2", "forgotten": "#E69F00", "outside": "#8A8A8A"}
OVER_TASKS = ("accuracy", "AUC against the last task")


def draw_panels(data: pd.DataFrame) -> Any:
    """A row of plots per row of the table, a column per measure, a curve per line."""
    from plotly.subplots import make_subplots

    rows, columns = (list(dict.fromkeys(data[name])) for name in ("row", "measure"))
    figure = make_subplots(
        rows=len(rows), cols=len(columns), column_titles=columns, row_titles=rows,
        shared_xaxes=True, vertical_spacing=0.05, horizontal_spacing=0.06,
    )  # fmt: skip
    legend, lines = Legend(), list(dict.fromkeys(data["line"]))
    known = next((k for k in (list(NAMES.values()), list(DRAWN), list(ROWS)) if lines[0] in k), [])
    styles = looks(known, lines)
    for (row, measure, name), own in data.groupby(["row", "measure", "line"], sort=False):
        figure.add_trace(
            line(own["x"], own["value"], str(name), styles, legend),
            row=rows.index(row) + 1, col=columns.index(measure) + 1,
        )  # fmt: skip
    over = "task" if columns[0] in OVER_TASKS else "stage"
    figure.update_xaxes(title=over, row=len(rows))
    figure.update_layout(height=120 + 240 * len(rows), legend={"orientation": "h", "y": -0.12})
    return figure


def draw_maps(data: pd.DataFrame) -> Any:
    """Two maps side by side: after stage 1, and of the first task after stage 2."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    stages = sorted(set(data["stage"]))
    figure = make_subplots(
        rows=1, cols=len(stages), subplot_titles=[f"after stage {k}" for k in stages]
    )
    legend = Legend()
    for (stage, kind), own in data.groupby(["stage", "set"], sort=False):
        figure.add_trace(
            go.Scatter(
                x=own["x"].tolist(), y=own["y"].tolist(), mode="markers", name=str(kind),
                legendgroup=str(kind), showlegend=legend(str(kind)),
                marker={"color": SETS[str(kind)], "size": 5, "opacity": 0.7},
                text=[f"task {task}" for task in own["task"]], hovertemplate="%{text}",
            ),
            row=1, col=stages.index(stage) + 1,
        )  # fmt: skip
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure
