"""What figures of all papers have in common: tables of numbers, looks of methods, and claims
tested on runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.reproduce import measures

if TYPE_CHECKING:
    import pandas as pd

    from engram.experiments import Recipe
    from engram.records import Result
    from engram.report.method_styles import Style
    from engram.reproduce.paper_table import Floats, Measure

LEVEL_COLUMNS = ("panel", "method", "task", "stage", "accuracy", "std")  # of `draw_task_level`


def make_frame(records: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Records as a table whose columns are there even if nothing is.

    Examples
    --------
    >>> make_frame([], ["method", "accuracy"]).columns.tolist()
    ['method', 'accuracy']
    """
    import pandas as pd

    return pd.DataFrame([dict(one) for one in records], columns=list(columns))


def assign_looks(known: Sequence[str], names: Iterable[Any] = ()) -> dict[str, Style]:
    """A look per name: that of its place in `known` in whatever figure it is, others after them.

    Examples
    --------
    >>> few, all = (
    ...     assign_looks(["EWC", "LwF"], ["LwF"]),
    ...     assign_looks(["EWC", "LwF"], ["EWC", "LwF", "new"]),
    ... )
    >>> few["LwF"] == all["LwF"] != all["new"]
    True
    """
    from engram.report.method_styles import assign_styles

    return assign_styles(list(dict.fromkeys([*known, *map(str, names)])))


class LegendNames:
    """Says of each name once that it belongs into the legend.

    Examples
    --------
    >>> legend = LegendNames()
    >>> legend("EWC"), legend("LwF"), legend("EWC")
    (True, True, False)
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, name: str) -> bool:
        first = name not in self._seen
        self._seen.add(name)
        return first


def sample_std(values: Floats) -> float:
    """Standard deviation over repetitions; NaN for one.

    Examples
    --------
    >>> sample_std(np.array([0.5]))
    nan
    """
    return float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def accuracy_curves(
    result: Result, made: Recipe, head: str, names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Accuracy of each task, and their mean (task 0), after each stage; counted from 1."""
    runs = measures.select_runs(result, [made], head)
    if runs is None:
        return []
    matrix = runs.matrix  # [run, stage, task]
    records = []
    for stage in range(matrix.shape[1]):
        row = matrix[:, stage, : stage + 1]
        row = row[~np.isnan(row).any(axis=1)]
        if not len(row):
            continue
        for task in range(-1, stage + 1):
            values = row.mean(axis=1) if task < 0 else row[:, task]
            records.append({
                **names, "task": task + 1, "stage": stage + 1,
                "accuracy": float(values.mean()), "std": sample_std(values),
            })  # fmt: skip
    return records


def draw_task_level(data: pd.DataFrame, styles: Mapping[str, Style]) -> Any:
    """One row of plots per panel, one column per task and one for the mean."""
    from plotly.subplots import make_subplots

    panels, tasks = list(dict.fromkeys(data["panel"])), int(data["task"].max())
    columns = [*range(1, tasks + 1), 0]
    titles = [f"task {t}" if t else "mean" for t in columns]
    figure = make_subplots(
        rows=len(panels), cols=len(columns), shared_yaxes=True, shared_xaxes=True,
        column_titles=titles, row_titles=panels, horizontal_spacing=0.01, vertical_spacing=0.03,
    )  # fmt: skip
    legend = LegendNames()
    for (panel, method, task), rows in data.groupby(["panel", "method", "task"], sort=False):
        figure.add_trace(
            draw_line(rows["stage"], rows["accuracy"], str(method), styles, legend),
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


def draw_line(x: Any, y: Any, name: str, styles: Mapping[str, Style], legend: LegendNames) -> Any:
    """A line of a plotly figure in the look of its name."""
    import plotly.graph_objects as go

    look = styles[name]
    return go.Scatter(
        x=list(x), y=list(y), name=name, legendgroup=name, showlegend=legend(name),
        mode="lines+markers", line={"color": look.color, "dash": look.dash},
        marker={"symbol": look.symbol, "color": look.color},
    )  # fmt: skip


def draw_table(data: pd.DataFrame) -> Any:
    """The table itself."""
    import plotly.graph_objects as go

    shown = data.map(lambda value: f"{value:.3g}" if isinstance(value, float) else str(value))
    return go.Figure(
        go.Table(
            header={"values": list(data.columns), "align": "left"},
            cells={"values": [shown[name].tolist() for name in data.columns], "align": "left"},
        )
    )


# ------------------------------------------------------------------------------------------------
# What a paper finds, as comparisons of two measures that can fail.


CLAIM_COLUMNS = ("finding", "row", "first", "first_value", "second", "second_value", "repetitions",
           "paper_first", "paper_second", "holds")  # fmt: skip
NAN = float("nan")


@dataclass(frozen=True)
class Claim:
    """The first measure is larger than the second, or at least as large (`ties`).

    Examples
    --------
    >>> from engram.reproduce.measures import constant
    >>> one = Claim("more is more", "", ("three", constant(3.0)), ("two", constant(2.0)))
    >>> one.tried(None)["holds"]
    'yes'

    Means are those over the repetitions that both have, here the first alone:

    >>> few, all = ("few", constant(0.5, NAN, NAN)), ("all", constant(0.6, 0.1, 0.2))
    >>> found = Claim("few are better", "", few, all).tried(None)
    >>> found["second_value"], found["repetitions"], found["holds"]
    (0.6, 1, 'no')
    """

    finding: str
    row: str
    first: tuple[str, Measure]
    second: tuple[str, Measure]
    paper: tuple[float, float] = (NAN, NAN)
    ties: bool = False
    slack: float = 0.0  # how far the first may stay below

    def tried(self, result: Result) -> dict[str, Any]:
        """The claim with both numbers and whether it holds.

        Where no repetition has both, nothing is compared, and each number is its own mean.
        """
        a, b = np.broadcast_arrays(self.first[1](result), self.second[1](result))
        shared = ~(np.isnan(a) | np.isnan(b))
        count = int(shared.sum())
        one, two = (_mean(values[shared] if count else values) for values in (a, b))
        larger = one + self.slack >= two if self.ties else one + self.slack > two
        return {
            "finding": self.finding, "row": self.row, "first": self.first[0], "first_value": one,
            "second": self.second[0], "second_value": two, "repetitions": count,
            "paper_first": self.paper[0], "paper_second": self.paper[1],
            "holds": "not run" if not count else "yes" if larger else "no",
        }  # fmt: skip


def _mean(values: Any) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else NAN
