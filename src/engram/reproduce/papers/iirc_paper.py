"""Incremental implicitly-refined classification (IIRC, Abdelsalam et al. 2021): preset, recipes,
tables, figures, claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from engram.errors import bad, check_choice, check_float, check_int, unknown
from engram.experiments import Recipe
from engram.renamed import accept_old_names
from engram.reproduce import measures
from engram.reproduce.cells import Cell, read_cells
from engram.reproduce.paper_table import VARIANT_UNSTATED, CellEntry, PaperFigure
from engram.reproduce.papers.figure_parts import (
    NAN,
    PlotGrid,
    Records,
    assign_looks,
    make_figure,
    make_frame,
    mean_records,
)
from engram.reproduce.papers.findings import (
    Claim,
    Moments,
    OrderClaim,
    TrendClaim,
    TriedClaim,
    derive,
    make_findings_figure,
)
from engram.reproduce.papers.paper_base import (
    Paper,
    PaperData,
    PaperPreset,
    check_ints,
    default_options,
)
from engram.streams.class_tree import FINE_PREFIX, SUPER_PREFIX
from engram.streams.hierarchical_streams import read_published_tasks

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from engram.records import Result
    from engram.reproduce.paper_table import Floats, Measure
    from engram.reproduce.papers.findings import Evidence, Sample
    from engram.streams.stream import Stream

CIFAR, FULL, LITE = "IIRC-CIFAR", "IIRC-ImageNet-full", "IIRC-ImageNet-lite"
# How one paper spells its own data sets.
ALIASES = {"IIRC-Imagenet-full": FULL, "IIRC-ImageNet": FULL}
DATA = PaperData("iirc")
ROWS: Mapping[str, Mapping[str, Any]] = DATA["rows"]
VARIANTS: Mapping[str, Mapping[str, str]] = DATA["variants"]
JOINT, UPPER = "joint", "incremental joint"
SCORE = "precision_weighted_jaccard"  # what the paper's tables count
# Rows whose best epoch on in-task validation rows is restored; the others keep the last (I17).
RESTORED_METHODS = ("finetune", "ER", "ER-infinite", UPPER, JOINT)
SCHEDULES = ("paper", "short")


# -- preset ----------------------------------------------------------------------------------------
@accept_old_names
@dataclass(frozen=True, kw_only=True)
class IIRCProtocol:
    """One data set of the paper.

    `stream` is what its recipes say beside the data and the configuration; `rates` are the learning
    rates of rows that have another one than `lr`.
    """

    data: str
    configurations: int
    stream: Mapping[str, Any] = default_options()
    options: Mapping[str, Any] = default_options()
    model: Any = "resnet32"
    epochs: int = 140
    first_task_scale: float = 2.0
    patience: int = 10
    lr: float = 1.0
    rates: Mapping[str, float] = default_options()
    batch_size: int = 128
    augment: tuple[str, ...] = ("crop", "flip")

    def __post_init__(self) -> None:
        check_ints(self, "configurations", "epochs", "batch_size", low=1)
        check_int("patience", self.patience)
        check_float("lr", self.lr, open_low=True)
        check_float("first_task_scale", self.first_task_scale, open_low=True)


PROTOCOLS = DATA.build_each(IIRCProtocol, "protocols")


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

    cifar: IIRCProtocol | None = PROTOCOLS["cifar"]
    full: IIRCProtocol | None = PROTOCOLS["full"]
    lite: IIRCProtocol | None = PROTOCOLS["lite"]
    configurations: int = 0
    seed: int = 100
    schedule: str = "paper"
    cuts: int = 3
    weight_decay: float = 1e-5
    per_class: int = 20
    sizes: tuple[int, ...] = (20, 50, 100, 200)
    er: Mapping[str, Any] = default_options(mix="union")
    icarl_cnn: Mapping[str, Any] = default_options(variant="cnn")
    icarl_norm: Mapping[str, Any] = default_options(variant="norm", scale=1.0)
    lucir: Mapping[str, Any] = default_options(scale=1.0)
    agem: Mapping[str, Any] = default_options(size=128, masks=True)
    bic: Mapping[str, Any] = default_options(variant="sigmoid")
    precision: str = "tf32"
    keep: str = "labels"

    def __post_init__(self) -> None:
        check_ints(self, "configurations", "seed", "cuts")
        check_ints(self, "per_class", "sizes", low=1)
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


PAPER = IIRCPreset()
DRAWN = DATA.build(IIRCProtocol, "drawn")
EMBEDDED = IIRCPreset(cifar=DRAWN, full=DRAWN, lite=DRAWN, sizes=(5, 10, 20, 40))


# -- recipes ---------------------------------------------------------------------------------------
def recipe(
    preset: IIRCPreset, dataset: str, row: str, *, configuration: int = 0, per_class: int = 0
) -> Recipe:
    """The recipe of a row under one order of the classes.

    Examples
    --------
    >>> made = recipe(PAPER, "IIRC-CIFAR", "iCaRL-norm", configuration=2)
    >>> made.method.memory, made.training.stop_lr, made.order
    (Memory(per_class=20, policy='herding'), 0.01, 'configuration-2')
    """
    protocol = preset.protocol(dataset)
    size = per_class or preset.per_class
    note = f", {size} per class" if per_class else ""
    return Recipe.of({
        "stream": {
            "data": protocol.data, "data_options": dict(protocol.options), **protocol.stream,
            **_order_options(protocol, configuration), **({"joint": True} if row == JOINT else {}),
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
    lr = protocol.rates.get(VARIANTS.get(row, {"row": row})["row"], protocol.lr)
    return {
        "epochs": max(1, protocol.epochs // 4) if short else protocol.epochs,
        "first_task_scale": protocol.first_task_scale, "batch_size": protocol.batch_size,
        "optimizer": "sgd", "lr": lr, "momentum": 0.9, "weight_decay": preset.weight_decay,
        "schedule": "plateau", "factor": 0.1, "plateau_watch": "score",
        "plateau_patience": -(-protocol.patience // 4) if short else protocol.patience,
        "plateau_threshold": 1e-3, "restore_best": row in RESTORED_METHODS,
        "stop_lr": lr / 10 ** (preset.cuts - 1) if preset.cuts else 0.0,
        "augment": list(protocol.augment), "precision": preset.precision,
    }  # fmt: skip


def method_spec(preset: IIRCPreset, row: str, per_class: int) -> dict[str, Any]:
    """The plain form of a row's method."""
    changed = dict(VARIANTS.get(row, {"row": row}))
    base = changed.pop("row")
    if base == JOINT:  # a single task: nothing to retain
        return {"name": "Finetune"}
    if base not in ROWS:
        raise unknown("method", row, [*ROWS, *VARIANTS, JOINT])
    one = ROWS[base]
    memory = {"memory": {"per_class": per_class, **one["memory"]}} if "memory" in one else {}
    further = getattr(preset, one["options"]) if "options" in one else {}
    return {"name": one["method"], **memory, **further, **changed}


