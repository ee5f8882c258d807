"""Continual novelty detection (CND, Aljundi et al. 2022): recipes, tables, figures, claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from engram.data import Data
from engram.errors import check_choice, check_float, unknown
from engram.experiments import Recipe
from engram.metrics.matrix import DEFINITIONS
from engram.records.novelty_records import DRAWN_GROUPS, feature_samples, feature_table
from engram.reproduce import measures
from engram.reproduce.cells import Cell
from engram.reproduce.measures import auc_against_last_task, detection_metric, detector_comparisons
from engram.reproduce.paper_table import (
    EPOCHS_UNSTATED,
    OOD_SET_UNSTATED,
    VARIANT_UNSTATED,
    CellEntry,
    PaperFigure,
)
from engram.reproduce.papers.figure_parts import (
    NAN,
    PlotGrid,
    Records,
    assign_looks,
    draw_table,
    make_frame,
    mean_records,
)
from engram.reproduce.papers.findings import (
    CellFindings,
    Claim,
    TrendClaim,
    TriedClaim,
    make_findings_figure,
)
from engram.reproduce.papers.paper_base import (
    Paper,
    PaperData,
    PaperPreset,
    check_choices,
    check_ints,
    default_options,
    fit_classes_per_task,
)
from engram.streams.novelty_sequences import EIGHT as EIGHT_SETS

if TYPE_CHECKING:
    import pandas as pd

    from engram.records import Result
    from engram.reproduce.paper_table import Measure

TINY, EIGHT = "TinyImageNet", "Eight-Task"
PROXY = "CIFAR-100"  # not of the paper: a small sequence, for what takes too long on the others
RESNET, VGG, ALEXNET = "ResNet", "VGG", "AlexNet"
MULTI, SHARED = "multi-head", "shared-head"
HEAD_VIEWS = {MULTI: "multi", SHARED: "single"}
SEQUENCES = ("tinyimagenet_seq", "eight_task", "classes")
DATA = PaperData("cnd")
ROWS: Mapping[str, Mapping[str, str]] = DATA["rows"]


# -- preset ----------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class CNDProtocol:
    """One sequence of the paper.

    Parameters
    ----------
    sequence
        A stream of that name, or ``classes``: `classes_per_task` of them in each stage.
    stages
        How many there are; rows of some tables are means over them.
    classes
        Only the first so many classes of the data; 0: all.
    steps_per_epoch
        Steps of an epoch, in which `CNDPreset.epochs` and patience are counted: those that the
        paper's rows make, so that training is as long where only a part of them is there. 0: a pass
        over the rows that are there.
    share
        Exemplars of the paper that are kept: with a fifth of its rows, .2 keeps the same share of
        them.
    models, layers
        The networks by their names in the paper, and those layers of each that Mahalanobis reads
        besides the features.
    normalised
        Options of some of these networks beside those in `models` where the last layer is
        normalised: the released ResNet then has a linear layer of 200 before it.
    training
        Training options of some of these networks beside the preset's.
    outside
        The set against which detectors are tuned, and Mahalanobis weighs its layers: the paper has
        CIFAR-10, 40,000 rows to fit and 10,000 to choose; here at most ``limit`` of each, since
        all of them cost more passes than the training does. null: nothing is tuned.
    """

    data: str
    options: Mapping[str, Any] = default_options()
    sequence: str = "classes"
    stages: int = 10
    classes: int = 0
    classes_per_task: int = 20
    steps_per_epoch: int = 0
    share: float = 1.0
    batch_size: int = 64
    learning_rate: float = 0.01
    models: Mapping[str, Any] = default_options()
    layers: Mapping[str, Sequence[str]] = default_options(**DATA["layers"])
    normalised: Mapping[str, Any] = default_options()
    training: Mapping[str, Any] = default_options()
    outside: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_choice("sequence", self.sequence, SEQUENCES)
        check_ints(self, "stages", "classes_per_task", "batch_size", low=1)
        check_ints(self, "classes", "steps_per_epoch")
        check_float("learning_rate", self.learning_rate, open_low=True)
        check_float("share", self.share, 0.0, 1.0, open_low=True)

    def on(self, data: Data, name: str) -> CNDProtocol:
        """The same on other data: equal tasks of its classes, and no outside set, so no tuning."""
        size = fit_classes_per_task(data, self.classes_per_task, self.stages, name)
        return replace(
            self, data=name, options={}, sequence="classes", classes=0, classes_per_task=size,
            stages=data.n_classes // size, outside=None,
        )  # fmt: skip


PROTOCOLS = DATA.build_each(CNDProtocol, "protocols")


FIRST_STAGES = ("zero", "left_out")


@dataclass(frozen=True, kw_only=True)
class CNDPreset(PaperPreset[CNDProtocol]):
    """The choices of all rows; N1 to N19 are entries of the page about the protocol.

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
        ends, and whether the best epoch counts (N8). An epoch has `CNDProtocol.steps_per_epoch`.
    plateau_patience
        Epochs without a lower validation loss after which the learning rate falls to a tenth.
    short
        Training options of the rows with which ``schedule`` compares: patience in passes over the
        rows, however few they are.
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
    first_stage
        F/IN and F/Out of table 3 are means over stages, at the first of which nothing is forgotten:
        ``zero`` counts it as 0, as the released code does, ``left_out`` does not count it (N19).
    """

    parts: ClassVar = {"tiny": TINY, "eight": EIGHT, "proxy": PROXY}
    official: ClassVar = {TINY: "tiny_imagenet", EIGHT: "eight_task", PROXY: "cifar100"}

    tiny: CNDProtocol | None = PROTOCOLS["tiny"]
    eight: CNDProtocol | None = PROTOCOLS["eight"]
    proxy: CNDProtocol | None = PROTOCOLS["proxy"]
    seeds: int = 1
    order_seed: int = 0
    valid: float = 0.2
    epochs: int = 100
    patience: int = 20
    restore_best: bool = True
    plateau_patience: int = 10
    short: Mapping[str, Any] = default_options(
        steps_per_epoch=0, epochs=30, patience=5, plateau_patience=3
    )
    momentum: float = 0.9
    weight_decay: float = 0.0
    augment: tuple[str, ...] = ("resized_crop", "flip")
    precision: str = "tf32"
    head: Mapping[str, Any] = default_options(name="linear", bias=False)
    shared_head: Mapping[str, Any] = default_options(name="cosine", scale=10.0)
    control: Mapping[str, Any] = default_options(name="linear")
    lwf: Mapping[str, Any] = default_options(strength=1.0, temperature=2.0)
    mas: Mapping[str, Any] = default_options(
        strength=4.0, importance="batch_abs", half=True, group=64
    )
    er: Mapping[str, Any] = default_options(mix="paired", reduce="sum")
    ssil: Mapping[str, Any] = default_options(kd_inputs="all")
    few: int = 4500
    many: int = 9000
    memory: str = "task"
    detectors: Mapping[str, Any] = default_options(**DATA["detectors"])
    tuned: Mapping[str, Any] = default_options(**DATA["tuned"])
    features: int = 500
    forgetting: str = "diagonal"
    first_stage: str = "zero"
    keep: str = "labels"

    def on(self, data: Data) -> CNDPreset:
        """The preset with other data; domains of Eight-Task-Seq. stand for its data sets."""
        domains = set(data.attribute_names.get("domain", ()))
        if len(domains) < 2 or domains - set(EIGHT_SETS):
            return super().on(data)
        name = data.name if data.source is None else data.source.name
        eight = replace(PROTOCOLS["domains"], data=name, stages=len(domains))
        return replace(self, tiny=None, eight=eight, proxy=None)

    def __post_init__(self) -> None:
        check_ints(self, "seeds", "epochs", "few", "many", low=1)
        check_ints(self, "order_seed", "patience", "plateau_patience", "features")
        check_float("valid", self.valid, 0.0, 1.0)
        check_float("weight_decay", self.weight_decay)
        check_choices(self, ("task", "class", "per_class"), "memory")
        check_choices(self, DEFINITIONS, "forgetting")
        check_choices(self, FIRST_STAGES, "first_stage")

    def stages(self, dataset: str) -> int:
        """How many stages a sequence has."""
        return self.protocol(dataset).stages


PAPER = CNDPreset()
EMBEDDED = DATA.build(CNDPreset, "embedded")
QUICK = DATA.build(CNDPreset, "embedded_findings")


# -- rows and recipes ------------------------------------------------------------------------------
BASELINES = ("B1", "B2")
STREAM_KINDS = {MULTI: "task_incremental", SHARED: "class_incremental"}
PLAIN, COSINE, BIASED = "plain", "cosine", "biased"  # which last layer a row is trained with
SHORT = "short"  # the schedule of `CNDPreset.short`


@dataclass(frozen=True, kw_only=True)
class CNDRow:
    """A row of a table: who learns what with which network, last layer and schedule."""

    dataset: str
    method: str
    backbone: str = RESNET
    head: str = PLAIN
    schedule: str = ""

    @property
    def setting(self) -> str:
        if self.method not in ROWS:
            raise unknown("method", self.method, ROWS)
        return ROWS[self.method]["head"]


def list_rows(dataset: str) -> list[CNDRow]:
    """Every row of a sequence, in the order in which they are trained where time is short."""
    multi = [name for name in ROWS if ROWS[name]["head"] == MULTI]
    shared = [name for name in ROWS if ROWS[name]["head"] == SHARED]
    if dataset == PROXY:
        return list(_list_figure_rows(DATA["figures"]["schedule"]["rows"]))
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
    return f"{row.method} ({', '.join([preset.shown(row.dataset), row.backbone, *_variants(row)])})"


def _variants(row: CNDRow) -> list[str]:
    return [word for word in (row.head, row.schedule) if word not in (PLAIN, "")]


def row_name(row: CNDRow) -> str:
    """A row in words.

    Examples
    --------
    >>> row_name(CNDRow(dataset="TinyImageNet", method="LwF", backbone="VGG"))
    'LwF, VGG'
    """
    more = [row.backbone] if row.backbone != RESNET else []
    return ", ".join([row.method, *more, *_variants(row)])


def recipe(preset: CNDPreset, row: CNDRow) -> Recipe:
    """The recipe of a row.

    Examples
    --------
    >>> from engram.reproduce.papers.cnd_paper import PAPER
    >>> made = recipe(PAPER, CNDRow(dataset="TinyImageNet", method="ER-25s"))
    >>> made.method.memory.total, made.training.epochs, made.stream["kind"]
    (4500, 100, 'tinyimagenet_seq')
    >>> [probe.name for probe in made.probes][:3]
    ['features', 'softmax', 'tuned odin over epsilon']
    """
    protocol, setting = preset.protocol(row.dataset), row.setting
    return Recipe.of({
        "stream": _stream(preset, protocol, setting),
        "model": {
            **protocol.models[row.backbone],
            **(protocol.normalised.get(row.backbone, {}) if row.head == COSINE else {}),
            "head": dict(_head_spec(preset, row.head)),
        },
        "method": method_spec(preset, row.method, protocol.share),
        "training": {
            "epochs": preset.epochs, "steps_per_epoch": protocol.steps_per_epoch,
            "patience": preset.patience,
            "restore_best": preset.restore_best, "batch_size": protocol.batch_size,
            "optimizer": "sgd", "lr": protocol.learning_rate, "momentum": preset.momentum,
            "weight_decay": preset.weight_decay, "schedule": "plateau", "factor": 0.1,
            "plateau_patience": preset.plateau_patience, "augment": list(preset.augment),
            "scope": "own" if setting == MULTI else "seen", "precision": preset.precision,
            **protocol.training.get(row.backbone, {}),
            **(preset.short if row.schedule == SHORT else {}),
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
        some = {"order": list(range(protocol.classes))} if protocol.classes else {}
        return {
            **where,
            **some,
            "kind": STREAM_KINDS[setting],
            "classes_per_task": protocol.classes_per_task,
        }
    shared = {"shared_head": True} if setting == SHARED else {}
    return {**where, "kind": protocol.sequence, **shared}


def _head_spec(preset: CNDPreset, head: str) -> Mapping[str, Any]:
    heads = {PLAIN: preset.head, COSINE: preset.shared_head, BIASED: preset.control}
    return heads[check_choice("head", head, heads)]


def method_spec(preset: CNDPreset, method: str, share: float = 1.0) -> dict[str, Any]:
    """The plain form of a row's method; of its exemplars a share is kept.

    Examples
    --------
    >>> method_spec(PAPER, "SSIL-50s", share=0.2)["memory"]
    {'total': 1800, 'shared_by': 'task'}
    """
    if method not in ROWS:
        raise unknown("method", method, ROWS)
    row = ROWS[method]
    spec = {"name": row["method"], **(getattr(preset, row["options"]) if "options" in row else {})}
    if "size" in row:
        size = max(1, round(share * getattr(preset, row["size"])))
        shared = {"total": size, "shared_by": preset.memory}
        spec["memory"] = {"per_class": size} if preset.memory == "per_class" else shared
    return spec


def detector_specs(preset: CNDPreset, row: CNDRow) -> list[dict[str, Any]]:
    """The detectors of a row: all but those that its last layer or its purpose leaves out.

    B1 and B2 need a last layer without bias. Normalised shared heads are trained for table 3,
    which compares these two with Softmax, as the proxy does; the others would cost more than the
    training.
    """
    protocol = preset.protocol(row.dataset)
    layers, tunes = list(protocol.layers.get(row.backbone, ())), protocol.outside is not None
    combine = {"combine": "logistic"} if tunes else {}
    found = []
    for name, options in preset.detectors.items():
        left_out = row.head == BIASED and name in BASELINES
        few = row.head == COSINE or row.dataset == PROXY
        left_out |= few and name not in ("Softmax", *BASELINES)
        if options is None or left_out:
            continue
        more = {"layers": layers, **combine} if name == "Mahalanobis" and layers else {}
        spec = {"name": name, **more, **options}
        grid = preset.tuned.get(name) if tunes else None
        found.append({"name": "Tuned", "detector": spec, "grid": grid} if grid else spec)
    return found


# -- tables ----------------------------------------------------------------------------------------
TOLERANCE_PERCENT = 3.0  # percentage points that are no difference
CIFAR = "cifar10"
TUNED = ("ODIN", "Mahalanobis", "VAE")  # by the paper on an outside set
_TABLES = tuple("12345")


def make_entries(preset: CNDPreset) -> Callable[[Cell], CellEntry]:
    """Entries of all tables; the runs of a row are named once and shared by its cells."""
    find = lru_cache(maxsize=None)(partial(recipe, preset))

    def entry(cell: Cell) -> CellEntry:
        row = find_row(cell)
        made = find(row)
        return CellEntry(
            recipes=(made,), measure=_measure(preset, cell, row, made),
            tolerance=TOLERANCE_PERCENT, reasons=_reasons(preset, cell),
            # table 1 is about the last stage, which other data may reach earlier
            tasks=preset.stages(cell["dataset"]) if cell.table == "1" else int(cell["stage"] or 0),
        )  # fmt: skip

    return entry


def _measure(preset: CNDPreset, cell: Cell, row: CNDRow, made: Recipe) -> Measure:
    metric, last = cell["metric"], preset.stages(row.dataset) - 1
    common: dict[str, Any] = {"head": HEAD_VIEWS[row.setting], "percent": True}
    if metric == "Acc":
        return measures.metric("average_accuracy", made, **common)
    if metric == "Forg":
        return measures.metric("forgetting", made, definition=preset.forgetting, **common)
    stages = int(cell["stage"]) - 1 if cell["stage"] else range(last + (metric == "F/IN"))
    # table 3: nothing is forgotten at the first stage
    zeros = (0,) if metric in ("F/IN", "F/Out") and preset.first_stage == "zero" else ()
    return detection_metric(
        made, cell["nd_method"].lower(), DATA["metrics"][metric], stages, zeros=zeros
    )


def _reasons(preset: CNDPreset, cell: Cell) -> tuple[str, ...]:
    here = (preset.protocol(cell["dataset"]).outside or {}).get("data")
    tuned = [OOD_SET_UNSTATED] if cell["nd_method"] in TUNED and here != CIFAR else []
    return preset.reasons(cell["dataset"], EPOCHS_UNSTATED, *tuned, VARIANT_UNSTATED)


def find_row(cell: Cell) -> CNDRow:
    """The row that a cell stands in: shared heads of table 3 are normalised."""
    cosine = cell.table == "3" and ROWS[cell["method"]]["head"] == SHARED
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


# -- numbers of figures ----------------------------------------------------------------------------
# One long table, whatever they show: a row of plots per `row` (method and network), a column per
# `measure`, a curve per `line` (detector, set or method) over `x`; shares are percentages.
NUMBER_COLUMNS = ("row", "measure", "line", "x", "value", "std")
SCHEDULE_COLUMNS = ("row", "schedule", "measure", "value", "std", "repetitions")
MAP_COLUMNS = ("row", "stage", "set", "task", "x", "y")
METRIC_NAMES: Mapping[str, str] = DATA["metric_names"]
DETECTOR_NAMES: Mapping[str, str] = DATA["detector_names"]
MOST_ITEMS = 1000  # of a map
RecipesByRow = Mapping[CNDRow, Recipe]
Numbers = Callable[["Result", RecipesByRow], "pd.DataFrame"]


def detection_by_stage(result: Result, rows: RecipesByRow, metrics: Iterable[str]) -> pd.DataFrame:
    """Comparisons of every detector after every stage."""
    records: Records = []
    for row, made in rows.items():
        every = detector_comparisons(result, made)
        places = sorted({place for found in every.values() for place in found})
        for metric in metrics:
            for detector, stage in places:
                values = [found.get((detector, stage), {}).get(metric, np.nan)
                          for found in every.values()]  # fmt: skip
                records += mean_records(
                    {"row": row_name(row), "measure": METRIC_NAMES[metric],
                     "line": DETECTOR_NAMES.get(detector, detector), "x": stage + 1},
                    100 * np.array(values, np.float64),
                )  # fmt: skip
    return make_frame(records, NUMBER_COLUMNS)


def auc_against_last(result: Result, rows: RecipesByRow) -> pd.DataFrame:
    """AUC of the inside items of every task against the last task, before that is learnt."""
    records: Records = []
    for row, made in rows.items():
        for (detector, task), values in auc_against_last_task(result, made).items():
            names = {"row": row_name(row), "measure": "AUC against the last task",
                     "line": DETECTOR_NAMES.get(detector, detector), "x": task + 1}  # fmt: skip
            records += mean_records(names, 100 * np.array(values, np.float64))
    return make_frame(records, NUMBER_COLUMNS)


def final_accuracies(result: Result, rows: RecipesByRow) -> pd.DataFrame:
    """Accuracy of every task after the last stage."""
    records: Records = []
    for row, made in rows.items():
        runs = measures.select_runs(result, [made], HEAD_VIEWS[row.setting])
        if runs is None or runs.matrix.shape[1] < int(runs.tasks.max()):
            continue
        for task, values in enumerate(100 * runs.matrix[:, -1].T):
            names = {"row": row.backbone, "measure": "accuracy", "line": row.method}
            records += mean_records({**names, "x": task + 1}, values)
    return make_frame(records, NUMBER_COLUMNS)


def feature_statistic(statistic: str) -> Callable[[Result, RecipesByRow], pd.DataFrame]:
    """A statistic of the features of every set, after every stage."""

    def data(result: Result, rows: RecipesByRow) -> pd.DataFrame:
        records: Records = []
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


def compare_schedules(result: Result, rows: RecipesByRow) -> pd.DataFrame:
    """Accuracy after the last stage, and how far B1 and B2 are above Softmax, means over stages."""
    records: Records = []
    for row, made in rows.items():
        head = HEAD_VIEWS[row.setting]
        stages = range(int(result.tasks.max()) - 1) if len(result) else range(0)
        accuracy = measures.metric("average_accuracy", made, head=head, percent=True)
        softmax, *others = (
            detection_metric(made, name.lower(), "mean_auroc", stages)
            for name in ("Softmax", *BASELINES)
        )
        numbers = {"Acc": accuracy, "mAUC of Softmax": softmax}
        for name, one in zip(BASELINES, others, strict=True):
            numbers[f"mAUC of {name} - Softmax"] = measures.difference(one, softmax)
        for name, measure in numbers.items():
            names = {"row": row.method, "schedule": row.schedule or "released", "measure": name}
            records += mean_records(names, np.asarray(measure(result), np.float64))
    return make_frame(records, SCHEDULE_COLUMNS)


def feature_maps(result: Result, rows: RecipesByRow) -> pd.DataFrame:
    """Places of items in two dimensions after stages 1 and 2: t-SNE of their features."""
    from engram.records.novelty_records import embed_in_plane

    records: Records = []
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


# -- claims ----------------------------------------------------------------------------------------
SIMILAR_PERCENT = 3.0  # points of accuracy
FLAT_PERCENT = 5.0  # points of AUC
CHANCE_AUC = 50.0


def list_claims(rows: RecipesByRow, stages: int) -> Iterator[TriedClaim]:
    """What the paper finds in its figures, in percent where they are shares; tables are in YAML."""
    yield from _detector_claims(rows, stages)
    yield from _stage_claims(rows, stages)
    yield from _buffer_claims(rows, stages)
    yield from _set_claims(rows, stages)
    for row, biased in _of(rows, head=BIASED):
        own = find_row_recipe(rows, row.method)
        if own is not None:
            without, bias = (
                measures.metric("average_accuracy", one, head="multi", percent=True)
                for one in (own, biased)
            )
            yield Claim("without bias as accurate as with it", row.method, ("without", without),
                        ("with", bias), relation="near", slack=SIMILAR_PERCENT)  # fmt: skip


def _of(rows: RecipesByRow, **wanted: str) -> Iterator[tuple[CNDRow, Recipe]]:
    for row, made in rows.items():
        if all(getattr(row, name) == value for name, value in wanted.items()):
            yield row, made


def find_row_recipe(rows: RecipesByRow, method: str) -> Recipe | None:
    """The recipe of a method on the paper's ResNet with the last layer of its tables 1 to 5."""
    found = (made for row, made in _of(rows, method=method, backbone=RESNET, head=PLAIN))
    return next(found, None)


