"""Predictions and their tables from scores, in either head view; numpy only, any leading axes.

Every function is pure, so numbers recomputed from stored scores equal those recorded with the run.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.errors import bad, check_choice
from engram.records.scored_items import HEADS, Bools, EvaluationItems, Ints

Floats = npt.NDArray[np.float64]
SET_SCORES = ("exact_match", "jaccard", "precision_weighted_jaccard")
FIGURES = ("accuracy", *SET_SCORES)  # the scores of a task


def open_columns(items: EvaluationItems, *, stage: int, head: str) -> Bools:
    """Mark the columns that compete for each item after `stage`, [n, C].

    ``single``: all columns introduced so far. ``multi``: the columns of the item's own task,
    whether that task was learnt yet or not.
    """
    check_choice("head", head, HEADS)
    if head not in items.heads:
        expected = "'single': a row with a set of labels belongs to several tasks"
        if items.task_given:
            expected = "'multi': the scores were computed with the task of each row given"
        raise bad("head", expected, head)
    if head == "multi":
        return np.asarray(items.visible[items.task])
    return np.broadcast_to(items.opening <= stage, (len(items), items.width))


def predict(scores: Any, items: EvaluationItems, *, stage: int, head: str) -> Ints:
    """Predict the column of every item, [..., n]; of equal scores the lowest column wins.

    Examples
    --------
    >>> items = EvaluationItems(
    ...     rows=[0, 1],
    ...     task=[0, 1],
    ...     targets=[0, 1],
    ...     opening=[0, 1],
    ...     visible=[[1, 0], [0, 1]],
    ...     classes=[7, 3],
    ... )
    >>> scores = [[0.1, 2.0], [3.0, 1.0]]
    >>> predict(scores, items, stage=1, head="single").tolist()
    [1, 0]
    >>> predict(scores, items, stage=1, head="multi").tolist()
    [0, 1]
    """
    return best_open_columns(
        _check_scores(scores, items), open_columns(items, stage=stage, head=head)
    )


def best_open_columns(scores: npt.NDArray[Any], open_: Bools) -> Ints:
    """Find the open column with the highest of the scores [..., C].

    NaN, which would win every argmax, loses to all numbers like -inf, but not to closed columns.
    """
    if scores.dtype == np.float16:
        scores = scores.astype(np.float32)  # the same numbers, and numpy compares them faster
    if scores.dtype.kind == "f":
        scores = np.fmax(scores, np.finfo(scores.dtype).min)
    return np.asarray(np.where(open_, scores, -np.inf).argmax(axis=-1))


def predict_sets(
    scores: Any, items: EvaluationItems, *, stage: int, head: str, threshold: float = 0.0
) -> Bools:
    """Predict label sets, [..., n, C]: open columns whose score lies above `threshold`."""
    table = _check_scores(scores, items)
    wide = table.astype(np.promote_types(table.dtype, np.float32))  # holds any threshold
    return np.asarray((wide > threshold) & open_columns(items, stage=stage, head=head))


def _check_scores(scores: Any, items: EvaluationItems) -> npt.NDArray[Any]:
    table = np.asarray(scores)
    if table.ndim < 2 or table.shape[-2:] != (len(items), items.width):
        raise bad("scores", f"an array [..., {len(items)}, {items.width}]", table.shape)
    return table


def mark_hits(predicted: npt.NDArray[Any], items: EvaluationItems) -> Bools:
    """Mark the true labels that were predicted (one label or a set per item), [..., n, L]."""
    true = items.targets >= 0
    if predicted.dtype != np.bool_:
        return np.asarray((items.targets == predicted[..., None]) & true)
    place = np.arange(len(items))[:, None]
    return np.asarray(predicted[..., place, np.maximum(items.targets, 0)] & true)


class ClassTable(NamedTuple):
    """Accuracy per task and column, and the number of test items behind it."""

    accuracy: Floats  # [..., T, C], NaN where there are no items
    number: Ints  # [T, C]


class _Cells(NamedTuple):
    """The true labels of all items, and the cell of the class table in which each counts."""

    true: Bools  # [n, L] False for padding
    cell: Ints  # [labels] index into the flat table
    number: Ints  # [T * C] labels in each cell


@functools.lru_cache(maxsize=2)  # thousands of runs are recorded one after the other
def _cells(items: EvaluationItems) -> _Cells:
    true = items.targets >= 0
    cell = (items.task[:, None] * items.width + items.targets)[true]
    return _Cells(true, cell, np.bincount(cell, minlength=items.tasks * items.width))


def _count_in_cells(found: Bools, place: Ints, size: int) -> Ints:
    """Count the hits [..., m] in each cell, whose numbers are `place` [m]; [..., size]."""
    if found.ndim == 1:
        return np.bincount(place[found], minlength=size)
    flat = found.reshape(math.prod(found.shape[:-1]), found.shape[-1])
    counts = [np.bincount(place[one], minlength=size) for one in flat]
    return np.array(counts, np.int64).reshape(*found.shape[:-1], size)


def class_table(predicted: npt.NDArray[Any], items: EvaluationItems) -> ClassTable:
    """Compute the accuracy of each class among the items of each task."""
    true, cell, number = _cells(items)
    found = mark_hits(predicted, items)[..., true]  # [..., labels]
    accuracy = divide_counts(_count_in_cells(found, cell, len(number)), number)
    shape = (items.tasks, items.width)
    return ClassTable(accuracy.reshape(*found.shape[:-1], *shape), number.reshape(shape).copy())


def label_recall(sets: Bools, items: EvaluationItems, *, stage: int) -> Floats:
    """Compute the recall of each label introduced by `stage`, [C].

    Counts items of the tasks so far, each row of the data once; NaN for labels without items.
    """
    rows = items.counted(stage)
    truth, predicted = true_sets(items, stage=stage)[rows], sets[rows]
    return divide_counts((truth & predicted).sum(axis=0), truth.sum(axis=0))


def divide_counts(counts: Ints, number: Ints) -> Floats:
    """Divide counts by numbers, with NaN where the number is 0."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(number > 0, counts / number, np.nan))


