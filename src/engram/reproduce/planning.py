"""Which cells of a table can be made here, by which runs, on how many processes and at what
cost.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engram.data.catalogue import find_set, missing_rows, search_root
from engram.data.dataset import Data
from engram.data.named_sets import NAMED_SETS
from engram.engine.backend import resolve_device
from engram.engine.engine import Engine
from engram.errors import BadArgument, plural
from engram.experiments import Plan, Recipe
from engram.experiments.plain_values import to_plain
from engram.experiments.plan import Planner
from engram.models import build as build_model
from engram.records import RunDirectory
from engram.reproduce.cells import Cell, choose_cells
from engram.reproduce.cost_estimate import CostEstimate, TimingCallback, count_steps, estimate_costs
from engram.reproduce.measures import constant
from engram.reproduce.paper_table import (
    DATA_SUBSET,
    CellEntry,
    PaperFigure,
    PaperTable,
    format_settings,
    run_key,
    stand_in_data,
)
from engram.reproduce.result_tables import format_printed
from engram.reproduce.verdicts import known_reasons
from engram.streams.stream import Stream


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
    entries: tuple[CellEntry, ...]
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
    tell: TimingCallback | None = None,
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
        About how many seconds timing may take, see `engram.reproduce.cost_estimate.estimate_costs`.
    """
    chosen = choose_cells(table.cells, cells) if cells and table.cells else table.cells
    drawn = table.figures if not cells else () if table.cells else choose_rows(table, cells)
    if data_root is not None:
        search_root(str(data_root))  # a folder that is not there is no reason, but a mistake
    data_cache = DataCache(None if data_root is None else str(data_root), table.settings)
    _check_settings(table, data_cache)
    entries = tuple(_check_entry(table, cell, data_cache) for cell in chosen)
    figures, absent = _check_figures(drawn, data_cache)
    recipes = _order_recipes(entries, figures, table.rank)
    runs, ids, orders = _make_runs(recipes, data_cache)
    if figures and cells:  # what is recorded of its other rows is drawn with those that are run
        names = {figure.name for figure in figures}
        others = [r for one in table.figures if one.name in names for r in one.recipes]
        _, ids, orders = _make_runs(
            [r for r in others if not data_cache.explain_missing([r])], data_cache
        )
    made = ReproductionPlan(
        table=table, cells=chosen, entries=entries, figures=figures, missing_figures=absent,
        runs=tuple(runs), notes=(*table.notes, *data_cache.notes),
        done=len(runs) - len(find_unfinished(runs, out)), ids=ids, orders=orders,
        root=data_cache.root,
        by_recipe=tuple((recipe, tuple(data_cache.runs(recipe))) for recipe in recipes),
    )  # fmt: skip
    if not measure:
        return made
    return add_costs(made, out=out, device=device, group_size=group_size, tell=tell, limit=limit)


def add_costs(
    made: ReproductionPlan,
    *,
    out: str | os.PathLike[str] | None = None,
    device: Any = "auto",
    group_size: int = 0,
    tell: TimingCallback | None = None,
    limit: float | None = None,
    workers: int = 0,
    compile: bool = False,
) -> ReproductionPlan:
    """The plan with the cost of what is not finished; arguments as in `plan` and `reproduce`."""
    left = find_unfinished(made.runs, out)
    costs = estimate_costs(left, device=device, group_size=group_size, tell=tell, limit=limit)
    count = choose_process_count(
        left, device=device, workers=workers, compile=compile, group_size=group_size
    )
    seconds = estimate_seconds(costs, count, device)
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


def _check_settings(table: PaperTable, data_cache: DataCache) -> None:
    """Complain about settings that no recipe takes, in cells that were not asked for as well."""
    if not data_cache.settings:
        return
    for cell in table.cells:
        try:
            table.entry(cell)
        except BadArgument as error:
            data_cache.explain_refusal(error)


def _check_entry(table: PaperTable, cell: Cell, data_cache: DataCache) -> CellEntry:
    try:
        entry = table.entry(cell)
    except BadArgument as error:  # a method or model that this version does not have
        return CellEntry(missing=data_cache.explain_refusal(error))
    if entry.missing:
        return entry
    if entry.counted is not None:
        return _count_entry(entry, data_cache)
    why = data_cache.explain_missing(entry.recipes) or _explain_short_stream(entry, data_cache)
    if why:
        return replace(entry, recipes=(), missing=why)
    extra = [r for r in data_cache.reasons(entry.recipes) if r not in entry.reasons]
    return replace(entry, reasons=(*entry.reasons, *extra))


