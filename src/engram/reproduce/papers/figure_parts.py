"""What figures of all papers have in common: numbers in tables, looks of methods, grids of
plots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
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

    The first 32 differ in colour or dash, so that lines are told apart without their markers.

    Examples
    --------
    >>> few, all = (
    ...     assign_looks(["EWC", "LwF"], ["LwF"]),
    ...     assign_looks(["EWC", "LwF"], ["EWC", "LwF", "new"]),
    ... )
    >>> few["LwF"] == all["LwF"] != all["new"]
    True
    """
    from engram.report.method_styles import DASHES, PALETTE, assign_styles

    named = list(dict.fromkeys([*known, *map(str, names)]))
    return {
        # colours and dashes of `assign_styles` begin anew together
        name: replace(look, dash=DASHES[(place + place // len(PALETTE)) % len(DASHES)])
        for place, (name, look) in enumerate(assign_styles(named).items())
    }


PLOT_HEIGHT = 220  # pixels of a plot, however many rows a figure has
ROW_GAP = 64  # between rows: tick labels and the title of the next plot
TOP, AXIS, LEGEND_LINE = 90, 60, 22  # above the first row; below the last; of a line of the legend
PAGE_WIDTH = 900  # pixels that a legend may count on
LETTER, ENTRY = 7, 52  # of a legend entry: a letter, and what is drawn before it


class PlotGrid:
    """Plots in rows and columns, found by their names, with one legend in which a name stands once.

    Plots are as high with one row as with several; the legend stands below them.

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
    plot_height
        Pixels of each plot.
    options
        Further arguments of plotly's ``make_subplots``.
    """

    def __init__(
        self,
        rows: Iterable[Any] = ("",),
        columns: Iterable[Any] = ("",),
        *,
        titled: bool = False,
        plot_height: int = PLOT_HEIGHT,
        **options: Any,
    ) -> None:
        from plotly.subplots import make_subplots

        self.rows, self.columns = list(dict.fromkeys(rows)), list(dict.fromkeys(columns))
        self._plots = len(self.rows) * plot_height + (len(self.rows) - 1) * ROW_GAP
        options["vertical_spacing"] = ROW_GAP / self._plots if len(self.rows) > 1 else 0.0
        if titled:
            options["subplot_titles"] = self.rows if self.columns == [""] else self.columns
        self.figure = make_subplots(rows=len(self.rows), cols=len(self.columns), **options)
        self._in_legend: set[str] = set()
        self._lay_out()

    def _lay_out(self) -> None:
        """Give the figure the height of its plots, titles and legend."""
        lines, used = 1, 0
        for name in self._in_legend:
            width = ENTRY + LETTER * len(name)
            lines, used = (
                (lines, used + width) if used + width <= PAGE_WIDTH else (lines + 1, width)
            )
        bottom = AXIS + LEGEND_LINE * lines
        self.figure.update_layout(
            height=TOP + self._plots + bottom, margin={"t": TOP, "b": bottom},
            legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        )  # fmt: skip

    def add(self, trace: Any, name: str = "", *, row: Any = "", column: Any = "") -> None:
        """Add a plotly trace; with a `name` it has an entry in the legend, once for all plots."""
        if name:
            first = name not in self._in_legend
            trace.update(name=name, legendgroup=name, showlegend=first)
            self._in_legend.add(name)
            if first:
                self._lay_out()
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


MOST_COLUMNS = 4  # plots side by side on a page


def wrap_columns(count: int, most: int = MOST_COLUMNS) -> int:
    """Columns of a grid of so many plots, whose rows are about equally long.

    Examples
    --------
    >>> [wrap_columns(count) for count in (3, 4, 5, 6, 8, 11)]
    [3, 4, 3, 3, 4, 4]
    """
    return -(-count // -(-count // most))


def draw_task_level(data: pd.DataFrame, looks: Mapping[str, Style]) -> Any:
    """A block of plots per panel: one for each task and one for the mean, in rows of a few."""
    tasks = int(data["task"].max())
    places = [*range(1, tasks + 1), 0]
    columns = wrap_columns(len(places))
    panels = list(dict.fromkeys(data["panel"]))
    lines = -(-len(places) // columns)
    titles = [
        f"{panel}: {f'task {task}' if task else 'mean'}" if len(panels) > 1
        else f"task {task}" if task else f"mean ({panel})"
        for panel in panels
        for task in [*places, *[-1] * (lines * columns - len(places))]
    ]  # fmt: skip
    grid = PlotGrid(
        product(panels, range(lines)), range(columns), shared_yaxes=True,
        subplot_titles=["" if "task -1" in title else title for title in titles],
        horizontal_spacing=0.03, plot_height=170,
    )  # fmt: skip
    for (panel, method, task), rows in data.groupby(["panel", "method", "task"], sort=False):
        line, column = divmod(places.index(task), columns)
        grid.add_line(rows["stage"], rows["accuracy"], str(method), looks, row=(panel, line),
                      column=column)  # fmt: skip
    figure = grid.figure
    figure.update_annotations(font_size=13)
    figure.update_yaxes(range=[0, 1.02])
    figure.update_yaxes(title="accuracy", col=1)
    # the same axis everywhere: a task learnt late begins far to the right
    ticks = sorted({1, (1 + tasks) // 2, tasks})
    figure.update_xaxes(range=[0.6, tasks + 0.4], tickvals=ticks)
    for column in range(columns):  # below the last plot of a column
        last = lines - (column >= len(places) - columns * (lines - 1))
        row = len(grid.rows) - lines + last
        figure.update_xaxes(title="tasks learnt", row=row, col=column + 1)
    empty = range(len(places), lines * columns)
    for panel, place in product(range(len(panels)), empty):
        where = {"row": panel * lines + place // columns + 1, "col": place % columns + 1}
        figure.update_xaxes(visible=False, **where)
        figure.update_yaxes(visible=False, **where)
    return figure


TABLE_HEIGHT = 800  # pixels of a table, which is scrolled where it is longer


def draw_table(data: pd.DataFrame) -> Any:
    """The table itself; what is missing is blank, and what was not run is one line of a finding."""
    import plotly.graph_objects as go

    shown = fold_table(data).map(_format_entry)
    texts = [[str(name), *shown[name]] for name in shown.columns]
    table = go.Table(
        header={"values": [f"<b>{name}</b>" for name in shown.columns], "align": "left"},
        cells={"values": [words for _, *words in texts], "align": "left"},
        columnwidth=[max(6, *(min(len(word), 28) for word in words)) for words in texts],
    )
    figure = go.Figure(table)
    figure.update_layout(height=TABLE_HEIGHT, margin={"t": TOP, "b": 10, "l": 10, "r": 10})
    return figure


def _format_entry(value: Any) -> str:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.3g}"
    return str(value)


def fold_table(data: pd.DataFrame) -> pd.DataFrame:
    """A table without columns that are empty, and with one line for what was not run of a finding.

    Examples
    --------
    >>> import pandas as pd
    >>> made = {"finding": ["a"] * 3, "row": ["x", "y", "z"], "holds": ["yes", *["not run"] * 2]}
    >>> fold_table(pd.DataFrame({**made, "paper": NAN}))["row"].tolist()
    ['x', '2 comparisons']
    """
    import pandas as pd

    kept = data.dropna(axis="columns", how="all") if len(data) else data
    kept = kept.loc[:, [not (kept[name] == "").all() for name in kept]]
    if not {"finding", "holds"} <= set(kept):
        return kept
    parts = []
    for finding, rows in kept.groupby("finding", sort=False):
        absent = rows["holds"] == "not run"
        parts.append(rows[~absent])
        if absent.sum() == 1:
            parts.append(rows[absent])
        elif absent.any():
            line = {"finding": finding, "row": f"{absent.sum()} comparisons", "holds": "not run"}
            parts.append(pd.DataFrame([line], columns=kept.columns).astype(object))
    found = pd.concat([part.astype(object) for part in parts], ignore_index=True)
    return found.where(found.notna(), "")
