"""Riemannian walk (RWalk, Chaudhry et al. 2018): preset, recipes, tables 1 to 4, figures 2 to 6,
findings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from engram.engine.training import PRECISIONS
from engram.errors import bad, check_choice, check_float, unknown
from engram.experiments import Recipe
from engram.learner.objectives import SCOPES
from engram.memory.ranking_policies import policies
from engram.methods.er import REDUCTIONS
from engram.renamed import accept_old_names
from engram.reproduce import measures
from engram.reproduce.cells import Cell, read_cells
from engram.reproduce.paper_table import (
    EPOCHS_UNSTATED,
    OTHER_DATA,
    VARIANT_UNSTATED,
    CellEntry,
    Measure,
    PaperFigure,
)
from engram.reproduce.papers import figure_parts
from engram.reproduce.papers.figure_parts import (
    LEVEL_COLUMNS,
    PlotGrid,
    Records,
    accuracy_curves,
    assign_looks,
    make_figure,
    mean_records,
)
from engram.reproduce.papers.findings import (
    CellFindings,
    Claim,
    Side,
    derive,
    make_findings_figure,
)
from engram.reproduce.papers.paper_base import (
    EntryMaker,
    Paper,
    PaperData,
    PaperPreset,
    check_choices,
    check_ints,
    default_options,
)

if TYPE_CHECKING:
    import pandas as pd

    from engram.records import Result
    from engram.report.method_styles import Style
    from engram.reproduce.paper_table import Floats
    from engram.reproduce.papers.findings import Evidence

MNIST, CIFAR = "MNIST", "CIFAR-100"
MULTI, SINGLE = "multi-head", "single-head"
HEAD_VIEWS = {MULTI: "multi", SINGLE: "single"}
MIXES = ("union", "paired")
REFERENCES = ("last", "each")
DATA = PaperData("rwalk")


# -- preset ----------------------------------------------------------------------------------------
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
        check_ints(self, "classes", "classes_per_task", "epochs", "every", low=1)
        check_ints(self, "memory_per_class", "samples", low=1)
        check_choice("precision", self.precision, PRECISIONS)
        check_float("lr", self.lr, open_low=True)
        check_float("valid", self.valid, 0.0, 1.0)


PROTOCOLS = DATA.build_each(RWalkProtocol, "protocols")


@accept_old_names
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
    total_20, training_20, gem
        Rows of table 2 that the paper quotes from the authors of GEM: samples in all, how they are
        trained in GEM's public code (one pass, small batches), and fields of the method GEM.
    """

    parts: ClassVar = {"mnist": MNIST, "cifar": CIFAR}
    official: ClassVar = {MNIST: "mnist", CIFAR: "cifar100"}

    mnist: RWalkProtocol = PROTOCOLS["mnist"]
    cifar: RWalkProtocol | None = PROTOCOLS["cifar"]
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
    ewc: Mapping[str, Any] = default_options(normalize=True, alpha_on="running")
    pi: Mapping[str, Any] = default_options(xi=1e-3, clamp="task_term")
    rwalk: Mapping[str, Any] = default_options(alpha_on="running")
    icarl: Mapping[str, Any] = default_options(bce_reduction="sum")
    reference: str = "last"
    keep: str = "labels"
    strength_20: float = 1000.0
    per_class_20: int = 50
    epochs_20: int = 10
    total_20: int = 5120
    training_20: Mapping[str, Any] = default_options(
        epochs=1, batch_size=10, optimizer="sgd", lr=0.1
    )
    gem: Mapping[str, Any] = default_options(margin=0.5)

    def __post_init__(self) -> None:
        check_choice("mix", self.mix, MIXES)
        check_choice("sample_reduce", self.sample_reduce, REDUCTIONS)
        check_choice("reference", self.reference, REFERENCES)
        check_choice("policy", self.policy, policies())
        check_choices(self, ("auto", *SCOPES), "scope_multi", "scope_single", "scope_samples")
        check_ints(self, "seeds", "per_class_20", "epochs_20", "total_20", low=1)
        check_ints(self, "batch_size", "sample_rows", "sample_epochs")
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
EMBEDDED = DATA.build(RWalkPreset, "embedded")


