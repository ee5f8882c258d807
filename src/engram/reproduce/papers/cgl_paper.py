"""The skeleton benchmark (CGL): preset, recipes, tables, figures and drawings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from engram.data import Data
from engram.errors import check_choice, check_float, check_int, unknown
from engram.experiments import Recipe
from engram.learner.objectives import OBJECTIVES, SCOPES
from engram.metrics.statistics import std
from engram.reproduce import measures
from engram.reproduce.cells import Cell
from engram.reproduce.paper_table import (
    SPLIT_UNSTATED,
    VARIANT_UNSTATED,
    CellEntry,
    Floats,
    Measure,
    PaperFigure,
)
from engram.reproduce.papers.figure_parts import LegendNames, assign_looks, make_frame
from engram.reproduce.papers.paper_base import Paper, PaperPreset, require_classes
from engram.streams.task_orders import all_task_orders, class_order, random_class_orders

if TYPE_CHECKING:
    import pandas as pd

    from engram.records import Result
    from engram.streams.stream import Stream

UCLA, NTU = "UCLA-CIL", "NTU-CIL"
METHODS = ("BARE", "EWC", "MAS", "TWP", "LwF", "GEM", "REPLAY")
CLASSES, PER_TASK = 10, 2
TASKS = tuple(tuple(range(c, c + PER_TASK)) for c in range(0, CLASSES, PER_TASK))
Order = tuple[int, ...]

# What the paper calls the parameters, and the fields of our methods.
FIELDS: dict[str, dict[str, str]] = {
    "BARE": {}, "JOINT": {},
    "EWC": {"memory_strength": "strength"},
    "MAS": {"memory_strength": "strength"},
    "TWP": {"lambda_l": "strength", "lambda_t": "top", "beta": "beta_strength"},
    "LwF": {"lambda_dist": "strength", "T": "temperature"},
    "GEM": {"memory_strength": "margin", "frac_memories": "memory.fraction"},
    "REPLAY": {"frac_memories": "fraction"},
}  # fmt: skip
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {  # table 5
    "EWC": {"memory_strength": (1, 100, 1e4, 1e6)},
    "MAS": {"memory_strength": (1, 100, 1e4, 1e6)},
    "TWP": {"lambda_l": (100, 1e4), "lambda_t": (100, 1e4), "beta": (0.01, 0.1)},
    "LwF": {"lambda_dist": (0.1, 1, 10), "T": (0.2, 2, 20)},
    "GEM": {"memory_strength": (0.05, 0.5, 5), "frac_memories": (0.05, 0.1, 0.2)},
    "REPLAY": {"frac_memories": (0.05, 0.1, 0.2)},
}
BEST: dict[str, dict[str, float]] = {  # table 3, N-UCLA
    "EWC": {"memory_strength": 1e6}, "MAS": {"memory_strength": 100},
    "TWP": {"lambda_l": 1e4, "lambda_t": 1e4, "beta": 0.01},
    "LwF": {"lambda_dist": 1, "T": 2},
    "GEM": {"memory_strength": 5, "frac_memories": 0.2}, "REPLAY": {"frac_memories": 0.2},
}  # fmt: skip
BEST_NTU = {
    **BEST, "TWP": {**BEST["TWP"], "lambda_l": 100}, "LwF": {**BEST["LwF"], "lambda_dist": 0.1},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CGLProtocol:
    """One data set of the paper, its skeleton, and the parameters found best on it (table 3)."""

    data: str
    edges: str
    data_options: Mapping[str, Any] = field(default_factory=dict)
    best: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: BEST)

    def on(self, data: Data, name: str) -> CGLProtocol:
        """The protocol on another set with as many joints; orders and units are of ten classes."""
        require_classes(data, name, CLASSES)
        return replace(self, data=name, data_options={})


@dataclass(frozen=True, kw_only=True)
class CGLPreset(PaperPreset[CGLProtocol]):
    """The choices of all tables and figures.

    Parameters
    ----------
    seeds
        Repetitions of every order. The split of the data is the same in all of them.
    task_orders, class_orders, order_seed
        Orders of a study: 0 task orders are all of them; class orders are drawn once.
    ewc, mas, twp, lwf, gem, replay
        Fields of the methods beside the parameters of tables 3 and 5, as the base code (CGLB) runs:
        importance passes leave batch normalisation in training mode, the Fisher information is the
        squared gradient of the whole task's objective without a half, TWP's second pass adds to the
        first one's gradient, LwF's cross-entropy covers the new classes only.
    gem_scope
        Which classes compete for GEM's memories: those open ``then``.
    replay_loss
        The loss of REPLAY where it is not `loss`: ``ce`` is without the balance of classes.
    precision
        As in `Training`; ``tf32`` makes the products of the ST-GCN quicker on CUDA.
    gcn, stgcn
        Options of the two models.
    widths, depths
        Table 4. `wide_seeds` repetitions in the default order.
    stgcn_task_orders, stgcn_class_orders, stgcn_seeds
        The ST-GCN studies, which are smaller here than in the paper.
    grid_seeds
        Repetitions of each point of the grid.
    """

    parts: ClassVar = {"ucla": UCLA, "ntu": NTU}
    official: ClassVar = {UCLA: "nw_ucla", NTU: "ntu60"}

    ucla: CGLProtocol = CGLProtocol(data="nw_ucla", edges="ucla")
    ntu: CGLProtocol | None = CGLProtocol(data="ntu60", edges="ntu", best=BEST_NTU)
    seeds: int = 5
    task_orders: int = 0
    class_orders: int = 100
    order_seed: int = 0
    epochs: int = 100
    lr: float = 1e-3
    batch_size: int = 0
    loss: str = "balanced"
    scope: str = "seen"
    gem_scope: str = "then"
    replay_loss: str = ""
    optim_reset: bool = False
    precision: str = "float32"
    ewc: Mapping[str, Any] = field(
        default_factory=lambda: {"half": False, "group": "full", "term": "objective",
                                 "batch_statistics": True})  # fmt: skip
    mas: Mapping[str, Any] = field(
        default_factory=lambda: {"importance": "batch_sq", "accum": "avg_by_count",
                                 "batch_statistics": True})  # fmt: skip
    twp: Mapping[str, Any] = field(
        default_factory=lambda: {"beta": "off", "edge_softmax": True, "accumulate": True,
                                 "batch_statistics": True})  # fmt: skip
    lwf: Mapping[str, Any] = field(
        default_factory=lambda: {"ce_scope": "new", "blocks": "per_task"})  # fmt: skip
    gem: Mapping[str, Any] = field(default_factory=dict)
    replay: Mapping[str, Any] = field(default_factory=dict)
    gcn: Mapping[str, Any] = field(default_factory=dict)
    stgcn: Mapping[str, Any] = field(default_factory=dict)
    widths: tuple[int, ...] = (32, 64, 128, 256, 512)
    depths: tuple[int, ...] = (1, 2, 4, 8, 16)
    wide_seeds: int = 5
    stgcn_task_orders: int = 24
    stgcn_class_orders: int = 24
    stgcn_seeds: int = 1
    grid_seeds: int = 1
    keep: str = "counts"

    def __post_init__(self) -> None:
        for name in ("seeds", "wide_seeds", "stgcn_seeds", "grid_seeds"):
            check_int(name, getattr(self, name), 1)
        for name in ("task_orders", "class_orders", "stgcn_task_orders", "stgcn_class_orders"):
            check_int(name, getattr(self, name))
        check_int("epochs", self.epochs, 1)
        check_int("batch_size", self.batch_size)
        check_float("lr", self.lr, open_low=True)
        for name in filter(None, (self.loss, self.replay_loss)):
            check_choice("loss", name, ("auto", *OBJECTIVES))
        for name in ("scope", "gem_scope"):
            check_choice(name, getattr(self, name), ("auto", *SCOPES))
        for name in ("widths", "depths"):
            for value in getattr(self, name):
                check_int(name, value, 1)


PAPER = CGLPreset()
# The same studies on the embedded skeletons, in two minutes on two cores.
EMBEDDED = CGLPreset(
    ucla=CGLProtocol(data="skeletons", edges="ucla", data_options={"per_class": 20, "frames": 8}),
    ntu=None, seeds=2, task_orders=3, class_orders=2, epochs=8, lr=1e-2, widths=(8, 16),
    depths=(1, 2), wide_seeds=1, gcn={"width": 8, "hidden": 8}, stgcn={"width": 4, "tk": 3},
    stgcn_task_orders=2, stgcn_class_orders=1,
)  # fmt: skip


# -- orders ----------------------------------------------------------------------------------------
def task_orders(count: int, seed: int) -> list[Order]:
    """Task orders as class orders: all 120 for a count of 0, else some drawn by the seed.

    Examples
    --------
    >>> len(task_orders(0, 0)), task_orders(0, 0)[1]
    (120, (0, 1, 2, 3, 4, 5, 8, 9, 6, 7))
    """
    found = random_class_orders(len(TASKS), count, seed) if count else all_task_orders(len(TASKS))
    return [tuple(class_order(TASKS, order)) for order in found]


def class_orders(count: int, seed: int) -> list[Order]:
    """Random class orders, cut into tasks of two neighbours."""
    return random_class_orders(CLASSES, count, seed) if count else []


# -- recipes ---------------------------------------------------------------------------------------
def method_spec(
    preset: CGLPreset, method: str, values: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """The plain form of a method with parameters as the paper names them."""
    if method not in FIELDS:
        raise unknown("method", method, FIELDS)
    names = {"BARE": "Finetune", "JOINT": "Joint", "REPLAY": "Replay"}
    further = getattr(preset, method.lower(), {})
    spec: dict[str, Any] = {"name": names.get(method, method), **further}
    for name, value in (values or {}).items():
        owner, _, inner = FIELDS[method][name].partition(".")
        spec[owner] = {**spec.get(owner, {}), inner: value} if inner else value
    return spec


def recipe(
    preset: CGLPreset,
    dataset: str,
    method: str,
    *,
    values: Mapping[str, float] | None = None,
    model: Mapping[str, Any] | None = None,
    seeds: int = 0,
    split: str = "",
    note: str = "",
) -> Recipe:
    """A method on a data set in its default order.

    Parameters
    ----------
    values
        Parameters of the method; those of table 3 by default.
    model
        ``{"name": ...}`` and options; the GCN of the preset by default.
    seeds
        Repetitions; those of the preset by default.
    split
        Option of the data set: ``tuning`` tests on validation rows.
    note
        Added to the label.
    """
    protocol = preset.protocol(dataset)
    options = {**protocol.data_options, **({"split": split} if split else {})}
    best = protocol.best.get(method, {})
    # left out where it is the default, so that ids of recipes stay as they were
    precision = {} if preset.precision == "float32" else {"precision": preset.precision}
    scope = preset.gem_scope if method == "GEM" else preset.scope
    loss = preset.replay_loss if method == "REPLAY" and preset.replay_loss else preset.loss
    return Recipe.of({
        "stream": {"kind": "class_incremental", "data": protocol.data,
                   "classes_per_task": PER_TASK, **({"data_options": options} if options else {})},
        "model": {"edges": protocol.edges, **(model or {"name": "gcn", **preset.gcn})},
        "method": method_spec(preset, method, best if values is None else values),
        "training": {"epochs": preset.epochs, "batch_size": preset.batch_size, "lr": preset.lr,
                     "optimizer": "adam", "loss": loss, "scope": scope,
                     "optim_reset": preset.optim_reset, **precision},
        "seeds": seeds or preset.seeds, "keep": preset.keep, "average": "macro",
        "label": f"{method} ({preset.shown(dataset)}{', ' if note else ''}{note})",
    })  # fmt: skip


def apply_orders(made: Recipe, orders: Sequence[Order]) -> tuple[Recipe, ...]:
    """The recipe once per class order; all have its id."""
    return tuple(made.in_order(order) for order in orders)


def make_grid(preset: CGLPreset, dataset: str, method: str) -> dict[tuple[float, ...], Recipe]:
    """The recipes of a method's grid by its parameters, tested on validation rows.

    TWP's beta does nothing while its term is off; then its first value stands for all.
    """
    axes = dict(GRIDS[method])
    if not beta_acts(preset) and "beta" in axes:
        axes["beta"] = axes["beta"][:1]
    found = {}
    for point in product(*axes.values()):
        values = dict(zip(axes, point, strict=True))
        note = "grid " + " ".join(f"{k}={v:g}" for k, v in values.items())
        found[point] = recipe(preset, dataset, method, values=values, seeds=preset.grid_seeds,
                              split="tuning", note=note)  # fmt: skip
    return found


def beta_acts(preset: CGLPreset) -> bool:
    """Whether TWP's beta term takes part in the training."""
    return str(preset.twp.get("beta", "off")) != "off"


