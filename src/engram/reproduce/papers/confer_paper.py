"""Facial expressions (ConFER): preset, recipes, tables 3 to 50 and their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from engram.data import Data
from engram.errors import bad, check_choice, check_float, check_int, unknown
from engram.experiments import Recipe
from engram.learner.objectives import SCOPES
from engram.metrics.matrix import DEFINITIONS
from engram.records.printed_tables import document
from engram.reproduce import measures
from engram.reproduce.cells import Cell
from engram.reproduce.paper_table import (
    COPIES_UNSTATED,
    SPLIT_UNSTATED,
    VARIANT_UNSTATED,
    CellEntry,
    PaperFigure,
)
from engram.reproduce.papers.figure_parts import (
    LEVEL_COLUMNS,
    accuracy_curves,
    assign_looks,
    draw_task_level,
    make_frame,
)
from engram.reproduce.papers.paper_base import Paper, PaperPreset, require_classes

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from engram.records import Result
    from engram.reproduce.paper_table import Measure

TASK, CLASS = "Task-IL", "Class-IL"
HEAD_VIEWS = {TASK: "multi", CLASS: "single"}
STREAM_KINDS = {TASK: "task_incremental", CLASS: "class_incremental"}
# Row to method and the preset's field with its options.
ROWS = {
    "LB": ("Finetune", ""), "UB": ("Joint", "joint"), "EWC": ("EWC", "ewc"),
    "EWC-Online": ("OnlineEWC", "online_ewc"), "SI": ("SI", "si"), "LwF": ("LwF", "lwf"),
    "NR": ("NaiveRehearsal", "nr"), "A-GEM": ("AGEM", "agem"), "LR": ("LatentReplay", "lr"),
    "DGR": ("DGR", "dgr"), "LGR": ("LGR", "lgr"), "DGR+D": ("DGR", "dgr"), "LGR+D": ("LGR", "lgr"),
}  # fmt: skip
LATENT = ("LR", "LGR", "LGR+D")  # rows that are trained above a root
DROPS = ("re-pair", "in_place")
COPY_OPTIONS = {
    "flip": 0.5,
    "rotate": 0.5,
    "degrees": 30.0,
}  # until classes are as large as the largest
STARRED = "Contempt"
# Rows that no task has, learnt before the first one with all classes open, in the code of LGR. At
# a tenth of the tasks' learning rate: one step of Adam moves the sum over 24,200 inputs below the
# sigmoid by several units, and at the full rate 98% of the latents end at 0 or 1.
ROOT = {
    "root": "heldout", "root_share": 1 / 6, "root_iterations": 1000, "root_batch_size": 32,
    "root_lr": 2.5e-5,
}  # fmt: skip
SMALL_ROOT = {**ROOT, "root_iterations": 500, "root_lr": 0.0}  # images of 32 x 32


@lru_cache
def printed_tasks(order: str) -> list[list[str]]:
    """The tasks of an order in the paper's table 1, with all classes."""
    found: list[list[str]] = document("confer_orders")["orders"][order]["task_il"]
    return found


