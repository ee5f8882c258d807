"""Continual novelty detection (CND): preset, recipes, tables, figures, claims and drawings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from engram.data import Data
from engram.errors import check_choice, check_float, check_int, unknown
from engram.experiments import Recipe
from engram.metrics.matrix import DEFINITIONS
from engram.records.novelty_records import DRAWN_GROUPS, feature_samples, feature_table
from engram.reproduce import measures
from engram.reproduce.cells import Cell, read_cells
from engram.reproduce.measures import auc_against_last_task, detection_metric, detector_comparisons
from engram.reproduce.paper_table import (
    EPOCHS_UNSTATED,
    OOD_SET_UNSTATED,
    VARIANT_UNSTATED,
    CellEntry,
    PaperFigure,
)
from engram.reproduce.papers.figure_parts import (
    CLAIM_COLUMNS,
    NAN,
    Claim,
    LegendNames,
    assign_looks,
    draw_line,
    draw_table,
    make_frame,
)
from engram.reproduce.papers.paper_base import Paper, PaperPreset, fit_classes_per_task

if TYPE_CHECKING:
    import pandas as pd

    from engram.records import Result
    from engram.reproduce.paper_table import Measure

TINY, EIGHT = "TinyImageNet", "Eight-Task"
RESNET, VGG, ALEXNET = "ResNet", "VGG", "AlexNet"
MULTI, SHARED = "multi-head", "shared-head"
HEAD_VIEWS = {MULTI: "multi", SHARED: "single"}
# Row to method, head and the preset's field with its options; what is trained first comes first.
ROWS = {
    "FineTune": ("Finetune", MULTI, ""), "LwF": ("LwF", MULTI, "lwf"),
    "MAS": ("MAS", MULTI, "mas"), "ER-25s": ("ER", SHARED, "er"),
    "SSIL-25s": ("SSIL", SHARED, "ssil"), "ER-50s": ("ER", SHARED, "er"),
    "SSIL-50s": ("SSIL", SHARED, "ssil"),
}  # fmt: skip
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
SEQUENCES = ("tinyimagenet_seq", "eight_task", "classes")
# What Mahalanobis reads besides the features: of ResNet the inputs of its four stages.
LAYERS = {
    RESNET: ("stem", "lower.0", "lower.1", "lower.2"),
    VGG: ("convolutions.11", "convolutions.13", "connected.2"),
    ALEXNET: ("convolutions.8", "convolutions.10", "connected.3"),
}

# Without batch normalisation a network stands at chance for its first hundreds of steps. The code
# waits 20 epochs of 125 steps; 5 of the 25 steps that a part of the rows makes would end it there.
PATIENT_TRAINING = {"patience": 0, "plateau_patience": 8}


@dataclass(frozen=True, kw_only=True)
class CNDProtocol:
    """One sequence of the paper.

    Parameters
    ----------
    sequence
        A stream of that name, or ``classes``: `classes_per_task` of them in each stage.
    stages
        How many there are; rows of some tables are means over them.
    models, layers
        The networks by their names in the paper, and those layers of each that Mahalanobis reads
        besides the features.
    training
        Training options of some of these networks beside the preset's.
    outside
        The set against which detectors are tuned, and Mahalanobis weighs its layers: the paper has
        CIFAR-10, 40,000 rows to fit and 10,000 to choose; here at most ``limit`` of each, since
        all of them cost more passes than the training does. null: nothing is tuned.
    """

    data: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sequence: str = "classes"
    stages: int = 10
    classes_per_task: int = 20
    batch_size: int = 64
    learning_rate: float = 0.01
    models: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[str, Sequence[str]] = field(default_factory=lambda: dict(LAYERS))
    training: Mapping[str, Any] = field(default_factory=dict)
    outside: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_choice("sequence", self.sequence, SEQUENCES)
        for name in ("stages", "classes_per_task", "batch_size"):
            check_int(name, getattr(self, name), 1)
        check_float("learning_rate", self.learning_rate, open_low=True)

    def on(self, data: Data, name: str) -> CNDProtocol:
        """The same on other data: equal tasks of its classes, and no outside set, so no tuning."""
        size = fit_classes_per_task(data, self.classes_per_task, self.stages, name)
        return replace(
            self, data=name, options={}, sequence="classes", classes_per_task=size,
            stages=data.n_classes // size, outside=None,
        )  # fmt: skip


def _detector_options() -> dict[str, Any]:
    return {
        "Softmax": {}, "ODIN": {}, "Mahalanobis": {}, "VAE": {}, "B1": {}, "B2": {},
        "Energy": {}, "KNN": {},
    }  # fmt: skip


def _tuned_options() -> dict[str, Any]:
    return {
        "ODIN": {"epsilon": [0.0, 0.0005, 0.001, 0.0014, 0.002, 0.01]},
        "VAE": {"of": ["features", "inputs"], "latent": [8, 32], "epochs": [10, 30]},
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CNDPreset(PaperPreset[CNDProtocol]):
    """The choices of all rows; N1 to N18 are entries of the page about the protocol.

    Parameters
    ----------
    seeds
        The paper has ten for table 1, its code five, and novelty detection one (N7).
    order_seed
        Draws the classes of each stage.
    valid
        Share of the training rows for early stopping, tuning and thresholds; not augmented (N17).
    epochs, patience, restore_best
        Longest training of a stage, epochs without a better validation accuracy after which it
        ends, and whether the best epoch counts (N8).
    plateau_patience
        Epochs without a lower validation loss after which the learning rate falls to a tenth.
    head, shared_head, control
        The last layer of all rows, of the shared-head rows of table 3 (normalised, as the paper
        says of them), and of the row that is trained again with a bias.
    lwf, mas, er, ssil
        Fields of the methods beside their defaults: MAS in the form of the paper's code (N11), SSIL
        distils on all rows (N10).
    few, many, memory
        Exemplars of the rows 25s and 50s: so many in all, of which every ``task`` or every
        ``class`` has its part, or so many ``per_class`` (N6).
    detectors
        Detectors and their options; null leaves one out.
    tuned
        Detectors to the values that are tried after the first stage; null leaves one as it is.
    features
        Test items whose features are stored whole after each stage, for figure 6.
    forgetting
        Definition behind Forg. of table 1.
    """

    parts: ClassVar = {"tiny": TINY, "eight": EIGHT}
    official: ClassVar = {TINY: "tiny_imagenet", EIGHT: "eight_task"}

    tiny: CNDProtocol | None = CNDProtocol(
        data="tiny_imagenet", options={"resize": 64, "crop": 56, **IMAGENET},
        sequence="tinyimagenet_seq",
        models={RESNET: {"name": "resnet18_slim", "nf": 40}, VGG: {"name": "vgg11_slim"}},
        training={VGG: dict(PATIENT_TRAINING)},
        outside={"data": "cifar100", "data_options": {"resize": 64, "crop": 56}, "limit": 2000},
    )  # fmt: skip
    eight: CNDProtocol | None = CNDProtocol(
        data="eight_task", options={"size": 256, "crop": 224, **IMAGENET}, sequence="eight_task",
        stages=8, batch_size=200, learning_rate=1e-4, models={ALEXNET: {"name": "alexnet"}},
        outside={"data": "cifar100", "data_options": {"resize": 256, "crop": 224}, "limit": 2000},
    )  # fmt: skip
    seeds: int = 1
    order_seed: int = 0
    valid: float = 0.2
    epochs: int = 30
    patience: int = 5
    restore_best: bool = True
    plateau_patience: int = 3
    momentum: float = 0.9
    weight_decay: float = 0.0
    augment: tuple[str, ...] = ("resized_crop", "flip")
    precision: str = "tf32"
    head: Mapping[str, Any] = field(default_factory=lambda: {"name": "linear", "bias": False})
    shared_head: Mapping[str, Any] = field(
        default_factory=lambda: {"name": "cosine", "scale": 10.0}
    )
    control: Mapping[str, Any] = field(default_factory=lambda: {"name": "linear"})
    lwf: Mapping[str, Any] = field(default_factory=lambda: {"strength": 1.0, "temperature": 2.0})
    mas: Mapping[str, Any] = field(
        default_factory=lambda: {
            "strength": 4.0, "importance": "batch_abs", "half": True, "group": 64,
        }
    )  # fmt: skip
    er: Mapping[str, Any] = field(default_factory=lambda: {"mix": "paired", "reduce": "sum"})
    ssil: Mapping[str, Any] = field(default_factory=lambda: {"kd_inputs": "all"})
    few: int = 4500
    many: int = 9000
    memory: str = "task"
    detectors: Mapping[str, Any] = field(default_factory=_detector_options)
    tuned: Mapping[str, Any] = field(default_factory=_tuned_options)
    features: int = 500
    forgetting: str = "diagonal"
    keep: str = "labels"

    def __post_init__(self) -> None:
        for name in ("seeds", "epochs", "few", "many"):
            check_int(name, getattr(self, name), 1)
        for name in ("order_seed", "patience", "plateau_patience", "features"):
            check_int(name, getattr(self, name))
        check_float("valid", self.valid, 0.0, 1.0)
        check_float("weight_decay", self.weight_decay)
        check_choice("memory", self.memory, ("task", "class", "per_class"))
        check_choice("forgetting", self.forgetting, list(DEFINITIONS))

    def stages(self, dataset: str) -> int:
        """How many stages a sequence has."""
        return self.protocol(dataset).stages


PAPER = CNDPreset()

# The same rows on drawn shapes, perceptrons for both networks, on two cores.
EMBEDDED = CNDPreset(
    tiny=CNDProtocol(
        data="shapes",
        options={"kinds": 5, "orphans": 0, "size": 12},
        classes_per_task=2,
        batch_size=32,
        learning_rate=0.02,
        models={
            RESNET: {"name": "mlp", "hidden": [128, 64]},
            VGG: {"name": "mlp", "hidden": [64, 64, 64]},
        },
        layers={RESNET: ("lower.0",), VGG: ("lower.0",)},
        outside={
            "data": "glyphs",
            "data_options": {"size": 12, "channels": 3, "classes": 10, "per_class": 50},
        },
    ),
    eight=None,
    seeds=5,
    epochs=20,
    augment=(),
    few=180,
    many=360,
    features=500,
    mas={"strength": 1.0, "importance": "batch_abs", "half": True, "group": 32},
    # a regression takes seconds
    detectors={**_detector_options(), "Mahalanobis": {"combine": "mean"}},
    tuned={
        **_tuned_options(),
        "VAE": {"of": ["features", "inputs"], "latent": [8], "epochs": [10]},
    },
)


# ------------------------------------------------------------------------------------------------
# Rows of the continual-novelty tables, and the recipe of each.


STREAM_KINDS = {MULTI: "task_incremental", SHARED: "class_incremental"}
PLAIN, COSINE, BIASED = "plain", "cosine", "biased"  # which last layer a row is trained with


@dataclass(frozen=True, kw_only=True)
class CNDRow:
    """A row of a table: who learns what with which network and last layer."""

    dataset: str
    method: str
    backbone: str = RESNET
    head: str = PLAIN

    @property
    def setting(self) -> str:
        if self.method not in ROWS:
            raise unknown("method", self.method, ROWS)
        return ROWS[self.method][1]


def recipe(preset: CNDPreset, row: CNDRow) -> Recipe:
    """The recipe of a row.

    Examples
    --------
    >>> from engram.reproduce.papers.cnd_paper import PAPER
    >>> made = recipe(PAPER, CNDRow(dataset="TinyImageNet", method="ER-25s"))
    >>> made.method.memory.total, made.training.epochs, made.stream["kind"]
    (4500, 30, 'tinyimagenet_seq')
    >>> [probe.name for probe in made.probes][:3]
    ['features', 'softmax', 'tuned odin over epsilon']
    """
    protocol, setting = preset.protocol(row.dataset), row.setting
    return Recipe.of({
        "stream": _stream(preset, protocol, setting),
        "model": {**protocol.models[row.backbone], "head": dict(_head_spec(preset, row.head))},
        "method": method_spec(preset, row.method),
        "training": {
            "epochs": preset.epochs, "patience": preset.patience,
            "restore_best": preset.restore_best, "batch_size": protocol.batch_size,
            "optimizer": "sgd", "lr": protocol.learning_rate, "momentum": preset.momentum,
            "weight_decay": preset.weight_decay, "schedule": "plateau", "factor": 0.1,
            "plateau_patience": preset.plateau_patience, "augment": list(preset.augment),
            "scope": "own" if setting == MULTI else "seen", "precision": preset.precision,
            **protocol.training.get(row.backbone, {}),
        },
        "detectors": detector_specs(preset, row), "seeds": preset.seeds, "keep": preset.keep,
        "probes": [{"name": "engram.probes:Features", "items": preset.features}],
        "outside": protocol.outside, "label": row_label(preset, row),
    })  # fmt: skip


def _stream(preset: CNDPreset, protocol: CNDProtocol, setting: str) -> dict[str, Any]:
    where = {
        "data": protocol.data, "data_options": dict(protocol.options), "seed": preset.order_seed,
        "valid": preset.valid,
    }  # fmt: skip
    if protocol.sequence == "classes":
        return {
            **where,
            "kind": STREAM_KINDS[setting],
            "classes_per_task": protocol.classes_per_task,
        }
    shared = {"shared_head": True} if setting == SHARED else {}
    return {**where, "kind": protocol.sequence, **shared}


def list_rows(dataset: str) -> list[CNDRow]:
    """Every row of a sequence, in the order in which they are trained where time is short."""
    multi = [name for name in ROWS if ROWS[name][1] == MULTI]
    shared = [name for name in ROWS if ROWS[name][1] == SHARED]
    if dataset == EIGHT:
        return [CNDRow(dataset=dataset, method=name, backbone=ALEXNET) for name in multi]
    return [
        *(CNDRow(dataset=dataset, method=name) for name in ROWS),
        *(CNDRow(dataset=dataset, method=name, backbone=VGG) for name in multi),
        CNDRow(dataset=dataset, method="FineTune", head=BIASED),
        *(CNDRow(dataset=dataset, method=name, head=COSINE) for name in shared),
    ]


def row_label(preset: CNDPreset, row: CNDRow) -> str:
    """What a row is called in records and reports."""
    words = [preset.shown(row.dataset), row.backbone, *([row.head] if row.head != PLAIN else [])]
    return f"{row.method} ({', '.join(words)})"


def _head_spec(preset: CNDPreset, head: str) -> Mapping[str, Any]:
    heads = {PLAIN: preset.head, COSINE: preset.shared_head, BIASED: preset.control}
    return heads[check_choice("head", head, heads)]


def method_spec(preset: CNDPreset, method: str) -> dict[str, Any]:
    """The plain form of a row's method."""
    if method not in ROWS:
        raise unknown("method", method, ROWS)
    name, setting, owner = ROWS[method]
    spec = {"name": name, **(getattr(preset, owner) if owner else {})}
    if setting == SHARED:
        size = preset.few if method.endswith("25s") else preset.many
        shared = {"total": size, "shared_by": preset.memory}
        spec["memory"] = {"per_class": size} if preset.memory == "per_class" else shared
    return spec


