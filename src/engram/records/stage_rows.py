"""Rows of the long table from the scores after one stage, of one run or of many at once.

A study of orders records a thousand runs per stage, each with its own order of test items. One
run at a time, most of the time would go into function calls.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engram.records import head_views, prediction_scoring
from engram.records.label_tree import label_views
from engram.records.long_table import Rows
from engram.records.predictions import as_float32_scores
from engram.records.scored_items import Bools, EvaluationItems, Ints


def record_stage(
    rows: Rows, scores: Any, items: EvaluationItems, *, stage: int, average: str = "micro"
) -> None:
    """Add the rows of one run, to which `rows` is bound; see `add_stage`.

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
    >>> rows = Rows(recipe="r", label="ER", seed=0)
    >>> record_stage(rows, [[0.1, 2.0], [3.0, 4.0]], items, stage=1)
    >>> table = rows.frame().query("metric == 'accuracy' and head == 'single'")
    >>> table[["task", "value"]].values.tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    found = Rows(runs=1)
    add_stage(found, [scores], [items], stage=stage, average=average)
    rows.add_stage(found, stage=stage)


def stacking_key(items: EvaluationItems, stage: int) -> Any:
    """Return a key of runs that can be counted together; None for runs counted alone."""
    if items.multilabel or items.targets.shape[1] != 1 or items.targets.min(initial=0) < 0:
        return None
    cells = np.count_nonzero(np.bincount(items.task * items.width + items.targets[:, 0]))
    opened = int((items.opening <= stage).sum())
    return items.scored_tasks(stage), items.tasks, items.width, int(cells), opened, items.heads


def add_stage(
    rows: Rows,
    scores: Sequence[Any],
    items: Sequence[EvaluationItems],
    *,
    stage: int,
    average: str,
    whole: Sequence[EvaluationItems] | None = None,
) -> None:
    """Add accuracy, class_accuracy, class_count and predicted rows of every head view.

    Items with sets of labels have no accuracy: precision_weighted_jaccard rows of each task take
    their place, and the three set scores over all seen items follow with task -1, as does
    the class_accuracy of each label over all seen items: an image that several tasks test counts
    once there.

    Parameters
    ----------
    scores, items
        [n, C] of each run; all items must have the same `stacking_key`, n may differ. `items` are
        those that were scored, `whole` those of all tasks. Scores are compared in full
        precision, before they are rounded for storage; stored predictions reproduce every
        number.
    """
    counts = make_counts(items, stage)
    every = stack_scores(scores)  # [R, n, C]
    for head in items[0].heads:
        predicted = counts.decide(every, head)
        add_predicted(rows, predicted, counts, stage=stage, head=head, average=average)
    if stage == 0:  # of all tasks, from which readers also know how many there are
        counts = counts if whole is None else make_counts(whole, stage)
        cells, place = counts.cells
        rows.add("class_count", counts.number[cells], **place)


def stack_scores(scores: Sequence[Any]) -> npt.NDArray[np.float32]:
    """Stack scores [n, C] of R runs, [R, most, C]; runs with fewer items are padded with 0."""
    every = [as_float32_scores(one) for one in scores]
    most = max(map(len, every))
    if all(len(one) == most for one in every):
        return np.stack(every)
    padded = np.zeros((len(every), most, every[0].shape[1]), np.float32)
    for own, one in zip(padded, every, strict=True):
        own[: len(one)] = one
    return padded


