"""Figures 2 to 34 of the continual-novelty paper, a control and its findings, from the same runs.

Figures 9 to 11 and 17 to 19, say, differ in rows and metrics alone, so most of them are lines of
one table here: which rows, and which numbers over what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engram.recipes import Recipe
from engram.reproduce.papers import cnd_drawings as drawings
from engram.reproduce.papers import cnd_numbers as numbers
from engram.reproduce.papers.cnd_findings import findings
from engram.reproduce.papers.cnd_preset import ALEXNET, EIGHT, RESNET, TINY, VGG, Preset
from engram.reproduce.papers.cnd_rows import BIASED, Row, recipe, trained
from engram.reproduce.papers.drawing import draw_table
from engram.reproduce.table import PaperFigure

if TYPE_CHECKING:
    import pandas as pd

    from engram.records import Result

MULTI = ("FineTune", "MAS", "LwF")
ER, SSIL = ("ER-25s", "ER-50s"), ("SSIL-25s", "SSIL-50s")
AUCS = ("combined_auroc", "recent_auroc", "previous_auroc")
Rows = dict[Row, Recipe]
Numbers = Callable[["Result", Rows], "pd.DataFrame"]


@dataclass(frozen=True)
class Drawing:
    """What a figure shows: which rows, which numbers, how they are drawn."""

    title: str
    rows: tuple[Row, ...]
    data: Numbers
    draw: Callable[[pd.DataFrame], Any] = drawings.draw_panels


def _rows(methods: Sequence[str], backbone: str = RESNET, dataset: str = TINY) -> tuple[Row, ...]:
    return tuple(Row(dataset=dataset, method=name, backbone=backbone) for name in methods)


def _stages(*metrics: str) -> Numbers:
    return lambda result, rows: numbers.by_stage(result, rows, metrics)


def _drawings() -> dict[str, Drawing]:
    eight, resnet = _rows(MULTI, ALEXNET, EIGHT), _rows(MULTI)
    vgg, er, ssil = _rows(MULTI, VGG), _rows(ER), _rows(SSIL)
    found = {
        "fig2": Drawing("C.AUC, R.AUC and P.AUC, Eight-Task", eight, _stages(*AUCS)),
        "fig3": Drawing("C.AUC, R.AUC and P.AUC", resnet, _stages(*AUCS)),
        "fig4": Drawing("R.AUC and P.AUC, ER", er, _stages(*AUCS[1:])),
        "fig5": Drawing("R.AUC and P.AUC, SSIL", ssil, _stages(*AUCS[1:])),
        "fig6": Drawing("features after stages 1 and 2 (t-SNE)", _rows(("LwF",)),
                        numbers.maps, drawings.draw_maps),
        "fig7": Drawing("accuracy of every task at the end", (*resnet, *vgg), numbers.at_end),
        "fig8": Drawing("accuracy of every task at the end, shared head", (*er, *ssil),
                        numbers.at_end),
    }  # fmt: skip
    for place, method in enumerate(MULTI):
        title = f"C.AUC, R.AUC and P.AUC, {method}, VGG"
        found[f"fig{9 + place}"] = Drawing(title, (vgg[place],), _stages(*AUCS))
    groups = {"Eight-Task": eight, "ResNet": resnet, "VGG": vgg, "ER": er, "SSIL": ssil}
    for first, metric, words in ((12, "aupr_in", "AUPR-IN"), (17, "detection_error", "DER")):
        for place, (name, rows) in enumerate(groups.items()):
            found[f"fig{first + place}"] = Drawing(f"{words}, {name}", rows, _stages(metric))
    del groups["VGG"]
    for place, (name, rows) in enumerate(groups.items()):
        title = f"AUC of every task's inside items against the last task, {name}"
        found[f"fig{22 + place}"] = Drawing(title, rows, numbers.last_task)
    del groups["Eight-Task"]
    for first, statistic in ((26, "norm"), (29, "mean"), (32, "deviation")):
        for place, (name, rows) in enumerate(groups.items()):
            title = f"{statistic} of the features of every set, {name}"
            found[f"fig{first + place}"] = Drawing(title, rows, numbers.features(statistic))
    both = (Row(dataset=TINY, method="FineTune"), Row(dataset=TINY, method="FineTune", head=BIASED))
    return {
        **found,
        "control": Drawing("FineTune with and without bias in the last layer", both,
                           _stages(*AUCS, "inside_forgotten_detection_error")),
        "findings": Drawing("what the paper finds, tried on these runs", tuple(trained(TINY)),
                            findings, draw_table),
    }  # fmt: skip


DRAWINGS = _drawings()
TITLES = {name: one.title for name, one in DRAWINGS.items()}


def build(name: str, preset: Preset) -> tuple[PaperFigure, ...]:
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