def _detector_claims(rows: RecipesByRow, stages: int) -> Iterator[Claim]:
    """One detector against another, on the same runs; means over stages."""
    until = range(stages - 1)
    for row, made in _of(rows, head=PLAIN):
        shared = row.setting == SHARED
        metric = "recent_auroc" if shared else "combined_auroc"
        softmax = ("Softmax", detection_metric(made, "softmax", metric, until))
        for other in ("ODIN",) if shared else TUNED:
            second = (other, detection_metric(made, other.lower(), metric, until))
            words = f"Softmax at or above {'ODIN' if shared else 'the others'}"
            yield Claim(f"{words} in {METRIC_NAMES[metric]}", row_name(row), softmax, second,
                        ties=True)  # fmt: skip
    for name in ("SSIL-25s", "SSIL-50s"):
        if (known := find_row_recipe(rows, name)) is not None:
            far = ("Mahalanobis", detection_metric(known, "mahalanobis", "previous_auroc", until))
            yield Claim("P.AUC of Mahalanobis near chance with SSIL", name, far,
                        ("chance", measures.constant(CHANCE_AUC)), relation="near",
                        slack=FLAT_PERCENT)  # fmt: skip
    for names in product(("ER-25s", "ER-50s"), ("FineTune", "LwF", "MAS")):
        own = [one for name in names if (one := find_row_recipe(rows, name)) is not None]
        if len(own) == len(names):
            first, second = (
                (name, detection_metric(one, "mahalanobis", "previous_auroc", until))
                for name, one in zip(names, own, strict=True)
            )
            yield Claim("P.AUC of Mahalanobis best with ER", "Mahalanobis", first, second)