def add_predicted(
    rows: Rows,
    predicted: npt.NDArray[Any],
    counts: PredictionCounts,
    *,
    stage: int,
    head: str,
    average: str = "micro",
    score: str | None = None,
) -> None:
    """Add the rows of one head view from predicted columns [R, n] or label sets [R, n, C].

    `score` is the figure of each task, and the metric of those rows; default ``accuracy``, or
    ``precision_weighted_jaccard`` for label sets.
    """
    first = counts.items[0]
    figure = score or prediction_scoring.figure_of(first)
    by_class = counts.class_accuracy(predicted)  # [R, T, C]
    if average == "macro" and figure == "accuracy":
        value = head_views.macro_average(by_class)
    else:
        value = counts.task_figure(predicted, figure)
    if first.multilabel:
        for name in head_views.SET_SCORES:
            rows.add(name, counts.overall(predicted, name), head=head)
    cells, place = counts.cells
    scored = np.arange(first.scored_tasks(stage))
    rows.add(figure, value[:, scored], task=scored, head=head)
    flat = by_class.reshape(len(by_class), -1)
    rows.add("class_accuracy", flat[cells], head=head, **place)
    # In the multi view a column of a later task cannot be predicted for a seen task's item.
    opened, classes = counts.opened
    if first.multilabel:
        once = np.stack([head_views.label_recall(one, first, stage=stage) for one in predicted])
        rows.add("class_accuracy", once[opened], cls=classes, head=head)
        views_of = [label_views(one, first, stage=stage) for one in predicted]
        for name in views_of[0]:
            rows.add(name, [one[name] for one in views_of], head=head)
    rows.add("predicted", counts.predicted_share(predicted)[opened], cls=classes, head=head)


class PredictionCounts(Protocol):
    """Counts of the predictions of R runs."""

    items: Sequence[EvaluationItems]
    stage: int
    number: Ints  # [R, T * C] items in each cell of the class table

    @property
    def cells(self) -> tuple[Any, dict[str, Any]]:
        """Return where a class table [R, T * C] has items, with the task and class of each."""

    @property
    def opened(self) -> tuple[Any, Ints]:
        """Return the open columns of [R, C], and their classes."""

    def decide(self, scores: npt.NDArray[Any], head: str) -> npt.NDArray[Any]: ...

    def class_accuracy(self, predicted: npt.NDArray[Any]) -> head_views.Floats: ...

    def task_figure(self, predicted: npt.NDArray[Any], figure: str) -> head_views.Floats: ...

    def overall(self, predicted: npt.NDArray[Any], score: str) -> head_views.Floats: ...

    def predicted_share(self, predicted: npt.NDArray[Any]) -> head_views.Floats: ...


def make_counts(items: Sequence[EvaluationItems], stage: int) -> PredictionCounts:
    """Make the counts of runs whose items have the same `stacking_key`."""
    return (
        _CountsOfOneRun(items, stage)
        if stacking_key(items[0], stage) is None
        else _CountsOfRuns(items, stage)
    )


class _CountsBase:
    def __init__(self, items: Sequence[EvaluationItems], stage: int) -> None:
        self.items, self.stage = items, stage
        self.number: Ints = np.empty((len(items), 0), np.int64)

    @functools.cached_property
    def cells(self) -> tuple[Any, dict[str, Any]]:
        runs, width = np.arange(len(self.items))[:, None], self.items[0].width
        cells = _true_places(self.number > 0)  # [R, m]
        task, column = np.divmod(cells, width)
        return (runs, cells), {"task": task, "cls": self._classes[runs, column]}

    @functools.cached_property
    def opened(self) -> tuple[Any, Ints]:
        runs = np.arange(len(self.items))[:, None]
        columns = _true_places(np.stack([one.opening <= self.stage for one in self.items]))
        return (runs, columns), self._classes[runs, columns]

    @functools.cached_property
    def _classes(self) -> Ints:
        return np.stack([one.classes for one in self.items])  # [R, C]


def _true_places(mask: Bools) -> Ints:
    """Return the indices of the k true entries of each row, ascending, [R, k]."""
    return np.nonzero(mask)[1].reshape(len(mask), -1)


