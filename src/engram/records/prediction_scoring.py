"""How predictions are judged: one label by accuracy, sets of labels by the scores of sets."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from engram.errors import bad
from engram.records import head_views
from engram.records.head_views import FIGURES, SET_SCORES
from engram.records.scored_items import EvaluationItems

# as tables and figures call them
SCORE_TITLES = {
    "accuracy": "accuracy", "exact_match": "exact match", "jaccard": "Jaccard",
    "precision_weighted_jaccard": "pw-Jaccard",
}  # fmt: skip


SCORE_WORDS = {**SCORE_TITLES, "precision_weighted_jaccard": "precision-weighted Jaccard"}


def average_name(figure: str) -> str:
    """The metric that sums up a run judged by `figure`.

    Label sets are counted over all test rows of the tasks so far, each once, so that theirs is no
    average of tasks.

    Examples
    --------
    >>> average_name("accuracy"), average_name("jaccard")
    ('average_accuracy', 'jaccard')
    """
    return "average_accuracy" if figure == FIGURES[0] else figure


def learning_name(figure: str) -> str:
    """The metric of tasks that were just learnt.

    Examples
    --------
    >>> learning_name("precision_weighted_jaccard")
    'learning_precision_weighted_jaccard'
    """
    return f"learning_{figure}"


def decide_predictions(
    scores: Any, items: EvaluationItems, *, stage: int, head: str, threshold: float = 0.0
) -> npt.NDArray[Any]:
    """Predicted columns [..., n], or label sets [..., n, C] where items carry sets of labels."""
    if items.multilabel:
        return head_views.predict_sets(scores, items, stage=stage, head=head, threshold=threshold)
    return head_views.predict(scores, items, stage=stage, head=head)


def figure_of(items: EvaluationItems) -> str:
    """What predictions for these items are judged by."""
    return SET_SCORES[-1] if items.multilabel else FIGURES[0]


def check_average(average: str, *, sets: bool) -> None:
    """Refuse a mean over classes where rows carry sets of labels, which are scored row by row.

    Examples
    --------
    >>> check_average("macro", sets=True)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: average: expected 'micro', because rows carry sets of labels, which \
are scored row by row, got 'macro'
    """
    if sets and average != "micro":
        expected = "'micro', because rows carry sets of labels, which are scored row by row"
        raise bad("average", expected, average)


def task_figure(
    predicted: npt.NDArray[Any],
    items: EvaluationItems,
    *,
    stage: int,
    figure: str,
    average: str = "micro",
) -> head_views.Floats:
    """[T] the figure on each task's items; it must be one that fits the items' labels."""
    fitting = SET_SCORES if items.multilabel else FIGURES[:1]
    if figure not in fitting:
        labels = "sets of labels" if items.multilabel else "single labels"
        raise bad("score", f"{' or '.join(fitting)}, since the items carry {labels}", figure)
    if items.multilabel:
        return head_views.set_scores(predicted, items, stage=stage, score=figure)
    return head_views.task_accuracy(predicted, items, average=average)