# -- recipes ---------------------------------------------------------------------------------------
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
    return _recipe(
        preset, protocol, label, setting=row.setting, method=method_spec(preset, protocol, row),
        training=training,
    )  # fmt: skip


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
    return _recipe(
        preset, protocol, f"Joint reference ({preset.shown(dataset)}, {setting})", setting=setting,
        method=method, training=training, sizes=sizes,
    )  # fmt: skip


def table_2_recipe(preset: RWalkPreset, method: str = "RWalk") -> Recipe:
    """A row of table 2: 20 tasks of 5 classes, GEM's slim ResNet-18.

    Without CIFAR-100, in the embedded form, it is MNIST's stand-in with its own tasks and network.
    """
    dataset = MNIST if preset.cifar is None else CIFAR
    row = RWalkRow(
        dataset=dataset, setting=MULTI, method=method, strength=preset.strength_20, samples=True
    )
    if preset.cifar is None:
        preset = replace(preset, mnist=replace(preset.mnist, epochs=preset.epochs_20))
    else:
        preset = change_to_20_tasks(preset)
    if method == "RWalk":
        return recipe(preset, row)
    protocol = preset.protocol(dataset)
    tasks = protocol.classes // protocol.classes_per_task
    if method == "GEM":  # an equal share for each task, as in its code
        memory: dict[str, Any] = {"per_task": max(preset.total_20 // tasks, 1), "policy": "random"}
        spec = {"name": "GEM", "memory": memory, **preset.gem}
    else:
        memory = {"total": preset.total_20, "policy": preset.policy, "normalize": preset.normalize}
        spec = {"name": "ICaRL", "memory": memory, **preset.icarl}
    training = {**_training(preset, protocol, preset.scope_multi), **preset.training_20}
    label = RWalkRow(dataset=dataset, setting=MULTI, method=method).label(preset.shown(dataset))
    return _recipe(preset, protocol, label, setting=MULTI, method=spec, training=training)


def change_to_20_tasks(preset: RWalkPreset) -> RWalkPreset:
    """The preset with CIFAR-100 as table 2 has it."""
    protocol = replace(
        preset.protocol(CIFAR), classes_per_task=5, epochs=preset.epochs_20,
        model={"name": "resnet18_slim", "nf": 20}, memory_per_class=preset.per_class_20,
    )  # fmt: skip
    return replace(preset, cifar=protocol)


def _recipe(
    preset: RWalkPreset, protocol: RWalkProtocol, label: str, *, setting: str, method: Any,
    training: Mapping[str, Any], sizes: int | list[int] = 0,
) -> Recipe:  # fmt: skip
    """A recipe on a data set, whose tasks have `sizes` classes where these are not the usual."""
    kind = "task_incremental" if setting == MULTI else "class_incremental"
    valid = {"valid": protocol.valid} if protocol.valid else {}
    return Recipe.of({
        "stream": {
            "kind": kind, "data": protocol.data,
            "classes_per_task": sizes or protocol.classes_per_task, **valid,
        },
        "model": protocol.model, "method": method, "training": training,
        "seeds": preset.seeds, "keep": preset.keep, "label": label,
    })  # fmt: skip


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
    if row.method == FIRST_EWC:
        return {"name": "EWC", **strength}
    if row.method == "PI":
        return {"name": "SI", **strength, **preset.pi}
    if row.method == "RWalk":
        return {"name": "RWalk", **strength, "every": protocol.every, **preset.rwalk}
    raise unknown("method", row.method, ("Vanilla", "EWC", "PI", "RWalk", "iCaRL", "iCaRL-hb1"))


# -- tables ----------------------------------------------------------------------------------------
CIFAR_ALONE = ("2", "fig6")
FIRST_EWC = "EWC of 2017"  # with which the paper compares EWC++ in words
TOLERANCE_PERCENT = 3.0  # tolerance in percent, .03 for shares
LEVEL = 3.0  # points of accuracy that findings call level


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
    RWalkRow(dataset='CIFAR-100', setting='single-head', method='RWalk', strength=500.0,
        samples=True, per_class=0, policy='')
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
    made = table_2_recipe(preset, cell["method"])
    measure = measures.metric("average_accuracy", made, head="multi", percent=True)
    same = preset.cifar is not None and preset.shown(CIFAR) == CIFAR
    quoted = cell["method"] != "RWalk"  # trained as in the code of those who are quoted
    reasons = (*(() if same else (OTHER_DATA,)), *(() if quoted else (EPOCHS_UNSTATED,)),
               VARIANT_UNSTATED)  # fmt: skip
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


# -- figures ---------------------------------------------------------------------------------------
REGULARISED = ("EWC", "PI", "RWalk")


class FigureRow(NamedTuple):
    """A row of a figure, which has the strength of table 1."""

    dataset: str
    setting: str
    method: str
    samples: bool
    value: Any = ""  # on the axis, where rows are taken over one

    @property
    def name(self) -> str:
        """What it is called in table 1."""
        marked = self.samples and self.method != "RWalk" and "iCaRL" not in self.method
        return self.method + "-S" * marked

    @property
    def label(self) -> str:
        """What it is called in a finding."""
        return ", ".join([self.name, *([str(self.value)] if self.value else [])])

    @property
    def names(self) -> dict[str, str]:
        """By what it is chosen."""
        return {"dataset": self.dataset, "setting": self.setting, "method": self.name}

    def recipe(self, preset: RWalkPreset, **more: Any) -> Recipe:
        """Its recipe, with further fields of an `RWalkRow`."""
        strength = table_1_strength(self.dataset, self.setting, self.method, self.samples)
        row = RWalkRow(
            dataset=self.dataset, setting=self.setting, method=self.method, strength=strength,
            samples=self.samples or "iCaRL" in self.method, **more,
        )  # fmt: skip
        return recipe(preset, row)


def _panel_rows(
    preset: RWalkPreset, dataset: str, *settings: str
) -> dict[FigureRow, tuple[Recipe]]:
    """The rows of `panels` with these heads, and their recipes."""
    rows = [
        FigureRow(dataset, panel["setting"], method, panel["samples"])
        for panel in DATA["panels"] if panel["setting"] in settings
        for method in panel["methods"]
    ]  # fmt: skip
    return {row: (row.recipe(preset),) for row in rows}


def build_figures(name: str, preset: RWalkPreset) -> PaperFigure:
    """A figure by its name, fig2 to fig6, or the findings."""
    makers: dict[str, Callable[[RWalkPreset], PaperFigure]] = {
        "fig2": lambda p: _task_level_figure(p, "fig2", MNIST),
        "fig3": _plane_figure,
        "fig4": _sizes_figure,
        "fig5": _policies_figure,
        "fig6": lambda p: _task_level_figure(p, "fig6", CIFAR),
        "findings": _findings_figure,
    }
    return makers[name](preset)


def list_data_sets(preset: RWalkPreset) -> list[str]:
    """The data sets of a preset, as the paper names them."""
    return [MNIST, *([CIFAR] if preset.cifar is not None else [])]


def table_1_strength(dataset: str, setting: str, method: str, samples: bool) -> float:
    """The strength of table 1 for a row.

    Examples
    --------
    >>> table_1_strength("CIFAR-100", "single-head", "EWC", True)
    1500000.0
    """
    method = "EWC" if method == FIRST_EWC else method
    names = {f"{method}-S", method} if samples else {method}
    found = [
        cell["params"] for cell in read_cells("rwalk", "1")
        if cell["dataset"] == dataset and cell["setting"] == setting and cell["method"] in names
    ]  # fmt: skip
    value = found[-1].partition("=")[2] if found else ""
    return float(value) if value else 0.0


def _task_level_figure(preset: RWalkPreset, name: str, dataset: str) -> PaperFigure:
    """Figures 2 and 6: every task over time."""
    instead = "" if dataset in list_data_sets(preset) else f", in place of {dataset}"
    dataset = MNIST if instead else dataset

    def curves(result: Result, row: FigureRow, made: Sequence[Recipe]) -> Records:
        panel = f"{row.setting}{', samples' if row.samples else ''}"
        names = {"panel": panel, "method": row.method}
        return accuracy_curves(result, made, HEAD_VIEWS[row.setting], names)

    return make_figure(
        name, f"Accuracy of every task over time, {preset.shown(dataset)}{instead}",
        _panel_rows(preset, dataset, MULTI, SINGLE), names=lambda row: row.names, records=curves,
        columns=LEVEL_COLUMNS, draw=draw_task_level,
    )  # fmt: skip


def _plane_figure(preset: RWalkPreset) -> PaperFigure:
    """Figure 3: forgetting against intransigence."""
    sets = list_data_sets(preset)
    rows = {
        row: (*made, joint_recipe(preset, one, SINGLE))
        for one in sets
        for row, made in _panel_rows(preset, one, SINGLE).items()
    }

    def points(result: Result, row: FigureRow, made: Sequence[Recipe]) -> Records:
        own, joint = made
        lost = measures.metric("forgetting", own, head="single")(result)
        stiff = measures.intransigence(own, joint, head="single")(result)
        both = ~np.isnan(lost) & ~np.isnan(stiff)
        found = mean_records({}, lost[both], value="forgetting")
        if not found:
            return []
        (f,), (i,) = found, mean_records({}, stiff[both], value="intransigence")
        shown = preset.shown(row.dataset)
        names = {"dataset": shown, "method": row.name}
        printed = _printed_numbers(row.dataset, row.name) if shown == row.dataset else {}
        ours = {
            **names, "source": "ours", **f, "forgetting_std": f["std"], **i,
            "intransigence_std": i["std"],
        }  # fmt: skip
        return [ours, *([{**names, "source": "paper", **printed}] if printed else [])]

    return make_figure(
        "fig3", "Forgetting against intransigence, single-head", rows,
        names=lambda row: row.names, records=points, draw=draw_plane,
        columns=("dataset", "method", "source", "forgetting", "forgetting_std", "intransigence",
                 "intransigence_std"),
    )  # fmt: skip


def _printed_numbers(dataset: str, method: str) -> dict[str, float]:
    names = {"F": "forgetting", "I": "intransigence"}
    return {
        names[cell["metric"]]: cell.value
        for cell in read_cells("rwalk", "1")
        if (cell["dataset"], cell["setting"], cell["method"]) == (dataset, SINGLE, method)
        and cell["metric"] in names
    }


def _grid_figure(
    preset: RWalkPreset,
    name: str,
    title: str,
    axis: str,
    points: Callable[[str], Mapping[Any, Any]],
) -> PaperFigure:
    """Rows with samples over one axis; `points` gives the fields of a row by value of the axis."""
    rows = {
        (row := FigureRow(dataset, SINGLE, method, True, value)): (row.recipe(preset, **fields),)
        for dataset, method in product(list_data_sets(preset), ("Vanilla", *REGULARISED))
        for value, fields in points(dataset).items()
    }

    def accuracies(result: Result, row: FigureRow, made: Sequence[Recipe]) -> Records:
        values = measures.metric("average_accuracy", made, head="single")(result)
        names = {"dataset": preset.shown(row.dataset), "method": row.method, axis: row.value}
        return mean_records(names, values, value="accuracy")

    return make_figure(
        name, title, rows, names=lambda row: {**row.names, axis: str(row.value)},
        records=accuracies, columns=("dataset", "method", axis, "accuracy", "std"),
        draw=partial(draw_grid, axis=axis),
    )  # fmt: skip


def _sizes_figure(preset: RWalkPreset) -> PaperFigure:
    """Figure 4: how many samples."""

    def points(dataset: str) -> dict[Any, Any]:
        sizes = preset.protocol(dataset).samples
        return {size: {"per_class": size, "policy": "random"} for size in sizes}

    title = "Accuracy over the number of samples per class, uniform sampling"
    return _grid_figure(preset, "fig4", title, "samples", points)


def _policies_figure(preset: RWalkPreset) -> PaperFigure:
    """Figure 5: which samples."""
    named = {name: {"policy": policy} for policy, name in DATA["policies"].items()}
    title = "Accuracy by sampling strategy"
    return _grid_figure(preset, "fig5", title, "strategy", lambda dataset: named)


# -- findings --------------------------------------------------------------------------------------
def _findings_figure(preset: RWalkPreset) -> PaperFigure:
    cells = CellFindings("rwalk", preset, DATA["findings"], make_entries(preset))
    rows: list[NamedRecipe] = []

    def accuracy(row: FigureRow, **more: Any) -> tuple[str, Measure]:
        made = row.recipe(preset, **more)
        rows.append((made, row.names))
        return row.label, measures.metric("average_accuracy", made, head="single", percent=True)

    claims = list_own_claims(preset, cells, accuracy)
    return make_findings_figure(DATA["titles"]["findings"], cells, more=lambda _: claims, rows=rows)


NamedRecipe = tuple[Recipe, Mapping[str, str]]
MeasureRow = Callable[..., tuple[str, "Evidence"]]


def list_own_claims(preset: RWalkPreset, cells: CellFindings, accuracy: MeasureRow) -> list[Claim]:
    """What the text says of table 3, of figures 3 to 5 and of EWC++.

    Parameters
    ----------
    accuracy
        From a `FigureRow` and further fields of its `RWalkRow` to its label and its single-head
        accuracy, as in figures 4 and 5.
    """
    claims = [*claim_distances(cells), *claim_insensitivity(cells)]
    for dataset in list_data_sets(preset):
        shown = preset.shown(dataset)
        claims += _claim_sizes(preset, dataset, shown, accuracy)
        claims += _claim_policies(dataset, shown, accuracy)
        first, later = (
            accuracy(FigureRow(dataset, SINGLE, method, False)) for method in (FIRST_EWC, "EWC")
        )
        words = "EWC++ is at least as accurate as EWC"
        claims.append(Claim(words, f"{shown} single-head", later, first, ties=True))
    return claims


def claim_distances(cells: CellFindings) -> list[Claim]:
    """Figure 3: RWalk is nearest to the origin on MNIST; samples give I below 0 on CIFAR-100."""

    def distance(dataset: str, method: str) -> Side:
        pair = [
            cells.find_cells("1", {"dataset": dataset, "setting": SINGLE, "method": method,
                                   "metric": metric})[0] for metric in ("F", "I")
        ]  # fmt: skip
        own = derive(np.hypot, *(cells.measure(cell) for cell in pair))
        return method, own, math.hypot(*(cell.value for cell in pair))

    found = []
    if MNIST not in cells.preset.absent:
        own = distance(MNIST, "RWalk")
        names = dict.fromkeys(
            cell["method"]
            for cell in cells.find_cells("1", {"dataset": MNIST, "setting": SINGLE})
            if cell["method"] != "RWalk"
        )
        for name in names:
            other = distance(MNIST, name)
            found.append(
                Claim("RWalk is nearest to no forgetting and no intransigence",
                      f"{cells.preset.shown(MNIST)} single-head, distance (F, I)",
                      own[:2], other[:2], (own[2], other[2]), relation="below")
            )  # fmt: skip
    if CIFAR not in cells.preset.absent:
        for name in ("EWC-S", "PI-S", "RWalk"):
            place = {"dataset": CIFAR, "setting": SINGLE, "method": name, "metric": "I"}
            (cell,) = cells.find_cells("1", place)
            found.append(
                Claim("with samples, penalties transfer forward (I below 0)",
                      f"{cells.preset.shown(CIFAR)} single-head I", (name, cells.measure(cell)),
                      ("the joint reference", measures.constant(0.0)), (cell.value, 0.0),
                      relation="below")
            )  # fmt: skip
    return found


def claim_insensitivity(cells: CellFindings) -> list[Claim]:
    """Table 3: F and I of RWalk change least over the strengths."""

    def span(dataset: str, method: str, metric: str) -> Side:
        place = {"dataset": dataset, "method": method, "metric": metric}
        every = cells.find_cells("3", place)
        printed = [cell.value for cell in every]
        own = derive(_find_range, *(cells.measure(cell) for cell in every))
        return method, own, max(printed) - min(printed)

    found = []
    for dataset, metric in product((MNIST, CIFAR), ("F", "I")):
        if dataset in cells.preset.absent:
            continue
        own = span(dataset, "RWalk", metric)
        for name in ("EWC", "PI"):
            other = span(dataset, name, metric)
            row = f"{cells.preset.shown(dataset)} range of {metric} over three strengths"
            found.append(Claim("RWalk depends least on its strength", row, own[:2], other[:2],
                               (own[2], other[2]), relation="below"))  # fmt: skip
    return found


def _find_range(*values: Floats) -> Floats:
    """The largest less the smallest, repetition by repetition."""
    found: Floats = np.ptp(np.stack(values), axis=0)
    return found


def _claim_sizes(
    preset: RWalkPreset, dataset: str, shown: str, accuracy: MeasureRow
) -> Iterator[Claim]:
    """Figure 4, at the fewest and the most samples: nothing is printed but curves."""
    sizes = preset.protocol(dataset).samples
    for size, few in ((min(sizes), True), (max(sizes), False)):
        found = {
            name: accuracy(
                FigureRow(dataset, SINGLE, name, True, f"{size} per class"),
                per_class=size, policy="random",
            )
            for name in ("Vanilla", *REGULARISED)
        }  # fmt: skip
        row = f"{shown} A(%), uniform samples"
        plain, own = found["Vanilla"], found["RWalk"]
        for name in REGULARISED:
            if few:
                yield Claim("with the fewest samples, penalties are above plain training", row,
                            found[name], plain)  # fmt: skip
            else:
                yield Claim("with the most samples, plain training is level with the penalties",
                            row, plain, found[name], ties=True, slack=LEVEL)  # fmt: skip
        for name in ("EWC", "PI") if few else ():
            yield Claim("with the fewest samples, RWalk is the most accurate", row, own,
                        found[name])  # fmt: skip


def _claim_policies(dataset: str, shown: str, accuracy: MeasureRow) -> Iterator[Claim]:
    """Figure 5: mean of features is best, uniform as good, plain training most dependent."""
    found = {
        (method, name): accuracy(FigureRow(dataset, SINGLE, method, True, name), policy=policy)
        for method in ("Vanilla", *REGULARISED)
        for policy, name in DATA["policies"].items()
    }
    best, row = DATA["policies"]["herding"], f"{shown} A(%)"
    for (method, name), other in found.items():
        if name != best:
            yield Claim("mean of features is the best choice of samples", row,
                        found[method, best], other)  # fmt: skip
    uniform = DATA["policies"]["random"]
    for method in ("Vanilla", *REGULARISED):
        yield Claim("uniform samples are as good as mean of features", row,
                    found[method, uniform], found[method, best], slack=LEVEL,
                    relation="near")  # fmt: skip

    def span(method: str) -> tuple[str, Evidence]:
        every = [one for (name, _), (_, one) in found.items() if name == method]
        label = FigureRow(dataset, SINGLE, method, True).name
        return label, derive(_find_range, *every)

    for method in REGULARISED:
        yield Claim("plain training depends most on which samples", f"{row}, range over choices",
                    span("Vanilla"), span(method))  # fmt: skip


# -- drawings --------------------------------------------------------------------------------------
# -S rows follow in the same order, so that the ninth symbol is the last that is needed
METHODS = ("Vanilla", "EWC", "PI", "RWalk", "iCaRL-hb1", "iCaRL")


def draw_task_level(data: pd.DataFrame) -> Any:
    """One row of plots per panel, one column per task and one for the mean."""
    return figure_parts.draw_task_level(data, _looks(data["method"]))


def draw_plane(data: pd.DataFrame) -> Any:
    """A plane per data set; hollow markers are the paper's numbers."""
    import plotly.graph_objects as go

    grid = PlotGrid(columns=data["dataset"], titled=True, plot_height=420)
    looks = _looks(data["method"])
    for dataset, points in data.groupby("dataset", sort=False):
        _draw_distances(grid, dataset, points[["forgetting", "intransigence"]].to_numpy(float))
    for row in data.to_dict("records"):
        name, paper = str(row["method"]), row["source"] == "paper"
        symbol = looks[name].symbol + ("-open" if paper else "")
        grid.add_line(
            [row["forgetting"]], [row["intransigence"]], name, looks, column=row["dataset"],
            mode="markers", marker={"size": 11, "symbol": symbol},
            hovertemplate=f"{row['source']}<br>F %{{x:.3f}}, I %{{y:.3f}}, "
            f"{math.hypot(row['forgetting'], row['intransigence']):.3f} from the origin",
        )  # fmt: skip
    both = "paper" in set(data["source"])  # without its points there is nothing to tell apart
    for name, symbol in (("ours", "circle"), ("the paper", "circle-open")) if both else ():
        marker = {"symbol": symbol, "color": "gray", "size": 11}
        entry = go.Scatter(x=[None], y=[None], name=name, mode="markers", marker=marker)
        grid.add(entry, column=grid.columns[0])  # in the legend, without data
    grid.figure.update_xaxes(title="forgetting", zeroline=True)
    grid.figure.update_yaxes(title="intransigence", zeroline=True)
    return grid.figure


QUADRANTS = {  # place of a corner to what is there
    (1, 1): "forgets, learns less", (0, 1): "transfers back, learns less",
    (1, 0): "forgets, learns more", (0, 0): "transfers back, learns more",
}  # fmt: skip
DISTANCES = (0.25, 0.5, 0.75, 1.0)  # of the circles around the origin


def _draw_distances(grid: PlotGrid, dataset: Any, points: np.ndarray) -> None:
    """Mark the quadrants of a plane and circles of equal distance to the origin, the ideal."""
    where = {"row": 1, "col": grid.columns.index(dataset) + 1}
    figure, faint = grid.figure, {"color": "gray", "width": 1}
    low, high = np.nanmin([*points, (-0.05, -0.05)], 0), np.nanmax([*points, (0.3, 0.3)], 0)
    reach = 0.08 * (high - low)
    (left, bottom), (right, top) = low - reach, high + reach
    for radius in DISTANCES:
        if radius < max(right, top):
            figure.add_shape(
                type="circle", x0=-radius, x1=radius, y0=-radius, y1=radius, layer="below",
                line={**faint, "dash": "dot"}, opacity=0.5, **where,
            )  # fmt: skip
            at = radius / math.sqrt(2)
            figure.add_annotation(x=at, y=at, text=f"{radius:g}", showarrow=False, opacity=0.6,
                                  font_size=10, **where)  # fmt: skip
    figure.add_hline(0, line=faint, **where)
    figure.add_vline(0, line=faint, **where)
    for (x, y), text in QUADRANTS.items():
        if (not x and left > -0.1) or (not y and bottom > -0.02):
            continue  # no room, and nothing there
        figure.add_annotation(
            x=right if x else left, y=top if y else bottom, text=text, showarrow=False,
            xanchor="right" if x else "left", yanchor="top" if y else "bottom", opacity=0.6,
            font_size=11, **where,
        )  # fmt: skip
    figure.update_xaxes(range=[left, right], **where)
    figure.update_yaxes(range=[bottom, top], **where)


def draw_grid(data: pd.DataFrame, axis: str) -> Any:
    """A plot per data set, a line per method."""
    grid, looks = PlotGrid(columns=data["dataset"], titled=True), _looks(data["method"])
    named, methods = (list(dict.fromkeys(data[key])) for key in (axis, "method"))
    for (dataset, method), rows in data.groupby(["dataset", "method"], sort=False):
        x, changes = rows[axis].tolist(), dict[str, Any]()
        if axis == "strategy":  # side by side, or the intervals would cover each other
            beside = 0.08 * (methods.index(str(method)) - (len(methods) - 1) / 2)
            x = [named.index(name) + beside for name in x]
            changes["mode"] = "markers"
        if rows["std"].notna().any():
            changes["error_y"] = {"array": rows["std"].fillna(0).tolist(), "thickness": 1}
        grid.add_line(x, rows["accuracy"], str(method), looks, column=dataset, **changes)
    grid.figure.update_xaxes(title="samples per class" if axis == "samples" else axis)
    if axis == "strategy":
        grid.figure.update_xaxes(tickvals=list(range(len(named))), ticktext=named)
    grid.figure.update_yaxes(title="average accuracy")
    return grid.figure


def _looks(names: Any) -> dict[str, Style]:
    """One look per method in all figures; with samples (-S) another dash in the same colour."""
    from engram.report.method_styles import DASHES

    named = list(dict.fromkeys(map(str, names)))
    found = assign_looks((*METHODS, *(f"{name}-S" for name in METHODS)), named)
    for name in METHODS:
        own = found[name]
        dash = DASHES[(DASHES.index(own.dash) + 2) % len(DASHES)]
        found[f"{name}-S"] = replace(found[f"{name}-S"], color=own.color, dash=dash)
    return found


def make_entries(preset: RWalkPreset) -> dict[str, EntryMaker]:
    """How the cells of each table are made."""
    return {
        "1": lambda cell: _training_entry(preset, find_row(cell), cell),
        "2": partial(_table_2_entry, preset),
        "3": lambda cell: _training_entry(preset, replace(find_row(cell), samples=True), cell),
        "4": _layer,
    }


def _entries_of(table: str) -> Callable[[RWalkPreset], EntryMaker]:
    return lambda preset: make_entries(preset)[table]


# runs that several of these need are trained once
_SHARED_FOLDER = ("1", "2", "3", "fig2", "fig3", "fig4", "fig5", "fig6", "findings")

TABLES = Paper(
    name="rwalk", titles=DATA["titles"], paper=PAPER, embedded=EMBEDDED,
    tables={table: _entries_of(table) for table in ("1", "2", "3", "4")},
    figures=lambda name, preset: (build_figures(name, preset),), notes=_notes,
    kept_cells=("2", "4"), without_data=("4",), folders=dict.fromkeys(_SHARED_FOLDER, "rwalk"),
)  # fmt: skip
