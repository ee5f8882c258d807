"""`reproduce`: train the runs of a table, compare with the paper, write lines and figures."""

from __future__ import annotations

import html
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.errors import EngramError, check_float
from engram.errors import check_int as whole_number
from engram.experiments import Callback, execute
from engram.experiments.pools import find_pool
from engram.experiments.pools.pool import Work
from engram.records import Result, RunDirectory, read
from engram.records.run_arrays import RunKey, list_finished_stages
from engram.renamed import accept_old_arguments
from engram.reproduce.paper_table import (
    CellEntry,
    PaperFigure,
    PaperTable,
    format_settings,
    stand_in_data,
)
from engram.reproduce.planning import ReproductionPlan, choose_process_count, find_unfinished, plan
from engram.reproduce.result_tables import merge_lines, read_lines
from engram.reproduce.table_registry import find_table
from engram.reproduce.verdicts import ReproductionLine, judge_cell

if TYPE_CHECKING:
    import pandas as pd

REPRODUCTION_FILE = "reproduction.csv"


@dataclass(frozen=True)
class Reproduction:
    """Result of a reproduction: one line per cell, figures, and what is unfinished.

    `open_runs` counts runs stopped by the budget; the same call continues them.
    """

    plan: ReproductionPlan
    out: Path
    lines: tuple[ReproductionLine, ...]
    figures: tuple[Path, ...]
    open_runs: int

    def frame(self) -> pd.DataFrame:
        """Return one row per cell, with the columns of a report's reproduction table."""
        from engram.reproduce.result_tables import to_frame

        return to_frame(self.lines)

    def counts(self) -> dict[str, int]:
        """Count the cells by verdict."""
        verdicts = [line.verdict for line in self.lines]
        return {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}


def default_out(table: PaperTable, *, embedded: bool = False, on: str | None = None) -> Path:
    """Return ``runs/reproduce/<paper>-<table>``, or the directory shared with other tables."""
    name = table.folder or table.name.replace("/", "-")
    return Path("runs") / "reproduce" / (name + directory_suffix(embedded, on))


def directory_suffix(embedded: bool, on: str | None) -> str:
    """Return the suffix of run directories with other data than the paper's.

    Examples
    --------
    >>> (
    ...     directory_suffix(False, "glyphs"),
    ...     directory_suffix(True, None),
    ...     directory_suffix(False, None),
    ... )
    ('-on-glyphs', '-embedded', '')
    """
    return ("-embedded" if embedded else "") + (f"-on-{Path(on).stem}" if on else "")