def detector_specs(preset: CNDPreset, row: CNDRow) -> list[dict[str, Any]]:
    """The detectors of a row: all but those that its last layer or its purpose leaves out.

    B1 and B2 need a last layer without bias. Normalised shared heads are trained for table 3,
    which compares these two with Softmax; the others would cost more than the training.
    """
    protocol = preset.protocol(row.dataset)
    layers, tunes = list(protocol.layers.get(row.backbone, ())), protocol.outside is not None
    combine = {"combine": "logistic"} if tunes else {}
    found = []
    for name, options in preset.detectors.items():
        left_out = row.head == BIASED and name in ("B1", "B2")
        left_out |= row.head == COSINE and name not in ("Softmax", "B1", "B2")
        if options is None or left_out:
            continue
        more = {"layers": layers, **combine} if name == "Mahalanobis" and layers else {}
        spec = {"name": name, **more, **options}
        grid = preset.tuned.get(name) if tunes else None
        found.append({"name": "Tuned", "detector": spec, "grid": grid} if grid else spec)
    return found


# ------------------------------------------------------------------------------------------------
# Numbers of the figures of the continual-novelty paper: one long table, whatever they show.
#
# A row of plots per `row` (method and network), a column per `measure`, a curve per `draw_line`
# (detector, set or method) over `x`; shares are percentages.