# ------------------------------------------------------------------------------------------------
# Figures 1 and 3 to 8 of the skeleton benchmark: their runs and numbers.


HEAD = "single"
STGCN_METHODS = tuple(m for m in METHODS if m != "TWP")  # TWP reads layers that only the GCN has
ORDER_KINDS = ("task", "class")  # what an order shuffles


def build_figures(name: str, preset: CGLPreset) -> tuple[PaperFigure, ...]:
    """The figures under a name: one per data set, where there are two."""
    makers: dict[str, Callable[[CGLPreset, str], PaperFigure]] = {
        "fig1": _class_figure,
        "fig3": lambda p, d: _scatter_figure(p, d, "fig3", "gcn", ORDER_KINDS[:1]),
        "fig4": lambda p, d: _scatter_figure(p, d, "fig4", "stgcn", ORDER_KINDS[:1]),
        "fig5": lambda p, d: _scatter_figure(p, d, "fig5", "gcn", ORDER_KINDS),
        "fig6": lambda p, d: _scatter_figure(p, d, "fig6", "stgcn", ORDER_KINDS),
        "fig7": lambda p, d: _evolution_figure(p, d, "fig7", "width"),
        "fig8": lambda p, d: _evolution_figure(p, d, "fig8", "depth"),
    }
    both = name in ("fig3", "fig5") and preset.ntu is not None
    return tuple(makers[name](preset, dataset) for dataset in ((UCLA, NTU) if both else (UCLA,)))


