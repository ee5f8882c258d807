"""Incremental implicitly-refined classification (IIRC): preset, recipes, counts, tables,
figures, claims and drawings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from engram.errors import bad, check_choice, check_float, check_int, unknown
from engram.experiments import Recipe
from engram.reproduce import measures
from engram.reproduce.cells import Cell, read_cells
from engram.reproduce.paper_table import VARIANT_UNSTATED, CellEntry, PaperFigure
from engram.reproduce.papers.figure_parts import (
    CLAIM_COLUMNS,
    NAN,
    Claim,
    LegendNames,
    assign_looks,
    draw_line,
    draw_table,
    make_frame,
    sample_std,
)
from engram.reproduce.papers.paper_base import Paper, PaperPreset
from engram.streams.class_tree import FINE_PREFIX, SUPER_PREFIX
from engram.streams.hierarchical_streams import read_published_tasks

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from engram.records import Result
    from engram.reproduce.paper_table import Floats, Measure
    from engram.streams.stream import Stream

CIFAR, FULL, LITE = "IIRC-CIFAR", "IIRC-ImageNet-full", "IIRC-ImageNet-lite"
# How one paper spells its own data sets.
ALIASES = {"IIRC-Imagenet-full": FULL, "IIRC-ImageNet": FULL}
HERDING = {"policy": "herding"}
# Row to method, the preset's field with its options, and whether it keeps exemplars.
ROWS: dict[str, tuple[str, str, Mapping[str, Any] | None]] = {
    "ER": ("ER", "er", {}),
    "iCaRL-norm": ("ICaRL", "icarl_norm", HERDING),
    "iCaRL-CNN": ("ICaRL", "icarl_cnn", HERDING),
    "LUCIR": ("LUCIR", "lucir", HERDING),
    "AGEM": ("AGEM", "agem", {}),
    "incremental joint": ("IncrementalJoint", "", None),
    "ER-infinite": ("ERInfinite", "", None),
    "finetune": ("Finetune", "", None),
    "BiC": ("BiC", "bic", HERDING),
}
JOINT, UPPER = "joint", "incremental joint"
SCORE = "precision_weighted_jaccard"  # what the paper's tables count
VARIANTS = {
    "LUCIR-no_margin": ("LUCIR", {"variant": "no_margin"}),
    "LUCIR-distil": ("LUCIR", {"variant": "distil"}),
    "LUCIR-distil-no_margin": ("LUCIR", {"variant": "distil_no_margin"}),
    "BiC-distil": ("BiC", {"variant": "distil"}),
}
# Rows whose best epoch on in-task validation rows is restored; the others keep the last (I17).
RESTORED_METHODS = ("finetune", "ER", "ER-infinite", UPPER, JOINT)
SCHEDULES = ("paper", "short")
CIFAR_MEAN, CIFAR_STD = (0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class IIRCProtocol:
    """One data set of the paper.

    `stream` is what its recipes say beside the data and the configuration; `rates` are the learning
    rates of rows that have another one than `lr`.
    """

    data: str
    configurations: int
    stream: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    model: Any = "resnet32"
    epochs: int = 140
    first_factor: float = 2.0
    patience: int = 10
    lr: float = 1.0
    rates: Mapping[str, float] = field(default_factory=dict)
    batch_size: int = 128
    augment: tuple[str, ...] = ("crop", "flip")

    def __post_init__(self) -> None:
        for name in ("configurations", "epochs", "batch_size"):
            check_int(name, getattr(self, name), 1)
        check_int("patience", self.patience)
        check_float("lr", self.lr, open_low=True)
        check_float("first_factor", self.first_factor, open_low=True)


def _imagenet(variant: str) -> IIRCProtocol:
    """IIRC-ImageNet, whose rates are those of the thesis (I13)."""
    return IIRCProtocol(
        data="imagenet", configurations=5, model="resnet50", epochs=100, lr=0.1,
        rates=dict.fromkeys(("iCaRL-CNN", "iCaRL-norm", "BiC"), 0.5),
        augment=("resized_crop", "flip"), stream={"kind": "iirc", "variant": variant},
        options={"mean": list(IMAGENET_MEAN), "std": list(IMAGENET_STD)},
    )  # fmt: skip


IMAGENET_FULL, IMAGENET_LITE = _imagenet("imagenet-full"), _imagenet("imagenet-lite")


@dataclass(frozen=True, kw_only=True)
class IIRCPreset(PaperPreset[IIRCProtocol]):
    """The choices of all rows; I1 to I22 are entries of the page about the protocol.

    Parameters
    ----------
    cifar, full, lite
        The data sets.
    configurations
        How many of the published class orders are run, from the first on; 0 for all of a set.
    seed
        Of all runs; the paper repeats over class orders alone.
    schedule
        ``paper``: as long as printed. ``short``: a quarter of the epochs, and of those without
        gain after which the rate is cut, rounded up: 3 instead of 10.
    cuts
        A task ends when its rate is cut for this time; 0 to train all epochs. The paper does not
        end tasks early; behind the third cut the rate is a thousandth of what it was.
    per_class
        Exemplars of each class.
    er, icarl_cnn, icarl_norm, lucir, agem, bic
        Fields of the methods beside their defaults: both scales of cosine heads begin at 1 (that of
        iCaRL-norm carries over, I12), A-GEM masks logits (I15), BiC is fitted on the buffer (I18).
    sizes
        Exemplars of each class in the study of buffers.
    precision
        ``tf32`` makes products and convolutions quicker on CUDA; elsewhere it is float32.
    """

    parts: ClassVar = {"cifar": CIFAR, "full": FULL, "lite": LITE}
    official: ClassVar = {CIFAR: "cifar100", FULL: "imagenet", LITE: "imagenet"}

    cifar: IIRCProtocol | None = IIRCProtocol(
        data="cifar100", configurations=10, stream={"kind": "iirc", "variant": "cifar"},
        options={"mean": list(CIFAR_MEAN), "std": list(CIFAR_STD)},
    )  # fmt: skip
    full: IIRCProtocol | None = IMAGENET_FULL
    lite: IIRCProtocol | None = IMAGENET_LITE
    configurations: int = 0
    seed: int = 100
    schedule: str = "paper"
    cuts: int = 3
    weight_decay: float = 1e-5
    per_class: int = 20
    sizes: tuple[int, ...] = (20, 50, 100, 200)
    er: Mapping[str, Any] = field(default_factory=lambda: {"mix": "union"})
    icarl_cnn: Mapping[str, Any] = field(default_factory=lambda: {"variant": "cnn"})
    icarl_norm: Mapping[str, Any] = field(default_factory=lambda: {"variant": "norm", "scale": 1.0})
    lucir: Mapping[str, Any] = field(default_factory=lambda: {"scale": 1.0})
    agem: Mapping[str, Any] = field(default_factory=lambda: {"size": 128, "masks": True})
    bic: Mapping[str, Any] = field(default_factory=lambda: {"variant": "sigmoid"})
    precision: str = "tf32"
    keep: str = "labels"

    def __post_init__(self) -> None:
        for name in ("configurations", "seed", "cuts"):
            check_int(name, getattr(self, name))
        check_int("per_class", self.per_class, 1)
        for size in self.sizes:
            check_int("sizes", size, 1)
        check_float("weight_decay", self.weight_decay)
        check_choice("schedule", self.schedule, SCHEDULES)

    def protocol(self, dataset: str) -> IIRCProtocol:
        return super().protocol(ALIASES.get(dataset, dataset))

    @property
    def absent(self) -> frozenset[str]:
        found = super().absent
        return found | {alias for alias, name in ALIASES.items() if name in found}

    def shown(self, dataset: str) -> str:
        return super().shown(ALIASES.get(dataset, dataset))

    def orders(self, dataset: str) -> range:
        """The numbers of the class orders that are run.

        Examples
        --------
        >>> IIRCPreset(configurations=3).orders("IIRC-CIFAR"), PAPER.orders("IIRC-ImageNet-lite")
        (range(0, 3), range(0, 5))
        """
        there = self.protocol(dataset).configurations
        if self.configurations > there:
            raise bad("configurations", f"at most {there}, those of {dataset}", self.configurations)
        return range(self.configurations or there)


def recipe(
    preset: IIRCPreset, dataset: str, row: str, *, configuration: int = 0, per_class: int = 0
) -> Recipe:
    """The recipe of a row under one order of the classes.

    Examples
    --------
    >>> made = recipe(PAPER, "IIRC-CIFAR", "iCaRL-norm", configuration=2)
    >>> made.method.memory, made.training.min_lr, made.order
    (Memory(per_class=20, policy='herding'), 0.01, 'configuration-2')
    """
    protocol = preset.protocol(dataset)
    size = per_class or preset.per_class
    note = f", {size} per class" if per_class else ""
    return Recipe.of({
        "stream": {
            "data": protocol.data, "data_options": dict(protocol.options), **protocol.stream,
            **_order_options(protocol, configuration),
        },
        "model": protocol.model,
        "method": method_spec(preset, row, size),
        "training": training_spec(preset, protocol, row),
        "seeds": [preset.seed], "keep": preset.keep,
        "label": f"{row}{note} ({preset.shown(dataset)})",
    })  # fmt: skip


def _order_options(protocol: IIRCProtocol, configuration: int) -> dict[str, Any]:
    """A published order by its number; drawn streams have one order."""
    return {"configuration": configuration} if protocol.stream.get("kind") == "iirc" else {}


def recipes(preset: IIRCPreset, dataset: str, row: str, per_class: int = 0) -> tuple[Recipe, ...]:
    """A row under every order that is run.

    Examples
    --------
    >>> len(recipes(PAPER, "IIRC-CIFAR", "BiC-distil"))
    10
    """
    return tuple(
        recipe(preset, dataset, row, configuration=k, per_class=per_class)
        for k in preset.orders(dataset)
    )


def training_spec(preset: IIRCPreset, protocol: IIRCProtocol, row: str) -> dict[str, Any]:
    """How a row is trained."""
    short = preset.schedule == "short"
    lr = protocol.rates.get(VARIANTS.get(row, (row,))[0], protocol.lr)
    return {
        "epochs": max(1, protocol.epochs // 4) if short else protocol.epochs,
        "first_factor": protocol.first_factor, "batch_size": protocol.batch_size,
        "optimizer": "sgd", "lr": lr, "momentum": 0.9, "weight_decay": preset.weight_decay,
        "schedule": "plateau", "factor": 0.1, "plateau_watch": "score",
        "plateau_patience": -(-protocol.patience // 4) if short else protocol.patience,
        "plateau_threshold": 1e-3, "restore_best": row in RESTORED_METHODS,
        "min_lr": lr / 10 ** (preset.cuts - 1) if preset.cuts else 0.0,
        "augment": list(protocol.augment), "precision": preset.precision,
    }  # fmt: skip


def method_spec(preset: IIRCPreset, row: str, per_class: int) -> dict[str, Any]:
    """The plain form of a row's method."""
    base, changed = VARIANTS.get(row, (row, {}))
    if base not in ROWS:
        raise unknown("method", row, [*ROWS, *VARIANTS])
    name, owner, memory = ROWS[base]
    spec: dict[str, Any] = {"name": name}
    if memory is not None:
        spec["memory"] = {"per_class": per_class, **memory}
    return {**spec, **(getattr(preset, owner) if owner else {}), **changed}


