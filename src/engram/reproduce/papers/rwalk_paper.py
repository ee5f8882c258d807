"""Riemannian walk (RWalk): preset, recipes, tables, figures and drawings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from engram.engine.training import PRECISIONS
from engram.errors import bad, check_choice, check_float, check_int, unknown
from engram.experiments import Recipe
from engram.learner.objectives import SCOPES
from engram.memory.ranking_policies import policies
from engram.methods.er import REDUCTIONS
from engram.reproduce import measures
from engram.reproduce.cells import Cell, read_cells
from engram.reproduce.paper_table import (
    EPOCHS_UNSTATED,
    OTHER_DATA,
    VARIANT_UNSTATED,
    CellEntry,
    Floats,
    Measure,
    PaperFigure,
)
from engram.reproduce.papers import figure_parts
from engram.reproduce.papers.figure_parts import (
    LEVEL_COLUMNS,
    LegendNames,
    accuracy_curves,
    assign_looks,
    draw_line,
    make_frame,
    sample_std,
)
from engram.reproduce.papers.paper_base import Paper, PaperPreset

if TYPE_CHECKING:
    import pandas as pd

    from engram.records import Result
    from engram.report.method_styles import Style

MULTI, SINGLE = "multi-head", "single-head"
HEAD_VIEWS = {MULTI: "multi", SINGLE: "single"}
MIXES = ("union", "paired")
REFERENCES = ("last", "each")


@dataclass(frozen=True, kw_only=True)
class RWalkProtocol:
    """One data set of the paper and how it is learnt.

    `epochs` is ours: the paper does not say. `every` is the paper's Delta t. `valid` is the share
    of training rows that nobody trains on (the text implies 55,000 MNIST rows). `precision` is that
    of a recipe; convolutions are a good deal faster in ``tf32`` on a GPU that has it.
    """

    data: str
    classes: int
    classes_per_task: int
    model: Any
    epochs: int
    every: int
    memory_per_class: int
    valid: float = 0.0
    lr: float = 1e-3
    samples: tuple[int, ...] = ()  # sizes of the study of memory sizes
    precision: str = "float32"

    def __post_init__(self) -> None:
        for name in ("classes", "classes_per_task", "epochs", "every", "memory_per_class"):
            check_int(name, getattr(self, name), 1)
        for size in self.samples:
            check_int("samples", size, 1)
        check_choice("precision", self.precision, PRECISIONS)
        check_float("lr", self.lr, open_low=True)
        check_float("valid", self.valid, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class RWalkPreset(PaperPreset[RWalkProtocol]):
    """The choices of all rows.

    Parameters
    ----------
    scope_multi, scope_single, scope_samples
        Which logits compete in training: multi-head rows, single-head rows without samples, and
        rows with samples. Without samples the printed 38 % of plain training is out of reach when
        all seen classes compete (20 %), but not when only the task's own do.
    weigh_samples
        With samples, rows weigh inversely to the size of their class, so that ten exemplars count
        as much as the task's thousands of rows; the authors' released code does so too.
    mix
        How exemplars enter a batch: ``union`` shuffles them into the task's rows (section 4.2),
        ``paired`` adds as many as the batch has new rows.
    sample_rows, sample_reduce
        Of ``paired`` batches: exemplars in each, 0 for as many as new rows; and whether new rows
        and exemplars share one mean, or the ``sum`` of a mean over each is trained.
    sample_epochs
        Epochs of the rows with samples; 0 for those of the protocol.
    optim_reset
        A fresh optimiser at every task, as in the authors' released code.
    policy, normalize
        Mean of features is herding; the authors' code does not normalise features.
    ewc, pi, rwalk, icarl
        Fields of the methods EWCpp, SI, RWalk, ICaRL where they differ from the defaults. Both
        Fishers keep .9 of the old value (R2): as printed, .9 of the new batch, EWC and single-head
        RWalk stay further from the paper's numbers.
    reference
        The model behind intransigence, trained from scratch on all tasks. ``last`` trains it for
        the last task only, all that tables need; ``each`` for every task.
    strength_20, per_class_20, epochs_20
        Table 2, whose regularisation and length are not given.
    """

    parts: ClassVar = {"mnist": "MNIST", "cifar": "CIFAR-100"}
    official: ClassVar = {"MNIST": "mnist", "CIFAR-100": "cifar100"}

    mnist: RWalkProtocol = RWalkProtocol(
        data="mnist", classes=10, classes_per_task=2, model="mlp", epochs=10, every=10,
        memory_per_class=10, valid=1 / 12, samples=(5, 10, 20, 50, 100),
    )  # fmt: skip
    cifar: RWalkProtocol | None = RWalkProtocol(
        data="cifar100", classes=100, classes_per_task=10, model="cnn", epochs=50, every=50,
        memory_per_class=25, samples=(5, 10, 25, 50, 100, 200),
    )  # fmt: skip
    seeds: int = 5
    batch_size: int = 64
    scope_multi: str = "own"
    scope_single: str = "own"
    scope_samples: str = "seen"
    weigh_samples: bool = True
    mix: str = "union"
    sample_rows: int = 0
    sample_reduce: str = "mean"
    sample_epochs: int = 0
    optim_reset: bool = True
    policy: str = "herding"
    normalize: bool = False
    ewc: Mapping[str, Any] = field(
        default_factory=lambda: {"normalize": True, "alpha_on": "running"}
    )
    pi: Mapping[str, Any] = field(default_factory=lambda: {"xi": 1e-3, "clamp": "task_term"})
    rwalk: Mapping[str, Any] = field(default_factory=lambda: {"alpha_on": "running"})
    icarl: Mapping[str, Any] = field(default_factory=lambda: {"bce_reduction": "sum"})
    reference: str = "last"
    keep: str = "labels"
    strength_20: float = 1000.0
    per_class_20: int = 50
    epochs_20: int = 10

    def __post_init__(self) -> None:
        check_choice("mix", self.mix, MIXES)
        check_choice("sample_reduce", self.sample_reduce, REDUCTIONS)
        check_choice("reference", self.reference, REFERENCES)
        check_choice("policy", self.policy, policies())
        for name in ("scope_multi", "scope_single", "scope_samples"):
            check_choice(name, getattr(self, name), ("auto", *SCOPES))
        for name in ("seeds", "per_class_20", "epochs_20"):
            check_int(name, getattr(self, name), 1)
        for name in ("batch_size", "sample_rows", "sample_epochs"):
            check_int(name, getattr(self, name))
        self._need_paired()
        check_float("strength_20", self.strength_20)

    def _need_paired(self) -> None:
        """Refuse settings of paired batches where there are none: they would do nothing."""
        if self.mix == "paired":
            return
        for name, plain in (("sample_rows", 0), ("sample_reduce", "mean")):
            if getattr(self, name) != plain:
                raise bad(name, f"{plain!r} unless mix is 'paired'", getattr(self, name))


PAPER = RWalkPreset()
# The same rows on the embedded digits, in two minutes on two cores.
EMBEDDED = RWalkPreset(
    mnist=RWalkProtocol(
        data="digits", classes=10, classes_per_task=2, model={"name": "mlp", "hidden": [64, 64]},
        epochs=10, every=10, memory_per_class=10, samples=(5, 10, 20),
    ),
    cifar=None, seeds=2,
)  # fmt: skip


# ------------------------------------------------------------------------------------------------
# The recipes behind rows of the RWalk paper's tables.


SHORTEST_TRAINING = 1e-6  # of an epoch: rounds up to one


@dataclass(frozen=True, kw_only=True)
class RWalkRow:
    """One row of a table for one data set: method as printed without "-S", head, memory."""

    dataset: str
    setting: str
    method: str
    strength: float = 0.0
    samples: bool = False
    per_class: int = 0  # 0: the protocol's
    policy: str = ""  # "": the preset's

    def label(self, shown: str) -> str:
        """A name that tells rows of one table apart; `shown` names the data."""
        name = self.method + ("-S" if self.samples and "iCaRL" not in self.method else "")
        extra = [f"strength={self.strength:g}"] if self.strength else []
        extra += [f"per_class={self.per_class}"] if self.per_class else []
        extra += [self.policy] if self.policy else []
        return " ".join([name, *extra, f"({shown}, {self.setting})"])


def recipe(preset: RWalkPreset, row: RWalkRow) -> Recipe:
    """The recipe of a row.

    Where heads are trained alike, rows of both are one training, looked at with and without task
    ids.
    """
    protocol = preset.protocol(row.dataset)
    label = row.label(preset.shown(row.dataset))
    if not row.samples and preset.scope_multi == preset.scope_single != "auto":
        label = replace(row, setting="both heads").label(preset.shown(row.dataset))
        row = replace(row, setting=MULTI)
    scope = preset.scope_multi if row.setting == MULTI else preset.scope_single
    training = _training(preset, protocol, scope)
    if row.samples and row.setting == SINGLE:
        training["scope"] = preset.scope_samples
        # iCaRL's loss is its own, class by class
        training["class_weights"] = preset.weigh_samples and "iCaRL" not in row.method
    if row.samples and preset.sample_epochs:
        training["epochs"] = preset.sample_epochs
    return Recipe.of(
        {
            "stream": _stream(protocol, row.setting, protocol.classes_per_task),
            "model": protocol.model,
            "method": method_spec(preset, protocol, row),
            "training": training,
            "seeds": preset.seeds,
            "keep": preset.keep,
            "label": label,
        }
    )


def joint_recipe(preset: RWalkPreset, dataset: str, setting: str) -> Recipe:
    """The jointly trained model that intransigence compares with."""
    protocol = preset.protocol(dataset)
    step = protocol.classes_per_task
    last, multi = preset.reference == "last", setting == MULTI
    training = _training(preset, protocol, "own" if multi else "seen")
    method: dict[str, Any] = {"name": "Joint", "init": "scratch"}
    if last and multi:  # every row competes among its own task's classes: all tasks are needed
        method["skip"] = math.ceil(protocol.classes / step) - 1
    if last and not multi:
        # Two tasks, of which the first is hardly trained: the second starts from scratch.
        training["first_task_scale"] = SHORTEST_TRAINING
    sizes = [protocol.classes - step, step] if last and not multi else step
    return Recipe.of(
        {
            "stream": _stream(protocol, setting, sizes),
            "model": protocol.model,
            "method": method,
            "training": training,
            "seeds": preset.seeds,
            "keep": preset.keep,
            "label": f"Joint reference ({preset.shown(dataset)}, {setting})",
        }
    )


def table_2_recipe(preset: RWalkPreset) -> Recipe:
    """RWalk in table 2: 20 tasks of 5 classes, GEM's slim ResNet-18.

    Without CIFAR-100, in the embedded form, it is MNIST's stand-in with its own tasks and network.
    """
    row = RWalkRow(
        dataset="MNIST", setting=MULTI, method="RWalk", strength=preset.strength_20, samples=True
    )
    if preset.cifar is None:
        return recipe(replace(preset, mnist=replace(preset.mnist, epochs=preset.epochs_20)), row)
    return recipe(change_to_20_tasks(preset), replace(row, dataset="CIFAR-100"))


def change_to_20_tasks(preset: RWalkPreset) -> RWalkPreset:
    """The preset with CIFAR-100 as table 2 has it."""
    protocol = replace(
        preset.protocol("CIFAR-100"), classes_per_task=5, epochs=preset.epochs_20,
        model={"name": "resnet18_slim", "nf": 20}, memory_per_class=preset.per_class_20,
    )  # fmt: skip
    return replace(preset, cifar=protocol)


def _stream(protocol: RWalkProtocol, setting: str, sizes: int | list[int]) -> dict[str, Any]:
    kind = "task_incremental" if setting == MULTI else "class_incremental"
    found = {"kind": kind, "data": protocol.data, "classes_per_task": sizes}
    return {**found, "valid": protocol.valid} if protocol.valid else found


def _training(preset: RWalkPreset, protocol: RWalkProtocol, scope: str) -> dict[str, Any]:
    # left out where it is the default, so that ids of recipes stay as they were
    kept: dict[str, Any] = {} if preset.optim_reset else {"optim_reset": False}
    kept |= {} if protocol.precision == "float32" else {"precision": protocol.precision}
    return {
        "epochs": protocol.epochs, "batch_size": preset.batch_size, "optimizer": "adam",
        "lr": protocol.lr, "scope": scope, **kept,
    }  # fmt: skip


def method_spec(preset: RWalkPreset, protocol: RWalkProtocol, row: RWalkRow) -> dict[str, Any]:
    """The plain form of a row's method."""
    memory = {
        "per_class": row.per_class or protocol.memory_per_class,
        "policy": row.policy or preset.policy, "normalize": preset.normalize,
    }  # fmt: skip
    if row.method in ("iCaRL", "iCaRL-hb1"):
        variant = "hb1" if row.method.endswith("hb1") else "nme"
        return {"name": "ICaRL", "memory": memory, "variant": variant, **preset.icarl}
    if row.method == "Vanilla" and not row.samples:
        return {"name": "Finetune"}
    replay: dict[str, Any] = {"name": "ER", "memory": memory, "mix": preset.mix}
    if preset.sample_rows:
        replay["size"] = preset.sample_rows
    if preset.sample_reduce != "mean":
        replay["reduce"] = preset.sample_reduce
    if row.method == "Vanilla":
        return replay
    penalty = _penalty(preset, protocol, row)
    if not row.samples:
        return penalty
    if preset.mix == "union":
        return {**penalty, "memory": memory}
    return {"name": "Join", "parts": [replay, penalty]}