def _stage_claims(rows: RecipesByRow, stages: int) -> Iterator[TriedClaim]:
    """Detection is the worse the more has been learnt."""
    for row, made in _of(rows, head=PLAIN):
        for detector, metric in product(("Softmax", "ODIN"), ("previous_auroc", "combined_auroc")):
            if row.setting == SHARED and metric == "combined_auroc":
                continue  # of one head it is that of all tasks together, which is not shown
            first = 1 if metric == "previous_auroc" else 0
            sides = [
                (f"stage {stage + 1}", detection_metric(made, detector.lower(), metric, stage), NAN)
                for stage in range(first, stages - 1)
            ]
            words = f"{METRIC_NAMES[metric]} falls from stage to stage"
            if len(sides) > 1:
                yield TrendClaim(words, row_name(row), detector, sides, falls=True)
    made_by = find_row_recipe(rows, "FineTune")
    if made_by is not None and stages > 2:
        early, late = (
            (f"stage {stage + 1}", detection_metric(made_by, "softmax", "recent_auroc", stage))
            for stage in (0, stages - 2)
        )
        yield Claim("R.AUC of FineTune is similar at all stages", "FineTune", late, early,
                    relation="near", slack=FLAT_PERCENT)  # fmt: skip


def _buffer_claims(rows: RecipesByRow, stages: int) -> Iterator[Claim]:
    """What a larger buffer changes."""
    until = range(1, stages - 1)
    for kind in ("ER", "SSIL"):
        names = (f"{kind}-50s", f"{kind}-25s")
        more, less = (find_row_recipe(rows, name) for name in names)
        if more is None or less is None:
            continue
        first, second = (
            (name, detection_metric(made, "softmax", "previous_auroc", until))
            for name, made in zip(names, (more, less), strict=True)
        )
        yield Claim("a larger buffer has the higher P.AUC", kind, first, second)
        first, second = (
            (name, measures.difference(_against_last(made, 0), _against_last(made, 1)))
            for name, made in zip(names, (more, less), strict=True)
        )
        yield Claim("a larger buffer widens the gap of first and second In", kind, first, second)