PAPER = IIRCPreset()


DRAWN = IIRCProtocol(
    data="shapes", configurations=1, stream={"kind": "hierarchical", "hierarchy": "kind"},
    model="lenet", epochs=10, patience=3, lr=0.1, batch_size=32, augment=(),
)  # fmt: skip
# The same rows on drawn shapes, which stand for every data set, on two cores.
EMBEDDED = IIRCPreset(cifar=DRAWN, full=DRAWN, lite=DRAWN, sizes=(5, 10, 20, 40))


# ------------------------------------------------------------------------------------------------
# Numbers of IIRC's data: samples of every part, classes of every kind, samples of some classes.


Count = Callable[["Stream"], float]
# ImageNet's classes are known by wnid.
WNIDS = {
    "ostrich": "n01518878", "leopard": "n02128385", "grand piano": "n03452741",
    "wooden spoon": "n04597913",
}  # fmt: skip
PLACES = {"bus": 0, "squirrel": 1, "mushroom": -1, "ostrich": 0, "leopard": 1, "grand piano": 2,
          "wooden spoon": -1}  # fmt: skip


def count_entry(preset: IIRCPreset, cell: Cell) -> CellEntry:
    """Samples of a part of the data (table 3.1), or classes of a kind (table 3.2)."""
    return _data_entry(preset, cell, _sample_count(cell) or _class_count(cell))


