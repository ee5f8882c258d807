"""Metrics of single-label predictions: one true and one predicted class id per sample."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.errors import bad, check_choice, check_int
from engram.metrics.checked_arrays import (
    Floats,
    Reduced,
    as_floats,
    as_plain,
    as_whole_numbers,
    check_same_shape,
    mean_or_nan,
    ratio_or_nan,
)


def _check_pair(y: Any, p: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    truth, predicted = as_whole_numbers("y", y), as_whole_numbers("p", p)
    if truth.shape[-1] != predicted.shape[-1]:
        raise bad("p", f"{truth.shape[-1]} predictions, one per sample of y", predicted.shape)
    check_same_shape("y", truth, "p", predicted)
    return truth, predicted


def accuracy(y: Any, p: Any) -> Reduced:
    """Fraction of samples whose class was predicted correctly; NaN without samples.

    Parameters
    ----------
    y, p
        Class ids `[..., sample]`.

    Examples
    --------
    >>> accuracy([0, 1, 1, 2], [0, 1, 2, 2])
    0.75
    """
    truth, predicted = _check_pair(y, p)
    return as_plain(mean_or_nan(truth == predicted))


def class_accuracy(y: Any, p: Any, *, classes: Any = None) -> Floats:
    """Accuracy of each class, `[..., class]`; NaN for a class without samples.

    Parameters
    ----------
    classes
        The class ids to report, in this order. Default: those in `y`, ascending.

    Examples
    --------
    >>> class_accuracy([0, 0, 1, 1], [0, 1, 1, 1], classes=[1, 0, 7]).tolist()
    [1.0, 0.5, nan]
    """
    truth, predicted = _check_pair(y, p)
    wanted = np.unique(truth) if classes is None else as_whole_numbers("classes", classes)
    member = truth[..., None, :] == wanted[:, None]  # [..., class, sample]
    hits = (member & (truth == predicted)[..., None, :]).sum(axis=-1)
    return ratio_or_nan(hits, member.sum(axis=-1))


def task_accuracy(y: Any, p: Any, *, average: str = "micro", classes: Any = None) -> Reduced:
    """Accuracy on one task's samples.

    Parameters
    ----------
    average
        ``micro`` counts samples; ``macro`` averages the accuracies of the classes (those present).

    Examples
    --------
    >>> y, p = [0] * 30 + [1] * 10, [0] * 15 + [1] * 25
    >>> task_accuracy(y, p), task_accuracy(y, p, average="macro")
    (0.625, 0.75)
    """
    check_choice("average", average, ["micro", "macro"])
    if average == "micro":
        return accuracy(y, p)
    each = class_accuracy(y, p, classes=classes)
    known = ~np.isnan(each)
    count = known.sum(axis=-1)
    return as_plain(ratio_or_nan(np.where(known, each, 0.0).sum(axis=-1), count))


class PrecisionRecall(NamedTuple):
    """Precision, recall and their harmonic mean for each class, `[..., class]`."""

    precision: Floats
    recall: Floats
    f1: Floats


def precision_recall_f1(y: Any, p: Any, *, classes: Any = None) -> PrecisionRecall:
    """Precision, recall and F1 of each class.

    A class that is never predicted has no precision (NaN), one without samples no recall; F1 is 0
    where nothing of a class is found, and NaN for a class that neither occurs nor is predicted.

    Parameters
    ----------
    classes
        The class ids to report, in this order. Default: those in `y` or `p`, ascending.

    Examples
    --------
    >>> found = precision_recall_f1([0, 0, 0, 1], [0, 0, 1, 1])
    >>> found.precision.tolist(), found.recall.round(4).tolist(), found.f1.round(4).tolist()
    ([1.0, 0.5], [0.6667, 1.0], [0.8, 0.6667])
    """
    truth, predicted = _check_pair(y, p)
    wanted = (
        np.union1d(truth, predicted) if classes is None else as_whole_numbers("classes", classes)
    )
    true = truth[..., None, :] == wanted[:, None]  # [..., class, sample]
    said = predicted[..., None, :] == wanted[:, None]
    hits, there, named = ((true & said).sum(-1), true.sum(-1), said.sum(-1))
    return PrecisionRecall(
        ratio_or_nan(hits, named), ratio_or_nan(hits, there), ratio_or_nan(2 * hits, there + named)
    )


def f1_score(y: Any, p: Any, *, average: str = "macro", classes: Any = None) -> Reduced:
    """F1 of single-label predictions.

    Parameters
    ----------
    average
        ``macro``: mean over the classes that occur or are predicted; ``weighted``: by the samples
        of each class. (Over samples, ``micro``, F1 is the accuracy.)
    classes
        The class ids that count. Default: those in `y` or `p`.

    Examples
    --------
    >>> y, p = [0, 0, 0, 1], [0, 0, 1, 1]
    >>> round(f1_score(y, p), 4), round(f1_score(y, p, average="weighted"), 4)
    (0.7333, 0.7667)
    """
    check_choice("average", average, ["macro", "weighted"])
    truth, predicted = _check_pair(y, p)
    wanted = (
        np.union1d(truth, predicted) if classes is None else as_whole_numbers("classes", classes)
    )
    each = precision_recall_f1(truth, predicted, classes=wanted).f1
    known = ~np.isnan(each)
    weight = known.astype(np.float64)
    if average == "weighted":
        weight *= (truth[..., None, :] == wanted[:, None]).sum(axis=-1)
    return as_plain(ratio_or_nan((np.where(known, each, 0.0) * weight).sum(-1), weight.sum(-1)))


def top_k_accuracy(scores: Any, y: Any, *, k: int = 5) -> Reduced:
    """Fraction of samples whose class is among the k highest scores; NaN without samples.

    Of equal scores the lower column comes first, so that ``k=1`` is the accuracy of the argmax.

    Parameters
    ----------
    scores
        `[..., sample, class]`, logits or probabilities.
    y
        Column number of the true class, `[..., sample]`.
    k
        Less than the number of classes, for else every answer is right.

    Examples
    --------
    >>> scores = [[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]
    >>> [top_k_accuracy(scores, [1, 2], k=k) for k in (1, 2)]
    [0.5, 1.0]
    """
    table = as_floats("scores", scores, least=2, shape="[..., sample, class] scores")
    truth = as_whole_numbers("y", y)
    if truth.shape != table.shape[:-1]:
        raise bad("y", f"one class for each row of scores {table.shape}", f"shape {truth.shape}")
    check_int("k", k, low=1, high=table.shape[-1] - 1)
    if truth.size and not (truth.min() >= 0 and truth.max() < table.shape[-1]):
        raise bad("y", f"column numbers from 0 to {table.shape[-1] - 1}", y)
    own = np.take_along_axis(table, truth[..., None], axis=-1)
    column = np.arange(table.shape[-1])
    before = (table > own) | ((table == own) & (column < truth[..., None]))
    return as_plain(mean_or_nan(before.sum(axis=-1) < k))


def confusion_matrix(y: Any, p: Any, *, classes: Any = None, normalize: bool = False) -> Floats:
    """Number (or fraction per row) of samples of each true class by predicted class.

    Parameters
    ----------
    classes
        Row and column order, for example the order of introduction. Default: ids in use, ascending.
    normalize
        Divide each row by its sum; rows without samples are NaN.

    Examples
    --------
    >>> confusion_matrix([0, 1, 1], [0, 0, 1]).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    truth, predicted = _check_pair(y, p)
    if truth.ndim != 1 or predicted.ndim != 1:
        raise bad("y", "one axis of class ids", f"shapes {truth.shape} and {predicted.shape}")
    used = np.union1d(truth, predicted)
    order = used if classes is None else as_whole_numbers("classes", classes)
    absent = np.setdiff1d(used, order)
    if absent.size or len(np.unique(order)) != len(order):
        raise bad("classes", f"distinct ids that include {used.tolist()}", classes)
    place = {int(c): i for i, c in enumerate(order)}
    counts = np.zeros((len(order), len(order)))
    rows = [place[int(c)] for c in truth]
    np.add.at(counts, (rows, [place[int(c)] for c in predicted]), 1.0)
    if not normalize:
        return counts
    return ratio_or_nan(counts, counts.sum(axis=1, keepdims=True))


def expected_calibration_error(scores: Any, y: Any, bins: int = 15) -> float:
    """Mean gap between confidence and accuracy over equal-width confidence bins, weighted by size.

    Parameters
    ----------
    scores
        Probabilities `[sample, class]`; the largest is the confidence, its column the prediction.
    y
        Column number of the true class.
    bins
        Number of bins `(i / bins, (i + 1) / bins]`.

    Examples
    --------
    >>> round(expected_calibration_error([[0.9, 0.1], [0.8, 0.2]], [0, 1], bins=2), 6)
    0.35
    """
    check_int("bins", bins, low=1)
    table = as_floats("scores", scores, least=2, shape="[sample, class] probabilities")
    truth = as_whole_numbers("y", y)
    if table.ndim != 2 or truth.shape != table.shape[:1] or not len(truth):
        raise bad("y", f"one class for each row of scores {table.shape}", f"shape {truth.shape}")
    if not np.all((table >= 0) & (table <= 1 + 1e-6)):
        raise bad("scores", "probabilities in [0, 1] (apply softmax to logits first)", scores)
    confidence = np.minimum(table.max(axis=1), 1.0)
    correct = table.argmax(axis=1) == truth
    edges = np.linspace(0.0, 1.0, bins + 1)
    slot = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    gap = np.bincount(slot, weights=confidence - correct, minlength=bins)  # sums carry the weight
    return float(np.abs(gap).sum() / len(truth))