class _CountsOfOneRun(_CountsBase):
    """Counts of one run: label sets, and items with several labels or none."""

    def __init__(self, items: Sequence[EvaluationItems], stage: int) -> None:
        super().__init__(items, stage)
        (self.one,) = items
        nothing = np.zeros(len(self.one), np.int64)
        self.number = head_views.class_table(nothing, self.one).number.reshape(1, -1)

    def decide(self, scores: npt.NDArray[Any], head: str) -> npt.NDArray[Any]:
        return prediction_scoring.decide_predictions(scores, self.one, stage=self.stage, head=head)

    def class_accuracy(self, predicted: npt.NDArray[Any]) -> head_views.Floats:
        return head_views.class_table(predicted[0], self.one).accuracy[None]

    def task_figure(self, predicted: npt.NDArray[Any], figure: str) -> head_views.Floats:
        return prediction_scoring.task_figure(
            predicted[0], self.one, stage=self.stage, figure=figure
        )[None]

    def overall(self, predicted: npt.NDArray[Any], score: str) -> head_views.Floats:
        found = head_views.overall_set_score(predicted[0], self.one, stage=self.stage, score=score)
        return np.asarray(found)[None]

    def predicted_share(self, predicted: npt.NDArray[Any]) -> head_views.Floats:
        return head_views.predicted_share(predicted[0], self.one, stage=self.stage)[None]


class _CountsOfRuns(_CountsBase):
    """Counts of R runs with one label per item."""

    def __init__(self, items: Sequence[EvaluationItems], stage: int) -> None:
        super().__init__(items, stage)
        self.runs, self.tasks, self.width = len(items), items[0].tasks, items[0].width
        # [R, n]; runs in other orders of tasks may have fewer items, and are padded
        self.real = np.arange(max(map(len, items))) < np.array([[len(one)] for one in items])
        self.task, self.target = np.zeros((2, *self.real.shape), np.int64)
        self.task[self.real] = np.concatenate([one.task for one in items])
        self.target[self.real] = np.concatenate([one.targets[:, 0] for one in items])
        self._cell = self.task * self.width + self.target  # [R, n] of the flat class table
        self.number = self._count(self._cell, self.real, self.tasks * self.width)

    def _count(self, place: npt.NDArray[Any], which: Bools, size: int) -> Ints:
        """Count how often each cell [R, n] occurs among the chosen items of each run, [R, size]."""
        own = place + np.arange(self.runs)[:, None] * size
        found = np.bincount(own[which], minlength=self.runs * size)
        return found.reshape(self.runs, size)

    def decide(self, scores: npt.NDArray[Any], head: str) -> Ints:
        """Predict as `head_views.predict` does, [R, n]."""
        if head == "multi":
            visible = np.stack([one.visible for one in self.items])  # [R, T, C]
            mask = visible[np.arange(self.runs)[:, None], self.task]  # [R, n, C]
        else:
            mask = np.stack([one.opening <= self.stage for one in self.items])[:, None, :]
        return head_views.best_open_columns(scores, mask)

    def class_accuracy(self, predicted: npt.NDArray[Any]) -> head_views.Floats:
        hit = (predicted == self.target) & self.real
        right = self._count(self._cell, hit, self.tasks * self.width)
        return head_views.divide_counts(right, self.number).reshape(
            self.runs, self.tasks, self.width
        )

    def task_figure(self, predicted: npt.NDArray[Any], figure: str) -> head_views.Floats:
        if figure != head_views.FIGURES[0]:
            one = prediction_scoring.task_figure(
                predicted[0], self.items[0], stage=self.stage, figure=figure
            )
            return one[None]  # unreachable: single labels have no other figure
        hit = (predicted == self.target) & self.real
        size = self._count(self.task, self.real, self.tasks)
        return head_views.divide_counts(self._count(self.task, hit, self.tasks), size)

    def overall(self, predicted: npt.NDArray[Any], score: str) -> head_views.Floats:
        found = head_views.overall_set_score(
            predicted, self.items[0], stage=self.stage, score=score
        )
        return np.asarray(found)

    def predicted_share(self, predicted: npt.NDArray[Any]) -> head_views.Floats:
        seen = (self.task <= self.stage) & self.real
        size = np.maximum(seen.sum(1), 1)[:, None]
        return np.asarray(self._count(predicted, seen, self.width) / size)