NUMBER_COLUMNS = ("row", "measure", "line", "x", "value", "std")
MAP_COLUMNS = ("row", "stage", "set", "task", "x", "y")
METRIC_NAMES = {
    "combined_auroc": "C.AUC", "recent_auroc": "R.AUC", "previous_auroc": "P.AUC",
    "mean_auroc": "mAUC", "aupr_in": "AUPR-IN", "detection_error": "DER",
    "inside_forgotten_detection_error": "In/Forg DER",
    "forgotten_outside_detection_error": "Forg/Out DER",
}  # fmt: skip
DETECTOR_NAMES = {"softmax": "Softmax", "odin": "ODIN", "mahalanobis": "Mahalanobis", "vae": "VAE",
         "b1": "B1", "b2": "B2", "energy": "Energy", "knn": "KNN"}  # fmt: skip
MOST_ITEMS = 1000  # of a map
RecipesByRow = Mapping[CNDRow, Recipe]


def row_name(row: CNDRow) -> str:
    """A row in words.

    Examples
    --------
    >>> row_name(CNDRow(dataset="TinyImageNet", method="LwF", backbone="VGG"))
    'LwF, VGG'
    """
    more = [row.backbone] if row.backbone != RESNET else []
    return ", ".join([row.method, *more, *([row.head] if row.head != PLAIN else [])])