def _penalty(preset: RWalkPreset, protocol: RWalkProtocol, row: RWalkRow) -> dict[str, Any]:
    strength = {"strength": row.strength}
    if row.method == "EWC":  # the paper means EWC++ throughout
        return {"name": "EWCpp", **strength, "every": protocol.every, **preset.ewc}
    if row.method == "PI":
        return {"name": "SI", **strength, **preset.pi}
    if row.method == "RWalk":
        return {"name": "RWalk", **strength, "every": protocol.every, **preset.rwalk}
    raise unknown("method", row.method, ("Vanilla", "EWC", "PI", "RWalk", "iCaRL", "iCaRL-hb1"))


# ------------------------------------------------------------------------------------------------
# Riemannian Walk (Chaudhry et al. 2018): tables 1 to 4 and figures 2 to 6.


TITLES = {
    "1": "accuracy, forgetting, intransigence of all methods, MNIST and CIFAR-100",
    "2": "RWalk with a slim ResNet-18 on 20 tasks of CIFAR-100",
    "3": "three strengths of each penalty, with samples",
    "4": "layers of the CIFAR-100 network",
    "fig2": "accuracy of every task over time, MNIST",
    "fig3": "forgetting against intransigence, single-head",
    "fig4": "accuracy over the number of samples",
    "fig5": "accuracy by sampling strategy",
    "fig6": "accuracy of every task over time, CIFAR-100",
}
CIFAR_ALONE = ("2", "fig6")
TOLERANCE_PERCENT = 3.0  # tolerance in percent, .03 for shares