@accept_old_arguments(again="rerun")
def reproduce(
    table: PaperTable | str,
    *,
    data: str | os.PathLike[str] | None = None,
    cells: str = "",
    budget: float | None = None,
    out: str | os.PathLike[str] | None = None,
    device: Any = "auto",
    embedded: bool = False,
    on: str | None = None,
    callback: Callback | None = None,
    group_size: int = 0,
    compile: bool = False,
    planned: ReproductionPlan | None = None,
    rerun: bool = False,
    workers: int = 0,
) -> Reproduction:
    """Train the missing runs of a table, and compare our numbers with the paper's.

    Parameters
    ----------
    table
        A name such as ``rwalk/1``, or a `PaperTable`.
    budget
        Seconds after which training stops, even within a task; the next call continues.
    out
        Run directory, see `default_out`.
    embedded
        The same table on embedded data: quick, offline, not comparable with the paper.
    on
        The table's protocol on another data set of the same kind, by name or path.
    group_size
        Largest number of runs in lockstep; 0 leaves it to the engine.
    compile
        Fuse the operations of a training step, see `engram.run`.
    planned
        The plan, if the caller has made it already.
    rerun
        Rerun finished runs, see `engram.run`.
    workers
        Number of processes. 0: one per core if runs do not train in lockstep, on the CPU, and there
        is enough to do; otherwise only this one, as with 1.

    Examples
    --------
    >>> import tempfile
    >>> made = reproduce("rwalk/4", out=tempfile.mkdtemp())
    >>> made.counts()
    {'agrees': 16}
    """
    if budget is not None:
        check_float("budget", budget)
    whole_number("workers", workers)
    deadline = None if budget is None else time.monotonic() + budget
    place = None if data is None else str(data)
    whole = (
        find_table(table, embedded=embedded, on=on, root=place) if isinstance(table, str) else table
    )
    folder = Path(out) if out is not None else default_out(whole, embedded=embedded, on=on)
    made = planned or plan(whole, data, cells=cells, out=folder, device=device, measure=False)
    read_lines(folder / REPRODUCTION_FILE)  # raises now if the file cannot take our lines
    if made.runs and (deadline is None or time.monotonic() < deadline):
        train_missing(
            made, folder, device=device, callback=callback, deadline=deadline,
            group_size=group_size, compile=compile, rerun=rerun, workers=workers,
        )  # fmt: skip
    known = bool(made.runs) and bool(RunDirectory(folder).result_files())
    result = read(folder) if known else None
    ended = {} if result is None else list_finished_stages(result.ends().frame())
    result = None if result is None else select_by_recipe(result, made.ids, made.orders)
    lines = make_lines(made, result)
    if lines:  # before the figures, which fail without plotly
        merge_lines(folder / REPRODUCTION_FILE, lines)
    changed = format_settings(made.table.settings)
    figures = [p for figure in made.figures for p in _draw_figure(figure, result, folder, changed)]
    left = sum(len(ended.get(r.key, ())) < r.stages for r in made.runs)
    return Reproduction(made, folder, lines, tuple(figures), left)


def make_lines(made: ReproductionPlan, result: Result | None) -> tuple[ReproductionLine, ...]:
    """Make one line per cell of a plan; `result` has recipes by key, see `select_by_recipe`."""
    ends = None if result is None else result.ends()  # cells need no curves
    return tuple(
        replace(
            _make_line(cell, entry, ends),
            settings=made.table.settings_of(cell),
            data=stand_in_data(entry),
        )
        for cell, entry in zip(made.cells, made.entries, strict=True)
    )


def select_by_recipe(
    result: Result, ids: Mapping[str, str], orders: Mapping[tuple[str, str], str] | None = None
) -> Result:
    """Select the runs with these ids, renamed to the keys of their recipes for measures.

    Other runs of a directory, such as the same recipe on other data, are dropped. `orders` maps
    orders that recipes write differently, with names of classes: key and recorded
    order to the recipe's.
    """
    import pandas as pd

    frame = result.frame()
    codes = frame["recipe"].astype(str)
    parts: list[pd.DataFrame] = []
    known: dict[tuple[str, int, str], tuple[str, int, str]] = {}
    for key, found in ids.items():
        part = frame[(codes == found).to_numpy()].assign(recipe=key)
        spelt = {recorded: own for (of, recorded), own in (orders or {}).items() if of == key}
        known |= {
            RunKey(key, run.seed, spelt.get(run.order, run.order)): run
            for run in result.runs if run.recipe == found
        }  # fmt: skip
        if spelt:
            part["order"] = (
                part["order"].astype(str).map(lambda one, spelt=spelt: spelt.get(one, one))
            )
        parts.append(part)
    recipes = {key: result.recipes[found] for key, found in ids.items() if found in result.recipes}
    whole = pd.concat(parts) if parts else frame.iloc[:0]
    tested = {(new[0], new[2]): (old[0], old[2]) for new, old in known.items()}
    return Result(
        whole, recipes=recipes, problems=result.problems, ledger=result.ledger,
        environment=result.environment, predictions=result.predictions.renamed(known),
        arrays=result.stored.renamed(known),
        items=lambda recipe, order: result.items(*tested.get((recipe, order), (recipe, order))),
        models=lambda run: result.kept_model(RunKey(*known.get(run, run))),
    )  # fmt: skip


