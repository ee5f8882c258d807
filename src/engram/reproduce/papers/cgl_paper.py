"""Sensitivity of continual graph learning on skeletons (CGL, Wei et al. 2024): preset, recipes,
tables, figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from engram.data import Data
from engram.data.embedded.synthetic_skeletons import ACTIONS
from engram.data.skeletons import ntu, nw_ucla
from engram.errors import check_choice, check_float, unknown
from engram.experiments import Recipe
from engram.learner.objectives import OBJECTIVES, SCOPES
from engram.renamed import accept_old_names
from engram.reproduce import measures
from engram.reproduce.cells import Cell
from engram.reproduce.paper_table import (
    FEWER_ORDERS,
    SPLIT_UNSTATED,
    VARIANT_UNSTATED,
    CellEntry,
    Floats,
    Measure,
    PaperFigure,
)
from engram.reproduce.papers.figure_parts import (
    PlotGrid,
    Records,
    assign_looks,
    make_figure,
    mean_records,
)
from engram.reproduce.papers.findings import (
    CellFindings,
    Claim,
    Side,
    TrendClaim,
    make_findings_figure,
)
from engram.reproduce.papers.paper_base import (
    Paper,
    PaperData,
    PaperPreset,
    check_choices,
    check_ints,
    default_options,
    require_classes,
)
from engram.streams.task_orders import all_task_orders, class_order, random_class_orders

if TYPE_CHECKING:
    import pandas as pd

    from engram.records import Result
    from engram.reproduce.papers.findings import Evidence
    from engram.streams.stream import Stream

UCLA, NTU = "UCLA-CIL", "NTU-CIL"
METHODS = ("BARE", "EWC", "MAS", "TWP", "LwF", "GEM", "REPLAY")
CLASSES, PER_TASK = 10, 2
TASKS = tuple(tuple(range(c, c + PER_TASK)) for c in range(0, CLASSES, PER_TASK))
Order = tuple[int, ...]
DATA = PaperData("cgl")
FIELDS: Mapping[str, Mapping[str, str]] = DATA["fields"]
GRIDS: Mapping[str, Mapping[str, Sequence[float]]] = DATA["grids"]
BEST: Mapping[str, Mapping[str, float]] = DATA["best"]
BEST_NTU: Mapping[str, Mapping[str, float]] = {**BEST, **DATA["best_ntu"]}


# What `CGLPreset.augment` is in the data, the network and the training.
AUGMENTATIONS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "static": {"data": {"augment": "train"}},
    "source": {"data": {"augment": "source"}},
    "epoch": {  # turns act on coordinates as recorded, so the network stretches them
        "data": {"normalised": False},
        "model": {"stretch": True},
        "training": {"augment": ["rotate", "frames"]},
    },
}


# -- preset ----------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class CGLProtocol:
    """One data set of the paper, its skeleton, and the parameters found best on it (table 3)."""

    data: str
    edges: str
    data_options: Mapping[str, Any] = default_options()
    best: Mapping[str, Mapping[str, float]] = default_options(**BEST)

    def on(self, data: Data, name: str) -> CGLProtocol:
        """The protocol on another set with as many joints; orders and units are of ten classes."""
        require_classes(data, name, CLASSES)
        return replace(self, data=name, data_options={})


@accept_old_names
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
        Which classes compete for GEM's memories: those open ``at_time``, in the row's task.
    replay_loss
        The loss of REPLAY where it is not `loss`: ``ce`` is without the balance of classes.
    precision
        As in `Training`; ``tf32`` makes the products of the ST-GCN quicker on CUDA.
    augment
        Random turns and frames of NW-UCLA, as the loader of Chen et al. has them for training
        sequences: of our training rows, once (``static``) or anew in every ``epoch``; once of
        views 1 and 2 (``source``), tested or not; ``none``.
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

    ucla: CGLProtocol = CGLProtocol(data="nw_ucla", edges="ucla", data_options={"held": "together"})
    ntu: CGLProtocol | None = CGLProtocol(
        data="ntu60", edges="ntu", best=BEST_NTU, data_options={"persons": "apart"}
    )
    seeds: int = 5
    task_orders: int = 0
    class_orders: int = 100
    order_seed: int = 0
    epochs: int = 100
    lr: float = 1e-3
    batch_size: int = 0
    loss: str = "balanced"
    scope: str = "seen"
    gem_scope: str = "at_time"
    replay_loss: str = ""
    optim_reset: bool = False
    precision: str = "float32"
    ewc: Mapping[str, Any] = default_options(
        half=False, group="full", term="objective", batch_statistics=True
    )
    mas: Mapping[str, Any] = default_options(
        importance="batch_sq", accum="avg_by_count", batch_statistics=True
    )
    twp: Mapping[str, Any] = default_options(
        beta="off", edge_softmax=True, accumulate=True, batch_statistics=True
    )
    lwf: Mapping[str, Any] = default_options(ce_scope="new", blocks="per_task")
    gem: Mapping[str, Any] = default_options(memory={"fraction": 0.2})
    replay: Mapping[str, Any] = default_options()
    augment: str = "static"
    gcn: Mapping[str, Any] = default_options()
    stgcn: Mapping[str, Any] = default_options()
    widths: tuple[int, ...] = (32, 64, 128, 256, 512)
    depths: tuple[int, ...] = (1, 2, 4, 8, 16)
    wide_seeds: int = 5
    stgcn_task_orders: int = 24
    stgcn_class_orders: int = 24
    stgcn_seeds: int = 1
    grid_seeds: int = 1
    keep: str = "counts"

    def on(self, data: Data) -> CGLPreset:
        """The preset on another set of skeletons, whose reader may turn none."""
        found = super().on(data)
        return found if found.ucla == self.ucla else replace(found, augment="none")

    def __post_init__(self) -> None:
        check_ints(self, "seeds", "wide_seeds", "stgcn_seeds", "grid_seeds", low=1)
        check_ints(self, "task_orders", "class_orders", "stgcn_task_orders", "stgcn_class_orders")
        check_ints(self, "epochs", "widths", "depths", low=1)
        check_ints(self, "batch_size")
        check_float("lr", self.lr, open_low=True)
        for name in filter(None, (self.loss, self.replay_loss)):
            check_choice("loss", name, ("auto", *OBJECTIVES))
        check_choices(self, ("auto", *SCOPES), "scope", "gem_scope")
        check_choice("augment", self.augment, AUGMENTATIONS)


PAPER = CGLPreset()
EMBEDDED = DATA.build(CGLPreset, "embedded")


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


def make_orders(preset: CGLPreset, model: str) -> dict[str, list[tuple[int, ...]]]:
    """Orders of a study by what they shuffle; a class order that moves whole tasks counts once."""
    small = model == "stgcn"
    tasks = task_orders(
        preset.stgcn_task_orders if small else preset.task_orders, preset.order_seed
    )
    drawn = preset.stgcn_class_orders if small else preset.class_orders
    classes = [o for o in class_orders(drawn, preset.order_seed) if o not in set(tasks)]
    return {"task": tasks, "class": classes}


def apply_orders(made: Recipe, orders: Sequence[Order]) -> tuple[Recipe, ...]:
    """The recipe once per class order; all have its id."""
    return tuple(made.in_order(order) for order in orders)


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
    turned = AUGMENTATIONS[preset.augment] if dataset == UCLA else {}
    where = {**turned.get("data", {}), **protocol.data_options}
    where |= {"split": split} if split else {}
    best = protocol.best.get(method, {})
    # left out where it is the default, so that ids of recipes stay as they were
    precision = {} if preset.precision == "float32" else {"precision": preset.precision}
    scope = preset.gem_scope if method == "GEM" else preset.scope
    loss = preset.replay_loss if method == "REPLAY" and preset.replay_loss else preset.loss
    return Recipe.of({
        "stream": {"kind": "class_incremental", "data": protocol.data,
                   "classes_per_task": PER_TASK, **({"data_options": where} if where else {})},
        "model": {"edges": protocol.edges, **turned.get("model", {}),
                  **(model or {"name": "gcn", **preset.gcn})},
        "method": method_spec(preset, method, best if values is None else values),
        "training": {"epochs": preset.epochs, "batch_size": preset.batch_size, "lr": preset.lr,
                     "optimizer": "adam", "loss": loss, "scope": scope,
                     "optim_reset": preset.optim_reset, **precision,
                     **turned.get("training", {})},
        "seeds": seeds or preset.seeds, "keep": preset.keep, "average": "macro",
        "label": f"{method} ({preset.shown(dataset)}{', ' if note else ''}{note})",
    })  # fmt: skip


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


def make_architecture(preset: CGLPreset, dataset: str, axis: str, value: int) -> dict[str, Any]:
    """The GCN of one point of the study; the classification layers stay as they are."""
    edges = preset.protocol(dataset).edges
    return {"name": "gcn", **preset.gcn, "edges": edges, axis: value}


def _stgcn_recipe(preset: CGLPreset, dataset: str, method: str) -> Recipe:
    model = {"name": "stgcn", **preset.stgcn}
    return recipe(preset, dataset, method, model=model, seeds=preset.stgcn_seeds, note="ST-GCN")


# -- tables ----------------------------------------------------------------------------------------
TOLERANCE_PERCENT = 3.0  # tolerance in percent
TASK_ORDER = "task-order"
PRINTED_ORDERS = {True: 120, False: 220}  # of tasks, and all of them
PLAIN_METHODS = ("BARE", "REPLAY")  # methods without details that text and code tell differently
# What table 1 counts of a stream. It prints whole numbers: 1484 / 5 as 297, 6667 / 5 as 1333.
COUNTS: dict[str, Callable[[Stream], float]] = {
    "n_action_sequences": lambda stream: len(stream.data),
    "n_joints": lambda stream: stream.data.sample_shape[2],
    "n_classes": lambda stream: len(stream.order),
    "n_tasks": lambda stream: len(stream),
    "avg_sequences_per_task": lambda stream: round(len(stream.data) / len(stream)),
    "frames_per_sequence": lambda stream: stream.data.sample_shape[1],
}


def _reasons(preset: CGLPreset, dataset: str, method: str, *first: str) -> tuple[str, ...]:
    unstated = () if method in PLAIN_METHODS else (VARIANT_UNSTATED,)
    return preset.reasons(dataset, *first, SPLIT_UNSTATED, *unstated)


def _data_entry(preset: CGLPreset, cell: Cell) -> CellEntry:
    """Table 1: numbers of the data itself; nothing is trained."""
    return CellEntry(
        counted=(recipe(preset, cell["dataset"], "BARE"), COUNTS[cell["metric"]]), tolerance=0.0,
        reasons=preset.reasons(cell["dataset"]),
    )  # fmt: skip


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
        by_task = cell["setting"] == TASK_ORDER
        recipes, both = self._measures(dataset, method, by_task)
        fewer = len(recipes) < PRINTED_ORDERS[by_task]
        return CellEntry(
            recipes=recipes,
            tolerance=TOLERANCE_PERCENT,
            reasons=_reasons(self.preset, dataset, method, *((FEWER_ORDERS,) if fewer else ())),
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


def _searched_entry(preset: CGLPreset, cell: Cell) -> CellEntry:
    """Table 3: a parameter at the point of the grid with the best validation accuracy."""
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


# -- figures ---------------------------------------------------------------------------------------
HEAD = "single"
ORDER_KINDS = ("task", "class")  # what an order shuffles
# Figures 3 to 6 by network and kinds of orders, 7 and 8 by what is varied.
SCATTERS = {
    "fig3": ("gcn", ORDER_KINDS[:1]), "fig4": ("stgcn", ORDER_KINDS[:1]),
    "fig5": ("gcn", ORDER_KINDS), "fig6": ("stgcn", ORDER_KINDS),
}  # fmt: skip
EVOLUTIONS = {"fig7": "width", "fig8": "depth"}
POINT_COLUMNS = ("method", "orders", "order", "repetitions", "tasks", "average_accuracy",
                 "forgetting", "bound")  # fmt: skip
AXES = {"average_accuracy": "average accuracy", "forgetting": "average forgetting"}


def build_figures(name: str, preset: CGLPreset) -> tuple[PaperFigure, ...]:
    """The figures under a name: one per data set, where there are two."""
    if name == "fig1":
        return (_class_figure(preset, UCLA),)
    if name == "findings":
        return (_findings_figure(preset),)
    if name in EVOLUTIONS:
        return (_evolution_figure(preset, UCLA, name),)
    both = name in ("fig3", "fig5", "fig6") and preset.ntu is not None
    return tuple(_scatter_figure(preset, one, name) for one in ((UCLA, NTU) if both else (UCLA,)))


def _study_rows(
    preset: CGLPreset, dataset: str, model: str, kinds: Sequence[str]
) -> dict[tuple[str, str, str], tuple[Recipe, ...]]:
    """Recipes of a study by data set, method and kind of order."""
    orders = make_orders(preset, model)
    make = recipe if model == "gcn" else _stgcn_recipe
    bases = {method: make(preset, dataset, method) for method in METHODS}
    return {
        (dataset, method, kind): apply_orders(base, orders[kind])
        for method, base in bases.items()
        for kind in kinds
    }


def _name_study(row: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("dataset", "method", "orders"), row, strict=True))


# Runs that keep counts alone have no names of classes.
CLASS_NAMES = {"nw_ucla": nw_ucla.CLASSES, "ntu60": ntu.CLASSES, "skeletons": tuple(ACTIONS)}


def _class_figure(preset: CGLPreset, dataset: str) -> PaperFigure:
    names = dict(enumerate(CLASS_NAMES.get(preset.protocol(dataset).data, ())))

    def accuracies(result: Result, row: tuple[str, str, str], recipes: Sequence[Recipe]) -> Records:
        runs = measures.select_runs(result, recipes, HEAD)
        if runs is None:
            return []
        mean: Any = runs.class_accuracy().dropna().groupby(level="order").mean()  # over seeds
        mean = mean.rename(columns=lambda number: names.get(number, str(number)))
        long = mean.rename_axis(columns="class").stack().rename("accuracy").reset_index()
        found: Records = long.assign(method=row[1], orders=row[2]).to_dict("records")
        return found

    return make_figure(
        "fig1", f"Accuracy of every class under all orders, {preset.shown(dataset)}",
        _study_rows(preset, dataset, "gcn", ORDER_KINDS), names=_name_study, records=accuracies,
        columns=("method", "orders", "order", "class", "accuracy"), draw=draw_classes,
    )  # fmt: skip


def _scatter_figure(preset: CGLPreset, dataset: str, name: str) -> PaperFigure:
    model, kinds = SCATTERS[name]
    shown, net = preset.shown(dataset), "ST-GCN" if model == "stgcn" else "GCN"
    return make_figure(
        f"{name}-{shown.partition('-')[0].lower()}",
        f"Accuracy against forgetting, {shown}, {net}",
        _study_rows(preset, dataset, model, kinds), names=_name_study, draw=draw_scatter,
        records=lambda result, row, recipes: order_points(
            result, recipes, {"method": row[1], "orders": row[2]}
        ),
        columns=POINT_COLUMNS,
    )  # fmt: skip


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


def _evolution_figure(preset: CGLPreset, dataset: str, name: str) -> PaperFigure:
    axis = EVOLUTIONS[name]
    rows = {
        (method, value): (_sized_recipe(preset, dataset, method, axis, value),)
        for value in (preset.widths if axis == "width" else preset.depths)
        for method in (*METHODS, "JOINT")
    }

    def numbers(result: Result, row: tuple[str, int], recipes: Sequence[Recipe]) -> Records:
        found: Records = []
        for metric in AXES:
            values = measures.metric(metric, recipes, head=HEAD)(result)
            names = {"method": row[0], axis: row[1], "metric": metric}
            found += mean_records(names, values, ddof=0)
        return found

    return make_figure(
        name, f"Accuracy and forgetting over the {axis} of the GCN, {preset.shown(dataset)}", rows,
        names=lambda row: {"dataset": dataset, "method": row[0], axis: str(row[1])},
        records=numbers, columns=("method", axis, "metric", "value", "std", "repetitions"),
        draw=partial(draw_evolution, axis=axis),
    )  # fmt: skip


def _sized_recipe(preset: CGLPreset, dataset: str, method: str, axis: str, value: int) -> Recipe:
    model = make_architecture(preset, dataset, axis, value)
    note = f"{axis} {value}"
    return recipe(preset, dataset, method, model=model, seeds=preset.wide_seeds, note=note)


# -- findings --------------------------------------------------------------------------------------
PENALTIES = ("EWC", "MAS", "TWP")
ON_A_PAR = 5.0  # percent of accuracy within which a method is no better than plain training
NO_GAIN = 2.0  # percent of accuracy by which a wider network may be better without a gain


def _findings_figure(preset: CGLPreset) -> PaperFigure:
    tables = {"2": SensitivityEntries(preset).entry}
    cells = CellFindings("cgl", preset, DATA["findings"], tables)
    studies = StudyMeasures(preset)
    claims = list_own_claims(preset, cells, studies)
    return make_findings_figure(
        DATA["titles"]["findings"], cells, more=lambda _: claims, rows=studies.rows
    )


def list_own_claims(
    preset: CGLPreset, cells: CellFindings, studies: StudyMeasures
) -> list[Claim | TrendClaim]:
    """What the text says of table 2 beyond single cells, and of figures 3 to 8."""
    claims = [*_claim_extremes(preset, cells), *_claim_easier_set(preset, cells)]
    for dataset in (UCLA, *(() if preset.ntu is None else (NTU,))):
        claims += _claim_planes(preset, dataset, studies)
    return [*claims, *_claim_stgcn(preset, studies), *_claim_sizes(preset, studies)]


class StudyMeasures:
    """What figures show of many orders and of networks of several sizes, one value per repetition.

    `rows` are the recipes that were asked for, with the names by which they are chosen.
    """

    def __init__(self, preset: CGLPreset) -> None:
        self.preset = preset
        self.rows: list[tuple[Recipe, Mapping[str, str]]] = []
        self._orders = lru_cache(self._list_orders)
        self._sizes = lru_cache(self._list_sizes)

    def _list_orders(self, dataset: str, network: str, method: str, kind: str) -> Sequence[Recipe]:
        model = "gcn" if network == "GCN" else "stgcn"
        make = recipe if model == "gcn" else _stgcn_recipe
        orders = make_orders(self.preset, model)[kind]
        made = apply_orders(make(self.preset, dataset, method), orders)
        names = {"dataset": dataset, "backbone": network, "method": method, "orders": kind}
        self.rows += [(one, names) for one in made]
        return made

    def _list_sizes(self, method: str, axis: str, value: int) -> Recipe:
        made = _sized_recipe(self.preset, UCLA, method, axis, value)
        names = {"dataset": UCLA, "backbone": "GCN", "method": method, axis: str(value)}
        self.rows.append((made, names))
        return made

    def orders(
        self, metrics: Sequence[str], place: tuple[str, str, str, str],
        reduce: Callable[..., Floats],
    ) -> tuple[str, Evidence]:  # fmt: skip
        """A number per repetition from metrics [orders, repetitions] of the study at a place.

        The place is a data set, a network, a method and what is shuffled. Missing while some order
        of the repetition is not finished.
        """
        recipes = self._orders(*place)
        found = [measures.metric(one, recipes, head=HEAD, percent=True) for one in metrics]

        def measure(result: Result) -> Floats:
            tables = [one(result).reshape(len(recipes), -1) for one in found]
            return reduce(*tables) if len(recipes) else np.full(1, np.nan)

        return place[2], measure

    def sizes(self, metric: str, method: str, axis: str) -> list[Side]:
        """A metric at every width or depth."""
        values = self.preset.widths if axis == "width" else self.preset.depths
        return [
            (f"{axis} {value}", measures.metric(
                metric, self._sizes(method, axis, value), head=HEAD, percent=True), np.nan)
            for value in values
        ]  # fmt: skip


AA, AF, BOUND = "average_accuracy", "forgetting", "forgetting_bound"


def average(values: Floats) -> Floats:
    """Mean over orders [orders, repetitions]; nan where one is missing."""
    means: Floats = values.mean(0)
    return means


def spread(values: Floats) -> Floats:
    """Standard deviation over orders [orders, repetitions]."""
    found: Floats = values.std(0)
    return found


def correlate(first: Floats, second: Floats) -> Floats:
    """Correlation over orders of two metrics [orders, repetitions]; nan where one is constant.

    Examples
    --------
    >>> a = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> correlate(a, -a)[0].round(6).item()
    -1.0
    """
    a, b = first - first.mean(0), second - second.mean(0)
    scale = np.sqrt((a**2).sum(0) * (b**2).sum(0))
    known = np.where(scale > 0, scale, np.nan)
    found: Floats = (a * b).sum(0) / known
    return found


def share_within(values: Floats, bounds: Floats) -> Floats:
    """Share of the orders [orders, repetitions] whose value is not above its bound."""
    within = np.where(np.isnan(values + bounds), np.nan, values <= bounds + 1e-9)
    shares: Floats = within.mean(0)
    return shares


def _claim_extremes(preset: CGLPreset, cells: CellFindings) -> Iterator[Claim]:
    """Orders that make a task or a class perfect, and others that lose it."""
    said = {
        TASK_ORDER: ("a task is perfect in one order and lost in another", ("EWC", "MAS", "GEM")),
        "class-order-aggregated": ("a class is perfect in one order and lost in another", METHODS),
    }
    for setting, (words, methods) in said.items():
        for method in methods:
            place = {"dataset": UCLA, "setting": setting, "method": method, "metric": "MOPD"}
            (cell,) = cells.find_cells("2", place)
            whole = ("100", measures.constant(100.0))
            yield Claim(
                words, f"{preset.shown(UCLA)} {setting} MOPD", (method, cells.measure(cell)), whole,
                (cell.value, 100.0), relation="near", slack=1.0,
            )  # fmt: skip


def _claim_easier_set(preset: CGLPreset, cells: CellFindings) -> Iterator[Claim]:
    """NTU-CIL, with more rows, against UCLA-CIL."""
    if preset.ntu is None:
        return
    for method in ("EWC", "MAS", "TWP", "GEM", "REPLAY"):
        places = [
            {"dataset": one, "setting": TASK_ORDER, "method": method, "metric": "AOPD"}
            for one in (NTU, UCLA)
        ]
        (ntu,), (ucla,) = (cells.find_cells("2", place) for place in places)
        yield Claim(
            "but for LwF, tasks depend less on the order on NTU-CIL than on UCLA-CIL",
            "task-order AOPD", (f"{method}, {preset.shown(NTU)}", cells.measure(ntu)),
            (f"{method}, {preset.shown(UCLA)}", cells.measure(ucla)), (ntu.value, ucla.value),
            relation="below",
        )  # fmt: skip


def _claim_planes(preset: CGLPreset, dataset: str, studies: StudyMeasures) -> Iterator[Claim]:
    """Figures 3 and 5: accuracy and forgetting over orders, GCN."""
    tasks, classes = (f"{preset.shown(dataset)} {kind} orders, GCN" for kind in ORDER_KINDS)

    def over(kind: str, reduce: Callable[..., Floats], *metrics: str) -> Callable[[str], Any]:
        return lambda method: studies.orders(metrics, (dataset, "GCN", method, kind), reduce)

    accuracy, lost = over("task", average, AA), over("task", average, AF)
    varied, varied_loss = over("task", spread, AA), over("task", spread, AF)
    yield Claim(
        "GEM is less accurate than REPLAY, with as many samples", f"{tasks}: AA",
        accuracy("GEM"), accuracy("REPLAY"), relation="below",
    )  # fmt: skip
    for first, second in product((*PENALTIES, "GEM"), ("LwF", "REPLAY")):
        yield Claim(
            "the accuracy of penalties and GEM depends more on the order than that of LwF, REPLAY",
            f"{tasks}: deviation of AA", varied(first), varied(second),
        )  # fmt: skip
    related = over("task", correlate, AA, AF)
    for method in METHODS:
        yield Claim(
            "in orders with more accuracy less is forgotten",
            f"{tasks}: correlation of AA and AF", related(method), ("0", measures.constant(0.0)),
            relation="below",
        )  # fmt: skip
    for method in METHODS:
        yield Claim(
            "forgetting keeps to its bound (theorem 1)", f"{tasks}: share of orders",
            over("task", share_within, AF, BOUND)(method), ("1", measures.constant(1.0)), ties=True,
        )  # fmt: skip
    for method in METHODS:
        if method != "GEM":
            yield Claim(
                "GEM forgets least", f"{tasks}: AF", lost("GEM"), lost(method), relation="below"
            )
    if dataset == UCLA:  # on NTU-CIL both forget alike
        yield Claim(
            "MAS forgets less than EWC", f"{tasks}: AF", lost("MAS"), lost("EWC"), relation="below"
        )
    yield Claim(
        "TWP forgets less than MAS", f"{tasks}: AF", lost("TWP"), lost("MAS"), relation="below"
    )
    for method in METHODS:
        if method != "LwF":
            yield Claim(
                "the forgetting of LwF depends most on the order", f"{tasks}: deviation of AF",
                varied_loss("LwF"), varied_loss(method),
            )  # fmt: skip
    shuffled = over("class", average, AA)
    for first, second in product(("GEM", "MAS", "LwF"), ("EWC", "TWP")):
        yield Claim(
            "under class orders GEM, MAS and LwF are better than EWC and TWP", f"{classes}: AA",
            shuffled(first), shuffled(second),
        )  # fmt: skip
    for place, measure in ((tasks, accuracy), (classes, shuffled)):
        for method in METHODS:
            if method != "REPLAY":
                yield Claim(
                    "REPLAY is the most accurate", f"{place}: AA", measure("REPLAY"),
                    measure(method),
                )  # fmt: skip


def _claim_stgcn(preset: CGLPreset, studies: StudyMeasures) -> Iterator[Claim]:
    """Figures 4 and 6."""
    for kind in ORDER_KINDS:
        row = f"{preset.shown(UCLA)} {kind} orders, ST-GCN: AA"
        sides = {
            method: studies.orders((AA,), (UCLA, "ST-GCN", method, kind), average)
            for method in ("BARE", *PENALTIES, "REPLAY")
        }
        for method in PENALTIES:
            yield Claim(
                "with ST-GCN, penalties are on a par with plain training", row, sides[method],
                sides["BARE"], relation="near", slack=ON_A_PAR,
            )  # fmt: skip
            yield Claim(
                "with ST-GCN, REPLAY is above penalties", row, sides["REPLAY"], sides[method]
            )


def _claim_sizes(preset: CGLPreset, studies: StudyMeasures) -> Iterator[Claim | TrendClaim]:
    """Figures 7 and 8."""
    shown = preset.shown(UCLA)
    for method in METHODS:
        (narrow, first, _), *_, (wide, last, _) = studies.sizes(AA, method, "width")
        yield Claim(
            "a wider network brings no gain", f"{shown}: AA", (f"{method}, {wide}", last),
            (f"{method}, {narrow}", first), relation="below", ties=True, slack=NO_GAIN,
        )  # fmt: skip
    for method in ("BARE", *PENALTIES):
        yield TrendClaim(
            "a deeper network forgets less, penalties and plain training", f"{shown}: AF", method,
            studies.sizes(AF, method, "depth"), falls=True,
        )  # fmt: skip
    yield TrendClaim(
        "a deeper network is less accurate with REPLAY", f"{shown}: AA", "REPLAY",
        studies.sizes(AA, "REPLAY", "depth"), falls=True,
    )  # fmt: skip


# -- drawings --------------------------------------------------------------------------------------
DRAWN_METHODS = (*METHODS, "JOINT")


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

    titles = [f"{kind} orders" for kind in dict.fromkeys(data["orders"])]
    grid = PlotGrid(
        columns=data["orders"], subplot_titles=titles, shared_yaxes=True, plot_height=320
    )
    looks = assign_looks(DRAWN_METHODS, data["method"])
    for (kind, method), rows in data.groupby(["orders", "method"], sort=False):
        look = looks[str(method)]
        trace = go.Scatter(
            x=rows["average_accuracy"].tolist(), y=rows["forgetting"].tolist(), mode="markers",
            text=rows["order"].tolist(), hovertemplate="AA %{x:.3f}, AF %{y:.3f}<br>%{text}",
            marker={"symbol": look.symbol, "color": look.color, "opacity": 0.6, "size": 6},
        )  # fmt: skip
        grid.add(trace, str(method), column=kind)
    x, y = bound_line(int(data["tasks"].max()))
    for kind in grid.columns:
        bound = go.Scatter(x=x, y=y, mode="lines", line={"dash": "dot", "color": "green"})
        grid.add(bound, "upper bound", column=kind)
    grid.figure.update_xaxes(title=AXES["average_accuracy"])
    grid.figure.update_yaxes(title=AXES["forgetting"], col=1)
    return grid.figure


def draw_classes(data: pd.DataFrame) -> Any:
    """A row of boxes per kind of orders: the accuracies of each class over the orders."""
    import plotly.graph_objects as go

    titles = [f"{kind} orders" for kind in dict.fromkeys(data["orders"])]
    grid = PlotGrid(data["orders"], subplot_titles=titles, plot_height=300)
    looks = assign_looks(DRAWN_METHODS, data["method"])
    for (kind, method), rows in data.groupby(["orders", "method"], sort=False):
        trace = go.Box(
            x=rows["class"].tolist(), y=rows["accuracy"].tolist(), offsetgroup=str(method),
            marker={"color": looks[str(method)].color, "size": 3},
        )  # fmt: skip
        grid.add(trace, str(method), row=kind)
    grid.figure.update_layout(boxmode="group")
    grid.figure.update_xaxes(type="category", tickangle=20)
    grid.figure.update_yaxes(title="accuracy", range=[-0.02, 1.02])
    return grid.figure


def draw_evolution(data: pd.DataFrame, axis: str) -> Any:
    """Accuracy and forgetting side by side, a line per method."""
    titles = [AXES[name] for name in dict.fromkeys(data["metric"])]
    grid = PlotGrid(columns=data["metric"], subplot_titles=titles, plot_height=300)
    looks = assign_looks(DRAWN_METHODS, data["method"])
    for (metric, method), rows in data.groupby(["metric", "method"], sort=False):
        spread = {"array": rows["std"].tolist(), "thickness": 1}
        grid.add_line(rows[axis], rows["value"], str(method), looks, column=metric, error_y=spread)
    grid.figure.update_xaxes(title=axis, type="log", dtick=np.log10(2))
    return grid.figure


# Drawn from the same runs as table 2, or needed by the findings as well.
_OF_ORDERS_AND_SIZES = ("fig1", *SCATTERS, *EVOLUTIONS, "findings")

TABLES = Paper(
    name="cgl", titles=DATA["titles"], paper=PAPER, embedded=EMBEDDED,
    tables={
        "1": lambda preset: partial(_data_entry, preset),
        "2": lambda preset: SensitivityEntries(preset).entry,
        "3": lambda preset: partial(_searched_entry, preset),
        "4": lambda preset: partial(_architecture_entry, preset),
        "5": lambda preset: _grid_value_entry,
    },
    figures=build_figures, counted=("1",), without_data=("4", "5"),
    folders=dict.fromkeys(("2", *_OF_ORDERS_AND_SIZES), "cgl"),
)  # fmt: skip
