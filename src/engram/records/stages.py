"""The rows that describe one run after one stage, computed from its scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engram.errors import bad
from engram.records import views
from engram.records.items import Items
from engram.records.table import Rows


def record_stage(
    rows: Rows, scores: Any, items: Items, *, stage: int, average: str = "micro", **run: Any
) -> None:
    """Add accuracy, class_accuracy, class_count and predicted rows of both head views.

    For multi-label items `accuracy` is the precision-weighted Jaccard score, and the three
    multi-label scores over all seen items follow with task -1.

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
        if items.multilabel:
            said: npt.NDArray[Any] = views.predict_sets(rounded, items, stage=stage, head=head)
        else:
            said = views.predict(rounded, items, stage=stage, head=head)
        add_predicted(rows, said, items, stage=stage, head=head, average=average, **run)
    if stage == 0:
        table = views.class_table(np.zeros(len(items), np.int64), items)
        task, column = np.nonzero(table.number)
        cls = items.classes[column]
        rows.add_array(
            "class_count", table.number[task, column], stage=0, task=task, cls=cls, **run
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

    `score` is what the accuracy rows hold; default ``accuracy``, or the precision-weighted Jaccard
    score for label sets.
    """
    if score in views.SET_SCORES and not items.multilabel:
        raise bad("score", "accuracy, since the predictions are single labels", score)
    place = {"stage": stage, "head": head, **run}
    if items.multilabel and score != "accuracy":
        chosen = score or "precision_weighted_jaccard"
        accuracy = views.set_scores(said, items, stage=stage, score=chosen)
    else:
        accuracy = views.task_accuracy(said, items, average=average)
    if items.multilabel:
        for name in views.SET_SCORES:
            overall = views.overall_set_score(said, items, stage=stage, score=name)
            rows.add(name, overall, **place)
    rows.add_array("accuracy", accuracy, task=np.arange(items.tasks), **place)
    table = views.class_table(said, items)
    task, column = np.nonzero(table.number)
    cls, value = items.classes[column], table.accuracy[task, column]
    rows.add_array("class_accuracy", value, task=task, cls=cls, **place)
    opened = np.flatnonzero(items.opening <= stage)
    share = views.predicted_share(said, items, stage=stage)
    # In the multi view a column of a later task cannot be predicted for a seen task's item.
    rows.add_array("predicted", share[opened], cls=items.classes[opened], **place)