def _make_line(cell: Any, entry: CellEntry, result: Result | None) -> ReproductionLine:
    if entry.missing or entry.measure is None:
        return judge_cell(cell, entry, np.empty(0))
    if entry.recipes and result is None:
        values = np.full(len(entry.recipes[0].seeds), np.nan)
    else:
        values = entry.measure(result)  # type: ignore[arg-type]
    return judge_cell(cell, entry, np.asarray(values, np.float64))


def _draw_figure(
    figure: PaperFigure, result: Result | None, folder: Path, settings: str
) -> Sequence[Path]:
    from engram.io import write_text
    from engram.report.method_styles import as_plot_text

    if result is None and figure.recipes:
        return []
    data = figure.data(result)  # type: ignore[arg-type]  # without recipes it reads nothing
    if not len(data):
        return []
    target = folder / "figures"
    target.mkdir(parents=True, exist_ok=True)
    noted = data.assign(settings=settings) if settings else data
    numbers = write_text(target / f"{figure.name}.csv", noted.to_csv(index=False))
    try:
        drawn = figure.draw(data)
    except ModuleNotFoundError as error:
        raise EngramError(f"{error}; the numbers of the figure are in {numbers}") from error
    title = f"{figure.title} ({settings})" if settings else figure.title
    drawn.update_layout(title={"text": as_plot_text(title), "x": 0.02})
    write_script(target)
    return [numbers, write_text(target / f"{figure.name}.html", render_figure_page(drawn, title))]


# Training.


def train_missing(
    made: ReproductionPlan, folder: Path, *, device: Any, callback: Callback | None,
    deadline: float | None, group_size: int, compile: bool, rerun: bool, workers: int,
) -> None:  # fmt: skip
    """Train the missing runs, in this process or several."""
    left = () if workers else made.runs if rerun else find_unfinished(made.runs, folder)
    count = choose_process_count(
        left, device=device, workers=workers, compile=compile, group_size=group_size
    )
    if count == 1:
        execute(
            made.runs, out=folder, device=device, callback=callback, deadline=deadline,
            group_size=group_size, compile=compile, rerun=rerun,
        )  # fmt: skip
        return
    recipes, plans = zip(*made.by_recipe, strict=True)
    work = Work(
        recipes=recipes, planned=plans, out=folder, device=device, data=made.root, workers=count,
        callback=callback, deadline=deadline, compile=compile, rerun=rerun,
    )  # fmt: skip
    find_pool("processes")(work)


# Figures as pages.


PANEL_WIDTH = 20  # width of a column of panels in em, below which a page is scrolled
MOST_WIDTH = 60  # width of a page in em that is never scrolled


def render_figure_page(drawn: Any, title: str) -> str:
    """Render a figure as HTML that fills its window.

    The drawing library is a separate file (`write_script`). Several panels side by side stay
    legible: a window too narrow for them is scrolled.
    """
    made: str = drawn.to_html(
        include_plotlyjs="directory", full_html=True, config={"responsive": True}
    )
    width = min(PANEL_WIDTH * count_columns(drawn), MOST_WIDTH)
    head = (
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n"
        f"<style>body {{ min-width: {width}em; }}</style>\n"
    )
    return made.replace("<head>", f"<head>{head}", 1)


def count_columns(drawn: Any) -> int:
    """Count the panels that are side by side.

    Examples
    --------
    >>> from plotly.subplots import make_subplots
    >>> count_columns(make_subplots(rows=2, cols=3))
    3
    """
    starts = {round((axis.domain or (0.0,))[0], 3) for axis in drawn.select_xaxes()}
    return max(len(starts), 1)


def write_script(folder: Path) -> None:
    """Write the drawing library, which pages share, since each copy would take 4.8 MB."""
    from engram.io import write_text

    script = folder / "plotly.min.js"  # the name that pages refer to
    if not script.exists():
        import plotly.offline

        write_text(script, plotly.offline.get_plotlyjs())