def _set_claims(rows: RecipesByRow, stages: int) -> Iterator[Claim]:
    """One set of items against another."""
    for row, made in _of(rows, head=PLAIN, backbone=RESNET):
        first, second = ((f"task {task + 1}", _against_last(made, task)) for task in (0, 1))
        if row.method != "LwF":  # the paper's exception
            yield Claim("first In above second, AUC against the last task", row_name(row), first,
                        second)  # fmt: skip
        inside, forgotten = ((name, _norm(row, made, name)) for name in ("inside", "forgotten"))
        yield Claim("norm of Forg's features below In's", row_name(row), forgotten, inside,
                    relation="below")  # fmt: skip
        inside, outside = ((name, _norm(row, made, name, 0)) for name in ("inside", "outside"))
        yield Claim("norm of In's features above Out's at stage 1", row_name(row), inside, outside)
        if stages > 2:
            early, late = (
                (f"In - Out, stage {stage + 1}",
                 measures.difference(_norm(row, made, "inside", stage),
                                     _norm(row, made, "outside", stage)))
                for stage in (0, stages - 2)
            )  # fmt: skip
            yield Claim("norms of In and Out come closer", row_name(row), late, early,
                        relation="below")  # fmt: skip


def _against_last(made: Recipe, task: int) -> Measure:
    return lambda result: (
        100 * np.array(auc_against_last_task(result, made).get(("softmax", task), [NAN]))
    )


