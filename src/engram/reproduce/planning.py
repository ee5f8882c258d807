"""`plan`: find the cells of a table that can be made here, their runs, processes and cost."""

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
from engram.experiments.pools.pool import PlanKey
from engram.models import build as build_model
from engram.records import RunDirectory
from engram.reproduce.cells import Cell, choose_cells
from engram.reproduce.cost_estimate import CostEstimate, TimingCallback, count_steps, estimate_costs
from engram.reproduce.measures import constant
from engram.reproduce.paper_table import (
    DATA_SUBSET,
    REASONS,
    CellEntry,
    PaperFigure,
    PaperTable,
    format_settings,
    run_key,
    stand_in_data,
)
from engram.reproduce.result_tables import CORRECTION_COLUMNS, format_corrected, format_printed
from engram.reproduce.shipped_results import format_shipped
from engram.reproduce.verdicts import known_reasons
from engram.streams.stream import Stream


@dataclass(frozen=True)
class ReproductionPlan:
    """Plan of a reproduction.

    `entries` has one entry per cell, with reasons that depend on the available data; entries and
    figures without data have `missing` set. `done` counts runs finished before. `ids`
    are those under which the runs are recorded, by the keys of the recipes; `orders` by key and
    recorded order those that recipes write differently. `by_recipe` has the runs of each recipe,
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
    processes: int = 1  # number of processes that share the work
    seconds: float = 0.0  # estimate for all unfinished runs, if requested
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
    """Plan what can be run, what is finished already, and how long the rest will take.

    Parameters
    ----------
    data_root
        Folder in which data sets are found by name; the environment variable ENGRAM_DATA by
        default.
    cells
        Cells to make, such as ``dataset=MNIST,method=Vanilla|PI``; "" means all, with the figures
        drawn from the same runs. For a figure: the rows to run; recorded ones
        are drawn too.
    out
        Run directory; runs finished there cost nothing.
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
        search_root(str(data_root))  # raises if the folder does not exist
    data_cache = DataCache(None if data_root is None else str(data_root), table.settings)
    _check_settings(table, data_cache)
    general = table.general_reasons
    entries = tuple(
        _drop_general(_check_entry(table, cell, data_cache), general) for cell in chosen
    )
    said = tuple(f"all cells: {one}: {REASONS.get(one, one)}" for one in general)
    drawn, dropped = _drop_missing(drawn, data_cache)
    figures, absent = _check_figures(drawn, data_cache)
    recipes = _order_recipes(entries, figures, table.rank)
    until = _count_stages(entries, figures, data_cache)
    runs, ids, orders = _make_runs(recipes, data_cache, until)
    if figures and cells:  # recorded numbers of other rows are drawn with those that are run
        names = {figure.name for figure in figures}
        others = [r for one in table.figures if one.name in names for r in one.recipes]
        _, ids, orders = _make_runs(
            [r for r in others if not data_cache.explain_missing([r])], data_cache, until
        )
    made = ReproductionPlan(
        table=table, cells=chosen, entries=entries, figures=figures, missing_figures=absent,
        runs=tuple(runs), notes=(*table.notes, *said, *data_cache.notes, *dropped),
        done=len(runs) - len(find_unfinished(runs, out)), ids=ids, orders=orders,
        root=data_cache.root,
        by_recipe=tuple(
            (recipe, tuple(replace(run, until=until[run.key]) for run in data_cache.runs(recipe)))
            for recipe in recipes
        ),
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
    """Add the cost of unfinished runs to a plan; arguments as in `plan` and `reproduce`."""
    left = find_unfinished(made.runs, out)
    costs = estimate_costs(left, device=device, group_size=group_size, tell=tell, limit=limit)
    count = choose_process_count(
        left, device=device, workers=workers, compile=compile, group_size=group_size
    )
    seconds = estimate_seconds(costs, count, device)
    return replace(made, costs=tuple(costs), processes=count, seconds=seconds)


def choose_rows(table: PaperTable, expression: str) -> tuple[PaperFigure, ...]:
    """Choose rows of a table's figures by an expression as for cells.

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
    if not rows:
        raise BadArgument(f"cells: {table.name} is drawn as a whole and has no rows to choose from")
    chosen = {id(cell) for cell in choose_cells([cell for _, _, cell in rows], expression)}
    found = []
    for figure in table.figures:
        kept = [made for owner, made, cell in rows if owner is figure and id(cell) in chosen]
        if kept:
            found.append(replace(figure, recipes=tuple(kept), rows=()))
    return tuple(found)


def _check_settings(table: PaperTable, data_cache: DataCache) -> None:
    """Raise for invalid settings, also in cells that were not chosen."""
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
    except BadArgument as error:  # a method or model missing in this version
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


def _drop_general(entry: CellEntry, general: Sequence[str]) -> CellEntry:
    """Move reasons of the whole table out of an entry."""
    own = tuple(one for one in entry.reasons if one not in general)
    return replace(entry, reasons=own, general=tuple(general))


def _explain_short_stream(entry: CellEntry, data_cache: DataCache) -> str:
    """Explain why a stream is too short for a number; "" if it is long enough."""
    for recipe in entry.recipes:
        count = len(data_cache.stream(recipe))
        if count < entry.tasks:
            return f"the stream of {recipe.stream['data']} has {plural(count, 'task')}"
    return ""


def _count_entry(entry: CellEntry, data_cache: DataCache) -> CellEntry:
    """Fill in the number that is counted in the data."""
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


def _drop_missing(
    figures: Sequence[PaperFigure], data_cache: DataCache
) -> tuple[tuple[PaperFigure, ...], tuple[str, ...]]:
    """Drop the recipes of partial figures that cannot be run here, and say why.

    A figure none of whose recipes can be run keeps them, so that it counts as missing.
    """
    found, notes = [], []
    for figure in figures:
        why = [data_cache.explain_missing([one]) for one in figure.recipes if figure.partial]
        if any(why) and not all(why):
            kept = [one for one, reason in zip(figure.recipes, why, strict=True) if not reason]
            notes += [f"{figure.name}: rows are left out: {one}" for one in filter(None, why)]
            figure = replace(figure, recipes=tuple(kept), rows=())
        found.append(figure)
    return tuple(found), tuple(dict.fromkeys(notes))


def _order_recipes(
    entries: Sequence[CellEntry], figures: Sequence[PaperFigure], rank: Callable[[Recipe], int]
) -> list[Recipe]:
    """List all recipes once, by data set, then rank, then order of the cells."""
    every = [r for entry in entries for r in entry.recipes]
    every += [r for figure in figures for r in figure.recipes]
    distinct = {run_key(recipe): recipe for recipe in every}
    places: dict[str, int] = {}
    for recipe in distinct.values():
        places.setdefault(str(recipe.stream["data"]), len(places))
    return sorted(distinct.values(), key=lambda r: (places[str(r.stream["data"])], rank(r)))


def _count_stages(
    entries: Sequence[CellEntry], figures: Sequence[PaperFigure], data_cache: DataCache
) -> dict[PlanKey, int]:
    """Count the stages after which no number needs a run any more; 0 for all, as figures do."""
    asked = [(recipe, entry.tasks) for entry in entries for recipe in entry.recipes]
    asked += [(recipe, 0) for figure in figures for recipe in figure.recipes]
    found: dict[PlanKey, int] = {}
    for recipe, tasks in asked:
        for run in data_cache.runs(recipe):
            known = found.setdefault(run.key, tasks)
            found[run.key] = max(known, tasks) if known and tasks else 0
    return found


def _make_runs(
    ordered: Sequence[Recipe], data_cache: DataCache, until: Mapping[PlanKey, int]
) -> tuple[list[Plan], dict[str, str], dict[tuple[str, str], str]]:
    """Make all runs once, in the order of their recipes, with ids and orders."""
    runs = {
        run.key: replace(run, until=until.get(run.key, 0))
        for recipe in ordered
        for run in data_cache.runs(recipe)
    }
    ids = {recipe.key: run.recipe for recipe in ordered for run in data_cache.runs(recipe)}
    orders = {(recipe.key, run.order): recipe.order for recipe in ordered
              for run in data_cache.runs(recipe) if run.order != recipe.order}  # fmt: skip
    return list(runs.values()), ids, orders


def find_unfinished(runs: Sequence[Plan], out: str | os.PathLike[str] | None) -> list[Plan]:
    """Select the runs that are not finished in a run directory."""
    if out is None or not Path(out).is_dir():
        return list(runs)
    folder = RunDirectory(out, create=False)
    return [run for run in runs if not folder.ended(*run.key, stages=run.stages)]


# Data sets and streams of a reproduction.


class DataCache:
    """Cache of data and streams, with the reasons for what cannot be loaded.

    `settings` are the user's changes of the preset. With changes, only missing data is a
    reason not to run: any other error is a mistake in them, and raised before training.
    """

    def __init__(self, root: str | None, settings: Mapping[str, str]) -> None:
        self.root = root
        self.settings = settings
        self.data: dict[str, Data | str] = {}
        self.streams: dict[str, Stream] = {}
        # By identity: cells share recipe objects, and a study of orders has thousands of runs.
        self._sources: dict[int, tuple[Recipe, str]] = {}
        self._runs: dict[int, list[Plan]] = {}
        self._models: set[str] = set()  # models that were tried
        self._planner = Planner(root)

    def explain_refusal(self, error: BadArgument) -> str:
        """Return the reason not to run a cell; raises if the settings are the cause."""
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
        """Return whether a name or option is wrong, rather than a file missing or damaged."""
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
            self._sources[id(recipe)] = recipe, source  # keeps the recipe alive for its id
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
        """Build the model once if settings were changed, to raise before training."""
        shape = stream.data.sample_shape
        key = repr((recipe.model, shape))
        if self.settings and key not in self._models:
            build_model(recipe.model, sample_shape=shape, classes=len(stream.order), seed=0)
            self._models.add(key)

    def explain_missing(self, recipes: Iterable[Recipe]) -> str:
        """Explain why some recipe cannot be run here; "" if all can."""
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


# Processes.


# multiply-adds from which on starting processes pays: a minute or two of a core
MUCH_WORK = 10**11


def choose_process_count(
    plans: Sequence[Plan], *, device: Any, workers: int = 0, compile: bool = False,
    group_size: int = 0,
) -> int:  # fmt: skip
    """Choose the number of processes for `workers`; 0: as many as pay."""
    if workers:
        return workers
    spread = not compile and not group_size and processes_pay(plans, device)
    return (os.cpu_count() or 1) if spread else 1


def processes_pay(plans: Sequence[Plan], device: Any) -> bool:
    """Return whether processes are faster: on the CPU, with much work and no lockstep."""
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
    """Estimate the total time.

    Processes share cores; on a shared GPU they gain nothing. No run, and no group in
    lockstep, is divided.
    """
    total = sum(cost.seconds for cost in costs)
    if processes == 1 or resolve_device(device).type != "cpu":
        return total
    count = min(processes, os.cpu_count() or 1)
    longest = [one.seconds if one.lockstep else one.seconds / one.runs for one in costs]
    return max([total / count, *longest])


# Preview of a plan.


COLUMNS = (
    "cell", "stage", "metric", "printed", *CORRECTION_COLUMNS, "shipped", "can be made", "reason",
)  # fmt: skip


def preview_cells(planned: ReproductionPlan) -> list[dict[str, str]]:
    """Make one row per cell, with the reason why it cannot be made or may differ.

    Examples
    --------
    >>> from engram.reproduce import find_table, plan
    >>> table = find_table("rwalk/2", embedded=True)
    >>> rows = preview_cells(plan(table, cells="method=GEM", measure=False))
    >>> rows[0]["printed"], rows[0]["can be made"], rows[0]["reason"]
    ('65.4', 'yes', 'other data')
    """
    return [
        {
            "cell": cell.name_on(stand_in_data(entry)), "stage": cell["stage"],
            "metric": cell["metric"], "printed": format_printed(cell),
            "corrected": format_corrected(cell), "correction": cell.correction,
            "shipped": format_shipped(cell, stand_in_data(entry)),
            "can be made": "no" if entry.missing else "yes",
            "reason": entry.missing or "; ".join(known_reasons(cell, entry)),
        }
        for cell, entry in zip(planned.cells, planned.entries, strict=True)
    ]  # fmt: skip


def preview_columns(rows: Sequence[dict[str, str]]) -> tuple[str, ...]:
    """Choose the columns to show: the stage only if it distinguishes cells; corrections and shipped
    results if any.
    """
    alike = len({(row["cell"], row["metric"]) for row in rows}) < len(rows)
    hidden = set() if alike else {"stage"}
    if not any(row["correction"] for row in rows):
        hidden.update(CORRECTION_COLUMNS)
    if not any(row["shipped"] for row in rows):
        hidden.add("shipped")
    return tuple(name for name in COLUMNS if name not in hidden)