def task_accuracy(
    predicted: npt.NDArray[Any], items: EvaluationItems, *, average: str = "micro"
) -> Floats:
    """Compute the accuracy on each task's items, [..., T]; NaN for a task without items.

    Parameters
    ----------
    average
        ``micro`` counts items, ``macro`` averages the accuracies of the task's classes.
    """
    check_choice("average", average, ["micro", "macro"])
    if average == "macro":
        return macro_average(class_table(predicted, items).accuracy)
    right = np.asarray(mark_hits(predicted, items).any(axis=-1))  # [..., n]
    size = np.bincount(items.task, minlength=items.tasks)
    return divide_counts(_count_in_cells(right, items.task, items.tasks), size)


def macro_average(accuracy: Floats) -> Floats:
    """Average over the classes present, [..., T, C] -> [..., T]."""
    present = ~np.isnan(accuracy)
    number = present.sum(axis=-1)
    total = np.where(present, accuracy, 0.0).sum(axis=-1)
    return np.asarray(np.where(number > 0, total / np.maximum(number, 1), np.nan))


def accuracy_matrix(
    scores: Any, items: EvaluationItems, *, head: str, average: str = "micro", stages: Any = None
) -> Floats:
    """Compute the accuracy after every stage on every task, future tasks included.

    Parameters
    ----------
    scores
        One [..., n, C] array per stage.
    stages
        The stage of each array; default 0, 1, 2, ...

    Returns
    -------
    [..., stage, task]
    """
    numbers = range(len(scores)) if stages is None else stages
    rows = [
        task_accuracy(predict(one, items, stage=k, head=head), items, average=average)
        for k, one in zip(numbers, scores, strict=True)
    ]
    return np.stack(rows, axis=-2)