def _notes(name: str, preset: RWalkPreset, embedded: bool) -> tuple[str, ...]:
    """CIFAR-100 has a stand-in on embedded data only."""
    if name not in CIFAR_ALONE or preset.cifar is not None:
        return ()
    if not embedded:
        expected = "CIFAR-100, or other colour images in its place, which it is about"
        raise bad(f"rwalk/{name}", expected, "none: cifar is null, or --on names other images")
    return (f"{preset.shown('MNIST')} in place of CIFAR-100",)


def find_row(cell: Cell) -> RWalkRow:
    """The row of a cell of table 1 or 3.

    Examples
    --------
    >>> find_row(read_cells("rwalk", "1")[-1])
    Row(dataset='CIFAR-100', setting='single-head', method='RWalk', strength=500.0, samples=True,
        per_class=0, policy='')
    """
    method = cell["method"].removesuffix("-S")
    # RWalk stands in the single-head block only among the rows with samples.
    samples = method != cell["method"] or (method == "RWalk" and cell["setting"] == SINGLE)
    return RWalkRow(
        dataset=cell["dataset"], setting=cell["setting"], method=method,
        strength=_parse_strength(cell["params"]), samples=samples or method.startswith("iCaRL"),
    )  # fmt: skip


def _parse_strength(params: str) -> float:
    name, _, value = params.partition("=")
    return float(value) if name == "lambda" else 0.0


