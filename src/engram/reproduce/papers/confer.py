"""Continual facial expression recognition (ConFER, Churamani et al. 2022): tables and figures."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from engram.recipes import Recipe
from engram.reproduce import measures
from engram.reproduce.cells import Cell
from engram.reproduce.papers.base import Paper
from engram.reproduce.papers.confer_preset import CLASS, EMBEDDED, HEAD, PAPER, ROWS, TASK, Preset
from engram.reproduce.papers.confer_rows import Block, recipe
from engram.reproduce.papers.drawing import LEVELS, curves, draw_task_level, frame, looks
from engram.reproduce.table import COPIES, SPLIT, VARIANT, Entry, PaperFigure

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from engram.records import Result
    from engram.reproduce.table import Measure

PLAIN = ("LB", "UB")  # rows without details that text and code tell differently
OWN_SPLIT = ("CK+", "BAUM-1")  # sets that have no official test set: subjects or clips are drawn
METRICS = {"Acc": "average_accuracy", "CF": "forgetting"}


class Page(NamedTuple):
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


def _pages() -> tuple[Page, ...]:
    """Tables 3 to 50 in the order of the paper: of the first three sets all O1 come before O2."""
    both, later = ("O1", "O2 and O3"), ("FER-2013", "iCV-MEFED", "BAUM-1")
    rows = [(d, s, o) for o in both for d in ("CK+", "RAF-DB", "AffectNet") for s in (TASK, CLASS)]
    rows += [(d, s, o) for d in later for s in (TASK, CLASS) for o in both]
    return tuple(Page(3 + 2 * place, *row) for place, row in enumerate(rows))


PAGES = _pages()
NUMBERS = {str(page.table + k): (page, name) for page in PAGES for k, name in enumerate(METRICS)}
FIGURES = {page.figure: page for page in PAGES}
SETS = {name.lower(): name for name in Preset.parts.values()}
GROUPS = {
    short: tuple(number for number, (page, _) in NUMBERS.items() if page.dataset == name)
    for short, name in SETS.items()
}
WORDS = {"Acc": "accuracy", "CF": "forgetting"}
TITLES = {
    **{number: f"{WORDS[name]} after every step, {page.words}"
       for number, (page, name) in NUMBERS.items()},
    **{name: f"accuracy of every task over time, {page.words}" for name, page in FIGURES.items()},
    **{short: f"all tables of {name} in one call" for short, name in SETS.items()},
}  # fmt: skip


class _Rows:
    """Entries of all tables; the runs of a row are named once and shared by its cells."""

    def __init__(self, preset: Preset) -> None:
        self.preset = preset
        self._made = lru_cache(maxsize=None)(self._make)

    def entry(self, cell: Cell) -> Entry:
        block = block_of(cell)
        made, after = self._made(block, cell["method"])
        return Entry(
            recipes=(made,), measure=after[cell["metric"]](int(cell["stage"]) - 1),
            reasons=_reasons(self.preset, block, cell["method"]), tasks=int(cell["stage"]),
        )  # fmt: skip

    def _make(self, block: Block, row: str) -> tuple[Recipe, dict[str, Callable[[int], Measure]]]:
        made, head = recipe(self.preset, block, row), HEAD[block.setting]
        options = {"Acc": {}, "CF": {"definition": self.preset.forgetting}}
        return made, {
            metric: measures.at_stages(name, made, head=head, **options[metric])
            for metric, name in METRICS.items()
        }


def block_of(cell: Cell) -> Block:
    """Where a cell stands."""
    return Block(
        dataset=cell["dataset"], setting=cell["setting"], order=cell["order"],
        augmentation=cell["augmentation"],
    )  # fmt: skip


def _reasons(preset: Preset, block: Block, row: str) -> tuple[str, ...]:
    found = [SPLIT] if block.dataset in OWN_SPLIT else []
    found += [COPIES] if block.augmentation == "with" else []
    found += [] if row in PLAIN else [VARIANT]
    return preset.reasons(block.dataset, *found)


# -- figures ---------------------------------------------------------------------------------------
def figure(name: str, preset: Preset) -> PaperFigure:
    """Accuracy of every task after every step: one row of plots per half of the tables."""
    page = FIGURES[name]
    panels = _panels(page, preset)
    rows = {
        (panel, row): recipe(preset, block, row) for panel, block in panels.items() for row in ROWS
    }

    def data(result: Result) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for (panel, row), made in rows.items():
            records += curves(result, made, HEAD[page.setting], {"panel": panel, "method": row})
        return frame(records, LEVELS)

    shown = preset.shown(page.dataset)
    return PaperFigure(
        name=name, title=f"Accuracy of every task over time, {shown}, {page.setting}",
        recipes=tuple(rows.values()), data=data,
        draw=lambda table: draw_task_level(table, looks(list(ROWS), table["method"])),
        rows=tuple({**asdict(panels[panel]), "method": row} for panel, row in rows),
    )  # fmt: skip


def _panels(page: Page, preset: Preset) -> dict[str, Block]:
    """Both augmentations of O1, or O2 and O3 with the second of them."""
    conditions = list(preset.protocol(page.dataset).conditions)
    where: dict[str, Any] = {"dataset": page.dataset, "setting": page.setting}
    if page.orders == "O1":
        return {one: Block(order="O1", augmentation=one, **where) for one in conditions}
    return {one: Block(order=one, augmentation=conditions[-1], **where) for one in ("O2", "O3")}


def _figures(name: str, preset: Preset) -> tuple[PaperFigure, ...]:
    return () if FIGURES[name].dataset in preset.absent else (figure(name, preset),)


TABLES = Paper(
    name="confer", titles=TITLES, paper=PAPER, embedded=EMBEDDED, figures=_figures, groups=GROUPS,
    tables=dict.fromkeys(NUMBERS, lambda preset: _Rows(preset).entry),
    folders={
        **{number: f"confer-{page.dataset.lower()}" for number, (page, _) in NUMBERS.items()},
        **{name: f"confer-{page.dataset.lower()}" for name, page in FIGURES.items()},
        **{short: f"confer-{short}" for short in SETS},
    },
)  # fmt: skip
