"""Metrics of multi-label predictions: multi-hot arrays `[..., sample, class]` of 0 and 1.

`y` holds the true labels that are seen by now, `p` the predicted ones. `within` intersects both
with some classes, for instance the superclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from engram.errors import bad, check_choice, check_int
from engram.metrics.checked_arrays import (
    Bools,
    Floats,
    Reduced,
    as_class_mask,
    as_floats,
    as_multi_hot,
    as_plain,
    mean_or_nan,
    ratio_or_nan,
)


def threshold(scores: Any, *, at: float = 0.0, inclusive: bool = False) -> Bools:
    """Predicted labels from scores: those above `at` (0 for logits, 0.5 for sigmoid outputs).

    Parameters
    ----------
    inclusive
        Count a score equal to `at` as predicted.

    Examples
    --------
    >>> threshold([[2.0, 0.0, -1.0]]).tolist()
    [[True, False, False]]
    """
    values = as_floats("scores", scores, least=2, shape="[..., sample, class] scores")
    return np.asarray(values >= at if inclusive else values > at)


def _check_pair(y: Any, p: Any, within: Any) -> tuple[Bools, Bools]:
    truth, predicted = as_multi_hot("y", y), as_multi_hot("p", p)
    if truth.shape[-2:] != predicted.shape[-2:]:
        raise bad("p", f"samples and classes as y, {truth.shape[-2:]}", predicted.shape)
    if within is not None:
        mask = as_class_mask("within", within, truth.shape[-1])
        truth, predicted = truth & mask, predicted & mask
    return truth, predicted


def _average(
    y: Any, p: Any, within: Any, empty: str, score: Callable[[Floats, Floats, Floats], Floats]
) -> Reduced:
    """Mean over samples of score(|Y & P|, |Y|, |P|); the rule for samples without true label."""
    check_choice("empty", empty, ["skip", "count"])
    truth, predicted = _check_pair(y, p, within)
    labelled = truth.any(axis=-1)
    if within is None and not labelled.all():
        raise bad("y", "at least one true label per sample", "a row of zeros")
    both = (truth & predicted).sum(axis=-1).astype(np.float64)
    true, said = truth.sum(axis=-1) + 0.0 * both, predicted.sum(axis=-1) + 0.0 * both
    values = np.where(true + said > 0, score(both, true, said), 1.0)  # nothing true or said: 1
    if empty == "count":
        return as_plain(mean_or_nan(values))
    kept = np.broadcast_to(labelled, values.shape)
    return as_plain(ratio_or_nan(np.where(kept, values, 0.0).sum(axis=-1), kept.sum(axis=-1)))


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def exact_match(y: Any, p: Any, *, within: Any = None, empty: str = "skip") -> Reduced:
    """Fraction of samples whose predicted labels are exactly the true ones.

    Parameters
    ----------
    within
        Classes (mask or numbers) to which both label sets are restricted first.
    empty
        Samples left without a true label by `within`: ``skip`` them, or ``count`` them as 1 if
        nothing is predicted either and as 0 otherwise.

    Examples
    --------
    >>> exact_match([[1, 0, 1], [0, 1, 0]], [[1, 0, 1], [1, 1, 0]])
    0.5
    """
    return _average(y, p, within, empty, lambda both, t, s: ((both == t) & (both == s)) * 1.0)


def jaccard(y: Any, p: Any, *, within: Any = None, empty: str = "skip") -> Reduced:
    """Mean Jaccard index |Y & P| / |Y or P|; 0 if nothing is predicted. Options as `exact_match`.

    Examples
    --------
    >>> jaccard([[1, 0, 1], [0, 1, 0]], [[1, 0, 1], [1, 1, 0]])
    0.75
    """
    return _average(y, p, within, empty, lambda both, t, s: _ratio(both, t + s - both))


def precision_weighted_jaccard(
    y: Any, p: Any, *, within: Any = None, empty: str = "skip"
) -> Reduced:
    """Mean of Jaccard similarity times precision |Y & P| / |P|. Options as `exact_match`.

    Examples
    --------
    >>> precision_weighted_jaccard([[1, 0, 1], [0, 1, 0]], [[1, 0, 1], [1, 1, 0]])
    0.625
    """
    return _average(
        y, p, within, empty, lambda both, t, s: _ratio(both, t + s - both) * _ratio(both, s)
    )


def micro_recall(y: Any, p: Any) -> Reduced:
    """Fraction of all true labels that were predicted.

    Examples
    --------
    >>> micro_recall([[1, 1], [0, 1]], [[1, 1], [1, 0]])  # doctest: +ELLIPSIS
    0.6666...
    """
    truth, predicted = _check_pair(y, p, None)
    found = (truth & predicted).sum(axis=(-2, -1)) + 0.0
    return as_plain(ratio_or_nan(found, truth.sum(axis=(-2, -1))))


def subclass_precision(y: Any, p: Any, within: Any, *, samples: str = "all") -> Reduced:
    """Mean precision over the classes `within`; a sample with none predicted counts as 1.

    Parameters
    ----------
    samples
        Average over ``all`` samples, or only those that have a true label ``has_label`` within.

    Examples
    --------
    >>> subclass_precision([[1, 0, 1], [0, 1, 0]], [[1, 1, 1], [1, 0, 0]], within=[1, 2])
    0.75
    """
    check_choice("samples", samples, ["all", "has_label"])
    truth, predicted = _check_pair(y, p, within)
    said = predicted.sum(axis=-1)
    right = (truth & predicted).sum(axis=-1) + 0.0
    values = np.where(said > 0, right / np.maximum(said, 1), 1.0)
    kept = np.broadcast_to(truth.any(axis=-1) | (samples == "all"), values.shape)
    return as_plain(ratio_or_nan(np.where(kept, values, 0.0).sum(axis=-1), kept.sum(axis=-1)))


def confusion(y: Any, p: Any, *, order: Sequence[int] | None = None) -> Floats:
    """Fraction of the samples with true label `row` for which label `column` was predicted.

    A sample with two labels counts in two rows, so rows need not sum to 1; rows of labels that no
    sample has are NaN.

    Parameters
    ----------
    order
        Class numbers for rows and columns, for example in order of introduction. Default: all.

    Examples
    --------
    >>> confusion([[1, 1, 0], [1, 0, 0]], [[1, 1, 0], [1, 0, 0]]).tolist()
    [[1.0, 0.5, 0.0], [1.0, 1.0, 0.0], [nan, nan, nan]]
    """
    truth, predicted = _check_pair(y, p, None)
    if truth.ndim != 2 or predicted.ndim != 2:
        raise bad("y", "a [sample, class] array", f"shapes {truth.shape} and {predicted.shape}")
    counts = truth.T.astype(np.float64) @ predicted.astype(np.float64)  # [true, predicted]
    number = truth.sum(axis=0)[:, None]
    table = ratio_or_nan(counts, number)
    if order is None:
        return table
    as_class_mask("order", order, truth.shape[-1])
    return np.asarray(table[np.ix_(list(order), list(order))])


def label_calibration_error(y: Any, scores: Any, *, within: Any = None, bins: int = 15) -> float:
    """Mean gap between the probability of a label and its frequency, weighted by bin size.

    Every label of every sample is one yes or no; they are gathered by probability in bins of equal
    width, ``(i / bins, (i + 1) / bins]``.

    Parameters
    ----------
    y
        True labels `[sample, class]`, 0 and 1.
    scores
        Probabilities `[sample, class]` (the sigmoid of logits).
    within
        Mask `[sample, class]` of the labels that count. Default: all.

    Examples
    --------
    >>> round(label_calibration_error([[1, 0]], [[0.9, 0.3]], bins=2), 6)
    0.2
    """
    check_int("bins", bins, low=1)
    truth = as_multi_hot("y", y)
    table = as_floats("scores", scores, least=2, shape="[sample, class] probabilities")
    if table.shape != truth.shape:
        raise bad("scores", f"a probability for each entry of y {truth.shape}", table.shape)
    if not np.all((table >= 0) & (table <= 1)):
        raise bad("scores", "probabilities in [0, 1] (apply a sigmoid to logits first)", scores)
    mask = np.ones(truth.shape, np.bool_) if within is None else np.asarray(within, np.bool_)
    if mask.shape != truth.shape or not mask.any():
        raise bad("within", f"a mask of shape {truth.shape} with some label", mask.shape)
    likely, there = table[mask], truth[mask]
    edges = np.linspace(0.0, 1.0, bins + 1)
    slot = np.clip(np.searchsorted(edges, likely, side="left") - 1, 0, bins - 1)
    gap = np.bincount(slot, weights=likely - there, minlength=bins)  # sums carry the weight
    return float(np.abs(gap).sum() / len(likely))


class StageScores(NamedTuple):
    """Scores after one stage: per task learnt so far, and over all their samples counted once."""

    tasks: Floats  # [task]
    overall: float


def stage_scores(
    y: Any,
    p: Any,
    tasks: Sequence[Sequence[int]],
    *,
    metric: Callable[[Any, Any], Reduced] = precision_weighted_jaccard,
) -> StageScores:
    """Scores over the test samples of each task seen so far and over their union.

    A sample belongs to every task that introduced one of its labels, so `overall` is not the mean
    of the task scores. True labels are restricted to the classes of `tasks`.

    Parameters
    ----------
    y
        All labels of the test samples `[sample, class]`, those of later tasks included.
    tasks
        Class numbers introduced by each task up to the present stage.

    Examples
    --------
    >>> y = [[1, 1], [1, 0], [1, 0]]
    >>> stage_scores(y, [[1, 0]] * 3, [[0]]).overall
    1.0
    >>> scores = stage_scores(y, [[1, 0]] * 3, [[0], [1]])
    >>> scores.tasks.round(6).tolist(), round(scores.overall, 6)
    ([0.833333, 0.5], 0.833333)
    """
    truth, predicted = _check_pair(y, p, None)
    if truth.ndim != 2 or predicted.ndim != 2 or not len(tasks):
        raise bad("y", "a [sample, class] array and at least one task", f"shape {truth.shape}")
    own = np.stack(
        [as_class_mask("tasks", task, truth.shape[-1]) for task in tasks]
    )  # [task, class]
    visible = truth & own.any(axis=0)
    member: Bools = np.asarray(np.any(truth[:, None, :] & own, axis=-1))  # [sample, task]

    def score(rows: Bools) -> float:
        return float(metric(visible[rows], predicted[rows])) if rows.any() else float("nan")

    each = np.array([score(member[:, k]) for k in range(len(tasks))])
    return StageScores(each, score(np.asarray(np.any(member, axis=1))))
