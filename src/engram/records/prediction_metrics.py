"""Metrics of stored predictions and scores, over the test rows of all tasks so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engram.errors import RecordError, bad, choose, whole
from engram.records import views
from engram.records.arrange import Floats
from engram.records.items import Items
from engram.records.predictions import Prediction
from engram.records.recompute import ended

if TYPE_CHECKING:
    from engram.records.result import Result

F1, TOP_K = "f1_score", "top_k_accuracy"
PREDICTED = (F1, TOP_K)


def of_predictions(result: Result, name: str, *, stage: int | None, **options: Any) -> Floats:
    """[run] a metric of `PREDICTED`; NaN for runs without that stage."""
    compute, option = (_f1, "average") if name == F1 else (_top_k, "k")
    for given in options:
        choose(f"option of {name}", given, [option])
    values = np.full(len(result.runs), np.nan)
    for number, head in enumerate(result.heads):
        found = ended(result, number, stage)
        if found is None:
            continue
        k, items, kept = found
        if items.multilabel:
            expected = "hierarchical_f1 or another score of sets, because rows have sets of labels"
            raise bad("metric", expected, name)
        values[number] = compute(kept, items, k, head, **options)
    return values


def _f1(kept: Prediction, items: Items, stage: int, head: str, *, average: str = "macro") -> float:
    from engram import metrics

    seen = items.counted(stage)
    said = kept.predicted(items, head=head)[seen]
    return float(metrics.f1_score(items.targets[seen, 0], said, average=average))


def _top_k(kept: Prediction, items: Items, stage: int, head: str, *, k: int = 5) -> float:
    """NaN where k or fewer classes compete for a row: each answer would be right."""
    from engram import metrics

    whole("k", k, low=1)
    if kept.scores is None:
        run = (kept.key.recipe, kept.key.seed, kept.key.order)
        raise RecordError(f'{run}: only labels were kept; {TOP_K} needs keep="scores"')
    seen = items.counted(stage)
    among = views.open_columns(items, stage=stage, head=head)[seen]
    if not len(among) or among.sum(axis=1).min() <= k:
        return float("nan")
    scores = np.where(among, np.fmax(kept.full()[seen], np.finfo(np.float64).min), -np.inf)
    # stored scores are rounded; which was the highest was decided before
    scores[np.arange(len(scores)), kept.predicted(items, head=head)[seen]] = np.inf
    return float(metrics.top_k_accuracy(scores, items.targets[seen, 0], k=k))