def pair_count_entry(preset: IIRCPreset, cell: Cell) -> CellEntry:
    """Samples of a superclass and of one of its subclasses (table 3.3)."""
    names = dict(part.split("=") for part in cell["setting"].split(";"))

    def count(stream: Stream) -> float:
        above, below = _find_pair(stream, names["superclass"], names["subclass"])
        if cell["metric"] == "superclass_size":
            return len(_class_rows(stream, above))
        if cell["metric"] == "subclass_size":
            return len(_class_rows(stream, below))
        found = stream.data.attributes["superclass"] == above
        return len(stream.data.attributes["fine"][found].unique())

    return _data_entry(preset, cell, count)


def _data_entry(preset: IIRCPreset, cell: Cell, count: Count) -> CellEntry:
    dataset = ALIASES.get(cell["dataset"], cell["dataset"])
    made = recipe(preset, dataset, "finetune")
    return CellEntry(counted=(made, count), tolerance=0.0, reasons=preset.reasons(dataset))


def _sample_count(cell: Cell) -> Count | None:
    parts = {
        "n_samples_train": "train", "n_samples_in_task_validation": "valid",
        "n_samples_post_task_validation": "post_valid", "n_samples_test": "test",
    }  # fmt: skip
    part = parts.get(cell["metric"])
    if part is None:
        return None
    twice = cell["setting"] == "with_duplicates"
    return lambda stream: _count_rows((getattr(task, part) for task in stream), twice)


def _count_rows(rows: Iterable[Tensor], twice: bool) -> int:
    found = torch.cat(list(rows))
    return len(found) if twice else len(found.unique())


def _class_count(cell: Cell) -> Count:
    """Classes by kind: superclasses, fine classes that have one, fine classes that have none."""

    def kinds(stream: Stream) -> dict[str, int]:
        names = [stream.data.classes[c] for c in stream.order]
        fine, above = (stream.data.attributes[name] for name in ("fine", "superclass"))
        subclasses = len(fine[above >= 0].unique())
        return {
            "n_superclasses": sum(name.startswith(SUPER_PREFIX) for name in names),
            "n_subclasses": subclasses,
            "n_orphan_subclasses": sum(name.startswith(FINE_PREFIX) for name in names) - subclasses,
            "n_classes": len(names),
        }  # fmt: skip

    return lambda stream: kinds(stream)[cell["metric"]]


