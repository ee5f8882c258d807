"""Numbers of the figures of the continual-novelty paper: one long table, whatever they show.

A row of plots per `row` (method and network), a column per `measure`, a curve per `line` (detector,
set or method) over `x`; shares are percentages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.recipes import Recipe
from engram.records.features import DRAWN, feature_samples, feature_table
from engram.reproduce import measures
from engram.reproduce.detected import comparisons, last_outside
from engram.reproduce.papers.cnd_preset import HEAD, RESNET
from engram.reproduce.papers.cnd_rows import PLAIN, Row
from engram.reproduce.papers.drawing import frame

if TYPE_CHECKING:
    import pandas as pd

    from engram.records import Result

COLUMNS = ("row", "measure", "line", "x", "value", "std")
MAP_COLUMNS = ("row", "stage", "set", "task", "x", "y")
SHORT = {
    "combined_auroc": "C.AUC", "recent_auroc": "R.AUC", "previous_auroc": "P.AUC",
    "mean_auroc": "mAUC", "aupr_in": "AUPR-IN", "detection_error": "DER",
    "inside_forgotten_detection_error": "In/Forg DER",
    "forgotten_outside_detection_error": "Forg/Out DER",
}  # fmt: skip
NAMES = {"softmax": "Softmax", "odin": "ODIN", "mahalanobis": "Mahalanobis", "vae": "VAE",
         "b1": "B1", "b2": "B2", "energy": "Energy", "knn": "KNN"}  # fmt: skip
MOST_ITEMS = 1000  # of a map
Rows = Mapping[Row, Recipe]


def name_of(row: Row) -> str:
    """A row in words.

    Examples
    --------
    >>> name_of(Row(dataset="TinyImageNet", method="LwF", backbone="VGG"))
    'LwF, VGG'
    """
    more = [row.backbone] if row.backbone != RESNET else []
    return ", ".join([row.method, *more, *([row.head] if row.head != PLAIN else [])])


def _told(names: Mapping[str, Any], values: Sequence[float]) -> list[dict[str, Any]]:
    known = np.array([value for value in values if not np.isnan(value)])
    if not len(known):
        return []
    std = float(known.std(ddof=1)) if len(known) > 1 else float("nan")
    return [{**names, "value": float(known.mean()), "std": std}]


def by_stage(result: Result, rows: Rows, metrics: Iterable[str]) -> pd.DataFrame:
    """Comparisons of every detector after every stage."""
    records: list[dict[str, Any]] = []
    for row, made in rows.items():
        every = comparisons(result, made)
        places = sorted({place for found in every.values() for place in found})
        for metric in metrics:
            for detector, stage in places:
                values = [found.get((detector, stage), {}).get(metric, np.nan)
                          for found in every.values()]  # fmt: skip
                records += _told(
                    {"row": name_of(row), "measure": SHORT[metric],
                     "line": NAMES.get(detector, detector), "x": stage + 1},
                    [100 * value for value in values],
                )  # fmt: skip
    return frame(records, COLUMNS)


def last_task(result: Result, rows: Rows) -> pd.DataFrame:
    """AUC of the inside items of every task against the last task, before that is learnt."""
    records: list[dict[str, Any]] = []
    for row, made in rows.items():
        for (detector, task), values in last_outside(result, made).items():
            names = {"row": name_of(row), "measure": "AUC against the last task",
                     "line": NAMES.get(detector, detector), "x": task + 1}  # fmt: skip
            records += _told(names, [100 * value for value in values])
    return frame(records, COLUMNS)


def at_end(result: Result, rows: Rows) -> pd.DataFrame:
    """Accuracy of every task after the last stage."""
    records: list[dict[str, Any]] = []
    for row, made in rows.items():
        runs = measures.runs_of(result, [made], HEAD[row.setting])
        if runs is None or runs.matrix.shape[1] < int(runs.tasks.max()):
            continue
        for task, values in enumerate(100 * runs.matrix[:, -1].T):
            names = {"row": row.backbone, "measure": "accuracy", "line": row.method}
            records += _told({**names, "x": task + 1}, values)
    return frame(records, COLUMNS)


def features(statistic: str) -> Callable[[Result, Rows], pd.DataFrame]:
    """A statistic of the features of every set, after every stage."""

    def data(result: Result, rows: Rows) -> pd.DataFrame:
        records: list[dict[str, Any]] = []
        for row, made in rows.items():
            runs = measures.runs_of(result, [made], HEAD[row.setting])
            if runs is None:
                continue
            table = feature_table(runs, "recipe", [run.recipe for run in runs.runs])
            chosen = (table["statistic"] == statistic) & table["set"].isin(DRAWN)
            own = table[chosen].to_dict("records")
            for one in sorted(own, key=lambda one: (DRAWN.index(one["set"]), one["stage"])):
                records.append({"row": name_of(row), "measure": statistic, "line": one["set"],
                                "x": one["stage"] + 1, "value": one["mean"],
                                "std": one["std"]})  # fmt: skip
        return frame(records, COLUMNS)

    return data


def maps(result: Result, rows: Rows) -> pd.DataFrame:
    """Places of items in two dimensions after stages 1 and 2: t-SNE of their features."""
    from engram.records.neighbours import flat_map

    records: list[dict[str, Any]] = []
    for row, made in rows.items():
        runs = measures.runs_of(result, [made], HEAD[row.setting])
        for one in feature_samples(runs) if runs is not None else ():
            # before stage 2 nothing is forgotten; then the paper shows the first task alone
            shown = one.kind != "" if not one.stage else (one.kind != "") & (one.task == 0)
            places = np.flatnonzero(shown)[:MOST_ITEMS]
            for place, (x, y) in zip(places, flat_map(one.features[places]), strict=True):
                records.append({"row": name_of(row), "stage": one.stage + 1,
                                "set": str(one.kind[place]), "task": int(one.task[place]) + 1,
                                "x": float(x), "y": float(y)})  # fmt: skip
    return frame(records, MAP_COLUMNS)