def _norm(row: CNDRow, made: Recipe, name: str, stage: int | None = None) -> Measure:
    """Mean norm of the features of a set, one for each run.

    At a stage, counted from 0, or over all at which something is forgotten.
    """

    def measure(result: Result) -> Any:
        table = _norm_table(result, row, made)
        if stage is None:
            later = table.dropna(subset=["forgotten"]) if "forgotten" in table else table[:0]
        else:
            later = table[table.index.get_level_values("stage") == stage]
        means = later.groupby("seed").mean()
        return np.array([
            means[name].get(str(seed), NAN) if name in means else NAN for seed in made.seeds
        ])  # fmt: skip

    return measure


_NORMS: WeakKeyDictionary[Result, dict[str, pd.DataFrame]] = WeakKeyDictionary()


def _norm_table(result: Result, row: CNDRow, made: Recipe) -> pd.DataFrame:
    """Mean norms by seed and stage, a column for each set; they are read once."""
    known = _NORMS.setdefault(result, {})
    if made.key not in known:
        runs = measures.select_runs(result, [made], HEAD_VIEWS[row.setting])
        table = make_frame([], ("seed", "stage", "set", "statistic", "mean"))
        if runs is not None:
            table = feature_table(runs, "seed", [str(run.seed) for run in runs.runs])
        norms = table[table["statistic"] == "norm"]
        known[made.key] = norms.pivot(index=["seed", "stage"], columns="set", values="mean")
    return known[made.key]