def _training_entry(preset: RWalkPreset, row: RWalkRow, cell: Cell) -> CellEntry:
    """A cell that is measured on training runs."""
    made, head, metric = recipe(preset, row), HEAD_VIEWS[row.setting], cell["metric"]
    reasons = preset.reasons(
        row.dataset, EPOCHS_UNSTATED, *(() if row.method == "Vanilla" else (VARIANT_UNSTATED,))
    )
    tolerance = TOLERANCE_PERCENT if cell.percent else TOLERANCE_PERCENT / 100
    common: dict[str, Any] = {"reasons": reasons, "tolerance": tolerance}
    if metric == "A(%)":
        measure = measures.metric("average_accuracy", made, head=head, percent=True)
        return CellEntry(recipes=(made,), measure=measure, **common)
    joint = joint_recipe(preset, row.dataset, row.setting)
    of_row = _metric(metric.removesuffix("_delta"), joint, head)
    recipes = (made, joint) if metric.startswith("I") else (made,)
    if not metric.endswith("_delta"):
        return CellEntry(recipes=recipes, measure=of_row(made), **common)
    first = recipe(preset, replace(row, strength=_first_strength(row)))
    measure = measures.difference(of_row(made), of_row(first))
    return CellEntry(recipes=(first, *recipes), measure=measure, **common)