@dataclass(frozen=True, kw_only=True)
class ConFERProtocol:
    """One data set of the paper.

    `size` is the height and width of its RGB images, `options` are those of its loader beside it.
    `conditions` are the two halves of its tables: the name in
    the paper to what it adds to the stream, generated copies or options of the loader.
    """

    data: str
    contempt: bool = True
    batch_size: int = 128
    size: int = 100
    options: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {"without": {}, "with": {"balance": dict(COPY_OPTIONS)}}
    )

    def __post_init__(self) -> None:
        check_int("batch_size", self.batch_size, 1)
        check_int("size", self.size, 1)

    def on(self, data: Data, name: str) -> ConFERProtocol:
        """The protocol on other faces, in their own size; halves that a loader made are left out.

        Contempt is learnt where both have it.
        """
        contempt = self.contempt and STARRED in data.classes
        names = [one for task in printed_tasks("O1") for one in task]
        require_classes(data, name, [one for one in names if contempt or one != STARRED])
        conditions = {k: v for k, v in self.conditions.items() if "data_options" not in v}
        return replace(self, data=name, contempt=contempt, size=data.sample_shape[-1],
                       options={}, conditions=conditions)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ConFERPreset(PaperPreset[ConFERProtocol]):
    """The choices of all rows; C1 to C19 are entries of the page about the protocol.

    Parameters
    ----------
    optim_reset
        The base code keeps one Adam over all tasks.
    scope
        Class-IL: which logits compete in training, those ``seen`` so far or ``all`` from the start.
        Task-IL always has those of the row's task.
    drop
        Sets without Contempt: tasks are paired anew (``re-pair``), or the task that it was in has
        one class (``in_place``), C7.
    forgetting
        CF is ``diagonal``; ``all`` averages the whole triangle, C3.
    model, latent
        The network; rows above a root have a sigmoid layer of `latent` units where the root ends.
    ewc, online_ewc, si, lwf, nr, agem, lr, dgr, lgr, joint
        Fields of the methods beside their defaults: Fisher information of predicted labels (C13),
        lambda / 2 (C5), the squared temperature in LwF (C8), one mean over old and new rows in NR
        (C11), SI's task gradient (C14), a root learnt from held-out rows (C9).
    nr_task, nr_class, agem_items, lr_items
        Sizes of memories in samples.
    memory_bytes
        Where it is not 0, memories hold as many images (NR, A-GEM) or latents (LR) as fit into so
        many bytes, for a comparison at equal cost: the generator of LGR has 884,800.
    blur
        The share of each class's training rows that turns up in other steps than its own, in
        Class-IL; Task-IL has none. 0 has sharp borders, as in the paper.
    precision
        ``tf32`` makes products and convolutions quicker on CUDA; elsewhere it is float32.
    """

    parts: ClassVar = {
        "ck": "CK+", "raf": "RAF-DB", "affectnet": "AffectNet", "fer": "FER-2013",
        "icv": "iCV-MEFED", "baum": "BAUM-1",
    }  # fmt: skip
    official: ClassVar = {
        "CK+": "ck_plus", "RAF-DB": "raf_db", "AffectNet": "affectnet", "FER-2013": "fer2013",
        "iCV-MEFED": "icv_mefed", "BAUM-1": "baum1",
    }  # fmt: skip

    ck: ConFERProtocol | None = ConFERProtocol(data="ck_plus", batch_size=32)
    raf: ConFERProtocol | None = ConFERProtocol(data="raf_db", contempt=False)
    affectnet: ConFERProtocol | None = ConFERProtocol(
        data="affectnet",
        conditions={"original": {}, "downsampled": {"data_options": {"per_class": 15000}}},
    )
    fer: ConFERProtocol | None = ConFERProtocol(data="fer2013", contempt=False)
    icv: ConFERProtocol | None = ConFERProtocol(data="icv_mefed")
    baum: ConFERProtocol | None = ConFERProtocol(data="baum1")
    seeds: int = 3
    iterations: int = 500
    learning_rate: float = 2.5e-4
    weight_decay: float = 0.0
    optim_reset: bool = False
    precision: str = "tf32"
    scope: str = "seen"
    drop: str = "re-pair"
    forgetting: str = "diagonal"
    model: Any = "lenet"
    latent: int = 200
    ewc: Mapping[str, Any] = field(
        default_factory=lambda: {"strength": 5000.0, "labels": "pred"})  # fmt: skip
    online_ewc: Mapping[str, Any] = field(
        default_factory=lambda: {"strength": 5000.0, "gamma": 1.0, "labels": "pred"})  # fmt: skip
    si: Mapping[str, Any] = field(
        default_factory=lambda: {"strength": 1.0, "xi": 0.1, "clamp": "none"})  # fmt: skip
    lwf: Mapping[str, Any] = field(
        default_factory=lambda: {"strength": 1.0, "temperature": 2.0, "scale": True})  # fmt: skip
    nr: Mapping[str, Any] = field(default_factory=lambda: {"weighting": "mean"})
    agem: Mapping[str, Any] = field(default_factory=dict)
    lr: Mapping[str, Any] = field(default_factory=lambda: dict(ROOT))
    dgr: Mapping[str, Any] = field(default_factory=dict)
    lgr: Mapping[str, Any] = field(default_factory=lambda: dict(ROOT))
    joint: Mapping[str, Any] = field(default_factory=dict)
    nr_task: int = 1500
    nr_class: int = 1000
    agem_items: int = 2000
    lr_items: int = 1000
    memory_bytes: int = 0
    blur: float = 0.0
    keep: str = "labels"

    def __post_init__(self) -> None:
        for name in ("seeds", "iterations", "latent", "nr_task", "nr_class", "agem_items",
                     "lr_items"):  # fmt: skip
            check_int(name, getattr(self, name), 1)
        check_float("learning_rate", self.learning_rate, open_low=True)
        check_float("weight_decay", self.weight_decay)
        check_float("blur", self.blur, 0.0, 1.0)
        check_int("memory_bytes", self.memory_bytes)
        check_choice("scope", self.scope, ("auto", *SCOPES))
        check_choice("drop", self.drop, DROPS)
        check_choice("forgetting", self.forgetting, list(DEFINITIONS))


