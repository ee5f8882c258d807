"""Confusion between classes and confidence of predictions after the last stage of runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engram.records import head_views
from engram.records.predictions import Prediction
from engram.records.run_arrays import Floats, RunKey
from engram.records.scored_items import EvaluationItems

if TYPE_CHECKING:
    from engram.records.result import Result

BINS = 10  # bins of confidence
MOST_RUNS = 20  # runs read per recipe: thousands would take minutes
MOST_RECIPES = 1000  # recipes, those of the best runs: as many as a table of the report shows
MOST_CLASSES = 60  # above this, confusion is counted between tasks


class FinalAnswers(NamedTuple):
    """Confusion and confidence of the runs of one recipe in one head view, after the last stage.

    `confusion` has shares of each true class (row) by predicted class; classes in order of
    introduction, or by number where runs meet them in different orders, and tasks where there are
    more than `MOST_CLASSES`. The bins of `confidence`, from 0 to 1, hold sums over all runs.
    """

    recipe: str
    head: str
    runs: int
    names: tuple[str, ...]  # of rows and columns
    confusion: Floats  # [C, C], mean over runs
    number: Floats  # [bin] items
    confidence: Floats  # [bin] sum of the largest probability
    right: Floats  # [bin] items that were right
    errors: Floats  # [run] expected calibration error


def count_confusions(result: Result) -> list[FinalAnswers]:
    """Count the final predictions of recipes that kept them; label sets are left out.

    Of more than `MOST_RECIPES`, those whose runs have the highest scores.

    Examples
    --------
    >>> import engram
    >>> result = engram.run(engram.load("blobs", classes=4), device="cpu")
    >>> [(one.head, one.confusion.shape, len(one.errors)) for one in count_confusions(result)]
    [('single', (4, 4), 1), ('multi', (4, 4), 1)]
    """
    found: list[FinalAnswers] = []
    for recipe, runs in _list_finished_runs(result).items():
        kept = list(_load_predictions(result, runs))
        if kept:
            orders = {items.classes.tobytes() for _, items, _ in kept}
            found += [
                _count_answers(recipe, head, kept, len(orders) > 1) for head in kept[0][1].heads
            ]
    return found


KeptPrediction = tuple[int, EvaluationItems, Prediction]


def _list_finished_runs(result: Result) -> dict[str, list[tuple[RunKey, int]]]:
    """List the finished runs of each recipe with their last stages, at most `MOST_RUNS`."""
    found: dict[str, list[tuple[RunKey, int]]] = {}
    for run, tasks in zip(result.runs, result.tasks.tolist(), strict=True):
        if run not in result.diverged and result.stages[run][-1:] == [tasks - 1]:
            found.setdefault(run.recipe, []).append((run, tasks - 1))
    chosen = found if len(found) <= MOST_RECIPES else _choose_recipes(result, found)
    return {recipe: found[recipe][:MOST_RUNS] for recipe in chosen}


def _choose_recipes(result: Result, recipes: Iterable[str]) -> list[str]:
    """Choose the recipes with the highest mean scores after the last stage, in their order."""
    last = result.matrix[np.arange(len(result)), np.maximum(result.tasks - 1, 0)]  # [run, task]
    known = np.isfinite(last)
    score = np.where(known, last, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    place = {recipe: number for number, recipe in enumerate(recipes)}
    number = np.array([place.get(run.recipe, -1) for run in result.runs], np.int64)
    sums = np.bincount(number[number >= 0], score[number >= 0], len(place))
    means = sums / np.bincount(number[number >= 0], minlength=len(place))
    best = np.sort(np.argsort(-means, kind="stable")[:MOST_RECIPES])
    every = list(place)
    return [every[one] for one in best]


def _load_predictions(
    result: Result, runs: Sequence[tuple[RunKey, int]]
) -> Iterator[KeptPrediction]:
    """Yield last stage, items and prediction of runs, where they were kept."""
    for run, stage in runs:
        items = result.items(run.recipe, run.order)
        kept = result.predictions.get(*run, stage)
        if items is not None and kept is not None and not items.multilabel:
            yield stage, kept.scored(items), kept


def _count_answers(
    recipe: str, head: str, kept: list[KeptPrediction], by_number: bool
) -> FinalAnswers:
    shares, errors, binned = [], [], np.zeros((3, BINS))
    for stage, items, one in kept:
        counts = head_views.confusion(one.predicted(items, head=head), items, stage=stage)
        if needs_task_axis(items):
            member = (items.opening[:, None] == np.arange(items.tasks)).astype(np.float64)  # [C, T]
            counts = member.T @ counts @ member
        elif by_number:
            place = np.argsort(items.classes)
            counts = counts[np.ix_(place, place)]
        shares.append(_normalise_rows(counts))
        if one.scores is not None:
            scores = one.full()
            binned += confidence_bins(scores, items, stage=stage, head=head)
            error = head_views.calibration_error(scores, items, stage=stage, head=head)
            errors.append(error)
    _, items, _ = kept[0]
    names = items.names
    if needs_task_axis(items):
        names = tuple(f"task {k + 1}" for k in range(items.tasks))
    elif by_number:
        names = tuple(items.names[place] for place in np.argsort(items.classes))
    stacked = np.stack(shares)  # [run, C, C]
    known = np.isfinite(stacked)
    total = np.where(known, stacked, 0.0).sum(axis=0)
    mean = np.divide(total, known.sum(axis=0), out=np.full(total.shape, np.nan),
                     where=known.any(axis=0))  # fmt: skip
    number, sure, right = binned
    return FinalAnswers(recipe, head, len(kept), names, mean, number, sure, right, np.array(errors))


def needs_task_axis(items: EvaluationItems) -> bool:
    """Whether there are too many classes for a figure, and tasks to group them by."""
    return items.width > MOST_CLASSES and len(np.unique(items.opening)) > 1


def _normalise_rows(counts: Floats) -> Floats:
    total = counts.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(counts, total, out=np.full(counts.shape, np.nan), where=total > 0))


def confidence_bins(scores: Floats, items: EvaluationItems, *, stage: int, head: str) -> Floats:
    """Count items, confidence and correct predictions per bin, [3, bin], over the tasks so far.

    Confidence is the largest probability, its column the prediction; bins are (i/n, (i + 1)/n].

    Examples
    --------
    >>> items = EvaluationItems(
    ...     rows=[0, 1],
    ...     task=[0, 0],
    ...     targets=[0, 1],
    ...     opening=[0, 0],
    ...     visible=[[1, 1]],
    ...     classes=[0, 1],
    ... )
    >>> confidence_bins([[3.0, 0.0], [0.0, -3.0]], items, stage=0, head="single")[:, -1].round(3)
    array([2.   , 1.905, 1.   ])
    """
    seen = items.counted(stage)
    likely = head_views.probabilities(scores, items, stage=stage, head=head)[seen]
    confidence = np.minimum(likely.max(axis=1), 1.0)
    right = likely.argmax(axis=1) == items.targets[seen, 0]
    edges = np.linspace(0.0, 1.0, BINS + 1)
    slot = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, BINS - 1)
    weights = (np.ones(len(slot)), confidence, right.astype(np.float64))
    return np.stack([np.bincount(slot, weights=one, minlength=BINS) for one in weights])
