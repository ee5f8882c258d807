"""Continual novelty detection (CND, Aljundi et al. 2022): tables and figures."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from engram.recipes import Recipe
from engram.reproduce import measures
from engram.reproduce.cells import Cell
from engram.reproduce.detected import detected
from engram.reproduce.papers import cnd_figures
from engram.reproduce.papers.base import Paper
from engram.reproduce.papers.cnd_preset import EMBEDDED, HEAD, PAPER, ROWS, SHARED, Preset
from engram.reproduce.papers.cnd_rows import COSINE, PLAIN, Row, label, recipe, trained
from engram.reproduce.table import EPOCHS, OUTSIDE, VARIANT, Entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from engram.reproduce.table import Measure

TITLES = {
    "1": "accuracy and forgetting after the last stage",
    "2": "detection errors of forgotten items, first and last two stages",
    "3": "Softmax and the baselines B1 and B2, means over stages",
    "4": "detection errors of forgotten items after every stage",
    "5": "AUC of forgotten items after every stage",
    **cnd_figures.TITLES,
    "all": "all tables and figures of TinyImageNet-Seq in one call",
}
METRICS = {
    "DER_F_vs_N": "inside_forgotten_detection_error",
    "DER_F_vs_O": "forgotten_outside_detection_error",
    "AUC_F_vs_N": "inside_forgotten_auroc", "AUC_F_vs_O": "forgotten_outside_auroc",
    "m.P.AUC": "previous_auroc", "m.R.AUC": "recent_auroc", "mAUC": "mean_auroc",
    "F/IN": "inside_forgotten_detection_error", "F/Out": "forgotten_outside_detection_error",
}  # fmt: skip
POINTS = 3.0  # percentage points that are no difference
CIFAR = "cifar10"
TUNED = ("ODIN", "Mahalanobis", "VAE")  # by the paper on an outside set


class _Rows:
    """Entries of all tables; the runs of a row are named once and shared by its cells."""

    def __init__(self, preset: Preset) -> None:
        self.preset = preset
        self._recipe = lru_cache(maxsize=None)(lambda row: recipe(preset, row))

    def entry(self, cell: Cell) -> Entry:
        row = row_of(cell)
        made = self._recipe(row)
        return Entry(
            recipes=(made,), measure=self._measure(cell, row, made), tolerance=POINTS,
            reasons=self._reasons(cell),
        )  # fmt: skip

    def _measure(self, cell: Cell, row: Row, made: Recipe) -> Measure:
        metric, last = cell["metric"], self.preset.stages(row.dataset) - 1
        if metric in ("Acc", "Forg"):
            forgetting = {"definition": self.preset.forgetting} if metric == "Forg" else {}
            name = "forgetting" if forgetting else "average_accuracy"
            return measures.metric(name, made, head=HEAD[row.setting], percent=True, **forgetting)
        stages = int(cell["stage"]) - 1 if cell["stage"] else range(last + (metric == "F/IN"))
        return detected(made, cell["nd_method"].lower(), METRICS[metric], stages)

    def _reasons(self, cell: Cell) -> tuple[str, ...]:
        here = (self.preset.protocol(cell["dataset"]).outside or {}).get("data")
        tuned = [OUTSIDE] if cell["nd_method"] in TUNED and here != CIFAR else []
        return self.preset.reasons(cell["dataset"], EPOCHS, *tuned, VARIANT)


def row_of(cell: Cell) -> Row:
    """The row that a cell stands in: shared heads of table 3 are normalised."""
    cosine = cell.table == "3" and ROWS[cell["method"]][1] == SHARED
    return Row(
        dataset=cell["dataset"], method=cell["method"], backbone=cell["backbone"],
        head=COSINE if cosine else PLAIN,
    )  # fmt: skip


def _rank(preset: Preset) -> Callable[[Recipe], int]:
    """Rows in the order in which they are trained where time is short."""
    rows = [row for name in preset.parts.values() if name not in preset.absent
            for row in trained(name)]  # fmt: skip
    places = {label(preset, row): place for place, row in enumerate(rows)}
    return lambda made: places[made.label]


_TABLES = tuple("12345")
TABLES = Paper(
    name="cnd", titles=TITLES, paper=PAPER, embedded=EMBEDDED, figures=cnd_figures.build,
    tables=dict.fromkeys(_TABLES, lambda preset: _Rows(preset).entry), rank=_rank,
    groups={"all": (*_TABLES, *cnd_figures.TITLES)}, folders=dict.fromkeys(TITLES, "cnd"),
)  # fmt: skip
