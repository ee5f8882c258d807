"""Figures 3.3 and 4.1 to 4.11 of IIRC: their runs and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.reproduce import measures
from engram.reproduce.papers.drawing import draw_table, frame, spread
from engram.reproduce.papers.iirc_drawings import draw_confusion, draw_curves, draw_histogram
from engram.reproduce.papers.iirc_findings import Findings
from engram.reproduce.papers.iirc_preset import (
    CIFAR,
    FULL,
    LITE,
    ROWS,
    SCORE,
    UPPER,
    Preset,
    recipe,
    recipes,
)
from engram.reproduce.table import PaperFigure
from engram.streams.published import published

if TYPE_CHECKING:
    import pandas as pd

    from engram.recipes import Recipe
    from engram.records import Result
    from engram.reproduce.table import Floats

CURRENT = "current_task"
NAMES = {
    SCORE: "pw-JS", "jaccard": "JS", CURRENT: "pw-JS of the task just learnt",
    "superclass_score": "pw-JS of superclasses", "subclass_precision": "precision of subclasses",
    "orphan_precision": "precision of orphans",
}  # fmt: skip
LARGE = ("ER", "iCaRL-norm", "iCaRL-CNN", "LUCIR", "finetune", "BiC")  # rows run on ImageNet
FOUR = (SCORE, CURRENT, "superclass_score", "subclass_precision")
MIDDLE = (1, 5, 10)  # tasks of figure 4.3
CONFUSED = ("ER", "iCaRL-norm", "LUCIR")
SHOWN_LABELS = 25
TITLES = {
    "fig3.3": "subclasses per superclass: IIRC-ImageNet",
    "fig4.1": "score after every task: both IIRC-ImageNet",
    "fig4.2": "score after every task: IIRC-CIFAR",
    "fig4.3": "score of tasks 1, 5 and 10 over time",
    "fig4.4": "score of the task just learnt, and confusion after task 10",
    "fig4.5": "confusion after tasks 0, 1, 5 and 10",
    "fig4.6": "score of superclasses alone",
    "fig4.7": "precision of subclasses and of orphans",
    "fig4.8": "precision-weighted against plain Jaccard similarity",
    "fig4.9": "more exemplars: ER and iCaRL-norm",
    "fig4.10": "LUCIR without margin, with distillation, and both",
    "fig4.11": "BiC fitted with distillation",
    "findings": "what the paper finds, tried on these runs",
}
# Tables and figures share their runs.
_TOGETHER = ("C.1", "C.2", "C.3", "findings", *(f"fig4.{k}" for k in range(1, 12)))
FOLDERS = dict.fromkeys(_TOGETHER, "iirc")


@dataclass(frozen=True)
class Panel:
    """One plot: a measure over stages; `task` for the score of one task over time."""

    dataset: str
    measure: str = SCORE
    task: int = -1

    def title(self, preset: Preset) -> str:
        shown = preset.shown(self.dataset)
        what = NAMES[self.measure] if self.task < 0 else f"pw-JS of task {self.task}"
        return f"{what}, {shown}"


def build(name: str, preset: Preset) -> tuple[PaperFigure, ...]:
    """The figures under a name: the paper has two that are numbered 4.4."""
    if name == "fig3.3":
        return (_histogram(preset),)
    if name == "findings":
        return () if CIFAR in preset.absent else (_findings(preset),)
    if name == "fig4.5":
        return (_confusion(preset, name, (0, 1, 5, 10)),)
    panels, rows = PANELS[name]
    there = tuple(p for p in panels if p.dataset not in preset.absent)
    made = (_curves(preset, name, there, rows or _sizes(preset)),) if there else ()
    if name == "fig4.4" and CIFAR not in preset.absent:
        made = (*made, _confusion(preset, "fig4.4-confusion", (10,)))
    return made


def _both(*names: str) -> tuple[Panel, ...]:
    return tuple(Panel(dataset, name) for dataset in (CIFAR, FULL) for name in names)


def _four() -> tuple[Panel, ...]:
    return tuple(Panel(CIFAR, name) for name in FOUR)


Row = tuple[str, str, int]  # label, row, exemplars per class (0: those of the preset)
PLAIN_ROWS: tuple[Row, ...] = tuple((row, row, 0) for row in ROWS)
PANELS: dict[str, tuple[tuple[Panel, ...], tuple[Row, ...]]] = {
    "fig4.1": ((Panel(LITE), Panel(FULL)), PLAIN_ROWS),
    "fig4.2": ((Panel(CIFAR),), PLAIN_ROWS),
    "fig4.3": (tuple(Panel(d, SCORE, k) for d in (CIFAR, FULL) for k in MIDDLE), PLAIN_ROWS),
    "fig4.4": (_both(CURRENT), PLAIN_ROWS),
    "fig4.6": (_both("superclass_score"), PLAIN_ROWS),
    "fig4.7": (_both("subclass_precision", "orphan_precision"), PLAIN_ROWS),
    "fig4.8": (_both(SCORE, "jaccard"), PLAIN_ROWS),
    "fig4.9": (_four(), ()),  # which rows, the preset says
    "fig4.10": (_four(), tuple((r, r, 0) for r in ("LUCIR", "LUCIR-no_margin", "LUCIR-distil",
                                                   "LUCIR-distil-no_margin"))),
    "fig4.11": (_four(), tuple((r, r, 0) for r in ("BiC", "BiC-distil"))),
}  # fmt: skip


def _sizes(preset: Preset) -> tuple[Row, ...]:
    return tuple(
        (f"{row} {size}", row, size) for row in ("ER", "iCaRL-norm") for size in preset.sizes
    )


def _run_on(dataset: str, row: str) -> bool:
    """Whether the paper runs a row on a data set; AGEM and ER-infinite only on the small one."""
    large = (*LARGE, UPPER) if dataset == LITE else LARGE
    return dataset == CIFAR or row in large


# -- curves ----------------------------------------------------------------------------------------
def _curves(preset: Preset, name: str, panels: Sequence[Panel], rows: Sequence[Row]) -> PaperFigure:
    found = {
        (dataset, label): recipes(preset, dataset, row, _size(preset, size))
        for dataset in dict.fromkeys(panel.dataset for panel in panels)
        for label, row, size in rows
        if _run_on(dataset, row)
    }

    def data(result: Result) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for panel in panels:
            for (dataset, label), made in found.items():
                if dataset == panel.dataset:
                    names = {"panel": panel.title(preset), "method": label}
                    records += points(result, made, panel, names)
        return frame(records, ("panel", "method", "stage", "value", "std", "runs"))

    return PaperFigure(
        name=name, title=_title(name), data=data, draw=draw_curves,
        recipes=tuple(one for made in found.values() for one in made), rows=_keys(found),
    )  # fmt: skip


def _keys(rows: Mapping[tuple[str, str], Sequence[Recipe]]) -> tuple[dict[str, str], ...]:
    """What each recipe stands for."""
    return tuple(
        {"dataset": dataset, "method": label}
        for (dataset, label), made in rows.items()
        for _ in made
    )


def _title(name: str) -> str:
    """Without the data set: plots name the one that was used."""
    words = TITLES[name].partition(":")[0]
    return words[0].upper() + words[1:]


def _size(preset: Preset, size: int) -> int:
    """0 for the usual number, so that its runs are those of the other figures."""
    return 0 if size == preset.per_class else size


def points(
    result: Result, made: Sequence[Recipe], panel: Panel, names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Mean and deviation over class orders after every stage, where some run has a value."""
    runs = measures.runs_of(result, made, "single")
    if runs is None:
        return []
    values: Floats = (
        runs.matrix[:, :, panel.task] if 0 <= panel.task < runs.matrix.shape[2]
        else np.empty((len(runs), 0)) if panel.task >= 0
        else runs.curve(panel.measure)
    )  # fmt: skip
    records = []
    for stage in range(values.shape[1]):
        known = values[:, stage][~np.isnan(values[:, stage])]
        if len(known):
            records.append({
                **names, "stage": stage, "value": float(known.mean()), "std": spread(known),
                "runs": len(known),
            })  # fmt: skip
    return records


