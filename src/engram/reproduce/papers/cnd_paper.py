"""Continual novelty detection (CND, Aljundi et al. 2022): recipes, tables, figures, claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from engram.data import Data
from engram.errors import check_choice, check_float, unknown
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
    NAN,
    PlotGrid,
    Records,
    assign_looks,
    draw_table,
    make_frame,
    mean_records,
)
from engram.reproduce.papers.findings import Claim, tabulate_claims
from engram.reproduce.papers.paper_base import (
    Paper,
    PaperData,
    PaperPreset,
    check_choices,
    check_ints,
    default_options,
    fit_classes_per_task,
)

if TYPE_CHECKING:
    import pandas as pd

    from engram.records import Result
    from engram.reproduce.paper_table import Measure

TINY, EIGHT = "TinyImageNet", "Eight-Task"
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
    options: Mapping[str, Any] = default_options()
    sequence: str = "classes"
    stages: int = 10
    classes_per_task: int = 20
    batch_size: int = 64
    learning_rate: float = 0.01
    models: Mapping[str, Any] = default_options()
    layers: Mapping[str, Sequence[str]] = default_options(**DATA["layers"])
    training: Mapping[str, Any] = default_options()
    outside: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_choice("sequence", self.sequence, SEQUENCES)
        check_ints(self, "stages", "classes_per_task", "batch_size", low=1)
        check_float("learning_rate", self.learning_rate, open_low=True)

    def on(self, data: Data, name: str) -> CNDProtocol:
        """The same on other data: equal tasks of its classes, and no outside set, so no tuning."""
        size = fit_classes_per_task(data, self.classes_per_task, self.stages, name)
        return replace(
            self, data=name, options={}, sequence="classes", classes_per_task=size,
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
    first_stage
        F/IN and F/Out of table 3 are means over stages, at the first of which nothing is forgotten:
        ``zero`` counts it as 0, as the released code does, ``left_out`` does not count it (N19).
    """

    parts: ClassVar = {"tiny": TINY, "eight": EIGHT}
    official: ClassVar = {TINY: "tiny_imagenet", EIGHT: "eight_task"}

    tiny: CNDProtocol | None = PROTOCOLS["tiny"]
    eight: CNDProtocol | None = PROTOCOLS["eight"]
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


# -- rows and recipes ------------------------------------------------------------------------------
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
        return ROWS[self.method]["head"]


def list_rows(dataset: str) -> list[CNDRow]:
    """Every row of a sequence, in the order in which they are trained where time is short."""
    multi = [name for name in ROWS if ROWS[name]["head"] == MULTI]
    shared = [name for name in ROWS if ROWS[name]["head"] == SHARED]
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


def row_name(row: CNDRow) -> str:
    """A row in words.

    Examples
    --------
    >>> row_name(CNDRow(dataset="TinyImageNet", method="LwF", backbone="VGG"))
    'LwF, VGG'
    """
    more = [row.backbone] if row.backbone != RESNET else []
    return ", ".join([row.method, *more, *([row.head] if row.head != PLAIN else [])])


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


def _head_spec(preset: CNDPreset, head: str) -> Mapping[str, Any]:
    heads = {PLAIN: preset.head, COSINE: preset.shared_head, BIASED: preset.control}
    return heads[check_choice("head", head, heads)]


def method_spec(preset: CNDPreset, method: str) -> dict[str, Any]:
    """The plain form of a row's method."""
    if method not in ROWS:
        raise unknown("method", method, ROWS)
    row = ROWS[method]
    spec = {"name": row["method"], **(getattr(preset, row["options"]) if "options" in row else {})}
    if "size" in row:
        size = getattr(preset, row["size"])
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
            tasks=int(cell["stage"] or 0),
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


def check_findings(result: Result, rows: RecipesByRow) -> pd.DataFrame:
    """Every claim with its numbers, in percent where they are shares; one line per comparison."""
    stages = int(result.tasks.max()) if len(result) else 0
    made = [*_detector_claims(rows, stages), *_method_claims(rows, stages), *_set_claims(rows)]
    return tabulate_claims(result, made)


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
    for one in DATA["findings"]:
        metric = one["metric"]
        for name in ("LwF", "MAS"):
            if not {name, "FineTune"} <= set(own):
                continue
            pair = (name, "FineTune") if one["above"] else ("FineTune", name)
            first, second = (
                (method, detection_metric(own[method], "softmax", metric, stages - 2))
                for method in pair
            )
            paper = (DATA["printed"][pair[0]][metric], DATA["printed"][pair[1]][metric])
            yield Claim(one["finding"], name, first, second, paper)
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
    defaults = {"dataset": TINY, "backbone": RESNET, "head": PLAIN}
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
        "findings": (check_findings, draw_table),
    }
    data, draw = numbers[layout["numbers"]]
    return replace(found, data=data, draw=draw)


DRAWINGS = {name: _make_drawing(layout) for name, layout in DATA["figures"].items()}


def build_figure(name: str, preset: CNDPreset) -> tuple[PaperFigure, ...]:
    """The figure of a name; none where the preset leaves its sequence out."""
    one = DRAWINGS[name]
    if {row.dataset for row in one.rows} & preset.absent:
        return ()
    made = {row: recipe(preset, row) for row in one.rows}
    figure = PaperFigure(
        name=name, title=f"{one.title} ({preset.shown(one.rows[0].dataset)})",
        recipes=tuple(made.values()), data=lambda result: one.data(result, made), draw=one.draw,
        rows=tuple(
            {
                "dataset": row.dataset, "setting": row.setting, "method": row.method,
                "backbone": row.backbone,
            }
            for row in made
        ),
    )  # fmt: skip
    return (figure,)


TITLES: Mapping[str, str] = {
    **{name: DATA["titles"][name] for name in _TABLES},
    **{name: one.title for name, one in DRAWINGS.items()},
    "all": DATA["titles"]["all"],
}
TABLES = Paper(
    name="cnd", titles=TITLES, paper=PAPER, embedded=EMBEDDED, figures=build_figure,
    tables=dict.fromkeys(_TABLES, make_entries), rank=_rank,
    groups={"all": (*_TABLES, *DRAWINGS)}, folders=dict.fromkeys(TITLES, "cnd"),
)  # fmt: skip