def _part_name(name: str, shown: str) -> str:
    return f"{name}-{shown.partition('-')[0].lower()}"


def make_orders(preset: CGLPreset, model: str) -> dict[str, list[tuple[int, ...]]]:
    """Orders of a study by what they shuffle; a class order that moves whole tasks counts once."""
    small = model == "stgcn"
    tasks = task_orders(
        preset.stgcn_task_orders if small else preset.task_orders, preset.order_seed
    )
    drawn = preset.stgcn_class_orders if small else preset.class_orders
    classes = [o for o in class_orders(drawn, preset.order_seed) if o not in set(tasks)]
    return {"task": tasks, "class": classes}


def _study_recipes(
    preset: CGLPreset, dataset: str, model: str, kinds: Sequence[str]
) -> dict[tuple[str, str], tuple[Recipe, ...]]:
    """Recipes of a study by method and kind of order."""
    orders = make_orders(preset, model)
    found = {}
    for method in METHODS if model == "gcn" else STGCN_METHODS:
        if model == "gcn":
            base = recipe(preset, dataset, method)
        else:
            base = recipe(preset, dataset, method, model={"name": "stgcn", **preset.stgcn},
                          seeds=preset.stgcn_seeds, note="ST-GCN")  # fmt: skip
        for kind in kinds:
            found[method, kind] = apply_orders(base, orders[kind])
    return found