def _find_pair(stream: Stream, above: str, below: str) -> tuple[int, int]:
    """Ids of a superclass (-1 for none) and of a subclass, or of others where names are unknown."""
    names = list(stream.data.classes)
    sub = (
        FINE_PREFIX + WNIDS.get(below, below)
        if FINE_PREFIX + below not in names
        else FINE_PREFIX + below
    )
    top = (
        SUPER_PREFIX + above.replace(" ", "_")
        if SUPER_PREFIX + above not in names
        else SUPER_PREFIX + above
    )
    if sub in names and (not above or top in names):
        return (names.index(top) if above else -1), names.index(sub)
    fine, over = (stream.data.attributes[name] for name in ("fine", "superclass"))
    tops = sorted(set(over[over >= 0].tolist()))
    place = PLACES[below]  # drawn shapes: the first kinds, and the first orphan
    chosen = tops[place] if above else -1
    return chosen, int(fine[over == chosen].min())


def _class_rows(stream: Stream, label: int) -> Tensor:
    """Training rows of the task that introduces a class, as far as they are of the class."""
    task = next(task for task in stream if label in task.new)
    mine = (stream.data.y[task.train] == label).any(-1)
    return task.train[mine]


# ------------------------------------------------------------------------------------------------
# Figures 3.3 and 4.1 to 4.11 of IIRC: their runs and numbers.


CURRENT = "current_task"
NAMES = {
    SCORE: "pw-JS", "jaccard": "JS", CURRENT: "pw-JS of the task just learnt",
    "superclass_score": "pw-JS of superclasses", "subclass_precision": "precision of subclasses",
    "orphan_precision": "precision of orphans",
}  # fmt: skip
LARGE_SET_METHODS = (
    "ER",
    "iCaRL-norm",
    "iCaRL-CNN",
    "LUCIR",
    "finetune",
    "BiC",
)  # rows run on ImageNet
FOUR_SCORES = (SCORE, CURRENT, "superclass_score", "subclass_precision")
MIDDLE_STAGES = (1, 5, 10)  # tasks of figure 4.3
CONFUSION_METHODS = ("ER", "iCaRL-norm", "LUCIR")
SHOWN_LABELS = 25
FIGURE_TITLES = {
    "fig3.3": "subclasses per superclass: IIRC-ImageNet",
    "fig4.1": "score after every task: both IIRC-ImageNet",
    "fig4.2": "score after every task: IIRC-CIFAR",
    "fig4.3": "score of tasks 1, 5 and 10 over time",
    "fig4.4": "score of the task just learnt, and confusion after task 10",
    "fig4.5": "confusion after tasks 0, 1, 5 and 10",
    "fig4.6": "score of superclasses alone",
    "fig4.7": "precision of subclasses and of orphans",
    "fig4.8": "precision-weighted against plain Jaccard similarity",
    "fig4.9": "more exemplars: ER and iCaRL-norm",
    "fig4.10": "LUCIR without margin, with distillation, and both",
    "fig4.11": "BiC fitted with distillation",
    "findings": "what the paper finds, tried on these runs",
}
# Tables and figures share their runs.
_SHARED_FOLDER = ("C.1", "C.2", "C.3", "findings", *(f"fig4.{k}" for k in range(1, 12)))
FOLDERS = dict.fromkeys(_SHARED_FOLDER, "iirc")


@dataclass(frozen=True)
class IIRCPanel:
    """One plot: a measure over stages; `task` for the score of one task over time."""

    dataset: str
    measure: str = SCORE
    task: int = -1

    def title(self, preset: IIRCPreset) -> str:
        shown = preset.shown(self.dataset)
        what = NAMES[self.measure] if self.task < 0 else f"pw-JS of task {self.task}"
        return f"{what}, {shown}"


def build_figures(name: str, preset: IIRCPreset) -> tuple[PaperFigure, ...]:
    """The figures under a name: the paper has two that are numbered 4.4."""
    if name == "fig3.3":
        return (_histogram_figure(preset),)
    if name == "findings":
        return () if CIFAR in preset.absent else (_findings_figure(preset),)
    if name == "fig4.5":
        return (_confusion_figure(preset, name, (0, 1, 5, 10)),)
    panels, rows = PANELS[name]
    there = tuple(p for p in panels if p.dataset not in preset.absent)
    made = (_curve_figure(preset, name, there, rows or _size_rows(preset)),) if there else ()
    if name == "fig4.4" and CIFAR not in preset.absent:
        made = (*made, _confusion_figure(preset, "fig4.4-confusion", (10,)))
    return made