PAPER = ConFERPreset()


def _drawn_protocol(**more: Any) -> ConFERProtocol:
    return ConFERProtocol(data="faces", batch_size=32, size=32, **more)


# The same rows on drawn faces, which stand for every data set, on two cores.
EMBEDDED = ConFERPreset(
    ck=_drawn_protocol(),
    raf=_drawn_protocol(contempt=False),
    fer=_drawn_protocol(contempt=False),
    icv=_drawn_protocol(),
    baum=_drawn_protocol(),
    affectnet=_drawn_protocol(
        conditions={"original": {}, "downsampled": {"data_options": {"samples": 3000}}}
    ),
    seeds=1,
    iterations=150,
    dgr={"width": 400},
    lr=dict(SMALL_ROOT),
    lgr=dict(SMALL_ROOT),
)


# ------------------------------------------------------------------------------------------------
# The recipes behind rows of the ConFER paper's tables, and the paper's orders.


def make_tasks(preset: ConFERPreset, dataset: str, setting: str, order: str) -> list[list[str]]:
    """The classes of every task, O1 to O3 of the paper's table 1.

    Examples
    --------
    >>> from engram.reproduce.papers.confer_paper import PAPER
    >>> make_tasks(PAPER, "FER-2013", "Task-IL", "O1")
    [['Neutral', 'Anger'], ['Disgust', 'Fearful'], ['Happiness', 'Sadness'], ['Surprised']]
    >>> len(make_tasks(PAPER, "CK+", "Class-IL", "O3"))
    8
    """
    check_choice("order", order, ("O1", "O2", "O3"))
    pairs = [list(pair) for pair in printed_tasks(order)]
    if not preset.protocol(dataset).contempt:
        pairs = [[name for name in pair if name != STARRED] for pair in pairs]
    names = [name for pair in pairs for name in pair]
    if setting == CLASS:
        return [[name] for name in names]
    if preset.drop == "in_place":
        return pairs
    return [names[place : place + 2] for place in range(0, len(names), 2)]


@dataclass(frozen=True, kw_only=True)
class ConFERBlock:
    """Where rows stand: data set, Task-IL or Class-IL, order, and which half of a table."""

    dataset: str
    setting: str
    order: str
    augmentation: str


def recipe(preset: ConFERPreset, block: ConFERBlock, row: str) -> Recipe:
    """The recipe of a row.

    Examples
    --------
    >>> from engram.reproduce.papers.confer_paper import PAPER
    >>> block = ConFERBlock(dataset="CK+", setting="Task-IL", order="O2", augmentation="with")
    >>> made = recipe(PAPER, block, "NR")
    >>> made.method.memory.total, made.training.batch_size, len(made.seeds)
    (1500, 32, 3)
    """
    protocol = preset.protocol(block.dataset)
    if block.augmentation not in protocol.conditions:
        raise unknown("augmentation", block.augmentation, protocol.conditions)
    condition = dict(protocol.conditions[block.augmentation])
    options = {"size": protocol.size, **protocol.options, **condition.pop("data_options", {})}
    tasks = make_tasks(preset, block.dataset, block.setting, block.order)
    shown = preset.shown(block.dataset)
    where = f"{shown}, {block.setting}, {block.order}, {block.augmentation}"
    return Recipe.of({
        "stream": {
            "data": protocol.data, "data_options": options, **_cut_tasks(preset, block, tasks),
            **condition,
        },
        "model": model_spec(preset, row),
        "method": method_spec(preset, row, block),
        "training": {
            "iterations": preset.iterations, "batch_size": protocol.batch_size,
            "optimizer": "adam", "lr": preset.learning_rate, "betas": [0.9, 0.999],
            "weight_decay": preset.weight_decay, "optim_reset": preset.optim_reset,
            "scope": "own" if block.setting == TASK else preset.scope,
            "precision": preset.precision,
        },
        "seeds": preset.seeds, "keep": preset.keep, "label": f"{row} ({where})",
    })  # fmt: skip


def model_spec(preset: ConFERPreset, row: str) -> dict[str, Any]:
    """The network of a row."""
    given = preset.model
    spec = dict(given) if isinstance(given, Mapping) else {"name": given}
    return {**spec, "latent": preset.latent} if row in LATENT else spec