def _mean_records(names: Mapping[str, Any], values: Sequence[float]) -> list[dict[str, Any]]:
    known = np.array([value for value in values if not np.isnan(value)])
    if not len(known):
        return []
    std = float(known.std(ddof=1)) if len(known) > 1 else float("nan")
    return [{**names, "value": float(known.mean()), "std": std}]


def detection_by_stage(result: Result, rows: RecipesByRow, metrics: Iterable[str]) -> pd.DataFrame:
    """Comparisons of every detector after every stage."""
    records: list[dict[str, Any]] = []
    for row, made in rows.items():
        every = detector_comparisons(result, made)
        places = sorted({place for found in every.values() for place in found})
        for metric in metrics:
            for detector, stage in places:
                values = [found.get((detector, stage), {}).get(metric, np.nan)
                          for found in every.values()]  # fmt: skip
                records += _mean_records(
                    {"row": row_name(row), "measure": METRIC_NAMES[metric],
                     "line": DETECTOR_NAMES.get(detector, detector), "x": stage + 1},
                    [100 * value for value in values],
                )  # fmt: skip
    return make_frame(records, NUMBER_COLUMNS)


def auc_against_last(result: Result, rows: RecipesByRow) -> pd.DataFrame:
    """AUC of the inside items of every task against the last task, before that is learnt."""
    records: list[dict[str, Any]] = []
    for row, made in rows.items():
        for (detector, task), values in auc_against_last_task(result, made).items():
            names = {"row": row_name(row), "measure": "AUC against the last task",
                     "line": DETECTOR_NAMES.get(detector, detector), "x": task + 1}  # fmt: skip
            records += _mean_records(names, [100 * value for value in values])
    return make_frame(records, NUMBER_COLUMNS)


def final_accuracies(result: Result, rows: RecipesByRow) -> pd.DataFrame:
    """Accuracy of every task after the last stage."""
    records: list[dict[str, Any]] = []
    for row, made in rows.items():
        runs = measures.select_runs(result, [made], HEAD_VIEWS[row.setting])
        if runs is None or runs.matrix.shape[1] < int(runs.tasks.max()):
            continue
        for task, values in enumerate(100 * runs.matrix[:, -1].T):
            names = {"row": row.backbone, "measure": "accuracy", "line": row.method}
            records += _mean_records({**names, "x": task + 1}, values)
    return make_frame(records, NUMBER_COLUMNS)