def _flatten(groups: Mapping[Any, Sequence[Recipe]]) -> tuple[Recipe, ...]:
    return tuple(made for group in groups.values() for made in group)


def _row_keys(
    dataset: str, groups: Mapping[tuple[str, str], Sequence[Recipe]]
) -> tuple[dict[str, str], ...]:
    """What each of the recipes stands for."""
    return tuple(
        {"dataset": dataset, "method": method, "orders": kind}
        for (method, kind), group in groups.items()
        for _ in group
    )


# -- figure 1 --------------------------------------------------------------------------------------
def _class_figure(preset: CGLPreset, dataset: str) -> PaperFigure:
    groups = _study_recipes(preset, dataset, "gcn", ORDER_KINDS)

    def data(result: Result) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for (method, kind), recipes in groups.items():
            runs = measures.select_runs(result, recipes, HEAD)
            if runs is None:
                continue
            mean: Any = runs.class_accuracy().dropna().groupby(level="order").mean()  # over seeds
            long = mean.rename_axis(columns="class").stack().rename("accuracy").reset_index()
            records += long.assign(method=method, orders=kind).to_dict("records")
        return make_frame(records, ("method", "orders", "order", "class", "accuracy"))

    title = f"Accuracy of every class under all orders, {preset.shown(dataset)}"
    return PaperFigure(
        name="fig1", title=title, recipes=_flatten(groups), data=data, draw=draw_classes,
        rows=_row_keys(dataset, groups),
    )  # fmt: skip