# -- drawings --------------------------------------------------------------------------------------
SETS = {"inside": "#0072B2", "forgotten": "#E69F00", "outside": "#8A8A8A"}
OVER_TASKS = ("accuracy", "AUC against the last task")


def draw_panels(data: pd.DataFrame) -> Any:
    """A row of plots per row of the table, a column per measure, a curve per line."""
    rows, columns = (list(dict.fromkeys(data[name])) for name in ("row", "measure"))
    grid = PlotGrid(
        rows, columns, column_titles=columns, row_titles=rows, shared_xaxes=True,
        horizontal_spacing=0.06,
    )  # fmt: skip
    lines = list(dict.fromkeys(data["line"]))
    kinds = (list(DETECTOR_NAMES.values()), list(DRAWN_GROUPS), list(ROWS))
    looks = assign_looks(next((kind for kind in kinds if lines[0] in kind), []), lines)
    for (row, measure, name), own in data.groupby(["row", "measure", "line"], sort=False):
        grid.add_line(own["x"], own["value"], str(name), looks, row=row, column=measure)
    over = "task" if columns[0] in OVER_TASKS else "stage"
    grid.figure.update_xaxes(title=over, row=len(rows))
    return grid.figure


def draw_maps(data: pd.DataFrame) -> Any:
    """Two maps side by side: after stage 1, and of the first task after stage 2."""
    import plotly.graph_objects as go

    stages = sorted(set(data["stage"]))
    grid = PlotGrid(columns=stages, subplot_titles=[f"after stage {k}" for k in stages])
    for (stage, kind), own in data.groupby(["stage", "set"], sort=False):
        trace = go.Scatter(
            x=own["x"].tolist(), y=own["y"].tolist(), mode="markers",
            marker={"color": SETS[str(kind)], "size": 5, "opacity": 0.7},
            text=[f"task {task}" for task in own["task"]], hovertemplate="%{text}",
        )  # fmt: skip
        grid.add(trace, str(kind), column=stage)
    grid.figure.update_xaxes(visible=False)
    grid.figure.update_yaxes(visible=False)
    return grid.figure


