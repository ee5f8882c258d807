"""Metrics that compare scores of familiar samples with scores of foreign ones.

Higher scores mean more familiar; `inside` are the positives. All are exact: thresholds are the
scores themselves, never a grid. Each is NaN when one of the sets is empty.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engram.errors import bad, choose, number
from engram.metrics._arrays import Floats, floats


def _scores(argument: str, values: Any) -> Floats:
    array = floats(argument, values, least=1, shape="scores").ravel()
    if np.any(np.isnan(array)):
        raise bad(argument, "scores without NaN", values)
    return array


def _rates(inside: Any, outside: Any) -> tuple[Floats, Floats, int, int]:
    """Counts of inside and outside at or above each distinct score, from the highest score down."""
    a, b = np.sort(_scores("inside", inside)), np.sort(_scores("outside", outside))
    cuts = np.unique(np.concatenate([a, b]))[::-1]
    above_a = len(a) - np.searchsorted(a, cuts, side="left")
    above_b = len(b) - np.searchsorted(b, cuts, side="left")
    return above_a.astype(np.float64), above_b.astype(np.float64), len(a), len(b)


def auroc(inside: Any, outside: Any) -> float:
    """Probability that a familiar sample scores above a foreign one; ties count half.

    Examples
    --------
    >>> round(auroc([.9, .8, .4], [.7, .3]), 6)
    0.833333
    """
    a, b = _scores("inside", inside), np.sort(_scores("outside", outside))
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
    >>> sets = [.9, .8, .4], [.7, .3]
    >>> round(aupr_in(*sets), 6), round(aupr_in(*sets, definition="balanced"), 6)
    (0.916667, 0.888889)
    >>> round(aupr_in(*sets, definition="odin_sweep"), 6)
    0.857143
    """
    choose("definition", definition, ["ap", "balanced", "odin_sweep"])
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
    >>> round(detection_error([.9, .8, .4], [.7, .3]), 6)
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
    >>> fpr_at_tpr([.9, .8, .4], [.7, .3]), fpr_at_tpr([.9, .8, .4], [.7, .3], tpr=0.6)
    (0.5, 0.0)
    """
    number("tpr", tpr, 0.0, 1.0, open_low=True)
    tp, fp, n, m = _rates(inside, outside)
    if not n or not m:
        return math.nan
    needed = math.ceil(tpr * n - 1e-9)  # 0.95 * 20 must ask for 19, not 20
    return float(fp[np.argmax(tp >= needed)] / m)
