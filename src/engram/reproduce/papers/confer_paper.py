"""Continual facial expression recognition (ConFER, Churamani et al. 2022): preset, recipes, tables
3 to 50 and their figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from engram.data import Data
from engram.errors import bad, check_choice, check_float, unknown
from engram.experiments import Recipe
from engram.learner.objectives import SCOPES
from engram.metrics.matrix import DEFINITIONS
from engram.records.printed_tables import document
from engram.reproduce import measures
from engram.reproduce.cells import Cell, read_cells
from engram.reproduce.paper_table import (
    COPIES_UNSTATED,
    SPLIT_UNSTATED,
    VARIANT_UNSTATED,
    CellEntry,
    PaperFigure,
)
from engram.reproduce.papers.figure_parts import (
    LEVEL_COLUMNS,
    Records,
    accuracy_curves,
    assign_looks,
    draw_task_level,
    make_figure,
)
from engram.reproduce.papers.findings import CellFindings, Claim, make_findings_figure
from engram.reproduce.papers.paper_base import (
    Paper,
    PaperData,
    PaperPreset,
    check_choices,
    check_ints,
    default_options,
    require_classes,
)

if TYPE_CHECKING:
    from engram.records import Result
    from engram.reproduce.paper_table import Measure

TASK, CLASS = "Task-IL", "Class-IL"
HEAD_VIEWS = {TASK: "multi", CLASS: "single"}
STREAM_KINDS = {TASK: "task_incremental", CLASS: "class_incremental"}
DATA = PaperData("confer")
ROWS: Mapping[str, Mapping[str, str]] = DATA["rows"]
LATENT = ("LR", "LGR", "LGR+D")  # rows that are trained above a root
READINGS = ("corrected", "printed")
DROPS = ("re-pair", "in_place")
# until classes are as large as the largest
COPY_OPTIONS = {"flip": 0.5, "rotate": 0.5, "degrees": 30.0}
STARRED = "Contempt"


# -- preset ----------------------------------------------------------------------------------------
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
    options: Mapping[str, Any] = default_options()
    conditions: Mapping[str, Mapping[str, Any]] = default_options(
        **{"without": {}, "with": {"balance": COPY_OPTIONS}}
    )

    def __post_init__(self) -> None:
        check_ints(self, "batch_size", "size", low=1)

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


PROTOCOLS = DATA.build_each(ConFERProtocol, "protocols")


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
    judged
        By which number ours is judged where forgetting is corrected: ``corrected`` or ``printed``.
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

    ck: ConFERProtocol | None = PROTOCOLS["ck"]
    raf: ConFERProtocol | None = PROTOCOLS["raf"]
    affectnet: ConFERProtocol | None = PROTOCOLS["affectnet"]
    fer: ConFERProtocol | None = PROTOCOLS["fer"]
    icv: ConFERProtocol | None = PROTOCOLS["icv"]
    baum: ConFERProtocol | None = PROTOCOLS["baum"]
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
    ewc: Mapping[str, Any] = default_options(strength=5000.0, labels="pred")
    online_ewc: Mapping[str, Any] = default_options(strength=5000.0, gamma=1.0, labels="pred")
    si: Mapping[str, Any] = default_options(strength=1.0, xi=0.1, clamp="none")
    lwf: Mapping[str, Any] = default_options(strength=1.0, temperature=2.0, scale=True)
    nr: Mapping[str, Any] = default_options(weighting="mean")
    agem: Mapping[str, Any] = default_options()
    lr: Mapping[str, Any] = default_options(**DATA["root"])
    dgr: Mapping[str, Any] = default_options()
    lgr: Mapping[str, Any] = default_options(**DATA["root"])
    joint: Mapping[str, Any] = default_options()
    nr_task: int = 1500
    nr_class: int = 1000
    agem_items: int = 2000
    lr_items: int = 1000
    memory_bytes: int = 0
    blur: float = 0.0
    judged: str = "corrected"
    keep: str = "labels"

    def __post_init__(self) -> None:
        check_ints(self, "seeds", "iterations", "latent", low=1)
        check_ints(self, "nr_task", "nr_class", "agem_items", "lr_items", low=1)
        check_ints(self, "memory_bytes")
        check_float("learning_rate", self.learning_rate, open_low=True)
        check_float("weight_decay", self.weight_decay)
        check_float("blur", self.blur, 0.0, 1.0)
        check_choices(self, ("auto", *SCOPES), "scope")
        check_choices(self, DROPS, "drop")
        check_choices(self, DEFINITIONS, "forgetting")
        check_choices(self, READINGS, "judged")

    @property
    def as_printed(self) -> bool:
        return self.judged == "printed"


PAPER = ConFERPreset()
EMBEDDED = DATA.build(ConFERPreset, "embedded")
QUICK = DATA.build(ConFERPreset, "embedded_findings")


# -- recipes ---------------------------------------------------------------------------------------
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
    spec: dict[str, Any] = {"name": ROWS[row]["method"]}
    if row in ("NR", "LR"):  # of each new task its share enters, random old rows leave
        items = count_memory_items(preset, row, block)
        spec["memory"] = {"total": items, "shared_by": "task", "shrink": "random"}
    elif row == "A-GEM":
        spec["memory"] = {"total": count_memory_items(preset, row, block)}
    elif row in ("DGR", "LGR", "DGR+D", "LGR+D"):
        spec["distill"] = row.endswith("+D")
    return {**spec, **(getattr(preset, ROWS[row]["options"]) if "options" in ROWS[row] else {})}


# -- tables ----------------------------------------------------------------------------------------
PLAIN_METHODS = ("LB", "UB")  # rows without details that text and code tell differently
OWN_SPLIT = ("CK+", "BAUM-1")  # sets that have no official test set: subjects or clips are drawn
METRICS = {"Acc": "average_accuracy", "CF": "forgetting"}
WORDS = {"Acc": "accuracy", "CF": "forgetting"}


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
    str(pair.table + k): (pair, name) for pair in TABLE_PAIRS for k, name in enumerate(METRICS)
}
FIGURES_BY_NAME = {pair.figure: pair for pair in TABLE_PAIRS}
DATA_SETS = {name.lower(): name for name in ConFERPreset.parts.values()}
TITLES = {
    **{
        number: f"{WORDS[name]} after every step, {pair.words}"
        for number, (pair, name) in TABLES_BY_NUMBER.items()
    },
    **{
        name: f"accuracy of every task over time, {pair.words}"
        for name, pair in FIGURES_BY_NAME.items()
    },
    **{short: f"all tables of {name} in one call" for short, name in DATA_SETS.items()},
    "findings": "what the paper says about its results, tried on ours and on its own",
}
# The tables of one data set are made by one call; tables and figures of it share their runs.
GROUPS = {
    short: tuple(number for number, (pair, _) in TABLES_BY_NUMBER.items() if pair.dataset == name)
    for short, name in DATA_SETS.items()
}
FOLDERS = {
    **{number: f"confer-{pair.dataset.lower()}" for number, (pair, _) in TABLES_BY_NUMBER.items()},
    **{name: f"confer-{pair.dataset.lower()}" for name, pair in FIGURES_BY_NAME.items()},
    **{short: f"confer-{short}" for short in DATA_SETS},
}


def make_entries(preset: ConFERPreset) -> Callable[[Cell], CellEntry]:
    """Entries of all tables; the runs of a row are named once and shared by its cells."""
    definitions = {"Acc": {}, "CF": {"definition": preset.forgetting}}

    @cache
    def find(block: ConFERBlock, row: str) -> tuple[Recipe, dict[str, Callable[[int], Measure]]]:
        made, head = recipe(preset, block, row), HEAD_VIEWS[block.setting]
        return made, {
            metric: measures.metric_at_stages(name, made, head=head, **definitions[metric])
            for metric, name in METRICS.items()
        }

    def entry(cell: Cell) -> CellEntry:
        block = find_block(cell)
        made, after = find(block, cell["method"])
        stage = int(cell["stage"])
        return CellEntry(
            recipes=(made,), measure=after[cell["metric"]](stage - 1), tasks=stage,
            reasons=_reasons(preset, block, cell["method"]),
        )  # fmt: skip

    return entry


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


# -- findings --------------------------------------------------------------------------------------
LAST = "last"  # in place of a stage
HALVES = {"without": "original", "with": "downsampled"}  # of AffectNet, which has no copies


@cache
def _cells_by_place(as_printed: bool) -> dict[tuple[str, ...], list[Cell]]:
    """The cells of all tables by data set, setting and metric."""
    found: dict[tuple[str, ...], list[Cell]] = {}
    for number in TABLES_BY_NUMBER:
        for cell in read_cells("confer", number, as_printed=as_printed):
            place = (cell["dataset"], cell["setting"], cell["metric"])
            found.setdefault(place, []).append(cell)
    return found


def _name_half(place: Mapping[str, str]) -> dict[str, str]:
    """The place with the half of the tables as AffectNet's are called."""
    half = place.get("augmentation", "")
    other = {"augmentation": HALVES[half]} if half and place.get("dataset") == "AffectNet" else {}
    return {**place, **other}