def predicted_share(predicted: npt.NDArray[Any], items: EvaluationItems, *, stage: int) -> Floats:
    """Compute the share of predictions in each column, [..., C], over the tasks seen so far."""
    seen = items.counted(stage)
    if predicted.dtype == np.bool_:
        return np.asarray(predicted[..., seen, :].mean(axis=-2))
    chosen = predicted[..., seen]
    flat = chosen.reshape(math.prod(chosen.shape[:-1]), chosen.shape[-1])
    counts = np.array([np.bincount(one, minlength=items.width) for one in flat])
    return np.asarray(counts.reshape(*chosen.shape[:-1], -1) / max(chosen.shape[-1], 1))


def confusion(predicted: npt.NDArray[Any], items: EvaluationItems, *, stage: int) -> Floats:
    """Count true (row) by predicted (column) labels among the tasks seen so far, [C, C].

    An item with several labels counts in the row of each label introduced so far, and only once if
    several tasks test it.
    """
    seen = items.counted(stage)
    truth = true_sets(items, stage=stage)[seen].astype(np.float64)
    if predicted.dtype == np.bool_:
        counted = predicted[seen].astype(np.float64)
    else:
        counted = (predicted[seen][:, None] == np.arange(items.width)).astype(np.float64)
    return np.asarray(truth.T @ counted)


def true_sets(items: EvaluationItems, *, stage: int) -> Bools:
    """Mark the true labels of each item among the columns introduced by `stage`, [n, C]."""
    truth = np.zeros((len(items), items.width + 1), np.bool_)
    np.put_along_axis(truth, np.where(items.targets < 0, items.width, items.targets), True, axis=1)
    return np.asarray(truth[:, : items.width] & (items.opening <= stage))


def set_scores(
    sets: Bools, items: EvaluationItems, *, stage: int, score: str = "precision_weighted_jaccard"
) -> Floats:
    """Compute the multi-label score on each task's items, [T]; NaN for tasks after `stage`.

    True labels are those of classes introduced by `stage`, so they grow from stage to stage.
    """
    numbers = np.arange(items.tasks)[:, None]
    member = (items.task == numbers) & (numbers <= stage)  # [T, n]
    return np.array([_set_score(sets, items, stage, score, rows) for rows in member])


def overall_set_score(
    sets: Bools, items: EvaluationItems, *, stage: int, score: str = "precision_weighted_jaccard"
) -> float:
    """Compute the multi-label score over all tasks up to `stage`, each row of the data once."""
    return _set_score(sets, items, stage, score, items.counted(stage))


def _set_score(sets: Bools, items: EvaluationItems, stage: int, score: str, rows: Bools) -> float:
    from engram import metrics

    check_choice("score", score, SET_SCORES)
    truth = true_sets(items, stage=stage)
    labelled = rows & truth.any(axis=1)
    if not labelled.any():
        return float("nan")
    return float(getattr(metrics, score)(truth[labelled], sets[labelled]))


def probabilities(scores: Any, items: EvaluationItems, *, stage: int, head: str) -> Floats:
    """Compute the softmax over the open columns, [..., n, C]."""
    table = _check_scores(scores, items).astype(np.float64)
    mask = open_columns(items, stage=stage, head=head)
    shown = np.where(mask, table, -np.inf)
    powers = np.exp(shown - shown.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def calibration_error(
    scores: Any, items: EvaluationItems, *, stage: int, head: str, bins: int = 15
) -> float:
    """Compute the expected calibration error over the items of the tasks seen so far.

    For label sets it compares the sigmoid of every open label with the label's presence.
    """
    from engram import metrics

    seen = items.counted(stage)
    if items.multilabel:
        probability = 1 / (1 + np.exp(-_check_scores(scores, items)[seen].astype(np.float64)))
        truth, among = true_sets(items, stage=stage), open_columns(items, stage=stage, head=head)
        return metrics.label_calibration_error(
            truth[seen], probability, within=among[seen], bins=bins
        )
    likely = probabilities(scores, items, stage=stage, head=head)[seen]
    return float(metrics.expected_calibration_error(likely, items.targets[seen, 0], bins=bins))