def feature_statistic(statistic: str) -> Callable[[Result, RecipesByRow], pd.DataFrame]:
    """A statistic of the features of every set, after every stage."""

    def data(result: Result, rows: RecipesByRow) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for row, made in rows.items():
            runs = measures.select_runs(result, [made], HEAD_VIEWS[row.setting])
            if runs is None:
                continue
            table = feature_table(runs, "recipe", [run.recipe for run in runs.runs])
            chosen = (table["statistic"] == statistic) & table["set"].isin(DRAWN_GROUPS)
            own = table[chosen].to_dict("records")
            for one in sorted(own, key=lambda one: (DRAWN_GROUPS.index(one["set"]), one["stage"])):
                records.append({"row": row_name(row), "measure": statistic, "line": one["set"],
                                "x": one["stage"] + 1, "value": one["mean"],
                                "std": one["std"]})  # fmt: skip
        return make_frame(records, NUMBER_COLUMNS)

    return data


def feature_maps(result: Result, rows: RecipesByRow) -> pd.DataFrame:
    """Places of items in two dimensions after stages 1 and 2: t-SNE of their features."""
    from engram.records.novelty_records import embed_in_plane

    records: list[dict[str, Any]] = []
    for row, made in rows.items():
        runs = measures.select_runs(result, [made], HEAD_VIEWS[row.setting])
        for one in feature_samples(runs) if runs is not None else ():
            # before stage 2 nothing is forgotten; then the paper shows the first task alone
            shown = one.kind != "" if not one.stage else (one.kind != "") & (one.task == 0)
            places = np.flatnonzero(shown)[:MOST_ITEMS]
            for place, (x, y) in zip(places, embed_in_plane(one.features[places]), strict=True):
                records.append({"row": row_name(row), "stage": one.stage + 1,
                                "set": str(one.kind[place]), "task": int(one.task[place]) + 1,
                                "x": float(x), "y": float(y)})  # fmt: skip
    return make_frame(records, MAP_COLUMNS)


# ------------------------------------------------------------------------------------------------
# What the continual-novelty paper finds, as comparisons that can fail, tried on recorded runs.


SIMILAR_PERCENT = 3.0  # points of accuracy


def check_findings(result: Result, rows: RecipesByRow) -> pd.DataFrame:
    """Every claim with its numbers, in percent where they are shares; one line per comparison."""
    if not len(result):
        return make_frame([], CLAIM_COLUMNS)
    stages = int(result.tasks.max())
    made = [*_detector_claims(rows, stages), *_method_claims(rows, stages), *_set_claims(rows)]
    return make_frame([claim.tried(result) for claim in made], CLAIM_COLUMNS)


def _of(rows: RecipesByRow, **wanted: str) -> Iterator[tuple[CNDRow, Recipe]]:
    for row, made in rows.items():
        if all(getattr(row, name) == value for name, value in wanted.items()):
            yield row, made


def _detector_claims(rows: RecipesByRow, stages: int) -> Iterator[Claim]:
    """One detector against another, on the same runs; means over stages."""
    until = range(stages - 1)
    for row, made in _of(rows, head=PLAIN):
        softmax = ("Softmax", detection_metric(made, "softmax", "combined_auroc", until))
        for other in ("ODIN", "Mahalanobis", "VAE") if row.setting == MULTI else ():
            second = (other, detection_metric(made, other.lower(), "combined_auroc", until))
            yield Claim("Softmax at or above the others in C.AUC", row_name(row), softmax, second,
                        ties=True)  # fmt: skip
    for row, made in _of(rows, head=PLAIN, backbone=RESNET):
        der = "forgotten_outside_detection_error"
        both = {
            name: detection_metric(made, name.lower(), der, until) for name in ("Softmax", "ODIN")
        }
        yield Claim("ODIN below Softmax in Forg/Out DER", row_name(row),
                    ("Softmax", both["Softmax"]), ("ODIN", both["ODIN"]))  # fmt: skip
    for row, made in _of(rows, backbone=RESNET):
        if row.head != (PLAIN if row.setting == MULTI else COSINE):
            continue
        softmax = ("Softmax", detection_metric(made, "softmax", "mean_auroc", until))
        for name in ("B1", "B2"):
            first = (name, detection_metric(made, name.lower(), "mean_auroc", until))
            paper = (_printed_number(row.method, name), _printed_number(row.method, "Softmax"))
            yield Claim("B1 and B2 at or above Softmax in mAUC", row_name(row), first, softmax,
                        paper, ties=True)  # fmt: skip


def _printed_number(method: str, detector: str) -> float:
    """The mAUC of table 3, where the paper's own numbers do not always bear out its words.

    Examples
    --------
    >>> (
    ...     _printed_number("FineTune", "B1"),
    ...     _printed_number("SSIL-25s", "B1"),
    ...     _printed_number("SSIL-25s", "Softmax"),
    ... )
    (72.5, 75.8, 77.9)
    """
    wanted = {"method": method, "nd_method": detector, "metric": "mAUC"}
    (value,) = (
        cell.value
        for cell in read_cells("cnd", "3")
        if all(cell[name] == word for name, word in wanted.items())
    )
    return NAN if value is None else value


