"""The score of a task: accuracy for one label per item, set scores for label sets."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from engram.errors import bad
from engram.records import head_views
from engram.records.head_views import FIGURES, SET_SCORES
from engram.records.scored_items import EvaluationItems

# names in tables and figures
SCORE_TITLES = {
    "accuracy": "accuracy", "exact_match": "exact match", "jaccard": "Jaccard",
    "precision_weighted_jaccard": "pw-Jaccard",
}  # fmt: skip


SCORE_WORDS = {**SCORE_TITLES, "precision_weighted_jaccard": "precision-weighted Jaccard"}


def average_name(figure: str) -> str:
    """Return the name of the metric that sums up a run scored by `figure`.

    Label sets are scored over all test rows of the tasks so far, each once, so the metric is no
    average over tasks.

    Examples
    --------
    >>> average_name("accuracy"), average_name("jaccard")
    ('average_accuracy', 'jaccard')
    """
    return "average_accuracy" if figure == FIGURES[0] else figure


def learning_name(figure: str) -> str:
    """Return the name of the metric of tasks that were just learnt.

    Examples
    --------
    >>> learning_name("precision_weighted_jaccard")
    'learning_precision_weighted_jaccard'
    """
    return f"learning_{figure}"


def decide_predictions(
    scores: Any, items: EvaluationItems, *, stage: int, head: str, threshold: float = 0.0
) -> npt.NDArray[Any]:
    """Predict columns [..., n], or label sets [..., n, C] for multi-label items."""
    if items.multilabel:
        return head_views.predict_sets(scores, items, stage=stage, head=head, threshold=threshold)
    return head_views.predict(scores, items, stage=stage, head=head)


def figure_of(items: EvaluationItems) -> str:
    """Return the score that fits the labels of these items."""
    return SET_SCORES[-1] if items.multilabel else FIGURES[0]


def check_average(average: str, *, sets: bool) -> None:
    """Raise for a mean over classes if rows have label sets, which are scored row by row.

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
    """Compute the figure on each task's items, [T]; it must fit the items' labels."""
    fitting = SET_SCORES if items.multilabel else FIGURES[:1]
    if figure not in fitting:
        labels = "sets of labels" if items.multilabel else "single labels"
        raise bad("score", f"{' or '.join(fitting)}, since the items carry {labels}", figure)
    if items.multilabel:
        return head_views.set_scores(predicted, items, stage=stage, score=figure)
    return head_views.task_accuracy(predicted, items, average=average)