# -- figures 3 to 6 --------------------------------------------------------------------------------
def _scatter_figure(
    preset: CGLPreset, dataset: str, name: str, model: str, kinds: Sequence[str]
) -> PaperFigure:
    groups = _study_recipes(preset, dataset, model, kinds)

    def data(result: Result) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for (method, kind), recipes in groups.items():
            records += order_points(result, recipes, {"method": method, "orders": kind})
        return make_frame(records, POINT_COLUMNS)

    shown, net = preset.shown(dataset), "ST-GCN" if model == "stgcn" else "GCN"
    return PaperFigure(
        name=_part_name(name, shown), title=f"Accuracy against forgetting, {shown}, {net}",
        recipes=_flatten(groups), data=data, draw=draw_scatter, rows=_row_keys(dataset, groups),
    )  # fmt: skip


POINT_COLUMNS = ("method", "orders", "order", "repetitions", "tasks", "average_accuracy",
                 "forgetting", "bound")  # fmt: skip


def order_points(
    result: Result, recipes: Sequence[Recipe], names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One point per order: means over repetitions of AA, AF and the bound on AF (theorem 1)."""
    import pandas as pd

    runs = measures.select_runs(result, recipes, HEAD)
    if runs is None:
        return []
    metrics = ("average_accuracy", "forgetting", "forgetting_bound")
    table: Any = pd.DataFrame({name: runs.metric(name) for name in metrics})
    table = table.assign(order=[run.order for run in runs.runs], tasks=runs.tasks).dropna()
    groups = table.groupby("order")
    mean = groups.mean().assign(repetitions=groups.size()).astype({"tasks": int})
    mean = mean.rename(columns={"forgetting_bound": "bound"}).reset_index()
    found: list[dict[str, Any]] = mean.assign(**names).to_dict("records")
    return found


# -- figures 7 and 8 -------------------------------------------------------------------------------
def make_architecture(preset: CGLPreset, dataset: str, axis: str, value: int) -> dict[str, Any]:
    """The GCN of one point of the study; the classification layers stay as they are."""
    edges = preset.protocol(dataset).edges
    return {"name": "gcn", **preset.gcn, "edges": edges, axis: value}


def _evolution_figure(preset: CGLPreset, dataset: str, name: str, axis: str) -> PaperFigure:
    values = preset.widths if axis == "width" else preset.depths
    rows = {
        (method, value): recipe(
            preset, dataset, method, model=make_architecture(preset, dataset, axis, value),
            seeds=preset.wide_seeds, note=f"{axis} {value}",
        )
        for value in values
        for method in (*METHODS, "JOINT")
    }  # fmt: skip

    def data(result: Result) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for (method, value), made in rows.items():
            for metric in ("average_accuracy", "forgetting"):
                found = measures.metric(metric, made, head=HEAD)(result)
                found = found[~np.isnan(found)]
                if len(found):
                    records.append({
                        "method": method, axis: value, "metric": metric,
                        "value": float(found.mean()), "std": float(std(found, ddof=0)),
                        "repetitions": len(found),
                    })  # fmt: skip
        return make_frame(records, ("method", axis, "metric", "value", "std", "repetitions"))

    return PaperFigure(
        name=name,
        title=f"Accuracy and forgetting over the {axis} of the GCN, {preset.shown(dataset)}",
        recipes=tuple(rows.values()), data=data, draw=lambda table: draw_evolution(table, axis),
        rows=tuple({"dataset": dataset, "method": m, axis: str(value)} for m, value in rows),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------
# Sensitivity of continual graph learning on skeletons (Wei et al. 2024): tables and figures.


TITLES = {
    "1": "sequences, joints, classes and tasks of the two data sets",
    "2": "order sensitivity: AOPD and MOPD of tasks and classes",
    "3": "best parameters of each method, found on validation rows",
    "4": "widths and depths of the architecture study",
    "5": "parameters that were tried",
    "fig1": "accuracy of every class under all orders",
    "fig3": "accuracy against forgetting, all task orders, GCN",
    "fig4": "accuracy against forgetting, task orders, ST-GCN",
    "fig5": "accuracy against forgetting, task and class orders, GCN",
    "fig6": "accuracy against forgetting, task and class orders, ST-GCN",
    "fig7": "accuracy and forgetting over the width of the GCN",
    "fig8": "accuracy and forgetting over the depth of the GCN",
}
WITHOUT_DATA = ("4", "5")
TOLERANCE_PERCENT = 3.0  # tolerance in percent
TASK_ORDER = "task-order"
PLAIN_METHODS = ("BARE", "REPLAY")  # methods without details that text and code tell differently


def _reasons(preset: CGLPreset, dataset: str, method: str) -> tuple[str, ...]:
    return preset.reasons(
        dataset, SPLIT_UNSTATED, *(() if method in PLAIN_METHODS else (VARIANT_UNSTATED,))
    )


# -- table 1 ---------------------------------------------------------------------------------------
def _data_entry(preset: CGLPreset, cell: Cell) -> CellEntry:
    """Numbers of the data itself; nothing is trained."""
    counts: dict[str, Callable[[Stream], float]] = {
        "n_action_sequences": lambda stream: len(stream.data),
        "n_joints": lambda stream: stream.data.sample_shape[2],
        "n_classes": lambda stream: len(stream.order),
        "n_tasks": lambda stream: len(stream),
        # the table prints whole numbers: 1484 / 5 as 297, 6667 / 5 as 1333
        "avg_sequences_per_task": lambda stream: round(len(stream.data) / len(stream)),
        "frames_per_sequence": lambda stream: stream.data.sample_shape[1],
    }
    made = recipe(preset, cell["dataset"], "BARE")
    return CellEntry(
        counted=(made, counts[cell["metric"]]), tolerance=0.0,
        reasons=preset.reasons(cell["dataset"]),
    )  # fmt: skip


# -- table 2 ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CGLStudy:
    """The runs of one method on one data set."""

    tasks: tuple[Recipe, ...]  # one per task order
    classes: tuple[Recipe, ...]  # one per class order; task orders are not among them

    @property
    def all(self) -> tuple[Recipe, ...]:
        """The aggregated study: a task order is a class order, too."""
        orders = {one.order for one in self.tasks}
        return (*self.tasks, *(one for one in self.classes if one.order not in orders))


def make_study(preset: CGLPreset, dataset: str, method: str) -> CGLStudy:
    """All task orders and the random class orders of a method, GCN.

    Examples
    --------
    >>> made = make_study(PAPER, "UCLA-CIL", "EWC")
    >>> len(made.tasks), len(made.all), len(made.tasks[0].seeds)
    (120, 220, 5)
    """
    base, seed = recipe(preset, dataset, method), preset.order_seed
    return CGLStudy(
        apply_orders(base, task_orders(preset.task_orders, seed)),
        apply_orders(base, class_orders(preset.class_orders, seed)),
    )


class SensitivityEntries:
    """Entries of table 2; the runs of a method are named once and shared by its cells."""

    def __init__(self, preset: CGLPreset) -> None:
        self.preset = preset
        self._study = lru_cache(lambda dataset, method: make_study(preset, dataset, method))
        self._measures = lru_cache(self._both)

    def entry(self, cell: Cell) -> CellEntry:
        dataset, method = cell["dataset"], cell["method"]
        recipes, both = self._measures(dataset, method, cell["setting"] == TASK_ORDER)
        return CellEntry(
            recipes=recipes,
            tolerance=TOLERANCE_PERCENT,
            reasons=_reasons(self.preset, dataset, method),
            measure=both[cell["metric"].lower()],
        )

    def _both(
        self, dataset: str, method: str, by_task: bool
    ) -> tuple[tuple[Recipe, ...], dict[str, Measure]]:
        """The runs of two cells and their measures, which share their work."""
        made = self._study(dataset, method)
        recipes = made.tasks if by_task else made.all
        units = TASKS if by_task else [(c,) for task in TASKS for c in task]
        return recipes, measures.order_disparities(recipes, units)


# -- table 3 ---------------------------------------------------------------------------------------
def _searched_entry(preset: CGLPreset, cell: Cell) -> CellEntry:
    """The value of one parameter at the point of the grid with the best validation accuracy."""
    dataset, method, name = cell["dataset"], cell["method"], cell["metric"]
    if name == "beta" and not beta_acts(preset):
        return CellEntry(missing="beta's term is off, as in the base code, so all values are alike")
    points = make_grid(preset, dataset, method)
    return CellEntry(
        recipes=tuple(points.values()), tolerance=0.0, reasons=_reasons(preset, dataset, method),
        measure=best_value(points, list(GRIDS[method]).index(name)),
    )  # fmt: skip


def best_value(points: dict[tuple[float, ...], Recipe], place: int) -> Measure:
    """The coordinate `place` of the point with the highest accuracy, the first of equals.

    Accuracy is averaged over seeds; NaN while some point is not finished.
    """

    def measure(result: Result) -> Floats:
        of_point = [
            measures.metric("average_accuracy", made, head="single")(result).mean()
            for made in points.values()
        ]
        if np.isnan(of_point).any():
            return np.array([np.nan])
        return np.array([list(points)[int(np.argmax(of_point))][place]], np.float64)

    return measure


# -- tables 4 and 5 --------------------------------------------------------------------------------
def _architecture_entry(preset: CGLPreset, cell: Cell) -> CellEntry:
    """Width or depth of our network when it is built for a point of the study."""
    from engram.models import build as build_model

    axis, place = cell["metric"], int(cell["stage"]) - 1
    points = preset.widths if axis == "width" else preset.depths
    if place >= len(points):
        return CellEntry(missing=f"the preset has {len(points)} values of {axis}")
    spec = make_architecture(preset, UCLA, axis, points[place])
    net = build_model(spec, sample_shape=(3, 52, 20), classes=10, seed=0)
    layers: Any = net.get_submodule("backbone.layers")
    sizes = {"width": layers[0].linear.out_features, "depth": len(layers)}
    return CellEntry(measure=measures.constant(float(sizes[axis])), tolerance=0.0)


def _grid_value_entry(cell: Cell) -> CellEntry:
    values, place = GRIDS[cell["method"]].get(cell["metric"], ()), int(cell["stage"]) - 1
    if place >= len(values):
        return CellEntry(missing=f"our grid has {len(values)} values of {cell['metric']}")
    return CellEntry(measure=measures.constant(float(values[place])), tolerance=0.0)


TABLES = Paper(
    name="cgl", titles=TITLES, paper=PAPER, embedded=EMBEDDED,
    tables={
        "1": lambda preset: lambda cell: _data_entry(preset, cell),
        "2": lambda preset: SensitivityEntries(preset).entry,
        "3": lambda preset: lambda cell: _searched_entry(preset, cell),
        "4": lambda preset: lambda cell: _architecture_entry(preset, cell),
        "5": lambda preset: _grid_value_entry,
    },
    figures=build_figures, without_data=WITHOUT_DATA,
)  # fmt: skip


# ------------------------------------------------------------------------------------------------
# Drawings of the figures of the skeleton benchmark, from their tables of numbers.


DRAWN_METHODS = (*METHODS, "JOINT")
AXES = {"average_accuracy": "average accuracy", "forgetting": "average forgetting"}


def bound_line(tasks: int) -> tuple[list[float], list[float]]:
    """Where forgetting ends for each accuracy if the last task is learnt perfectly.

    Examples
    --------
    >>> x, y = bound_line(5)
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
    styles, legend = assign_looks(DRAWN_METHODS, data["method"]), LegendNames()
    for (kind, method), rows in data.groupby(["orders", "method"], sort=False):
        look, place = styles[str(method)], kinds.index(kind) + 1
        trace = go.Scatter(
            x=rows["average_accuracy"].tolist(), y=rows["forgetting"].tolist(), mode="markers",
            name=str(method), legendgroup=str(method), showlegend=legend(str(method)),
            text=rows["order"].tolist(), hovertemplate="AA %{x:.3f}, AF %{y:.3f}<br>%{text}",
            marker={"symbol": look.symbol, "color": look.color, "opacity": 0.6, "size": 6},
        )  # fmt: skip
        figure.add_trace(trace, row=1, col=place)
    x, y = bound_line(int(data["tasks"].max()))
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
    styles, legend = assign_looks(DRAWN_METHODS, data["method"]), LegendNames()
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
    styles, legend = assign_looks(DRAWN_METHODS, data["method"]), LegendNames()
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