def _explain_short_stream(entry: CellEntry, data_cache: DataCache) -> str:
    """Why a number is never reached where the stream ends before, "" where it is."""
    for recipe in entry.recipes:
        count = len(data_cache.stream(recipe))
        if count < entry.tasks:
            return f"the stream of {recipe.stream['data']} has {plural(count, 'task')}"
    return ""


def _count_entry(entry: CellEntry, data_cache: DataCache) -> CellEntry:
    """The entry with the number that is read off the data."""
    if entry.counted is None:
        return entry
    recipe, count = entry.counted
    try:
        stream = data_cache.stream(recipe)
    except BadArgument as error:
        missing = isinstance(data_cache.load(recipe), str)
        return replace(entry, missing=str(error) if missing else data_cache.explain_refusal(error))
    return replace(entry, measure=constant(float(count(stream))))


def _check_figures(
    figures: Sequence[PaperFigure], data_cache: DataCache
) -> tuple[tuple[PaperFigure, ...], dict[str, str]]:
    absent = {one.name: data_cache.explain_missing(one.recipes) for one in figures}
    found = tuple(figure for figure in figures if not absent[figure.name])
    return found, {name: why for name, why in absent.items() if why}


def _order_recipes(
    entries: Sequence[CellEntry], figures: Sequence[PaperFigure], rank: Callable[[Recipe], int]
) -> list[Recipe]:
    """All recipes once, one data set after the other, by rank, then as the cells."""
    every = [r for entry in entries for r in entry.recipes]
    every += [r for figure in figures for r in figure.recipes]
    distinct = {run_key(recipe): recipe for recipe in every}
    places: dict[str, int] = {}
    for recipe in distinct.values():
        places.setdefault(str(recipe.stream["data"]), len(places))
    return sorted(distinct.values(), key=lambda r: (places[str(r.stream["data"])], rank(r)))


def _make_runs(
    ordered: Sequence[Recipe], data_cache: DataCache
) -> tuple[list[Plan], dict[str, str], dict[tuple[str, str], str]]:
    """All runs once, in the order of their recipes; ids and orders."""
    runs = {run.key: run for recipe in ordered for run in data_cache.runs(recipe)}
    ids = {recipe.key: run.recipe for recipe in ordered for run in data_cache.runs(recipe)}
    orders = {(recipe.key, run.order): recipe.order for recipe in ordered
              for run in data_cache.runs(recipe) if run.order != recipe.order}  # fmt: skip
    return list(runs.values()), ids, orders


def find_unfinished(runs: Sequence[Plan], out: str | os.PathLike[str] | None) -> list[Plan]:
    """Runs that are not finished in a run directory."""
    if out is None or not Path(out).is_dir():
        return list(runs)
    folder = RunDirectory(out, create=False)
    return [run for run in runs if not folder.ended(*run.key, stages=len(run.run.stream))]


# Data sets and streams of a reproduction, and why some recipe cannot be run here.