class ConFERFindings(CellFindings):
    """Findings over the tables of all data sets, in which a cell is found by its keys alone."""

    def _name_place(self, place: Mapping[str, str]) -> str:
        return super()._name_place(_name_half(place)).replace(f"stage {LAST}", "at the end")

    def find_cells(self, table: str, place: Mapping[str, str]) -> list[Cell]:
        wanted = _name_half(place)
        last = wanted.get("stage") == LAST and bool(wanted.pop("stage"))
        where = (wanted["dataset"], wanted["setting"], wanted["metric"])
        found = [
            cell for cell in _cells_by_place(self.preset.as_printed)[where]
            if all(cell[key] == value for key, value in wanted.items())
        ]  # fmt: skip
        end = max((cell["stage"] for cell in found), default="")  # steps are fewer than ten
        return [cell for cell in found if cell["stage"] == end] if last else found


def bound_plain_training(cells: CellFindings) -> list[Claim]:
    """Plain training on single classes ends at 1 / k: it predicts the newest of k classes alone.

    Examples
    --------
    >>> entries = dict.fromkeys(TABLES_BY_NUMBER, make_entries(PAPER))
    >>> claims = bound_plain_training(ConFERFindings("confer", PAPER, (), entries))
    >>> [(claim.row, claim.second[0], claim.paper[0]) for claim in claims][:2]
    [('CK+ Class-IL O1 without', '1/8', 0.12), ('RAF-DB Class-IL O1 without', '1/7', 0.14)]
    """
    found = []
    place = {"setting": CLASS, "order": "O1", "augmentation": "without", "method": "LB"}
    preset = cells.preset
    for dataset in (name for name in preset.parts.values() if name not in preset.absent):
        where = {**place, "dataset": dataset, "metric": "Acc", "stage": LAST}
        (cell,) = cells.find_cells("", where)
        chance = 1 / int(cell["stage"])
        found.append(Claim(
            "Class-IL: plain training predicts the newest class alone",
            f"{preset.shown(dataset)} {CLASS} O1 without", ("LB", cells.measure(cell)),
            (f"1/{cell['stage']}", measures.constant(chance)), (cell.value, chance),
            slack=0.006, relation="near",
        ))  # fmt: skip
    return found