def _method_claims(rows: RecipesByRow, stages: int) -> Iterator[Claim]:
    """One method against FineTune, Softmax, after the last stage that has tasks to come."""
    own = {row.method: made for row, made in _of(rows, head=PLAIN, backbone=RESNET)}
    printed = {"LwF": (77.0, 18.5, 77.0), "MAS": (75.0, 18.9, 74.0), "FineTune": (64.0, 35.6, 80.0)}

    def softmax(method: str, metric: str) -> tuple[str, Measure]:
        return method, detection_metric(own[method], "softmax", metric, stages - 2)

    for place, (finding, metric, above) in enumerate((
        ("P.AUC of LwF and MAS above FineTune's", "previous_auroc", True),
        ("In/Forg DER of LwF and MAS below FineTune's", "inside_forgotten_detection_error", False),
        ("R.AUC of LwF and MAS below FineTune's", "recent_auroc", False),
    )):  # fmt: skip
        for name in ("LwF", "MAS"):
            if {name, "FineTune"} <= set(own):
                pair = (name, "FineTune") if above else ("FineTune", name)
                first, second = (softmax(one, metric) for one in pair)
                paper = (printed[pair[0]][place], printed[pair[1]][place])
                yield Claim(finding, name, first, second, paper)
    for _, biased in _of(rows, head=BIASED):
        without, bias = (
            measures.metric("average_accuracy", one, head="multi", percent=True)
            for one in (own["FineTune"], biased)
        )
        yield Claim(
            f"without bias as accurate as with it (within {SIMILAR_PERCENT:g} points)", "FineTune",
            ("without", without), ("with", bias), ties=True, slack=SIMILAR_PERCENT,
        )  # fmt: skip


def _set_claims(rows: RecipesByRow) -> Iterator[Claim]:
    """One set of items against another."""
    for row, made in _of(rows, head=PLAIN, backbone=RESNET):
        first, second = ((f"task {task + 1}", _against_last(made, task)) for task in (0, 1))
        if row.method != "LwF":  # the paper's exception
            yield Claim("first In above second, AUC against the last task", row_name(row), first,
                        second)  # fmt: skip
        inside, forgotten = ((name, _norm(row, made, name)) for name in ("inside", "forgotten"))
        yield Claim("norm of Forg's features below In's", row_name(row), inside, forgotten)


def _against_last(made: Recipe, task: int) -> Measure:
    return lambda result: (
        100 * np.array(auc_against_last_task(result, made).get(("softmax", task), [NAN]))
    )


def _norm(row: CNDRow, made: Recipe, name: str) -> Measure:
    """Mean over the stages in which something is forgotten, and over the runs: once for each."""

    def measure(result: Result) -> Any:
        runs = measures.select_runs(result, [made], HEAD_VIEWS[row.setting])
        if runs is None:
            return np.array([NAN])
        table = feature_table(runs, "recipe", [run.recipe for run in runs.runs])
        norms = table[table["statistic"] == "norm"].pivot(index="stage", columns="set",
                                                          values="mean")  # fmt: skip
        if "forgotten" not in norms:
            return np.array([NAN])
        value = norms.dropna(subset=["forgotten"])[name].mean()
        return np.full(len(runs), float(value))

    return measure


# ------------------------------------------------------------------------------------------------
# Drawings of the figures of the continual-novelty paper, from their tables of numbers.


SETS = {"inside": "#0072B2", "forgotten": "#E69F00", "outside": "#8A8A8A"}
OVER_TASKS = ("accuracy", "AUC against the last task")


def draw_panels(data: pd.DataFrame) -> Any:
    """A row of plots per row of the table, a column per measure, a curve per line."""
    from plotly.subplots import make_subplots

    rows, columns = (list(dict.fromkeys(data[name])) for name in ("row", "measure"))
    figure = make_subplots(
        rows=len(rows), cols=len(columns), column_titles=columns, row_titles=rows,
        shared_xaxes=True, vertical_spacing=0.05, horizontal_spacing=0.06,
    )  # fmt: skip
    legend, lines = LegendNames(), list(dict.fromkeys(data["line"]))
    known = next(
        (
            k
            for k in (list(DETECTOR_NAMES.values()), list(DRAWN_GROUPS), list(ROWS))
            if lines[0] in k
        ),
        [],
    )
    styles = assign_looks(known, lines)
    for (row, measure, name), own in data.groupby(["row", "measure", "line"], sort=False):
        figure.add_trace(
            draw_line(own["x"], own["value"], str(name), styles, legend),
            row=rows.index(row) + 1, col=columns.index(measure) + 1,
        )  # fmt: skip
    over = "task" if columns[0] in OVER_TASKS else "stage"
    figure.update_xaxes(title=over, row=len(rows))
    figure.update_layout(height=120 + 240 * len(rows), legend={"orientation": "h", "y": -0.12})
    return figure