# -- figures ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CNDDrawing:
    """What a figure shows: which rows, which numbers, how they are drawn."""

    title: str
    rows: tuple[CNDRow, ...]
    data: Numbers
    draw: Callable[[pd.DataFrame], Any] = draw_panels


def _list_figure_rows(groups: Sequence[str] | str) -> tuple[CNDRow, ...]:
    """The rows of some groups of ``tables/cnd.yaml``; ``all`` for every row of the sequence."""
    if groups == "all":
        return tuple(list_rows(TINY))
    named = [DATA["groups"][group] for group in groups]
    defaults = {"dataset": TINY, "backbone": RESNET, "head": PLAIN, "schedule": ""}
    return tuple(
        CNDRow(method=method, **{key: group.get(key, value) for key, value in defaults.items()})
        for group in named for method in group["methods"]
    )  # fmt: skip


def _make_drawing(layout: Mapping[str, Any]) -> CNDDrawing:
    found = CNDDrawing(layout["title"], _list_figure_rows(layout["rows"]), final_accuracies)
    if "metrics" in layout:
        return replace(found, data=partial(detection_by_stage, metrics=layout["metrics"]))
    if "statistic" in layout:
        return replace(found, data=feature_statistic(layout["statistic"]))
    numbers: dict[str, tuple[Numbers, Callable[[pd.DataFrame], Any]]] = {
        "accuracies": (final_accuracies, draw_panels),
        "last_task": (auc_against_last, draw_panels),
        "maps": (feature_maps, draw_maps),
        "schedules": (compare_schedules, draw_table),
    }
    data, draw = numbers[layout["numbers"]]
    return replace(found, data=data, draw=draw)