# -- tables 3.1 to 3.3: counts of the data ---------------------------------------------------------
Count = Callable[["Stream"], float]


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
    part = DATA["parts"].get(cell["metric"])
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
    sub, top = FINE_PREFIX + below, SUPER_PREFIX + above
    if sub not in names:
        sub = FINE_PREFIX + DATA["wnids"].get(below, below)
    if top not in names:
        top = SUPER_PREFIX + above.replace(" ", "_")
    if sub in names and (not above or top in names):
        return (names.index(top) if above else -1), names.index(sub)
    fine, over = (stream.data.attributes[name] for name in ("fine", "superclass"))
    chosen = sorted(set(over[over >= 0].tolist()))[DATA["places"][below]] if above else -1
    return chosen, int(fine[over == chosen].min())


def _class_rows(stream: Stream, label: int) -> Tensor:
    """Training rows of the task that introduces a class, as far as they are of the class."""
    task = next(task for task in stream if label in task.new)
    mine = (stream.data.y[task.train] == label).any(-1)
    return task.train[mine]


# -- tables C.1 to C.3: scores ---------------------------------------------------------------------
PLAIN_METHODS = ("ER", "ER-infinite", UPPER, JOINT)  # rows that text and code tell alike


def score_entries(preset: IIRCPreset) -> Callable[[Cell], CellEntry]:
    """Entries of C.1 to C.3; the runs of a row are named once and shared by its cells."""

    @cache
    def find(dataset: str, row: str) -> tuple[tuple[Recipe, ...], Callable[[int], Measure]]:
        made = recipes(preset, dataset, row)
        return made, measures.metric_at_stages(SCORE, made, head="single")

    def entry(cell: Cell) -> CellEntry:
        dataset, row = cell["dataset"], cell["method"]
        made, after = find(dataset, row)
        details = () if row in PLAIN_METHODS else (VARIANT_UNSTATED,)
        stage = 0 if row == JOINT else int(cell["stage"])  # it has one task
        return CellEntry(
            recipes=made, measure=after(stage), reasons=preset.reasons(dataset, *details),
            tasks=stage + 1,
        )  # fmt: skip

    return entry


