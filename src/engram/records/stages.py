"""The rows that describe one run after one stage, computed from its scores."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.records import judging, views
from engram.records.items import Items
from engram.records.table import Rows, whole_or_refuse


def record_stage(
    rows: Rows, scores: Any, items: Items, *, stage: int, average: str = "micro", **run: Any
) -> None:
    """Add accuracy, class_accuracy, class_count and predicted rows of both head views.

    Items with sets of labels have no accuracy: precision_weighted_jaccard rows of each task take
    its place, and the three scores of label sets over all seen items follow with task -1.

    Parameters
    ----------
    rows
        Receives the numbers; it knows the run, unless `run` (recipe, label, seed, order) says it.
    scores
        [n, C]; they are rounded as they are when stored, so stored scores repeat every number.

    Examples
    --------
    >>> items = Items(rows=[0, 1], task=[0, 1], targets=[0, 1], opening=[0, 1],
    ...               visible=[[1, 0], [0, 1]], classes=[7, 3])
    >>> rows = Rows(recipe="r", label="ER", seed=0)
    >>> record_stage(rows, [[0.1, 2.0], [3.0, 4.0]], items, stage=1)
    >>> table = rows.frame().query("metric == 'accuracy' and head == 'single'")
    >>> table[["task", "value"]].values.tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    rounded = views.round_scores(scores)
    for head in views.HEADS:
        said = judging.decide(rounded, items, stage=stage, head=head)
        add_predicted(rows, said, items, stage=stage, head=head, average=average, **run)
    if stage == 0:
        layout = _layout(items, stage)
        place = {"task": layout.task, "cls": layout.cls}
        rows.add_array("class_count", layout.number, stage=0, **place, **run)


class _Layout(NamedTuple):
    """Which rows describe a stage, whatever was predicted."""

    tasks: npt.NDArray[Any]  # [T] all tasks
    where: tuple[npt.NDArray[Any], ...]  # [m] each cells of the class table that hold items
    task: npt.NDArray[Any]  # [m] of these cells
    cls: npt.NDArray[Any]  # [m]
    number: npt.NDArray[Any]  # [m] items in them
    opened: npt.NDArray[Any]  # columns opened so far
    opened_cls: npt.NDArray[Any]


@functools.lru_cache(maxsize=4)  # runs that share their items are recorded one after the other
def _layout(items: Items, stage: int) -> _Layout:
    number = views.class_table(np.zeros(len(items), np.int64), items).number
    where = np.nonzero(number)
    opened = np.flatnonzero(items.opening <= stage)
    return _Layout(
        tasks=whole_or_refuse("task", np.arange(items.tasks)),
        where=where,
        task=whole_or_refuse("task", where[0]),
        cls=whole_or_refuse("cls", items.classes[where[1]]),
        number=number[where],
        opened=opened,
        opened_cls=whole_or_refuse("cls", items.classes[opened]),
    )


def add_predicted(
    rows: Rows,
    said: npt.NDArray[Any],
    items: Items,
    *,
    stage: int,
    head: str,
    average: str = "micro",
    score: str | None = None,
    **run: Any,
) -> None:
    """Add the rows of one head view from predicted columns [n] or label sets [n, C].

    `score` is what each task is judged by, and the name of those rows; default ``accuracy``, or
    ``precision_weighted_jaccard`` for label sets.
    """
    figure = score or judging.figure_of(items)
    place = {"stage": stage, "head": head, **run}
    by_class = views.class_table(said, items).accuracy
    if average == "macro" and figure == "accuracy":
        value = views.macro(by_class)
    else:
        value = judging.task_figure(said, items, stage=stage, figure=figure)
    if items.multilabel:
        for name in views.SET_SCORES:
            overall = views.overall_set_score(said, items, stage=stage, score=name)
            rows.add(name, overall, **place)
    layout = _layout(items, stage)
    rows.add_array(figure, value, task=layout.tasks, **place)
    rows.add_array(
        "class_accuracy", by_class[layout.where], task=layout.task, cls=layout.cls, **place
    )
    share = views.predicted_share(said, items, stage=stage)[layout.opened]
    # In the multi view a column of a later task cannot be predicted for a seen task's item.
    rows.add_array("predicted", share, cls=layout.opened_cls, **place)