def _panels_of_both_sets(*names: str) -> tuple[IIRCPanel, ...]:
    return tuple(IIRCPanel(dataset, name) for dataset in (CIFAR, FULL) for name in names)


def _panels_of_four_scores() -> tuple[IIRCPanel, ...]:
    return tuple(IIRCPanel(CIFAR, name) for name in FOUR_SCORES)


CurveRow = tuple[str, str, int]  # label, row, exemplars per class (0: those of the preset)
PLAIN_ROWS: tuple[CurveRow, ...] = tuple((row, row, 0) for row in ROWS)
PANELS: dict[str, tuple[tuple[IIRCPanel, ...], tuple[CurveRow, ...]]] = {
    "fig4.1": ((IIRCPanel(LITE), IIRCPanel(FULL)), PLAIN_ROWS),
    "fig4.2": ((IIRCPanel(CIFAR),), PLAIN_ROWS),
    "fig4.3": (
        tuple(IIRCPanel(d, SCORE, k) for d in (CIFAR, FULL) for k in MIDDLE_STAGES),
        PLAIN_ROWS,
    ),
    "fig4.4": (_panels_of_both_sets(CURRENT), PLAIN_ROWS),
    "fig4.6": (_panels_of_both_sets("superclass_score"), PLAIN_ROWS),
    "fig4.7": (_panels_of_both_sets("subclass_precision", "orphan_precision"), PLAIN_ROWS),
    "fig4.8": (_panels_of_both_sets(SCORE, "jaccard"), PLAIN_ROWS),
    "fig4.9": (_panels_of_four_scores(), ()),  # which rows, the preset says
    "fig4.10": (
        _panels_of_four_scores(),
        tuple(
            (r, r, 0)
            for r in ("LUCIR", "LUCIR-no_margin", "LUCIR-distil", "LUCIR-distil-no_margin")
        ),
    ),
    "fig4.11": (_panels_of_four_scores(), tuple((r, r, 0) for r in ("BiC", "BiC-distil"))),
}


def _size_rows(preset: IIRCPreset) -> tuple[CurveRow, ...]:
    return tuple(
        (f"{row} {size}", row, size) for row in ("ER", "iCaRL-norm") for size in preset.sizes
    )


def _is_run_on(dataset: str, row: str) -> bool:
    """Whether the paper runs a row on a data set; AGEM and ER-infinite only on the small one."""
    large = (*LARGE_SET_METHODS, UPPER) if dataset == LITE else LARGE_SET_METHODS
    return dataset == CIFAR or row in large


# -- curves ----------------------------------------------------------------------------------------
def _curve_figure(
    preset: IIRCPreset, name: str, panels: Sequence[IIRCPanel], rows: Sequence[CurveRow]
) -> PaperFigure:
    found = {
        (dataset, label): recipes(preset, dataset, row, _exemplar_count(preset, size))
        for dataset in dict.fromkeys(panel.dataset for panel in panels)
        for label, row, size in rows
        if _is_run_on(dataset, row)
    }

    def data(result: Result) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for panel in panels:
            for (dataset, label), made in found.items():
                if dataset == panel.dataset:
                    names = {"panel": panel.title(preset), "method": label}
                    records += stage_points(result, made, panel, names)
        return make_frame(records, ("panel", "method", "stage", "value", "std", "runs"))

    return PaperFigure(
        name=name, title=_title(name), data=data, draw=draw_curves,
        recipes=tuple(one for made in found.values() for one in made), rows=_row_keys(found),
    )  # fmt: skip


def _row_keys(rows: Mapping[tuple[str, str], Sequence[Recipe]]) -> tuple[dict[str, str], ...]:
    """What each recipe stands for."""
    return tuple(
        {"dataset": dataset, "method": label}
        for (dataset, label), made in rows.items()
        for _ in made
    )


def _title(name: str) -> str:
    """Without the data set: plots name the one that was used."""
    words = FIGURE_TITLES[name].partition(":")[0]
    return words[0].upper() + words[1:]


def _exemplar_count(preset: IIRCPreset, size: int) -> int:
    """0 for the usual number, so that its runs are those of the other figures."""
    return 0 if size == preset.per_class else size


