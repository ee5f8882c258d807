"""Plans: which cells can be made here, by which runs, at what cost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engram.data.catalogue import find, missing_rows, search_root
from engram.data.core import Data
from engram.data.known import KNOWN
from engram.errors import BadArgument
from engram.models import build as build_model
from engram.recipes import Plan, Recipe
from engram.recipes.plain import to_plain
from engram.recipes.plan import Planner
from engram.records import RunDirectory
from engram.reproduce.cells import Cell, choose_cells
from engram.reproduce.cost import CostEstimate, Tell, estimate
from engram.reproduce.measures import constant
from engram.reproduce.table import SUBSET, Entry, PaperFigure, PaperTable, run_key, words
from engram.streams.core import Stream


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
    ids: Mapping[str, str] = field(default_factory=dict)
    orders: Mapping[tuple[str, str], str] = field(default_factory=dict)
    by_recipe: tuple[tuple[Recipe, tuple[Plan, ...]], ...] = ()
    root: str | None = None

    @property
    def runnable(self) -> tuple[Cell, ...]:
        """Cells that can be made here."""
        return tuple(c for c, e in zip(self.cells, self.entries, strict=True) if not e.missing)

    @property
    def seconds(self) -> float:
        """The estimate for all runs that are not finished; 0 where none was asked for."""
        return sum(cost.seconds for cost in self.costs)


class _Shelf:
    """Data and streams, each loaded once; what cannot be loaded is remembered with the reason.

    `settings` are the user's changes of the preset. With some, only data that is not here is a
    reason not to run: everything else is a mistake in them, and raised before anything trains.
    """

    def __init__(self, root: str | None, settings: Mapping[str, str]) -> None:
        self.root = root
        self.settings = settings
        self.data: dict[str, Data | str] = {}
        self.streams: dict[str, Stream] = {}
        # By identity: cells share recipe objects, and a study of orders has thousands of runs.
        self._sources: dict[int, tuple[Recipe, str]] = {}
        self._runs: dict[int, list[Plan]] = {}
        self._models: set[str] = set()  # those that were tried
        self._planner = Planner(root)

    def refused(self, error: BadArgument) -> str:
        """The reason not to run a cell, unless settings are to blame."""
        if self.settings:
            raise BadArgument(f"{error} (with {words(self.settings)})") from error
        return str(error)

    def find(self, recipe: Recipe) -> Data | str:
        source = self._source(recipe)
        if source not in self.data:
            try:
                self.data[source] = recipe.data(self.root)
            except BadArgument as error:
                absent = not self._mistaken(recipe)
                self.data[source] = str(error) if absent else self.refused(error)
        return self.data[source]

    def _mistaken(self, recipe: Recipe) -> bool:
        """Whether a name or option is wrong, rather than files being absent or damaged."""
        name = str(recipe.stream["data"])
        known = KNOWN.get(name)
        if known is None:
            return os.sep not in name
        root = search_root(self.root)
        here = known.make is not None or (root is not None and find(name, root) is not None)
        return here and bool(recipe.stream.get("data_options"))

    def _source(self, recipe: Recipe) -> str:
        if id(recipe) not in self._sources:
            source = repr((recipe.stream["data"], recipe.stream.get("data_options")))
            self._sources[id(recipe)] = recipe, source  # kept alive: its id is a key
        return self._sources[id(recipe)][1]

    def stream(self, recipe: Recipe) -> Stream:
        where = repr(to_plain(recipe.stream))
        if where not in self.streams:
            data = self.find(recipe)
            if isinstance(data, str):
                raise BadArgument(data)
            self.streams[where] = recipe.build_stream(data)
        return self.streams[where]

    def runs(self, recipe: Recipe) -> list[Plan]:
        self._source(recipe)
        if id(recipe) not in self._runs:
            stream = self.stream(recipe)
            self._try_model(recipe, stream)
            self._runs[id(recipe)] = self._planner.plans(recipe, stream)
        return self._runs[id(recipe)]

    def _try_model(self, recipe: Recipe, stream: Stream) -> None:
        """Build the model once where settings may have spoilt it; training would be too late."""
        shape = stream.data.sample_shape
        key = repr((recipe.model, shape))
        if self.settings and key not in self._models:
            build_model(recipe.model, sample_shape=shape, classes=len(stream.order), seed=0)
            self._models.add(key)

    def why_not(self, recipes: Iterable[Recipe]) -> str:
        """Why some recipe cannot be run here, "" if all can."""
        for recipe in recipes:
            data = self.find(recipe)
            if isinstance(data, str):
                return data
            try:
                self.runs(recipe)
            except BadArgument as error:
                return self.refused(error)
        return ""

    def reasons(self, recipes: Iterable[Recipe]) -> list[str]:
        found = (self.find(recipe) for recipe in recipes)
        return [SUBSET] if any(missing_rows(d) for d in found if isinstance(d, Data)) else []

    @property
    def notes(self) -> tuple[str, ...]:
        loaded = [data for data in self.data.values() if isinstance(data, Data)]
        return tuple(dict.fromkeys(f"{d.name}: {note}" for d in loaded for note in d.notes))


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
) -> ReproductionPlan:
    """Find out what can be run, what is finished already, and how long the rest will take.

    Parameters
    ----------
    data_root
        Folder in which data sets are found by name; the environment variable ENGRAM_DATA by
        default.
    cells
        Which cells, such as ``dataset=MNIST,method=Vanilla|PI``; "" means all, with the figures
        that are drawn along with them.
    out
        Run directory; runs that are finished there cost nothing.
    measure
        Time a few steps of every group of runs on the device.
    tell
        Called with label, place and number of groups before each is timed.
    """
    if cells and not table.cells:
        raise BadArgument(f"cells: {table.name} is a figure; it is drawn as a whole")
    chosen = choose_cells(table.cells, cells) if cells else table.cells
    if data_root is not None:
        search_root(str(data_root))  # a folder that is not there is no reason, but a mistake
    shelf = _Shelf(None if data_root is None else str(data_root), table.settings)
    _try_recipes(table, shelf)
    entries = tuple(_entry(table, cell, shelf) for cell in chosen)
    figures, absent = _figures(table.figures if not cells else (), shelf)
    recipes = _recipes(entries, figures, table.rank)
    runs, ids, orders = _runs(recipes, shelf)
    made = ReproductionPlan(
        table=table, cells=chosen, entries=entries, figures=figures, missing_figures=absent,
        runs=tuple(runs), notes=(*table.notes, *shelf.notes),
        done=len(runs) - len(pending(runs, out)), ids=ids, orders=orders, root=shelf.root,
        by_recipe=tuple((recipe, tuple(shelf.runs(recipe))) for recipe in recipes),
    )  # fmt: skip
    if not measure:
        return made
    return with_costs(made, out=out, device=device, group_size=group_size, tell=tell)


def with_costs(
    made: ReproductionPlan, *, out: str | os.PathLike[str] | None = None, device: Any = "auto",
    group_size: int = 0, tell: Tell | None = None,
) -> ReproductionPlan:  # fmt: skip
    """The plan with the cost of what is not finished; arguments as in `plan`."""
    left = pending(made.runs, out)
    costs = estimate(left, device=device, group_size=group_size, tell=tell)
    return replace(made, costs=tuple(costs))


def _try_recipes(table: PaperTable, shelf: _Shelf) -> None:
    """Complain about settings that no recipe takes, in cells that were not asked for as well."""
    if not shelf.settings:
        return
    for cell in table.cells:
        try:
            table.entry(cell)
        except BadArgument as error:
            shelf.refused(error)


def _entry(table: PaperTable, cell: Cell, shelf: _Shelf) -> Entry:
    try:
        entry = table.entry(cell)
    except BadArgument as error:  # a method or model that this version does not have
        return Entry(missing=shelf.refused(error))
    if entry.missing:
        return entry
    if entry.counted is not None:
        return _counted(entry, shelf)
    why = shelf.why_not(entry.recipes)
    if why:
        return replace(entry, recipes=(), missing=why)
    extra = [r for r in shelf.reasons(entry.recipes) if r not in entry.reasons]
    return replace(entry, reasons=(*entry.reasons, *extra))


def _counted(entry: Entry, shelf: _Shelf) -> Entry:
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
    figures: Sequence[PaperFigure], shelf: _Shelf
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
    ordered: Sequence[Recipe], shelf: _Shelf
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
