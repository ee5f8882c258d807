"""What figures of all papers have in common: numbers in tables, looks of methods, grids of
plots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from engram.reproduce import measures
from engram.reproduce.paper_table import PaperFigure

if TYPE_CHECKING:
    import pandas as pd

    from engram.experiments import Recipe
    from engram.records import Result
    from engram.report.method_styles import Style
    from engram.reproduce.paper_table import Floats

NAN = float("nan")
LEVEL_COLUMNS = ("panel", "method", "task", "stage", "accuracy", "std")  # of `draw_task_level`
Records = list[dict[str, Any]]
KeyT = TypeVar("KeyT")


def make_figure(
    name: str,
    title: str,
    rows: Mapping[KeyT, Sequence[Recipe]],
    *,
    names: Callable[[KeyT], Mapping[str, str]],
    records: Callable[[Result, KeyT, Sequence[Recipe]], Records],
    columns: Sequence[str],
    draw: Callable[[pd.DataFrame], Any],
) -> PaperFigure:
    """A figure of some rows: what one row adds to the table of numbers, and how that is drawn.

    Parameters
    ----------
    rows
        A key of each row to its recipes, which several rows may share.
    names
        From a key to the names by which the row is chosen.
    records
        From all runs, a key and its recipes to lines of the table.
    columns
        Those of the table, there even if nothing else is.
    """

    def data(result: Result) -> pd.DataFrame:
        found = (records(result, key, recipes) for key, recipes in rows.items())
        return make_frame([one for several in found for one in several], columns)

    return PaperFigure(
        name=name, title=title, data=data, draw=draw,
        recipes=tuple(one for recipes in rows.values() for one in recipes),
        rows=tuple(names(key) for key, recipes in rows.items() for _ in recipes),
    )  # fmt: skip


def make_frame(records: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Records as a table whose columns are there even if nothing is.

    Examples
    --------
    >>> make_frame([], ["method", "accuracy"]).columns.tolist()
    ['method', 'accuracy']
    """
    import pandas as pd

    return pd.DataFrame([dict(one) for one in records], columns=list(columns))


def mean_records(
    names: Mapping[str, Any], values: Floats, *, value: str = "value", ddof: int = 1,
    count: str = "repetitions",
) -> Records:  # fmt: skip
    """A line with mean, deviation and number of the repetitions that are there; none without any.

    The deviation of a single one is NaN.

    Examples
    --------
    >>> mean_records({"method": "EWC"}, np.array([0.5, np.nan]), value="accuracy")
    [{'method': 'EWC', 'accuracy': 0.5, 'std': nan, 'repetitions': 1}]
    """
    known = values[~np.isnan(values)]
    if not len(known):
        return []
    std = float(known.std(ddof=ddof)) if len(known) > 1 else NAN
    return [{**names, value: float(known.mean()), "std": std, count: len(known)}]


def accuracy_curves(
    result: Result, recipes: Sequence[Recipe], head: str, names: Mapping[str, str]
) -> Records:
    """Accuracy of each task, and their mean (task 0), after each stage; counted from 1."""
    runs = measures.select_runs(result, recipes, head)
    if runs is None:
        return []
    matrix = runs.matrix  # [run, stage, task]
    found: Records = []
    for stage in range(matrix.shape[1]):
        row = matrix[:, stage, : stage + 1]
        row = row[~np.isnan(row).any(axis=1)]
        for task in range(-1, stage + 1):
            values = row.mean(axis=1) if task < 0 else row[:, task]
            where = {**names, "task": task + 1, "stage": stage + 1}
            found += mean_records(where, values, value="accuracy")
    return found


# -- drawings --------------------------------------------------------------------------------------
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


class PlotGrid:
    """Plots in rows and columns, found by their names, with one legend in which a name stands once.

    Examples
    --------
    >>> grid = PlotGrid(columns=["MNIST", "CIFAR-100"], titled=True)
    >>> for where in ("MNIST", "CIFAR-100"):
    ...     grid.add_line([1, 2], [0.9, 0.8], "EWC", assign_looks(["EWC"]), column=where)
    >>> [trace.showlegend for trace in grid.figure.data]
    [True, False]

    Parameters
    ----------
    rows, columns
        Names of the rows and columns, "" for the only one.
    titled
        Plots have the names of their columns as titles, or of their rows where only those have one.
    options
        Further arguments of plotly's ``make_subplots``.
    """

    def __init__(
        self,
        rows: Iterable[Any] = ("",),
        columns: Iterable[Any] = ("",),
        *,
        titled: bool = False,
        **options: Any,
    ) -> None:
        from plotly.subplots import make_subplots

        self.rows, self.columns = list(dict.fromkeys(rows)), list(dict.fromkeys(columns))
        if titled:
            options["subplot_titles"] = self.rows if self.columns == [""] else self.columns
        self.figure = make_subplots(rows=len(self.rows), cols=len(self.columns), **options)
        self._in_legend: set[str] = set()

    def add(self, trace: Any, name: str = "", *, row: Any = "", column: Any = "") -> None:
        """Add a plotly trace; with a `name` it has an entry in the legend, once for all plots."""
        if name:
            first = name not in self._in_legend
            trace.update(name=name, legendgroup=name, showlegend=first)
            self._in_legend.add(name)
        where = {"row": self.rows.index(row) + 1, "col": self.columns.index(column) + 1}
        self.figure.add_trace(trace, **where)

    def add_line(
        self, x: Iterable[Any], y: Iterable[Any], name: str, looks: Mapping[str, Style], *,
        row: Any = "", column: Any = "", **changes: Any,
    ) -> None:  # fmt: skip
        """Add a line with markers in the look of its name; `changes` are fields of the trace."""
        import plotly.graph_objects as go

        look = looks[name]
        trace = go.Scatter(
            x=list(x), y=list(y), mode="lines+markers",
            line={"color": look.color, "dash": look.dash},
            marker={"symbol": look.symbol, "color": look.color},
        )  # fmt: skip
        self.add(trace.update(**changes), name, row=row, column=column)


def draw_task_level(data: pd.DataFrame, looks: Mapping[str, Style]) -> Any:
    """One row of plots per panel, one column per task and one for the mean."""
    tasks = int(data["task"].max())
    columns = [*range(1, tasks + 1), 0]
    grid = PlotGrid(
        data["panel"], columns, shared_yaxes=True, shared_xaxes=True,
        column_titles=[f"task {t}" if t else "mean" for t in columns],
        row_titles=list(dict.fromkeys(data["panel"])), horizontal_spacing=0.01,
        vertical_spacing=0.03,
    )  # fmt: skip
    for (panel, method, task), rows in data.groupby(["panel", "method", "task"], sort=False):
        grid.add_line(rows["stage"], rows["accuracy"], str(method), looks, row=panel, column=task)
    figure = grid.figure
    figure.update_yaxes(range=[0, 1.02])
    figure.update_yaxes(title="accuracy", col=1)
    # the same axis everywhere: a task learnt late begins far to the right
    ticks = sorted({1, (1 + tasks) // 2, tasks})
    figure.update_xaxes(range=[0.6, tasks + 0.4], tickvals=ticks)
    figure.update_xaxes(title="tasks learnt", row=len(grid.rows))
    figure.update_layout(height=240 * len(grid.rows), legend={"orientation": "h", "y": -0.14})
    return figure


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