def draw_maps(data: pd.DataFrame) -> Any:
    """Two maps side by side: after stage 1, and of the first task after stage 2."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    stages = sorted(set(data["stage"]))
    figure = make_subplots(
        rows=1, cols=len(stages), subplot_titles=[f"after stage {k}" for k in stages]
    )
    legend = LegendNames()
    for (stage, kind), own in data.groupby(["stage", "set"], sort=False):
        figure.add_trace(
            go.Scatter(
                x=own["x"].tolist(), y=own["y"].tolist(), mode="markers", name=str(kind),
                legendgroup=str(kind), showlegend=legend(str(kind)),
                marker={"color": SETS[str(kind)], "size": 5, "opacity": 0.7},
                text=[f"task {task}" for task in own["task"]], hovertemplate="%{text}",
            ),
            row=1, col=stages.index(stage) + 1,
        )  # fmt: skip
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure


# ------------------------------------------------------------------------------------------------
# Figures 2 to 34 of the continual-novelty paper, a control and its findings, from the same runs.
#
# Figures 9 to 11 and 17 to 19, say, differ in rows and metrics alone, so most of them are lines of
# one table here: which rows, and which numbers over what.


MULTI_HEAD_METHODS = ("FineTune", "MAS", "LwF")
ER, SSIL = ("ER-25s", "ER-50s"), ("SSIL-25s", "SSIL-50s")
AUCS = ("combined_auroc", "recent_auroc", "previous_auroc")
RowRecipes = dict[CNDRow, Recipe]
Numbers = Callable[["Result", RowRecipes], "pd.DataFrame"]


@dataclass(frozen=True)
class CNDDrawing:
    """What a figure shows: which rows, which numbers, how they are drawn."""

    title: str
    rows: tuple[CNDRow, ...]
    data: Numbers
    draw: Callable[[pd.DataFrame], Any] = draw_panels


def _list_rows(
    methods: Sequence[str], backbone: str = RESNET, dataset: str = TINY
) -> tuple[CNDRow, ...]:
    return tuple(CNDRow(dataset=dataset, method=name, backbone=backbone) for name in methods)


def _stage_numbers(*metrics: str) -> Numbers:
    return lambda result, rows: detection_by_stage(result, rows, metrics)


def _make_drawings() -> dict[str, CNDDrawing]:
    eight, resnet = _list_rows(MULTI_HEAD_METHODS, ALEXNET, EIGHT), _list_rows(MULTI_HEAD_METHODS)
    vgg, er, ssil = _list_rows(MULTI_HEAD_METHODS, VGG), _list_rows(ER), _list_rows(SSIL)
    found = {
        "fig2": CNDDrawing("C.AUC, R.AUC and P.AUC, Eight-Task", eight, _stage_numbers(*AUCS)),
        "fig3": CNDDrawing("C.AUC, R.AUC and P.AUC", resnet, _stage_numbers(*AUCS)),
        "fig4": CNDDrawing("R.AUC and P.AUC, ER", er, _stage_numbers(*AUCS[1:])),
        "fig5": CNDDrawing("R.AUC and P.AUC, SSIL", ssil, _stage_numbers(*AUCS[1:])),
        "fig6": CNDDrawing("features after stages 1 and 2 (t-SNE)", _list_rows(("LwF",)),
                        feature_maps, draw_maps),
        "fig7": CNDDrawing("accuracy of every task at the end", (*resnet, *vgg), final_accuracies),
        "fig8": CNDDrawing("accuracy of every task at the end, shared head", (*er, *ssil),
                        final_accuracies),
    }  # fmt: skip
    for place, method in enumerate(MULTI_HEAD_METHODS):
        title = f"C.AUC, R.AUC and P.AUC, {method}, VGG"
        found[f"fig{9 + place}"] = CNDDrawing(title, (vgg[place],), _stage_numbers(*AUCS))
    groups = {"Eight-Task": eight, "ResNet": resnet, "VGG": vgg, "ER": er, "SSIL": ssil}
    for first, metric, words in ((12, "aupr_in", "AUPR-IN"), (17, "detection_error", "DER")):
        for place, (name, rows) in enumerate(groups.items()):
            found[f"fig{first + place}"] = CNDDrawing(
                f"{words}, {name}", rows, _stage_numbers(metric)
            )
    del groups["VGG"]
    for place, (name, rows) in enumerate(groups.items()):
        title = f"AUC of every task's inside items against the last task, {name}"
        found[f"fig{22 + place}"] = CNDDrawing(title, rows, auc_against_last)
    del groups["Eight-Task"]
    for first, statistic in ((26, "norm"), (29, "mean"), (32, "deviation")):
        for place, (name, rows) in enumerate(groups.items()):
            title = f"{statistic} of the features of every set, {name}"
            found[f"fig{first + place}"] = CNDDrawing(title, rows, feature_statistic(statistic))
    both = (
        CNDRow(dataset=TINY, method="FineTune"),
        CNDRow(dataset=TINY, method="FineTune", head=BIASED),
    )
    return {
        **found,
        "control": CNDDrawing("FineTune with and without bias in the last layer", both,
                           _stage_numbers(*AUCS, "inside_forgotten_detection_error")),
        "findings": CNDDrawing("what the paper finds, tried on these runs", tuple(list_rows(TINY)),
                            check_findings, draw_table),
    }  # fmt: skip


DRAWINGS = _make_drawings()
FIGURE_TITLES = {name: one.title for name, one in DRAWINGS.items()}


def build_figure(name: str, preset: CNDPreset) -> tuple[PaperFigure, ...]:
    """The figure of a name; none where the preset leaves its sequence out."""
    one = DRAWINGS[name]
    if {row.dataset for row in one.rows} & preset.absent:
        return ()
    title = f"{one.title} ({preset.shown(one.rows[0].dataset)})"
    made = {row: recipe(preset, row) for row in one.rows}
    return (
        PaperFigure(
            name=name, title=title, recipes=tuple(made.values()),
            data=lambda result: one.data(result, made), draw=one.draw,
            rows=tuple(
                {
                    "dataset": row.dataset, "setting": row.setting, "method": row.method,
                    "backbone": row.backbone,
                }
                for row in made
            ),
        ),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------
# Continual novelty detection (CND, Aljundi et al. 2022): tables and figures.


TITLES = {
    "1": "accuracy and forgetting after the last stage",
    "2": "detection errors of forgotten items, first and last two stages",
    "3": "Softmax and the baselines B1 and B2, means over stages",
    "4": "detection errors of forgotten items after every stage",
    "5": "AUC of forgotten items after every stage",
    **FIGURE_TITLES,
    "all": "all tables and figures of TinyImageNet-Seq in one call",
}
METRICS = {
    "DER_F_vs_N": "inside_forgotten_detection_error",
    "DER_F_vs_O": "forgotten_outside_detection_error",
    "AUC_F_vs_N": "inside_forgotten_auroc", "AUC_F_vs_O": "forgotten_outside_auroc",
    "m.P.AUC": "previous_auroc", "m.R.AUC": "recent_auroc", "mAUC": "mean_auroc",
    "F/IN": "inside_forgotten_detection_error", "F/Out": "forgotten_outside_detection_error",
}  # fmt: skip
TOLERANCE_PERCENT = 3.0  # percentage points that are no difference
CIFAR = "cifar10"
TUNED = ("ODIN", "Mahalanobis", "VAE")  # by the paper on an outside set


class _CNDEntries:
    """Entries of all tables; the runs of a row are named once and shared by its cells."""

    def __init__(self, preset: CNDPreset) -> None:
        self.preset = preset
        self._recipe = lru_cache(maxsize=None)(lambda row: recipe(preset, row))

    def entry(self, cell: Cell) -> CellEntry:
        row = find_row(cell)
        made = self._recipe(row)
        return CellEntry(
            recipes=(made,), measure=self._measure(cell, row, made), tolerance=TOLERANCE_PERCENT,
            reasons=self._reasons(cell),
        )  # fmt: skip

    def _measure(self, cell: Cell, row: CNDRow, made: Recipe) -> Measure:
        metric, last = cell["metric"], self.preset.stages(row.dataset) - 1
        if metric in ("Acc", "Forg"):
            forgetting = {"definition": self.preset.forgetting} if metric == "Forg" else {}
            name = "forgetting" if forgetting else "average_accuracy"
            return measures.metric(
                name, made, head=HEAD_VIEWS[row.setting], percent=True, **forgetting
            )
        stages = int(cell["stage"]) - 1 if cell["stage"] else range(last + (metric == "F/IN"))
        return detection_metric(made, cell["nd_method"].lower(), METRICS[metric], stages)

    def _reasons(self, cell: Cell) -> tuple[str, ...]:
        here = (self.preset.protocol(cell["dataset"]).outside or {}).get("data")
        tuned = [OOD_SET_UNSTATED] if cell["nd_method"] in TUNED and here != CIFAR else []
        return self.preset.reasons(cell["dataset"], EPOCHS_UNSTATED, *tuned, VARIANT_UNSTATED)


def find_row(cell: Cell) -> CNDRow:
    """The row that a cell stands in: shared heads of table 3 are normalised."""
    cosine = cell.table == "3" and ROWS[cell["method"]][1] == SHARED
    return CNDRow(
        dataset=cell["dataset"], method=cell["method"], backbone=cell["backbone"],
        head=COSINE if cosine else PLAIN,
    )  # fmt: skip


def _rank(preset: CNDPreset) -> Callable[[Recipe], int]:
    """Rows in the order in which they are trained where time is short."""
    rows = [row for name in preset.parts.values() if name not in preset.absent
            for row in list_rows(name)]  # fmt: skip
    places = {row_label(preset, row): place for place, row in enumerate(rows)}
    return lambda made: places[made.label]


_TABLES = tuple("12345")
TABLES = Paper(
    name="cnd", titles=TITLES, paper=PAPER, embedded=EMBEDDED, figures=build_figure,
    tables=dict.fromkeys(_TABLES, lambda preset: _CNDEntries(preset).entry), rank=_rank,
    groups={"all": (*_TABLES, *FIGURE_TITLES)}, folders=dict.fromkeys(TITLES, "cnd"),
)  # fmt: skip
