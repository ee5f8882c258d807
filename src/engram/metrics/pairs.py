"""Novelty detection after one stage: which sets of scores are compared, what is averaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engram.errors import bad, choose
from engram.metrics._arrays import Floats, floats, mean_present
from engram.metrics.novelty import auroc


@dataclass(frozen=True)
class PairScores:
    """Familiar against foreign samples after stage t.

    `pairs[i, j]` compares task i with future task j under head i; `recent` averages the newest
    task's row, `previous` the older rows, `mean` all pairs; `combined` compares the pool of all
    familiar scores with the pool of all foreign scores under every head.
    """

    pairs: Floats
    recent: float
    previous: float
    mean: float
    combined: float


def _flat(argument: str, values: Any) -> Floats:
    return floats(argument, values, least=1, shape="scores").ravel()


def pair_scores(
    inside: Sequence[Any],
    outside: Sequence[Sequence[Any]],
    *,
    metric: Callable[[Any, Any], float] = auroc,
    out_pool: str = "pairs",
) -> PairScores:
    """Compare every learnt task with every future task (R., P., m. and C. values of the paper).

    Parameters
    ----------
    inside
        Scores of the familiar samples of each learnt task i, under head i.
    outside
        `outside[i][j]`: scores of future task j under head i. For one shared head, repeat the list.
    out_pool
        ``pairs`` one value per future task; ``pooled`` joins the future tasks first.

    Examples
    --------
    >>> outside = [[[.5, .65], [.2]], [[.8, .75], [.6]]]
    >>> scores = pair_scores([[.9, .6], [.95, .7]], outside)
    >>> scores.pairs.tolist(), scores.recent, scores.previous, scores.mean
    ([[0.75, 1.0], [0.5, 1.0]], 0.75, 0.875, 0.8125)
    >>> round(scores.combined, 6)
    0.770833
    """
    choose("out_pool", out_pool, ["pairs", "pooled"])
    known = [_flat("inside", scores) for scores in inside]
    foreign = [[_flat("outside", scores) for scores in row] for row in outside]
    widths = {len(row) for row in foreign}
    if not known or len(foreign) != len(known) or len(widths) != 1 or 0 in widths:
        raise bad("outside", f"{len(known)} lists (one per head) of equal length above 0", widths)
    pooled = [np.concatenate(row) for row in foreign]
    rows = foreign if out_pool == "pairs" else [[scores] for scores in pooled]
    tasks = zip(known, rows, strict=True)
    pairs = np.array([[metric(own, other) for other in row] for own, row in tasks])
    return PairScores(
        pairs=pairs,
        recent=mean_present(pairs[-1]),
        previous=mean_present(pairs[:-1]),
        mean=mean_present(pairs),
        combined=float(metric(np.concatenate(known), np.concatenate(pooled))),
    )


def mean_over_tasks(
    positives: Sequence[Any],
    negatives: Sequence[Any],
    *,
    metric: Callable[[Any, Any], float] = auroc,
) -> float:
    """Mean of a metric over tasks: familiar against forgotten, or forgotten against foreign.

    A task for which either set is empty is skipped; NaN if that leaves none.

    Examples
    --------
    >>> mean_over_tasks([[.9, .8], [.7]], [[.5, .85], []])
    0.75
    """
    if len(positives) != len(negatives):
        raise bad("negatives", f"{len(positives)} sets, one per task", len(negatives))
    both = zip(positives, negatives, strict=True)
    sets = [(_flat("positives", a), _flat("negatives", b)) for a, b in both]
    return mean_present([metric(a, b) for a, b in sets if len(a) and len(b)])