def stage_points(
    result: Result, made: Sequence[Recipe], panel: IIRCPanel, names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Mean and deviation over class orders after every stage, where some run has a value."""
    runs = measures.select_runs(result, made, "single")
    if runs is None:
        return []
    values: Floats = (
        runs.matrix[:, :, panel.task] if 0 <= panel.task < runs.matrix.shape[2]
        else np.empty((len(runs), 0)) if panel.task >= 0
        else runs.curve(panel.measure)
    )  # fmt: skip
    records = []
    for stage in range(values.shape[1]):
        known = values[:, stage][~np.isnan(values[:, stage])]
        if len(known):
            records.append({
                **names, "stage": stage, "value": float(known.mean()), "std": sample_std(known),
                "runs": len(known),
            })  # fmt: skip
    return records


# -- confusion -------------------------------------------------------------------------------------
def _confusion_figure(preset: IIRCPreset, name: str, stages: Sequence[int]) -> PaperFigure:
    """The first configuration alone: labels of others are introduced at other times."""
    rows = {row: recipe(preset, CIFAR, row) for row in CONFUSION_METHODS}

    def data(result: Result) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for row, made in rows.items():
            runs = measures.select_runs(result, [made], "single")
            if runs is None:
                continue
            last = int(runs.tasks[0]) - 1  # drawn shapes have fewer tasks
            for stage in dict.fromkeys(min(one, last) for one in stages):
                if stage not in runs.stages[runs.runs[0]]:
                    continue
                found = runs.label_confusion(0, stage=stage)
                parts = {row: found.predicted}
                if row == CONFUSION_METHODS[0]:
                    parts = {"truth": found.truth, **parts}
                for shown, table in parts.items():
                    records += _entries(table, {"method": shown, "stage": stage})
        return make_frame(records, ("method", "stage", "true", "predicted", "share"))

    return PaperFigure(
        name=name, title=f"Who is taken for whom, {preset.shown(CIFAR)}",
        recipes=tuple(rows.values()), data=data, draw=draw_confusion,
        rows=_row_keys({(CIFAR, row): [made] for row, made in rows.items()}),
    )  # fmt: skip


def _entries(table: pd.DataFrame, names: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The shares of labels spread evenly over their order of introduction."""
    places = np.unique(np.linspace(0, len(table) - 1, SHOWN_LABELS).round().astype(int))
    part = table.iloc[places, places]
    return [
        {**names, "true": true, "predicted": said, "share": float(part.loc[true, said])}
        for true in part.index
        for said in part.columns
    ]


# -- findings --------------------------------------------------------------------------------------
def _findings_figure(preset: IIRCPreset) -> PaperFigure:
    rows = {row: recipes(preset, CIFAR, row) for row in ROWS}
    shown = preset.shown(CIFAR)
    return PaperFigure(
        name="findings", title=f"{_title('findings')}, {shown}",
        recipes=tuple(one for made in rows.values() for one in made),
        data=lambda result: IIRCClaims(rows, shown == CIFAR).table(result), draw=draw_table,
        rows=_row_keys({(CIFAR, row): made for row, made in rows.items()}),
    )  # fmt: skip


# -- figure 3.3 ------------------------------------------------------------------------------------
def _histogram_figure(preset: IIRCPreset) -> PaperFigure:
    from engram.data.embedded.drawn_shapes import KINDS, VARIATIONS

    counts = {name: len(below) for name, below in read_published_tasks("imagenet-full")[0].items()}
    if preset.protocol(FULL).data == "shapes":
        counts = dict.fromkeys(KINDS, len(VARIATIONS))

    def data(result: Result | None) -> pd.DataFrame:
        ordered = sorted(counts.items(), key=lambda pair: -pair[1])
        return make_frame([{"superclass": n, "subclasses": c} for n, c in ordered],
                     ("superclass", "subclasses"))  # fmt: skip

    return PaperFigure(
        name="fig3.3", title=f"Subclasses per superclass, {preset.shown(FULL)}", recipes=(),
        data=data, draw=draw_histogram,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------
# Labels that are refined over time (IIRC, Abdelsalam et al. 2021): tables and figures.


PLAIN_METHODS = ("ER", "ER-infinite", UPPER, JOINT)  # rows that text and code tell alike
TITLES = {
    "3.1": "training, validation and test samples of the data sets",
    "3.2": "superclasses, subclasses and orphans of the data sets",
    "3.3": "samples of some classes",
    "C.1": "score after every task, IIRC-CIFAR (with figure 4.2)",
    "C.2": "score after every task, IIRC-ImageNet-lite",
    "C.3": "score after every task, IIRC-ImageNet-full",
    **FIGURE_TITLES,
}
WITH_FIGURES = {"C.1": ("fig4.2", "findings")}


class _IIRCEntries:
    """Entries of C.1 to C.3; the runs of a row are named once and shared by its cells."""

    def __init__(self, preset: IIRCPreset) -> None:
        self.preset = preset
        self._made = lru_cache(maxsize=None)(self._make)

    def entry(self, cell: Cell) -> CellEntry:
        dataset, row = cell["dataset"], cell["method"]
        if row == JOINT:
            return CellEntry(missing="one task with all classes is no stream of refined labels")
        made, after = self._made(dataset, row)
        reasons = self.preset.reasons(
            dataset, *(() if row in PLAIN_METHODS else (VARIANT_UNSTATED,))
        )
        stage = int(cell["stage"])
        return CellEntry(recipes=made, measure=after(stage), reasons=reasons, tasks=stage + 1)

    def _make(self, dataset: str, row: str) -> tuple[tuple[Recipe, ...], Callable[[int], Measure]]:
        made = recipes(self.preset, dataset, row)
        return made, measures.metric_at_stages(SCORE, made, head="single")


def _scores(preset: IIRCPreset) -> Callable[[Cell], CellEntry]:
    return _IIRCEntries(preset).entry


TABLES = Paper(
    name="iirc", titles=TITLES, paper=PAPER, embedded=EMBEDDED,
    tables={
        "3.1": lambda preset: lambda cell: count_entry(preset, cell),
        "3.2": lambda preset: lambda cell: count_entry(preset, cell),
        "3.3": lambda preset: lambda cell: pair_count_entry(preset, cell),
        "C.1": _scores, "C.2": _scores, "C.3": _scores,
    },
    figures=build_figures, with_figures=WITH_FIGURES,
    folders=FOLDERS,
)  # fmt: skip


# ------------------------------------------------------------------------------------------------
# What IIRC finds, as comparisons that can fail, tried on recorded runs.


RecipesByRow = Mapping[str, Sequence["Recipe"]]
COUNTED = "labels_per_image"
TASKS = 22  # of IIRC-CIFAR; stages of shorter streams stand for those at the same share
UNLIMITED = "ER-infinite"
DISTILLED = ("iCaRL-CNN", "iCaRL-norm")
COMPARED = ("ER", *DISTILLED, UPPER)  # rows whose numbers should be the paper's
NEAR_SCORE = 0.05
AHEAD_SCORE = 0.1  # of the joint upper bound before all others


class IIRCClaims:
    """The claims on the runs of one data set; `official` if it is the paper's."""

    def __init__(self, runs: RecipesByRow, official: bool) -> None:
        self.runs = runs
        self.official = official
        self.tasks = TASKS
        self._curves: dict[tuple[str, str], Callable[[int], Measure]] = {}

    def table(self, result: Result) -> pd.DataFrame:
        """One line per comparison, with both numbers and whether it holds."""
        if not len(result):
            return make_frame([], CLAIM_COLUMNS)
        # runs that are not finished may not know of tasks to come
        self.tasks = TASKS if self.official else int(result.tasks.max())
        claims = [*self.order(), *self.lucir(), *self.labels(), *self.ends()]
        claims += [*self.numbers()] if self.official else []
        return make_frame([claim.tried(result) for claim in claims], CLAIM_COLUMNS)

    def stage(self, task: int) -> int:
        return round(task * (self.tasks - 1) / (TASKS - 1))

    def at(self, row: str, task: int, name: str = SCORE) -> Measure:
        if (row, name) not in self._curves:
            self._curves[row, name] = measures.metric_at_stages(name, self.runs[row], head="single")
        return self._curves[row, name](self.stage(task))

    def where(self, task: int) -> str:
        return f"task {self.stage(task)}"

    def above(self, finding: str, task: int, first: str, second: str) -> Claim:
        paper = (self.printed(first, task), self.printed(second, task))
        pair = [(row, self.at(row, task)) for row in (first, second)]
        return Claim(finding, self.where(task), pair[0], pair[1], paper)

    def printed(self, row: str, task: int) -> float:
        if not self.official:
            return NAN
        found = [
            cell.value for cell in read_cells("iirc", "C.1")
            if cell["method"] == row and int(cell["stage"]) == task
        ]  # fmt: skip
        return found[0] if found else NAN

    # -- claims --------------------------------------------------------------------------------
    def order(self) -> Iterator[Claim]:
        """Rows from the best to the worst."""
        finding = "incremental joint > ER-infinite > ER, both iCaRL > AGEM"
        for task in (10, 21):
            yield self.above(finding, task, UPPER, UNLIMITED)
            for row in ("ER", *DISTILLED):
                yield self.above(finding, task, UNLIMITED, row)
            for row in ("ER", *DISTILLED):
                yield self.above(finding, task, row, "AGEM")

    def lucir(self) -> Iterator[Claim]:
        finding = "LUCIR above ER at first, below it at the end"
        yield self.above(finding, 3, "LUCIR", "ER")
        yield self.above(finding, 21, "ER", "LUCIR")

    def labels(self) -> Iterator[Claim]:
        """Distillation names too many labels; subclasses are confused more than orphans."""
        for task in (10, 21):
            for row in DISTILLED:
                pair = [(one, self._too_many(one, task)) for one in (row, "ER")]
                yield Claim("JS minus pw-JS larger for iCaRL than for ER", self.where(task),
                            pair[0], pair[1])  # fmt: skip
        for task in (10, 21):
            for row in ROWS:
                views = [(f"{row}, {kind}", self.at(row, task, f"{kind}_precision"))
                         for kind in ("orphan", "subclass")]  # fmt: skip
                yield Claim("orphan precision above subclass precision", self.where(task),
                            views[0], views[1])  # fmt: skip

    def _too_many(self, row: str, task: int) -> Measure:
        return measures.difference(self.at(row, task, "jaccard"), self.at(row, task))

    def ends(self) -> Iterator[Claim]:
        """After the last task: the upper bound far ahead, AGEM and finetune last."""
        for row in ROWS:
            if row != UPPER:
                pair = [(one, self.at(one, 21)) for one in (UPPER, row)]
                yield Claim(
                    f"incremental joint at least {AHEAD_SCORE} above all others",
                    self.where(21),
                    pair[0],
                    pair[1],
                    ties=True,
                    slack=-AHEAD_SCORE,
                )
        for row in DISTILLED:
            pair = [(one, self.at(one, 21, COUNTED)) for one in (row, "ER")]
            yield Claim("both iCaRL name more labels per image than ER", self.where(21), pair[0],
                        pair[1])  # fmt: skip
        for last in ("AGEM", "finetune"):
            for row in ROWS:
                if row not in ("AGEM", "finetune"):
                    yield self.above("AGEM and finetune last", 21, row, last)

    def numbers(self) -> Iterator[Claim]:
        """Our numbers beside the printed ones."""
        for row in COMPARED:
            for task in (0, 10, 21):
                value = self.printed(row, task)
                gap = _distance_to_printed(self.at(row, task), value)
                yield Claim(f"within {NEAR_SCORE} of table C.1", self.where(task),
                            (f"{row}: allowed", measures.constant(NEAR_SCORE)),
                            (f"{row}: distance", gap), (NAN, value), ties=True)  # fmt: skip


def _distance_to_printed(measure: Measure, value: float) -> Measure:
    """How far the mean over class orders is from a printed number, for each order that is in it."""

    def found(result: Result) -> np.ndarray:
        values = measure(result)
        known = ~np.isnan(values)
        return np.where(known, abs(values[known].mean() - value) if known.any() else NAN, NAN)

    return found


# ------------------------------------------------------------------------------------------------
# Drawings of the figures of IIRC, from their tables of numbers.


PLOTS_BESIDE = 2  # plots side by side
BAND = 0.15  # opacity


def draw_curves(data: pd.DataFrame) -> Any:
    """A plot per panel, a line per method, and a band of one deviation where there are several."""
    from plotly.subplots import make_subplots

    panels = list(dict.fromkeys(data["panel"]))
    columns = min(PLOTS_BESIDE, len(panels))
    rows = -(-len(panels) // columns)
    figure = make_subplots(rows=rows, cols=columns, subplot_titles=panels)
    styles, legend = assign_looks([*ROWS, *VARIANTS], data["method"]), LegendNames()
    for (panel, method), part in data.groupby(["panel", "method"], sort=False):
        place = panels.index(panel)
        where = {"row": place // columns + 1, "col": place % columns + 1}
        name = str(method)
        if part["std"].notna().any():
            figure.add_trace(draw_band(part, name, styles[name].color), **where)
        figure.add_trace(draw_line(part["stage"], part["value"], name, styles, legend), **where)
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(title="task", row=rows)
    figure.update_layout(height=360 * rows)
    return figure


def draw_band(part: pd.DataFrame, name: str, color: str) -> Any:
    """One standard deviation around a line, as a filled outline."""
    import plotly.graph_objects as go

    reach = part["std"].fillna(0.0)
    low, high = part["value"] - reach, part["value"] + reach
    stages = part["stage"].tolist()
    return go.Scatter(
        x=[*stages, *stages[::-1]], y=[*high.tolist(), *low.tolist()[::-1]], fill="toself",
        fillcolor=color, opacity=BAND, line={"width": 0}, mode="lines", hoverinfo="skip",
        legendgroup=name, showlegend=False,
    )  # fmt: skip


def draw_confusion(data: pd.DataFrame) -> Any:
    """A row of plots per method, a column per stage; labels in order of introduction."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    methods, stages = (list(dict.fromkeys(data[name])) for name in ("method", "stage"))
    figure = make_subplots(
        rows=len(methods), cols=len(stages), row_titles=methods,
        column_titles=[f"after task {stage}" for stage in stages],
        horizontal_spacing=0.02, vertical_spacing=0.02,
    )  # fmt: skip
    for (method, stage), part in data.groupby(["method", "stage"], sort=False):
        names = list(dict.fromkeys(part["true"]))
        shares = part["share"].to_numpy(np.float64).reshape(len(names), len(names))
        short = [name.split("/", 1)[-1] for name in names]
        drawn = go.Heatmap(z=shares, x=short, y=short, zmin=0, zmax=1, coloraxis="coloraxis")
        figure.add_trace(
            drawn, row=methods.index(method) + 1, col=stages.index(stage) + 1
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed", showticklabels=len(stages) == 1)
    figure.update_xaxes(showticklabels=len(stages) == 1)
    side = 620 if len(stages) == 1 else 300
    figure.update_layout(
        height=side * len(methods), coloraxis={"colorscale": "Blues", "cmin": 0, "cmax": 1}
    )
    return figure


def draw_histogram(data: pd.DataFrame) -> Any:
    """A bar per superclass, the largest first."""
    import plotly.graph_objects as go

    bars = go.Bar(x=data["superclass"].tolist(), y=data["subclasses"].tolist())
    figure = go.Figure(bars)
    figure.update_yaxes(title="subclasses")
    figure.update_xaxes(title="superclass")
    return figure