# -- figures ---------------------------------------------------------------------------------------
LARGE_SET_METHODS = ("ER", "iCaRL-norm", "iCaRL-CNN", "LUCIR", "finetune", "BiC")  # on ImageNet
CONFUSION_METHODS = ("ER", "iCaRL-norm", "LUCIR")
SHOWN_LABELS = 25
# Tables and figures share their runs.
_SHARED_FOLDER = ("C.1", "C.2", "C.3", "findings", *(f"fig4.{k}" for k in range(1, 12)))


@dataclass(frozen=True)
class IIRCPanel:
    """One plot: a measure over stages; `task` for the score of one task over time."""

    dataset: str
    measure: str
    task: int = -1

    def title(self, preset: IIRCPreset) -> str:
        what = DATA["scores"][self.measure] if self.task < 0 else f"pw-JS of task {self.task}"
        return f"{what}, {preset.shown(self.dataset)}"


def build_figures(name: str, preset: IIRCPreset) -> tuple[PaperFigure, ...]:
    """The figures under a name: the paper has two that are numbered 4.4."""
    if name == "fig3.3":
        return (_histogram_figure(preset),)
    found = [_curve_figure(preset, name)] if name in DATA["curves"] else []
    if CIFAR not in preset.absent:
        found += [_findings_figure(preset)] if name == "findings" else []
        found += [_confusion_figure(preset, "fig4.4-confusion", (10,))] if name == "fig4.4" else []
    if name == "fig4.5":
        found.append(_confusion_figure(preset, name, (0, 1, 5, 10)))
    return tuple(figure for figure in found if figure is not None)


CurveRow = tuple[str, str, int]  # label, row, exemplars per class (0: those of the preset)


def _is_run_on(dataset: str, row: str) -> bool:
    """Whether the paper runs a row on a data set; AGEM and ER-infinite only on the small one."""
    large = (*LARGE_SET_METHODS, UPPER) if dataset == LITE else LARGE_SET_METHODS
    return dataset == CIFAR or row in large


def _name_row(row: tuple[str, str]) -> dict[str, str]:
    return {"dataset": row[0], "method": row[1]}


def _title(name: str) -> str:
    """Without the data set: plots name the one that was used."""
    words = str(DATA["titles"][name]).partition(":")[0]
    return words[0].upper() + words[1:]


def _curve_figure(preset: IIRCPreset, name: str) -> PaperFigure | None:
    layout = DATA["curves"][name]
    sets = [one for one in layout["sets"] if one not in preset.absent]
    if not sets:
        return None
    every = product(sets, layout.get("scores", (SCORE,)), layout.get("tasks", (-1,)))
    panels = [IIRCPanel(*one) for one in every]
    rows: list[CurveRow] = [(row, row, 0) for row in layout.get("rows", ROWS)]
    if "sized" in layout:  # the usual number is 0, so that its runs are those of other figures
        rows = [(f"{row} {size}", row, 0 if size == preset.per_class else size)
                for row in layout["sized"] for size in preset.sizes]  # fmt: skip
    found = {
        (dataset, label): recipes(preset, dataset, row, size)
        for dataset in sets
        for label, row, size in rows
        if _is_run_on(dataset, row)
    }

    def data(result: Result) -> pd.DataFrame:
        records: Records = []
        for panel in panels:
            for (dataset, label), made in found.items():
                if dataset == panel.dataset:
                    names = {"panel": panel.title(preset), "method": label}
                    records += stage_points(result, made, panel, names)
        return make_frame(records, ("panel", "method", "stage", "value", "std", "runs"))

    return PaperFigure(
        name=name, title=_title(name), data=data, draw=draw_curves,
        recipes=tuple(one for made in found.values() for one in made),
        rows=tuple(_name_row(row) for row, made in found.items() for _ in made),
    )  # fmt: skip