def _build_findings(preset: ConFERPreset) -> PaperFigure:
    entries = dict.fromkeys(TABLES_BY_NUMBER, make_entries(preset))
    cells = ConFERFindings("confer", preset, DATA["findings"], entries)
    bounds = bound_plain_training(cells)
    return make_findings_figure(f"ConFER: {TITLES['findings']}", cells, more=lambda result: bounds)


# -- figures ---------------------------------------------------------------------------------------
def build_figures(name: str, preset: ConFERPreset) -> tuple[PaperFigure, ...]:
    """Accuracy of every task after every step: one row of plots per half; or the findings."""
    if name == "findings":
        return (_build_findings(preset),)
    pair = FIGURES_BY_NAME[name]
    if pair.dataset in preset.absent:
        return ()
    panels = _list_panels(pair, preset)
    rows = {
        (panel, row): (recipe(preset, block, row),)
        for panel, block in panels.items()
        for row in ROWS
    }

    def curves(result: Result, row: tuple[str, str], made: Sequence[Recipe]) -> Records:
        names = {"panel": row[0], "method": row[1]}
        return accuracy_curves(result, made, HEAD_VIEWS[pair.setting], names)

    shown = preset.shown(pair.dataset)
    figure = make_figure(
        name, f"Accuracy of every task over time, {shown}, {pair.setting}", rows, records=curves,
        names=lambda row: {**asdict(panels[row[0]]), "method": row[1]}, columns=LEVEL_COLUMNS,
        draw=lambda table: draw_task_level(table, assign_looks(list(ROWS), table["method"])),
    )  # fmt: skip
    return (figure,)


def _list_panels(pair: TablePair, preset: ConFERPreset) -> dict[str, ConFERBlock]:
    """Both augmentations of O1, or O2 and O3 with the second of them."""
    conditions = list(preset.protocol(pair.dataset).conditions)
    where: dict[str, Any] = {"dataset": pair.dataset, "setting": pair.setting}
    if pair.orders == "O1":
        return {one: ConFERBlock(order="O1", augmentation=one, **where) for one in conditions}
    return {
        one: ConFERBlock(order=one, augmentation=conditions[-1], **where) for one in ("O2", "O3")
    }


TABLES = Paper(
    name="confer", titles=TITLES, paper=PAPER, embedded=EMBEDDED, figures=build_figures,
    groups=GROUPS, tables=dict.fromkeys(TABLES_BY_NUMBER, make_entries), folders=FOLDERS,
    embedded_of={"findings": QUICK},
)  # fmt: skip