def _metric(name: str, joint: Any, head: str) -> Callable[[Any], Measure]:
    if name == "F":
        return lambda made: measures.metric("forgetting", made, head=head)
    return lambda made: measures.intransigence(made, joint, head=head)


def _first_strength(row: RWalkRow) -> float:
    """The first strength of a method in table 3, with which its other rows are compared."""
    same = (c for c in read_cells("rwalk", "3")
            if c["method"] == row.method and c["dataset"] == row.dataset)  # fmt: skip
    return _parse_strength(next(same)["params"])


def _table_2_entry(preset: RWalkPreset, cell: Cell) -> CellEntry:
    if cell["method"] != "RWalk":
        return CellEntry(missing="quoted by the paper from the authors of GEM")
    made = table_2_recipe(preset)
    measure = measures.metric("average_accuracy", made, head="multi", percent=True)
    same = preset.cifar is not None and preset.shown("CIFAR-100") == "CIFAR-100"
    reasons = (
        (EPOCHS_UNSTATED, VARIANT_UNSTATED)
        if same
        else (OTHER_DATA, EPOCHS_UNSTATED, VARIANT_UNSTATED)
    )
    return CellEntry(recipes=(made,), measure=measure, reasons=reasons, tolerance=TOLERANCE_PERCENT)


def list_layers() -> list[dict[str, float]]:
    """The printed layers of our network: kernel, stride, filters, dropout of each."""
    from torch import nn

    from engram.models import build as build_model
    from engram.models.layers import Dropout

    net = build_model("cnn", sample_shape=(3, 32, 32), classes=100, seed=0)
    found: list[dict[str, float]] = []
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            size, stride = module.kernel_size[0], module.stride[0]
            found.append({"kernel": size, "stride": stride, "filters": module.out_channels})
        elif isinstance(module, nn.MaxPool2d):
            step = module.stride if isinstance(module.stride, int) else module.stride[0]
            found.append({"stride": step})
        elif isinstance(module, Dropout):
            found[-1]["dropout"] = module.p
    return found


def _layer(cell: Cell) -> CellEntry:
    found, place = list_layers(), int(cell["stage"]) - 1
    kinds = ["Conv" if "kernel" in layer else "MaxPool" for layer in found]
    if place >= len(found) or kinds[place] != cell["method"]:
        return CellEntry(missing=f"our network has no {cell['method']} as layer {place + 1}")
    value = found[place].get(cell["metric"])
    if value is None:
        return CellEntry(missing=f"layer {place + 1} has no {cell['metric']}")
    return CellEntry(measure=measures.constant(float(value)), tolerance=0.0)