# -- confusion -------------------------------------------------------------------------------------
def _confusion(preset: Preset, name: str, stages: Sequence[int]) -> PaperFigure:
    """The first configuration alone: labels of others are introduced at other times."""
    rows = {row: recipe(preset, CIFAR, row) for row in CONFUSED}

    def data(result: Result) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for row, made in rows.items():
            runs = measures.runs_of(result, [made], "single")
            if runs is None:
                continue
            last = int(runs.tasks[0]) - 1  # drawn shapes have fewer tasks
            for stage in dict.fromkeys(min(one, last) for one in stages):
                if stage not in runs.stages[runs.runs[0]]:
                    continue
                found = runs.label_confusion(0, stage=stage)
                parts = {row: found.predicted}
                if row == CONFUSED[0]:
                    parts = {"truth": found.truth, **parts}
                for shown, table in parts.items():
                    records += _entries(table, {"method": shown, "stage": stage})
        return frame(records, ("method", "stage", "true", "predicted", "share"))

    return PaperFigure(
        name=name, title=f"Who is taken for whom, {preset.shown(CIFAR)}",
        recipes=tuple(rows.values()), data=data, draw=draw_confusion,
        rows=_keys({(CIFAR, row): [made] for row, made in rows.items()}),
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


# -- findings --------------------------------------------------------------------------------------
def _findings(preset: Preset) -> PaperFigure:
    rows = {row: recipes(preset, CIFAR, row) for row in ROWS}
    shown = preset.shown(CIFAR)
    return PaperFigure(
        name="findings", title=f"{_title('findings')}, {shown}",
        recipes=tuple(one for made in rows.values() for one in made),
        data=lambda result: Findings(rows, shown == CIFAR).table(result), draw=draw_table,
        rows=_keys({(CIFAR, row): made for row, made in rows.items()}),
    )  # fmt: skip


# -- figure 3.3 ------------------------------------------------------------------------------------
def _histogram(preset: Preset) -> PaperFigure:
    from engram.data.shapes import KINDS, VARIATIONS

    counts = {name: len(below) for name, below in published("imagenet-full")[0].items()}
    if preset.protocol(FULL).data == "shapes":
        counts = dict.fromkeys(KINDS, len(VARIATIONS))

    def data(result: Result | None) -> pd.DataFrame:
        ordered = sorted(counts.items(), key=lambda pair: -pair[1])
        return frame([{"superclass": n, "subclasses": c} for n, c in ordered],
                     ("superclass", "subclasses"))  # fmt: skip

    return PaperFigure(
        name="fig3.3", title=f"Subclasses per superclass, {preset.shown(FULL)}", recipes=(),
        data=data, draw=draw_histogram,
    )  # fmt: skip
