"""Metrics that compare scores of familiar samples with scores of foreign ones, of two sets or of
all tasks after one stage.

Higher scores mean more familiar; `inside` are the positives. All are exact: thresholds are the
scores themselves, never a grid. Each is NaN when one of the sets is empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engram.errors import bad, check_choice, check_float
from engram.metrics.checked_arrays import Floats, as_floats, mean_without_nan


def _check_scores(argument: str, values: Any) -> Floats:
    array = as_floats(argument, values, least=1, shape="scores").ravel()
    if np.any(np.isnan(array)):
        raise bad(argument, "scores without NaN", values)
    return array


def _rates(inside: Any, outside: Any) -> tuple[Floats, Floats, int, int]:
    """Counts of inside and outside at or above each distinct score, from the highest score down."""
    a, b = np.sort(_check_scores("inside", inside)), np.sort(_check_scores("outside", outside))
    cuts = np.unique(np.concatenate([a, b]))[::-1]
    above_a = len(a) - np.searchsorted(a, cuts, side="left")
    above_b = len(b) - np.searchsorted(b, cuts, side="left")
    return above_a.astype(np.float64), above_b.astype(np.float64), len(a), len(b)


def auroc(inside: Any, outside: Any) -> float:
    """Probability that a familiar sample scores above a foreign one; ties count half.

    Examples
    --------
    >>> round(auroc([0.9, 0.8, 0.4], [0.7, 0.3]), 6)
    0.833333
    """
    a, b = _check_scores("inside", inside), np.sort(_check_scores("outside", outside))
    if not len(a) or not len(b):
        return math.nan
    # Below counts twice, equal once: whole numbers, so the result is exact up to one division.
    twice = np.searchsorted(b, a, side="left").sum() + np.searchsorted(b, a, side="right").sum()
    return float(twice / (2 * len(a) * len(b)))


def aupr_in(inside: Any, outside: Any, *, definition: str = "ap") -> float:
    """Area under the precision-recall curve with the familiar samples as positives.

    Parameters
    ----------
    definition
        ``ap`` average precision from counts; ``balanced`` the same with precision from rates,
        tpr / (tpr + fpr), so that set sizes do not matter; ``odin_sweep`` rates again, with the
        precision taken at the lower recall of each step (the limit of ODIN's threshold sweep).

    Examples
    --------
    >>> sets = [0.9, 0.8, 0.4], [0.7, 0.3]
    >>> round(aupr_in(*sets), 6), round(aupr_in(*sets, definition="balanced"), 6)
    (0.916667, 0.888889)
    >>> round(aupr_in(*sets, definition="odin_sweep"), 6)
    0.857143
    """
    check_choice("definition", definition, ["ap", "balanced", "odin_sweep"])
    tp, fp, n, m = _rates(inside, outside)
    if not n or not m:
        return math.nan
    recall = tp / n
    precision = tp / (tp + fp) if definition == "ap" else recall / (recall + fp / m)
    steps = np.diff(recall, prepend=0.0)  # recall gained at each cut, from the highest cut down
    if definition == "odin_sweep":
        # Each gain is weighed with the precision of the cut above it, the topmost with its own.
        precision = np.concatenate([precision[:1], precision[:-1]])
    return float((steps * precision).sum())


def detection_error(inside: Any, outside: Any) -> float:
    """Lowest mean of rejected familiar and accepted foreign fractions over thresholds (DER).

    Examples
    --------
    >>> round(detection_error([0.9, 0.8, 0.4], [0.7, 0.3]), 6)
    0.166667
    """
    tp, fp, n, m = _rates(inside, outside)
    if not n or not m:
        return math.nan
    errors = ((n - tp) / n + fp / m) / 2.0
    return float(min(errors.min(), 0.5))  # 0.5: a threshold above every score


def fpr_at_tpr(inside: Any, outside: Any, *, tpr: float = 0.95) -> float:
    """Fraction of foreign samples accepted by the highest threshold that keeps `tpr` of the inside.

    Examples
    --------
    >>> fpr_at_tpr([0.9, 0.8, 0.4], [0.7, 0.3]), fpr_at_tpr([0.9, 0.8, 0.4], [0.7, 0.3], tpr=0.6)
    (0.5, 0.0)
    """
    check_float("tpr", tpr, 0.0, 1.0, open_low=True)
    tp, fp, n, m = _rates(inside, outside)
    if not n or not m:
        return math.nan
    needed = math.ceil(tpr * n - 1e-9)  # 0.95 * 20 must ask for 19, not 20
    return float(fp[np.argmax(tp >= needed)] / m)


# -- detection after one stage: which sets of scores are compared and averaged ---------------------


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


def _flatten(argument: str, values: Any) -> Floats:
    return as_floats(argument, values, least=1, shape="scores").ravel()


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
    >>> outside = [[[0.5, 0.65], [0.2]], [[0.8, 0.75], [0.6]]]
    >>> scores = pair_scores([[0.9, 0.6], [0.95, 0.7]], outside)
    >>> scores.pairs.tolist(), scores.recent, scores.previous, scores.mean
    ([[0.75, 1.0], [0.5, 1.0]], 0.75, 0.875, 0.8125)
    >>> round(scores.combined, 6)
    0.770833
    """
    check_choice("out_pool", out_pool, ["pairs", "pooled"])
    known = [_flatten("inside", scores) for scores in inside]
    foreign = [[_flatten("outside", scores) for scores in row] for row in outside]
    widths = {len(row) for row in foreign}
    if not known or len(foreign) != len(known) or len(widths) != 1 or 0 in widths:
        raise bad("outside", f"{len(known)} lists (one per head) of equal length above 0", widths)
    pooled = [np.concatenate(row) for row in foreign]
    rows = foreign if out_pool == "pairs" else [[scores] for scores in pooled]
    tasks = zip(known, rows, strict=True)
    pairs = np.array([[metric(own, other) for other in row] for own, row in tasks])
    return PairScores(
        pairs=pairs,
        recent=mean_without_nan(pairs[-1]),
        previous=mean_without_nan(pairs[:-1]),
        mean=mean_without_nan(pairs),
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
    >>> mean_over_tasks([[0.9, 0.8], [0.7]], [[0.5, 0.85], []])
    0.75
    """
    if len(positives) != len(negatives):
        raise bad("negatives", f"{len(positives)} sets, one per task", len(negatives))
    both = zip(positives, negatives, strict=True)
    sets = [(_flatten("positives", a), _flatten("negatives", b)) for a, b in both]
    return mean_without_nan([metric(a, b) for a, b in sets if len(a) and len(b)])