TABLES = Paper(
    name="rwalk", titles=TITLES, paper=PAPER, embedded=EMBEDDED,
    tables={
        "1": lambda preset: lambda cell: _training_entry(preset, find_row(cell), cell),
        "2": lambda preset: lambda cell: _table_2_entry(preset, cell),
        "3": lambda preset: lambda cell: _training_entry(
            preset, replace(find_row(cell), samples=True), cell
        ),
        "4": lambda preset: _layer,
    },
    figures=lambda name, preset: (build_figures(name, preset),), notes=_notes,
    kept_cells=("2", "4"), without_data=("4",),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------
# Figures 2 to 6 of the RWalk paper: their runs, numbers and drawings.


REGULARISED = ("EWC", "PI", "RWalk")
POLICIES = {"random": "uniform", "plane": "plane distance", "entropy": "entropy",
            "herding": "mean of features"}  # fmt: skip
PANELS = (
    (MULTI, False, ("Vanilla", *REGULARISED)),
    (SINGLE, False, ("Vanilla", "EWC", "PI", "iCaRL-hb1", "iCaRL")),
    (SINGLE, True, ("Vanilla", *REGULARISED)),
)


def build_figures(name: str, preset: RWalkPreset) -> PaperFigure:
    """A figure by its name, fig2 to fig6."""
    makers: dict[str, Callable[[RWalkPreset], PaperFigure]] = {
        "fig2": lambda p: _task_level_figure(p, "fig2", "MNIST"),
        "fig3": _plane_figure,
        "fig4": _sizes_figure,
        "fig5": _policies_figure,
        "fig6": lambda p: _task_level_figure(p, "fig6", "CIFAR-100"),
    }
    return makers[name](preset)


def list_data_sets(preset: RWalkPreset) -> list[str]:
    """The data sets of a preset, as the paper names them."""
    return ["MNIST", *(["CIFAR-100"] if preset.cifar is not None else [])]


def table_1_strength(dataset: str, setting: str, method: str, samples: bool) -> float:
    """The strength of table 1 for a row.

    Examples
    --------
    >>> table_1_strength("CIFAR-100", "single-head", "EWC", True)
    1500000.0
    """
    names = {f"{method}-S", method} if samples else {method}
    found = [
        cell["params"] for cell in read_cells("rwalk", "1")
        if cell["dataset"] == dataset and cell["setting"] == setting and cell["method"] in names
    ]  # fmt: skip
    value = found[-1].partition("=")[2] if found else ""
    return float(value) if value else 0.0


def _make_row(dataset: str, setting: str, method: str, samples: bool, **more: Any) -> RWalkRow:
    return RWalkRow(
        dataset=dataset, setting=setting, method=method, samples=samples or "iCaRL" in method,
        strength=table_1_strength(dataset, setting, method, samples), **more,
    )  # fmt: skip


def _row_key(dataset: str, setting: str, method: str, samples: bool) -> dict[str, str]:
    """What a row is called in table 1."""
    marked = samples and method != "RWalk" and "iCaRL" not in method
    return {"dataset": dataset, "setting": setting, "method": method + "-S" * marked}


def _average_accuracy(made: Recipe, result: Result, head: str) -> Floats:
    values = measures.metric("average_accuracy", made, head=head)(result)
    return values[~np.isnan(values)]


# -- figures 2 and 6: every task over time ---------------------------------------------------------
def _task_level_figure(preset: RWalkPreset, name: str, dataset: str) -> PaperFigure:
    instead = "" if dataset in list_data_sets(preset) else f", in place of {dataset}"
    dataset = "MNIST" if instead else dataset
    rows = {
        (setting, samples, method): recipe(preset, _make_row(dataset, setting, method, samples))
        for setting, samples, methods in PANELS
        for method in methods
    }

    def data(result: Result) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for (setting, samples, method), made in rows.items():
            panel = f"{setting}{', samples' if samples else ''}"
            records += accuracy_curves(
                result, made, HEAD_VIEWS[setting], {"panel": panel, "method": method}
            )
        return make_frame(records, LEVEL_COLUMNS)

    return PaperFigure(
        name=name,
        title=f"Accuracy of every task over time, {preset.shown(dataset)}{instead}",
        recipes=tuple(rows.values()),
        data=data,
        draw=draw_task_level,
        rows=tuple(
            _row_key(dataset, setting, method, samples) for setting, samples, method in rows
        ),
    )


# -- figure 3: forgetting against intransigence ----------------------------------------------------
def _plane_figure(preset: RWalkPreset) -> PaperFigure:
    rows: dict[tuple[str, str], Recipe] = {}
    joint = {dataset: joint_recipe(preset, dataset, SINGLE) for dataset in list_data_sets(preset)}
    for dataset in joint:
        for _, samples, methods in PANELS[1:]:
            for method in methods:
                name = _row_key(dataset, SINGLE, method, samples)["method"]
                rows[dataset, name] = recipe(preset, _make_row(dataset, SINGLE, method, samples))

    def data(result: Result) -> pd.DataFrame:
        records = []
        for (dataset, name), made in rows.items():
            lost = measures.metric("forgetting", made, head="single")(result)
            stiff = measures.intransigence(made, joint[dataset], head="single")(result)
            shown = preset.shown(dataset)
            both = ~np.isnan(lost) & ~np.isnan(stiff)
            if both.any():
                records.append(
                    {
                        "dataset": shown,
                        "method": name,
                        "source": "ours",
                        "forgetting": float(lost[both].mean()),
                        "forgetting_std": sample_std(lost[both]),
                        "intransigence": float(stiff[both].mean()),
                        "intransigence_std": sample_std(stiff[both]),
                    }
                )
            printed = _printed_numbers(dataset, name) if shown == dataset else {}
            if both.any() and printed:
                records.append({"dataset": shown, "method": name, "source": "paper", **printed})
        return make_frame(records, ("dataset", "method", "source", "forgetting", "forgetting_std",
                                "intransigence", "intransigence_std"))  # fmt: skip

    return PaperFigure(
        name="fig3", title="Forgetting against intransigence, single-head",
        recipes=(*rows.values(), *joint.values()), data=data, draw=draw_plane,
        rows=(
            *({"dataset": dataset, "setting": SINGLE, "method": name} for dataset, name in rows),
            *({} for _ in joint),
        ),
    )  # fmt: skip


def _printed_numbers(dataset: str, method: str) -> dict[str, float]:
    names = {"F": "forgetting", "I": "intransigence"}
    return {
        names[cell["metric"]]: cell.value
        for cell in read_cells("rwalk", "1")
        if (cell["dataset"], cell["setting"], cell["method"]) == (dataset, SINGLE, method)
        and cell["metric"] in names
    }


# -- figures 4 and 5: how many samples, and which --------------------------------------------------
def _grid_figure(
    preset: RWalkPreset,
    name: str,
    title: str,
    axis: str,
    points: Callable[[str], Mapping[Any, Any]],
) -> PaperFigure:
    """Rows with samples over one axis; `points` gives the fields of a row by value of the axis."""
    rows = {
        (dataset, method, value): recipe(preset, _make_row(dataset, SINGLE, method, True, **fields))
        for dataset in list_data_sets(preset)
        for method in ("Vanilla", *REGULARISED)
        for value, fields in points(dataset).items()
    }

    def data(result: Result) -> pd.DataFrame:
        records = []
        for (dataset, method, value), made in rows.items():
            found = _average_accuracy(made, result, "single")
            if len(found):
                records.append({
                    "dataset": preset.shown(dataset), "method": method, axis: value,
                    "accuracy": float(found.mean()), "std": sample_std(found),
                })  # fmt: skip
        return make_frame(records, ("dataset", "method", axis, "accuracy", "std"))

    return PaperFigure(
        name=name, title=title, recipes=tuple(rows.values()), data=data,
        draw=lambda table: draw_grid(table, axis),
        rows=tuple(
            {**_row_key(dataset, SINGLE, method, True), axis: str(value)}
            for dataset, method, value in rows
        ),
    )  # fmt: skip


def _sizes_figure(preset: RWalkPreset) -> PaperFigure:
    def points(dataset: str) -> dict[Any, Any]:
        sizes = preset.protocol(dataset).samples
        return {size: {"per_class": size, "policy": "random"} for size in sizes}

    title = "Accuracy over the number of samples per class, uniform sampling"
    return _grid_figure(preset, "fig4", title, "samples", points)


def _policies_figure(preset: RWalkPreset) -> PaperFigure:
    def points(dataset: str) -> dict[Any, Any]:
        return {name: {"policy": policy} for policy, name in POLICIES.items()}

    return _grid_figure(preset, "fig5", "Accuracy by sampling strategy", "strategy", points)


# ------------------------------------------------------------------------------------------------
# Drawings of the figures of the RWalk paper, from their tables of numbers.


# -S rows follow in the same order, so that the ninth symbol is the last that is needed
METHODS = ("Vanilla", "EWC", "PI", "RWalk", "iCaRL-hb1", "iCaRL")


def draw_task_level(data: pd.DataFrame) -> Any:
    """One row of plots per panel, one column per task and one for the mean."""
    return figure_parts.draw_task_level(data, _looks(data["method"]))


def draw_plane(data: pd.DataFrame) -> Any:
    """A plane per data set; hollow markers are the paper's numbers."""
    from plotly.subplots import make_subplots

    names = list(dict.fromkeys(data["dataset"]))
    figure = make_subplots(rows=1, cols=len(names), subplot_titles=names)
    styles, legend = _looks(data["method"]), LegendNames()
    for row in data.to_dict("records"):
        name = str(row["method"])
        trace = draw_line([row["forgetting"]], [row["intransigence"]], name, styles, legend)
        trace.update(mode="markers", marker={"size": 11})
        if row["source"] == "paper":
            trace.marker.symbol = f"{trace.marker.symbol}-open"
        trace.hovertemplate = f"{row['source']}<br>F %{{x:.3f}}, I %{{y:.3f}}"
        figure.add_trace(trace, row=1, col=names.index(row["dataset"]) + 1)
    both = "paper" in set(data["source"])  # without its points there is nothing to tell apart
    for name, symbol in (("ours", "circle"), ("the paper", "circle-open")) if both else ():
        figure.add_trace(_legend_entry(name, symbol), row=1, col=1)
    figure.update_xaxes(title="forgetting", zeroline=True)
    figure.update_yaxes(title="intransigence", zeroline=True)
    return figure


def draw_grid(data: pd.DataFrame, axis: str) -> Any:
    """A plot per data set, a line per method."""
    from plotly.subplots import make_subplots

    names = list(dict.fromkeys(data["dataset"]))
    figure = make_subplots(rows=1, cols=len(names), subplot_titles=names)
    styles, legend = _looks(data["method"]), LegendNames()
    named, methods = (list(dict.fromkeys(data[key])) for key in (axis, "method"))
    for (dataset, method), rows in data.groupby(["dataset", "method"], sort=False):
        place = names.index(dataset) + 1
        x = rows[axis].tolist()
        if axis == "strategy":  # side by side, or the intervals would cover each other
            beside = 0.08 * (methods.index(str(method)) - (len(methods) - 1) / 2)
            x = [named.index(name) + beside for name in x]
        trace = draw_line(x, rows["accuracy"], str(method), styles, legend)
        if rows["std"].notna().any():
            trace.error_y = {"array": rows["std"].fillna(0).tolist(), "thickness": 1}
        if axis == "strategy":
            trace.mode = "markers"
        figure.add_trace(trace, row=1, col=place)
    figure.update_xaxes(title="samples per class" if axis == "samples" else axis)
    if axis == "strategy":
        figure.update_xaxes(tickvals=list(range(len(named))), ticktext=named)
    figure.update_yaxes(title="average accuracy")
    return figure


def _looks(names: Any) -> dict[str, Style]:
    """One look per method in all figures; with samples (-S) another marker in the same colour."""
    named = list(dict.fromkeys(map(str, names)))
    found = assign_looks((*METHODS, *(f"{name}-S" for name in METHODS)), named)
    for name in METHODS:
        own = found[name]
        found[f"{name}-S"] = replace(found[f"{name}-S"], color=own.color, dash=own.dash)
    return found


def _legend_entry(name: str, symbol: str) -> Any:
    """An entry of the legend without data."""
    import plotly.graph_objects as go

    marker = {"symbol": symbol, "color": "gray", "size": 11}
    return go.Scatter(x=[None], y=[None], name=name, mode="markers", marker=marker)