def stage_points(
    result: Result, made: Sequence[Recipe], panel: IIRCPanel, names: Mapping[str, str]
) -> Records:
    """Mean and deviation over class orders after every stage, where some run has a value."""
    runs = measures.select_runs(result, made, "single")
    if runs is None:
        return []
    values: Floats = (
        runs.matrix[:, :, panel.task] if 0 <= panel.task < runs.matrix.shape[2]
        else np.empty((len(runs), 0)) if panel.task >= 0
        else runs.curve(panel.measure)
    )  # fmt: skip
    found: Records = []
    for stage in range(values.shape[1]):
        found += mean_records({**names, "stage": stage}, values[:, stage], count="runs")
    return found


def _confusion_figure(preset: IIRCPreset, name: str, stages: Sequence[int]) -> PaperFigure:
    """The first configuration alone: labels of others are introduced at other times."""

    def shares(result: Result, row: tuple[str, str], made: Sequence[Recipe]) -> Records:
        runs = measures.select_runs(result, made, "single")
        if runs is None:
            return []
        records: Records = []
        last = int(runs.tasks[0]) - 1  # drawn shapes have fewer tasks
        for stage in dict.fromkeys(min(one, last) for one in stages):
            if stage not in runs.stages[runs.runs[0]]:
                continue
            found = runs.label_confusion(0, stage=stage)
            if row[1] == CONFUSION_METHODS[0]:
                records += _entries(found.truth, {"method": "truth", "stage": stage})
            records += _entries(found.predicted, {"method": row[1], "stage": stage})
        return records

    return make_figure(
        name, f"Who is taken for whom, {preset.shown(CIFAR)}",
        {(CIFAR, row): (recipe(preset, CIFAR, row),) for row in CONFUSION_METHODS},
        names=_name_row, records=shares, draw=draw_confusion,
        columns=("method", "stage", "true", "predicted", "share"),
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


def _findings_figure(preset: IIRCPreset) -> PaperFigure:
    sizes = {
        _sized(row, size): recipes(preset, CIFAR, row, size)
        for row in SIZED
        for size in preset.sizes
        if size != preset.per_class
    }
    rows = {row: recipes(preset, CIFAR, row) for row in (*ROWS, *VARIANTS)} | sizes
    # the runs of the usual size are those of the plain row
    named = {_sized(row, preset.per_class): rows[row] for row in SIZED}
    shown = preset.shown(CIFAR)
    claims = IIRCClaims({**rows, **named}, shown == CIFAR, preset.sizes)
    return make_findings_figure(
        f"{_title('findings')}, {shown}",
        more=claims.list_claims,
        rows=[(one, _name_row((CIFAR, row))) for row, made in rows.items() for one in made],
    )


def _sized(row: str, size: int) -> str:
    return f"{row} {size}"


def _histogram_figure(preset: IIRCPreset) -> PaperFigure:
    from engram.data.embedded.drawn_shapes import KINDS, VARIATIONS

    counts = {name: len(below) for name, below in read_published_tasks("imagenet-full")[0].items()}
    if preset.protocol(FULL).data == "shapes":
        counts = dict.fromkeys(KINDS, len(VARIATIONS))
    columns = ("superclass", "subclasses")
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    records = [dict(zip(columns, pair, strict=True)) for pair in ordered]
    return PaperFigure(
        name="fig3.3", title=f"Subclasses per superclass, {preset.shown(FULL)}", recipes=(),
        data=lambda result: make_frame(records, columns), draw=draw_histogram,
    )  # fmt: skip


# -- claims ----------------------------------------------------------------------------------------
TASKS = 22  # of IIRC-CIFAR; stages of shorter streams stand for those at the same share
COMPARED = ("ER", "iCaRL-CNN", "iCaRL-norm", UPPER)  # rows whose numbers should be the paper's
NEAR_SCORE = 0.05
SIZED = tuple(DATA["curves"]["fig4.9"]["sized"])  # rows of the study of buffers


class IIRCClaims:
    """The claims on the runs of one data set; `official` if it is the paper's.

    Parameters
    ----------
    runs
        The recipes of each row; rows with another memory end with its exemplars per class.
    sizes
        Exemplars per class in the study of buffers.
    """

    def __init__(
        self, runs: Mapping[str, Sequence[Recipe]], official: bool, sizes: Sequence[int]
    ) -> None:
        self.runs = runs
        self.official = official
        self.sizes = sorted(sizes, reverse=True)
        self.tasks = TASKS
        self._curves: dict[tuple[str, str], Callable[[int], Measure]] = {}

    def list_claims(self, result: Result) -> Iterator[TriedClaim]:
        """Every comparison of the paper's findings, at the tasks that the runs have."""
        if len(result) and not self.official:
            # runs that are not finished may not know of tasks to come
            self.tasks = int(result.tasks.max())
        for one in DATA["findings"]:
            yield from self._order_sizes(one) if "sizes" in one else self._compare(one)
            yield from self._follow(one)
        yield from self.numbers() if self.official else ()

    def stage(self, task: int) -> int:
        return round(task * (self.tasks - 1) / (TASKS - 1))

    def where(self, task: int) -> str:
        return f"task {self.stage(task)}"

    def at(self, row: str, task: int, name: str = SCORE) -> Evidence:
        return self.at_stage(row, self.stage(task), name)

    def at_stage(self, row: str, stage: int, name: str) -> Evidence:
        """A score of a row after a stage."""
        if (row, name) not in self._curves:
            self._curves[row, name] = measures.metric_at_stages(name, self.runs[row], head="single")
        return self._curves[row, name](stage)

    def printed(self, row: str, task: int, name: str = SCORE) -> float:
        if not self.official or name != SCORE:
            return NAN
        found = [
            cell.value for cell in read_cells("iirc", "C.1")
            if cell["method"] == row and int(cell["stage"]) == task
        ]  # fmt: skip
        return found[0] if found else NAN

    def _compare(self, one: Mapping[str, Any]) -> Iterator[Claim]:
        """The comparisons of a finding between rows, see ``tables/iirc.yaml``."""
        score, printed = one.get("score", SCORE), not {"minus", "ahead"} & set(one)
        for task, kind in product(one.get("tasks", ()), ("above", "near")):
            for firsts, seconds in one.get(kind, ()):
                for second, first in product(seconds, firsts):
                    pair = [(row, self._score(one, row, task)) for row in (first, second)]
                    paper = [self.printed(row, task, score) for row in (first, second)]
                    yield Claim(
                        one["finding"], self._said(one, task), pair[0], pair[1],
                        (paper[0], paper[1]) if printed else (NAN, NAN), "ahead" in one,
                        one.get("within", -one.get("ahead", 0.0)), kind,
                    )  # fmt: skip
            for row in ROWS if kind == "above" and "same_row" in one else ():
                pair = [(f"{row}, {which}", self.at(row, task, name))
                        for which, name in one["same_row"].items()]  # fmt: skip
                yield Claim(one["finding"], self.where(task), pair[0], pair[1])

    def _said(self, one: Mapping[str, Any], task: int) -> str:
        """The task, and what is compared where that is not the score of the tables."""
        named = DATA["scores"].get(one.get("score", SCORE), "")
        plain = one.get("score", SCORE) == SCORE or "minus" in one or not named
        return self.where(task) if plain else f"{self.where(task)}, {named}"

    def _score(self, one: Mapping[str, Any], row: str, task: int) -> Evidence:
        found = self.at(row, task, one.get("score", SCORE))
        if "minus" not in one:
            return found
        return derive(np.subtract, found, self.at(row, task, one["minus"]))

    def _order_sizes(self, one: Mapping[str, Any]) -> Iterator[OrderClaim]:
        """More exemplars are better: every size above all smaller ones."""
        for row, task in product(one["sizes"], one["tasks"]):
            sides = [(_sized(row, size), self._score(one, _sized(row, size), task), NAN)
                     for size in self.sizes]  # fmt: skip
            yield OrderClaim(one["finding"], f"{row}, {self._said(one, task)}", sides)

    def _follow(self, one: Mapping[str, Any]) -> Iterator[TrendClaim]:
        """A score that falls over the tasks; ``{}`` stands for the largest memory."""
        score = one.get("score", SCORE)
        for name in one.get("falls", ()):
            row = name.format(self.sizes[0])
            stages = [(f"task {k}", self.at_stage(row, k, score), self.printed(row, k, score))
                      for k in range(self.tasks)]  # fmt: skip
            yield TrendClaim(one["finding"], DATA["scores"][score], row, stages, falls=True)

    def numbers(self) -> Iterator[Claim]:
        """Our numbers beside the printed ones."""
        for row, task in product(COMPARED, (0, 10, 21)):
            value = self.printed(row, task)
            gap = _distance_to_printed(self.at(row, task), value)
            yield Claim(f"within {NEAR_SCORE} of table C.1", self.where(task),
                        (f"{row}: allowed", measures.constant(NEAR_SCORE)),
                        (f"{row}: distance", gap), (NAN, value), ties=True)  # fmt: skip


def _distance_to_printed(measure: Evidence, value: float) -> Evidence:
    """How far the mean over class orders is from a printed number, for each order that is in it."""

    def found(result: Result) -> Sample:
        values = measure(result)
        own = Moments.of(values)
        far = abs(own.mean - value)
        if isinstance(values, Moments):
            return Moments(far, 0.0, own.count)
        return np.where(np.isnan(values), NAN, far)

    return found


# -- drawings --------------------------------------------------------------------------------------
PLOTS_BESIDE = 2  # plots side by side
BAND = 0.15  # opacity


def draw_curves(data: pd.DataFrame) -> Any:
    """A plot per panel, a line per method, and a band of one deviation where there are several."""
    panels = list(dict.fromkeys(data["panel"]))
    columns = min(PLOTS_BESIDE, len(panels))
    grid = PlotGrid(
        range(-(-len(panels) // columns)), range(columns), subplot_titles=panels, plot_height=300
    )
    looks = assign_looks([*ROWS, *VARIANTS], data["method"])
    for (panel, method), part in data.groupby(["panel", "method"], sort=False):
        row, column = divmod(panels.index(panel), columns)
        name = str(method)
        if part["std"].notna().any():
            grid.add(draw_band(part, name, looks[name].color), row=row, column=column)
        grid.add_line(part["stage"], part["value"], name, looks, row=row, column=column)
    grid.figure.update_yaxes(rangemode="tozero")
    grid.figure.update_xaxes(title="task", row=len(grid.rows))
    return grid.figure


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

    methods, stages = (list(dict.fromkeys(data[name])) for name in ("method", "stage"))
    grid = PlotGrid(
        methods, stages, row_titles=methods, plot_height=560 if len(stages) == 1 else 300,
        column_titles=[f"after task {stage}" for stage in stages], horizontal_spacing=0.02,
    )  # fmt: skip
    for (method, stage), part in data.groupby(["method", "stage"], sort=False):
        names = list(dict.fromkeys(part["true"]))
        shares = part["share"].to_numpy(np.float64).reshape(len(names), len(names))
        short = [name.split("/", 1)[-1] for name in names]
        drawn = go.Heatmap(z=shares, x=short, y=short, zmin=0, zmax=1, coloraxis="coloraxis")
        grid.add(drawn, row=method, column=stage)
    figure, alone = grid.figure, len(stages) == 1
    # beside each other, names stand on the outer axes; plotly leaves out those without room
    small = {"tickfont_size": 9 if alone else 7}
    figure.update_yaxes(autorange="reversed", showticklabels=alone, **small)
    figure.update_yaxes(showticklabels=True, col=1)
    figure.update_xaxes(showticklabels=alone, tickangle=60, **small)
    figure.update_xaxes(showticklabels=True, row=len(methods))
    figure.update_layout(coloraxis={"colorscale": "Blues", "cmin": 0, "cmax": 1}, margin_b=120)
    return figure


def draw_histogram(data: pd.DataFrame) -> Any:
    """A bar per superclass, the largest first."""
    import plotly.graph_objects as go

    bars = go.Bar(x=data["superclass"].tolist(), y=data["subclasses"].tolist())
    figure = go.Figure(bars)
    figure.update_yaxes(title="subclasses")
    figure.update_xaxes(title="superclass")
    return figure


TABLES = Paper(
    name="iirc", titles=DATA["titles"], paper=PAPER, embedded=EMBEDDED,
    counted=("3.1", "3.2", "3.3"),
    tables={
        "3.1": lambda preset: partial(count_entry, preset),
        "3.2": lambda preset: partial(count_entry, preset),
        "3.3": lambda preset: partial(pair_count_entry, preset),
        "C.1": score_entries, "C.2": score_entries, "C.3": score_entries,
    },
    figures=build_figures, with_figures={"C.1": ("fig4.2",)},
    folders=dict.fromkeys(_SHARED_FOLDER, "iirc"),
)  # fmt: skip
