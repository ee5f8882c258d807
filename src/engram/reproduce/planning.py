"""Plans: which cells can be made here, by which runs, at what cost."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engram.data.catalogue import search_root
from engram.errors import BadArgument
from engram.recipes import Plan, Recipe
from engram.records import RunDirectory
from engram.reproduce.cells import Cell, choose_cells
from engram.reproduce.cost import CostEstimate, Tell, estimate
from engram.reproduce.measures import constant
from engram.reproduce.shelf import Shelf
from engram.reproduce.spread import processes_for, seconds_of
from engram.reproduce.table import Entry, PaperFigure, PaperTable, run_key
from engram.spelling import plural


@dataclass(frozen=True)
class ReproductionPlan:
    """What a reproduction will do.

    `entries` has one entry per cell, with the reasons that the data at hand add; entries and
    figures whose data is not here say so in `missing`. `done` counts runs finished before. `ids`
    are those under which the runs are recorded, by the keys of the recipes; `orders` by key and
    recorded order those that recipes spell otherwise. `by_recipe` has the runs of each recipe,
    `root` is where data sets are found.
    """

    table: PaperTable
    cells: tuple[Cell, ...]
    entries: tuple[Entry, ...]
    figures: tuple[PaperFigure, ...]
    missing_figures: Mapping[str, str]
    runs: tuple[Plan, ...]
    notes: tuple[str, ...] = ()
    done: int = 0
    costs: tuple[CostEstimate, ...] = field(default=())
    processes: int = 1  # that costs are shared by
    seconds: float = 0.0  # the estimate for all runs that are not finished, where it was asked for
    ids: Mapping[str, str] = field(default_factory=dict)
    orders: Mapping[tuple[str, str], str] = field(default_factory=dict)
    by_recipe: tuple[tuple[Recipe, tuple[Plan, ...]], ...] = ()
    root: str | None = None

    @property
    def runnable(self) -> tuple[Cell, ...]:
        """Cells that can be made here."""
        return tuple(c for c, e in zip(self.cells, self.entries, strict=True) if not e.missing)


def plan(
    table: PaperTable,
    data_root: str | os.PathLike[str] | None = None,
    *,
    cells: str = "",
    out: str | os.PathLike[str] | None = None,
    device: Any = "auto",
    measure: bool = True,
    group_size: int = 0,
    tell: Tell | None = None,
    limit: float | None = None,
) -> ReproductionPlan:
    """Find out what can be run, what is finished already, and how long the rest will take.

    Parameters
    ----------
    data_root
        Folder in which data sets are found by name; the environment variable ENGRAM_DATA by
        default.
    cells
        Which cells, such as ``dataset=MNIST,method=Vanilla|PI``; "" means all, with the figures
        that are drawn along with them. Of a figure: which rows are run; what is recorded of the
        others is drawn, too.
    out
        Run directory; runs that are finished there cost nothing.
    measure
        Time a few steps of every group of runs on the device.
    tell
        Called with label, place and number of groups before each is timed.
    limit
        About how many seconds timing may take, see `engram.reproduce.cost.estimate`.
    """
    chosen = choose_cells(table.cells, cells) if cells and table.cells else table.cells
    drawn = table.figures if not cells else () if table.cells else choose_rows(table, cells)
    if data_root is not None:
        search_root(str(data_root))  # a folder that is not there is no reason, but a mistake
    shelf = Shelf(None if data_root is None else str(data_root), table.settings)
    _try_recipes(table, shelf)
    entries = tuple(_entry(table, cell, shelf) for cell in chosen)
    figures, absent = _figures(drawn, shelf)
    recipes = _recipes(entries, figures, table.rank)
    runs, ids, orders = _runs(recipes, shelf)
    if figures and cells:  # what is recorded of its other rows is drawn with those that are run
        names = {figure.name for figure in figures}
        others = [r for one in table.figures if one.name in names for r in one.recipes]
        _, ids, orders = _runs([r for r in others if not shelf.why_not([r])], shelf)
    made = ReproductionPlan(
        table=table, cells=chosen, entries=entries, figures=figures, missing_figures=absent,
        runs=tuple(runs), notes=(*table.notes, *shelf.notes),
        done=len(runs) - len(pending(runs, out)), ids=ids, orders=orders, root=shelf.root,
        by_recipe=tuple((recipe, tuple(shelf.runs(recipe))) for recipe in recipes),
    )  # fmt: skip
    if not measure:
        return made
    return with_costs(made, out=out, device=device, group_size=group_size, tell=tell, limit=limit)


def with_costs(
    made: ReproductionPlan, *, out: str | os.PathLike[str] | None = None, device: Any = "auto",
    group_size: int = 0, tell: Tell | None = None, limit: float | None = None, workers: int = 0,
    compile: bool = False,
) -> ReproductionPlan:  # fmt: skip
    """The plan with the cost of what is not finished; arguments as in `plan` and `reproduce`."""
    left = pending(made.runs, out)
    costs = estimate(left, device=device, group_size=group_size, tell=tell, limit=limit)
    count = processes_for(
        left, device=device, workers=workers, compile=compile, group_size=group_size
    )
    seconds = seconds_of(costs, count, device)
    return replace(made, costs=tuple(costs), processes=count, seconds=seconds)


def choose_rows(table: PaperTable, expression: str) -> tuple[PaperFigure, ...]:
    """The figures of a table with the recipes of some of their rows, named as cells are.

    Examples
    --------
    >>> from engram.reproduce import find_table
    >>> (figure,) = choose_rows(find_table("rwalk/fig4"), "dataset=MNIST,method=EWC-S,samples=10")
    >>> [recipe.label for recipe in figure.recipes]
    ['EWC-S strength=75000 per_class=10 random (MNIST, single-head)']
    """
    paper, _, number = table.name.partition("/")
    rows = [
        (figure, recipe, Cell(paper, number, row, math.nan))
        for figure in table.figures
        for recipe, row in zip(figure.recipes, figure.rows, strict=bool(figure.rows))
    ]
    named = [cell for _, _, cell in rows if cell.key]
    if not named:
        raise BadArgument(f"cells: {table.name} is drawn as a whole, it has no rows to choose from")
    chosen = {id(cell) for cell in choose_cells(named, expression)}
    found = []
    for figure in table.figures:
        own = [(recipe, cell) for owner, recipe, cell in rows if owner is figure]
        if any(id(cell) in chosen for _, cell in own):  # with what all of its rows need
            kept = [recipe for recipe, cell in own if not cell.key or id(cell) in chosen]
            found.append(replace(figure, recipes=tuple(kept), rows=()))
    return tuple(found)


def _try_recipes(table: PaperTable, shelf: Shelf) -> None:
    """Complain about settings that no recipe takes, in cells that were not asked for as well."""
    if not shelf.settings:
        return
    for cell in table.cells:
        try:
            table.entry(cell)
        except BadArgument as error:
            shelf.refused(error)


def _entry(table: PaperTable, cell: Cell, shelf: Shelf) -> Entry:
    try:
        entry = table.entry(cell)
    except BadArgument as error:  # a method or model that this version does not have
        return Entry(missing=shelf.refused(error))
    if entry.missing:
        return entry
    if entry.counted is not None:
        return _counted(entry, shelf)
    why = shelf.why_not(entry.recipes) or _too_short(entry, shelf)
    if why:
        return replace(entry, recipes=(), missing=why)
    extra = [r for r in shelf.reasons(entry.recipes) if r not in entry.reasons]
    return replace(entry, reasons=(*entry.reasons, *extra))


def _too_short(entry: Entry, shelf: Shelf) -> str:
    """Why a number is never reached where the stream ends before, "" where it is."""
    for recipe in entry.recipes:
        count = len(shelf.stream(recipe))
        if count < entry.tasks:
            return f"the stream of {recipe.stream['data']} has {plural(count, 'task')}"
    return ""


def _counted(entry: Entry, shelf: Shelf) -> Entry:
    """The entry with the number that is read off the data."""
    if entry.counted is None:
        return entry
    recipe, count = entry.counted
    try:
        stream = shelf.stream(recipe)
    except BadArgument as error:
        missing = isinstance(shelf.find(recipe), str)
        return replace(entry, missing=str(error) if missing else shelf.refused(error))
    return replace(entry, measure=constant(float(count(stream))))


def _figures(
    figures: Sequence[PaperFigure], shelf: Shelf
) -> tuple[tuple[PaperFigure, ...], dict[str, str]]:
    absent = {one.name: shelf.why_not(one.recipes) for one in figures}
    found = tuple(figure for figure in figures if not absent[figure.name])
    return found, {name: why for name, why in absent.items() if why}


def _recipes(
    entries: Sequence[Entry], figures: Sequence[PaperFigure], rank: Callable[[Recipe], int]
) -> list[Recipe]:
    """All recipes once, one data set after the other, by rank, then as the cells."""
    every = [r for entry in entries for r in entry.recipes]
    every += [r for figure in figures for r in figure.recipes]
    distinct = {run_key(recipe): recipe for recipe in every}
    places: dict[str, int] = {}
    for recipe in distinct.values():
        places.setdefault(str(recipe.stream["data"]), len(places))
    return sorted(distinct.values(), key=lambda r: (places[str(r.stream["data"])], rank(r)))


def _runs(
    ordered: Sequence[Recipe], shelf: Shelf
) -> tuple[list[Plan], dict[str, str], dict[tuple[str, str], str]]:
    """All runs once, in the order of their recipes; ids and orders."""
    runs = {run.key: run for recipe in ordered for run in shelf.runs(recipe)}
    ids = {recipe.key: run.recipe for recipe in ordered for run in shelf.runs(recipe)}
    orders = {(recipe.key, run.order): recipe.order for recipe in ordered
              for run in shelf.runs(recipe) if run.order != recipe.order}  # fmt: skip
    return list(runs.values()), ids, orders


def pending(runs: Sequence[Plan], out: str | os.PathLike[str] | None) -> list[Plan]:
    """Runs that are not finished in a run directory."""
    if out is None or not Path(out).is_dir():
        return list(runs)
    folder = RunDirectory(out, create=False)
    return [run for run in runs if not folder.ended(*run.key, stages=len(run.run.stream))]