def _cut_tasks(
    preset: ConFERPreset, block: ConFERBlock, tasks: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """How the classes are cut into tasks."""
    order = {"order": [name for task in tasks for name in task]}
    if preset.blur and block.setting != CLASS:
        raise bad("blur", f"0 in {block.setting}: only steps of {CLASS} are blurred", preset.blur)
    if preset.blur:
        return {"kind": "blurry", "tasks": len(tasks), "mix": preset.blur, **order}
    sizes = {"classes_per_task": [len(task) for task in tasks]}
    return {"kind": STREAM_KINDS[block.setting], **sizes, **order}


def count_memory_items(preset: ConFERPreset, row: str, block: ConFERBlock) -> int:
    """How many samples the memory of a row holds.

    Examples
    --------
    >>> from engram.reproduce.papers.confer_paper import PAPER
    >>> block = ConFERBlock(
    ...     dataset="FER-2013", setting="Class-IL", order="O1", augmentation="without"
    ... )
    >>> (
    ...     count_memory_items(PAPER, "NR", block),
    ...     count_memory_items(ConFERPreset(memory_bytes=900_000), "NR", block),
    ... )
    (1000, 30)
    """
    if preset.memory_bytes:
        image, latent = 3 * preset.protocol(block.dataset).size ** 2, 4 * preset.latent
        return max(1, preset.memory_bytes // (latent if row in LATENT else image))
    if row == "NR":
        return preset.nr_task if block.setting == TASK else preset.nr_class
    return {"LR": preset.lr_items, "A-GEM": preset.agem_items}[row]


def method_spec(preset: ConFERPreset, row: str, block: ConFERBlock) -> dict[str, Any]:
    """The plain form of a row's method."""
    if row not in ROWS:
        raise unknown("method", row, ROWS)
    name, owner = ROWS[row]
    spec: dict[str, Any] = {"name": name}
    if row in ("NR", "LR"):  # of each new task its share enters, random old rows leave
        items = count_memory_items(preset, row, block)
        spec["memory"] = {"total": items, "shared_by": "task", "shrink": "random"}
    elif row == "A-GEM":
        spec["memory"] = {"total": count_memory_items(preset, row, block)}
    elif row in ("DGR", "LGR", "DGR+D", "LGR+D"):
        spec["distill"] = row.endswith("+D")
    return {**spec, **(getattr(preset, owner) if owner else {})}


# ------------------------------------------------------------------------------------------------
# Continual facial expression recognition (ConFER, Churamani et al. 2022): tables and figures.


PLAIN_METHODS = ("LB", "UB")  # rows without details that text and code tell differently
OWN_SPLIT = ("CK+", "BAUM-1")  # sets that have no official test set: subjects or clips are drawn
METRICS = {"Acc": "average_accuracy", "CF": "forgetting"}


class TablePair(NamedTuple):
    """Two tables, accuracy and forgetting, and the figure of the same runs."""

    table: int  # of accuracy; that of forgetting follows
    dataset: str
    setting: str
    orders: str

    @property
    def figure(self) -> str:
        return f"fig{(self.table + 3) // 2}"

    @property
    def words(self) -> str:
        half = "original and downsampled" if self.dataset == "AffectNet" else "both augmentations"
        return f"{self.dataset}, {self.setting}, {self.orders if self.orders != 'O1' else half}"


def _list_table_pairs() -> tuple[TablePair, ...]:
    """Tables 3 to 50 in the order of the paper: of the first three sets all O1 come before O2."""
    both, later = ("O1", "O2 and O3"), ("FER-2013", "iCV-MEFED", "BAUM-1")
    rows = [(d, s, o) for o in both for d in ("CK+", "RAF-DB", "AffectNet") for s in (TASK, CLASS)]
    rows += [(d, s, o) for d in later for s in (TASK, CLASS) for o in both]
    return tuple(TablePair(3 + 2 * place, *row) for place, row in enumerate(rows))


TABLE_PAIRS = _list_table_pairs()
TABLES_BY_NUMBER = {
    str(page.table + k): (page, name) for page in TABLE_PAIRS for k, name in enumerate(METRICS)
}
FIGURES_BY_NAME = {page.figure: page for page in TABLE_PAIRS}
DATA_SETS = {name.lower(): name for name in ConFERPreset.parts.values()}
GROUPS = {
    short: tuple(number for number, (page, _) in TABLES_BY_NUMBER.items() if page.dataset == name)
    for short, name in DATA_SETS.items()
}
WORDS = {"Acc": "accuracy", "CF": "forgetting"}
TITLES = {
    **{
        number: f"{WORDS[name]} after every step, {page.words}"
        for number, (page, name) in TABLES_BY_NUMBER.items()
    },
    **{
        name: f"accuracy of every task over time, {page.words}"
        for name, page in FIGURES_BY_NAME.items()
    },
    **{short: f"all tables of {name} in one call" for short, name in DATA_SETS.items()},
}


class _ConFEREntries:
    """Entries of all tables; the runs of a row are named once and shared by its cells."""

    def __init__(self, preset: ConFERPreset) -> None:
        self.preset = preset
        self._made = lru_cache(maxsize=None)(self._make)

    def entry(self, cell: Cell) -> CellEntry:
        block = find_block(cell)
        made, after = self._made(block, cell["method"])
        return CellEntry(
            recipes=(made,), measure=after[cell["metric"]](int(cell["stage"]) - 1),
            reasons=_reasons(self.preset, block, cell["method"]), tasks=int(cell["stage"]),
        )  # fmt: skip

    def _make(
        self, block: ConFERBlock, row: str
    ) -> tuple[Recipe, dict[str, Callable[[int], Measure]]]:
        made, head = recipe(self.preset, block, row), HEAD_VIEWS[block.setting]
        options = {"Acc": {}, "CF": {"definition": self.preset.forgetting}}
        return made, {
            metric: measures.metric_at_stages(name, made, head=head, **options[metric])
            for metric, name in METRICS.items()
        }


def find_block(cell: Cell) -> ConFERBlock:
    """Where a cell stands."""
    return ConFERBlock(
        dataset=cell["dataset"], setting=cell["setting"], order=cell["order"],
        augmentation=cell["augmentation"],
    )  # fmt: skip


def _reasons(preset: ConFERPreset, block: ConFERBlock, row: str) -> tuple[str, ...]:
    found = [SPLIT_UNSTATED] if block.dataset in OWN_SPLIT else []
    found += [COPIES_UNSTATED] if block.augmentation == "with" else []
    found += [] if row in PLAIN_METHODS else [VARIANT_UNSTATED]
    return preset.reasons(block.dataset, *found)


# -- figures ---------------------------------------------------------------------------------------
def make_figure(name: str, preset: ConFERPreset) -> PaperFigure:
    """Accuracy of every task after every step: one row of plots per half of the tables."""
    page = FIGURES_BY_NAME[name]
    panels = _list_panels(page, preset)
    rows = {
        (panel, row): recipe(preset, block, row) for panel, block in panels.items() for row in ROWS
    }

    def data(result: Result) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for (panel, row), made in rows.items():
            records += accuracy_curves(
                result, made, HEAD_VIEWS[page.setting], {"panel": panel, "method": row}
            )
        return make_frame(records, LEVEL_COLUMNS)

    shown = preset.shown(page.dataset)
    return PaperFigure(
        name=name, title=f"Accuracy of every task over time, {shown}, {page.setting}",
        recipes=tuple(rows.values()), data=data,
        draw=lambda table: draw_task_level(table, assign_looks(list(ROWS), table["method"])),
        rows=tuple({**asdict(panels[panel]), "method": row} for panel, row in rows),
    )  # fmt: skip


def _list_panels(page: TablePair, preset: ConFERPreset) -> dict[str, ConFERBlock]:
    """Both augmentations of O1, or O2 and O3 with the second of them."""
    conditions = list(preset.protocol(page.dataset).conditions)
    where: dict[str, Any] = {"dataset": page.dataset, "setting": page.setting}
    if page.orders == "O1":
        return {one: ConFERBlock(order="O1", augmentation=one, **where) for one in conditions}
    return {
        one: ConFERBlock(order=one, augmentation=conditions[-1], **where) for one in ("O2", "O3")
    }


def _build_figures(name: str, preset: ConFERPreset) -> tuple[PaperFigure, ...]:
    return () if FIGURES_BY_NAME[name].dataset in preset.absent else (make_figure(name, preset),)


TABLES = Paper(
    name="confer",
    titles=TITLES,
    paper=PAPER,
    embedded=EMBEDDED,
    figures=_build_figures,
    groups=GROUPS,
    tables=dict.fromkeys(TABLES_BY_NUMBER, lambda preset: _ConFEREntries(preset).entry),
    folders={
        **{
            number: f"confer-{page.dataset.lower()}"
            for number, (page, _) in TABLES_BY_NUMBER.items()
        },
        **{name: f"confer-{page.dataset.lower()}" for name, page in FIGURES_BY_NAME.items()},
        **{short: f"confer-{short}" for short in DATA_SETS},
    },
)
