"""Labels that are refined over time (IIRC, Abdelsalam et al. 2021): tables and figures."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from engram.reproduce import measures
from engram.reproduce.cells import Cell
from engram.reproduce.papers import iirc_figures as figures
from engram.reproduce.papers.base import Paper
from engram.reproduce.papers.iirc_counts import counted, pair_counted
from engram.reproduce.papers.iirc_preset import (
    EMBEDDED,
    JOINT,
    PAPER,
    SCORE,
    UPPER,
    Preset,
    recipes,
)
from engram.reproduce.table import VARIANT, Entry

if TYPE_CHECKING:
    from engram.recipes import Recipe
    from engram.reproduce.table import Measure

PLAIN = ("ER", "ER-infinite", UPPER, JOINT)  # rows that text and code tell alike
TITLES = {
    "3.1": "training, validation and test samples of the data sets",
    "3.2": "superclasses, subclasses and orphans of the data sets",
    "3.3": "samples of some classes",
    "C.1": "score after every task, IIRC-CIFAR (with figure 4.2)",
    "C.2": "score after every task, IIRC-ImageNet-lite",
    "C.3": "score after every task, IIRC-ImageNet-full",
    **figures.TITLES,
}
WITH_FIGURES = {"C.1": ("fig4.2", "findings")}


class _Rows:
    """Entries of C.1 to C.3; the runs of a row are named once and shared by its cells."""

    def __init__(self, preset: Preset) -> None:
        self.preset = preset
        self._made = lru_cache(maxsize=None)(self._make)

    def entry(self, cell: Cell) -> Entry:
        dataset, row = cell["dataset"], cell["method"]
        if row == JOINT:
            return Entry(missing="one task with all classes is no stream of refined labels")
        made, after = self._made(dataset, row)
        reasons = self.preset.reasons(dataset, *(() if row in PLAIN else (VARIANT,)))
        stage = int(cell["stage"])
        return Entry(recipes=made, measure=after(stage), reasons=reasons, tasks=stage + 1)

    def _make(self, dataset: str, row: str) -> tuple[tuple[Recipe, ...], Callable[[int], Measure]]:
        made = recipes(self.preset, dataset, row)
        return made, measures.at_stages(SCORE, made, head="single")


def _scores(preset: Preset) -> Callable[[Cell], Entry]:
    return _Rows(preset).entry


TABLES = Paper(
    name="iirc", titles=TITLES, paper=PAPER, embedded=EMBEDDED,
    tables={
        "3.1": lambda preset: lambda cell: counted(preset, cell),
        "3.2": lambda preset: lambda cell: counted(preset, cell),
        "3.3": lambda preset: lambda cell: pair_counted(preset, cell),
        "C.1": _scores, "C.2": _scores, "C.3": _scores,
    },
    figures=figures.build, with_figures=WITH_FIGURES,
    folders=figures.FOLDERS,
)  # fmt: skip