DRAWINGS = {name: _make_drawing(layout) for name, layout in DATA["figures"].items()}


def build_figure(name: str, preset: CNDPreset) -> tuple[PaperFigure, ...]:
    """The figure of a name; none where the preset leaves its sequence out."""
    if name == "findings":
        return (make_findings(preset),) if TINY not in preset.absent else ()
    one = DRAWINGS[name]
    if {row.dataset for row in one.rows} & preset.absent:
        return ()
    made = {row: recipe(preset, row) for row in one.rows}
    figure = PaperFigure(
        name=name, title=f"{one.title} ({preset.shown(one.rows[0].dataset)})",
        recipes=tuple(made.values()), data=lambda result: one.data(result, made), draw=one.draw,
        rows=tuple(map(_name_row, made)),
    )  # fmt: skip
    return (figure,)


def _name_row(row: CNDRow) -> Mapping[str, str]:
    return {key: getattr(row, key) for key in ("dataset", "setting", "method", "backbone")}


def make_findings(preset: CNDPreset) -> PaperFigure:
    """What the paper finds of TinyImageNet-Seq, in its tables and figures."""
    cells = CellFindings(
        "cnd", preset, DATA["findings"], dict.fromkeys(_TABLES, make_entries(preset))
    )
    made = {row: recipe(preset, row) for row in list_rows(TINY)}
    return make_findings_figure(
        f"{DATA['titles']['findings']} ({preset.shown(TINY)})", cells,
        more=lambda result: list_claims(made, int(result.tasks.max())),
        rows=[(one, _name_row(row)) for row, one in made.items()],
    )  # fmt: skip


TITLES: Mapping[str, str] = {
    **{name: DATA["titles"][name] for name in _TABLES},
    **{name: one.title for name, one in DRAWINGS.items()},
    **{name: DATA["titles"][name] for name in ("findings", "all")},
}
TABLES = Paper(
    name="cnd", titles=TITLES, paper=PAPER, embedded=EMBEDDED, figures=build_figure,
    tables=dict.fromkeys(_TABLES, make_entries), rank=_rank,
    groups={"all": (*_TABLES, *(name for name in DRAWINGS if name != "schedule"), "findings")},
    folders=dict.fromkeys(TITLES, "cnd"), embedded_of={"findings": QUICK},
)  # fmt: skip