class DataCache:
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

    def explain_refusal(self, error: BadArgument) -> str:
        """The reason not to run a cell, unless settings are to blame."""
        if self.settings:
            raise BadArgument(f"{error} (with {format_settings(self.settings)})") from error
        return str(error)

    def load(self, recipe: Recipe) -> Data | str:
        source = self._source(recipe)
        if source not in self.data:
            try:
                self.data[source] = recipe.data(self.root)
            except BadArgument as error:
                absent = not self._mistaken(recipe)
                self.data[source] = str(error) if absent else self.explain_refusal(error)
        return self.data[source]

    def _mistaken(self, recipe: Recipe) -> bool:
        """Whether a name or option is wrong, rather than files being absent or damaged."""
        name = str(recipe.stream["data"])
        known = NAMED_SETS.get(name)
        if known is None:
            return os.sep not in name
        root = search_root(self.root)
        here = known.make is not None or (root is not None and find_set(name, root) is not None)
        return here and bool(recipe.stream.get("data_options"))

    def _source(self, recipe: Recipe) -> str:
        if id(recipe) not in self._sources:
            source = repr((recipe.stream["data"], recipe.stream.get("data_options")))
            self._sources[id(recipe)] = recipe, source  # kept alive: its id is a key
        return self._sources[id(recipe)][1]

    def stream(self, recipe: Recipe) -> Stream:
        where = repr(to_plain(recipe.stream))
        if where not in self.streams:
            data = self.load(recipe)
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

    def explain_missing(self, recipes: Iterable[Recipe]) -> str:
        """Why some recipe cannot be run here, "" if all can."""
        for recipe in recipes:
            data = self.load(recipe)
            if isinstance(data, str):
                return data
            try:
                self.runs(recipe)
            except BadArgument as error:
                return self.explain_refusal(error)
        return ""

    def reasons(self, recipes: Iterable[Recipe]) -> list[str]:
        found = (self.load(recipe) for recipe in recipes)
        return [DATA_SUBSET] if any(missing_rows(d) for d in found if isinstance(d, Data)) else []

    @property
    def notes(self) -> tuple[str, ...]:
        loaded = [data for data in self.data.values() if isinstance(data, Data)]
        return tuple(dict.fromkeys(f"{d.name}: {note}" for d in loaded for note in d.notes))


# Over how many processes runs are spread, and what that makes of a forecast.


# multiply-adds of all steps from which on starting processes pays: a minute or two of a core
MUCH_WORK = 10**11


def choose_process_count(
    plans: Sequence[Plan], *, device: Any, workers: int = 0, compile: bool = False,
    group_size: int = 0,
) -> int:  # fmt: skip
    """How many processes train these runs, where `workers` are asked for; 0: as many as pay."""
    if workers:
        return workers
    spread = not compile and not group_size and processes_pay(plans, device)
    return (os.cpu_count() or 1) if spread else 1


def processes_pay(plans: Sequence[Plan], device: Any) -> bool:
    """Whether processes would be done earlier: on the CPU, with much work and no lockstep."""
    if len({plan.recipe for plan in plans}) < 2:
        return False
    engine = Engine([plan.run for plan in plans], device=device)
    if engine.device.type != "cpu" or any(map(engine.maps, engine.groups())):
        return False
    total = 0
    for run in engine.runs:
        step = engine.parameters(run) * (run.training.batch_size or 256)
        total += step * count_steps(run)
    return total > MUCH_WORK


def estimate_seconds(costs: Sequence[CostEstimate], processes: int, device: Any) -> float:
    """About how long all of it takes.

    Processes share cores, and a GPU they share as if there was one of them. No run, and no group in
    lockstep, is spread over several.
    """
    total = sum(cost.seconds for cost in costs)
    if processes == 1 or resolve_device(device).type != "cpu":
        return total
    count = min(processes, os.cpu_count() or 1)
    longest = [one.seconds if one.lockstep else one.seconds / one.runs for one in costs]
    return max([total / count, *longest])


# What a plan promises: every cell with its printed number, and whether it can be made here.


COLUMNS = ("cell", "stage", "metric", "paper", "can be made", "reason")


def preview_cells(planned: ReproductionPlan) -> list[dict[str, str]]:
    """One row per cell; the reason is why it cannot be made, or why our number may be another one.

    Examples
    --------
    >>> from engram.reproduce import find_table, plan
    >>> rows = preview_cells(plan(find_table("rwalk/2"), cells="method=GEM", measure=False))
    >>> rows[0]["paper"], rows[0]["can be made"], rows[0]["reason"]
    ('65.4', 'no', 'quoted by the paper from the authors of GEM')
    """
    return [
        {
            "cell": cell.name_on(stand_in_data(entry)), "stage": cell["stage"],
            "metric": cell["metric"], "paper": format_printed(cell),
            "can be made": "no" if entry.missing else "yes",
            "reason": entry.missing or "; ".join(known_reasons(cell, entry)),
        }
        for cell, entry in zip(planned.cells, planned.entries, strict=True)
    ]  # fmt: skip


def preview_columns(rows: Sequence[dict[str, str]]) -> tuple[str, ...]:
    """The stage is among them where cells differ in nothing else."""
    alike = len({(row["cell"], row["metric"]) for row in rows}) < len(rows)
    return tuple(name for name in COLUMNS if name != "stage" or alike)
