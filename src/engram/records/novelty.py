"""What a continual learner finds familiar: sets of test items, and detectors compared on them.

After stage t a test item of task i is *inside* if the model is right about it now, *forgotten* if
it was right after the item's own stage and is wrong now, and *outside* if its task is still to
come. Items that were never right belong to no set. Everything here comes from records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.errors import RecordError, bad
from engram.metrics.novelty import aupr_in, auroc, detection_error, fpr_at_tpr
from engram.metrics.pairs import mean_over_tasks, pair_scores
from engram.records.arrange import RunKey
from engram.records.items import Items

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

FAMILIARITY = "familiarity"  # the array [heads, n] that a detector stores; higher is more familiar
CALIBRATION = "calibration"  # [V] scores of validation rows that the network gets right, else NaN
TUNING = "tuning"  # [G] area under the curve of each combination that was tried for a detector
GRID = "grid"  # the combinations: text in bytes
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sets:
    """Places of test items after a stage: a list of arrays, task by task.

    `inside` and `forgotten` have an entry for every task learnt so far (nothing of the newest task
    can be forgotten), `outside` one for every task to come.
    """

    stage: int
    inside: list[Ints]
    forgotten: list[Ints]
    outside: list[Ints]

    def __repr__(self) -> str:
        def sizes(sets: Sequence[Ints]) -> str:
            return "+".join(str(len(one)) for one in sets) or "0"

        return (
            f"Sets(after stage {self.stage + 1}: {sizes(self.inside)} inside, "
            f"{sizes(self.forgotten)} forgotten, {sizes(self.outside)} outside)"
        )


def sets_of(right_then: Any, right_now: Any, task: Any, stage: int) -> Sets:
    """Sets from who was right [n] after the item's own stage, who is now, and each item's task.

    Examples
    --------
    >>> then, now = [1, 1, 1, 0, 1, 0], [1, 0, 1, 1, 0, 0]
    >>> sets = sets_of(then, now, task=[0, 0, 0, 0, 0, 2], stage=1)
    >>> sets.inside[0].tolist(), sets.forgotten[0].tolist(), sets.outside[0].tolist()
    ([0, 2, 3], [1, 4], [5])
    """
    then, now, task = (np.asarray(one) for one in (right_then, right_now, task))
    then, now = then.astype(np.bool_), now.astype(np.bool_)
    last = int(task.max(initial=stage))
    return Sets(
        stage,
        inside=[np.flatnonzero((task == i) & now) for i in range(stage + 1)],
        forgotten=[np.flatnonzero((task == i) & then & ~now) for i in range(stage + 1)],
        outside=[np.flatnonzero(task == j) for j in range(stage + 1, last + 1)],
    )


def sets(result: Result, run: RunKey | int, stage: int) -> Sets:
    """See `Result.sets`."""
    number = result.number_of(run)
    who, head = result.runs[number], result.heads[number]
    items = result.items(who.recipe, who.order)
    if items is None:
        raise RecordError(f"{_named(who)}: its test items were not kept (keep='labels' keeps them)")
    if items.multilabel:
        raise bad("run", "a run that predicts one label per item", "one with sets of labels")
    if not isinstance(stage, (int, np.integer)) or not 0 <= stage < items.tasks:
        raise bad("stage", f"a number from 0 to {items.tasks - 1}", stage)
    stage = int(stage)
    right = [_right(result, who, items, head, k) for k in range(stage + 1)]
    then = right[-1].copy()
    for k, own in enumerate(right):
        then[items.task == k] = own[items.task == k]
    return sets_of(then, right[-1], items.task, stage)


def _right(
    result: Result, run: RunKey, items: Items, head: str, stage: int
) -> npt.NDArray[np.bool_]:
    kept = result.predictions.get(*run, stage)
    if kept is None:
        what = f"predictions of stage {stage + 1} were not kept (keep='labels')"
        raise RecordError(f"{_named(run)}: {what}")
    said = kept.predicted(items, head=head)
    found: npt.NDArray[np.bool_] = said == items.targets[:, 0]
    return found


def compare(familiarity: npt.NDArray[Any], sets: Sets) -> dict[str, float]:
    """Every comparison of the three sets after one stage, for scores [heads, n].

    With several heads, items of task i are scored under head i and those of tasks to come under
    every head; with one, all items share it. NaN where a set is empty. An item whose score is no
    number is the least familiar of all, as for alarms.
    """
    familiarity = np.where(np.isnan(familiarity), -np.inf, familiarity)
    t, heads = sets.stage, len(familiarity)
    if heads not in (1, t + 1):
        raise bad("familiarity", f"1 or {t + 1} heads after stage {t + 1}", heads)
    under = [familiarity[i if heads > 1 else 0] for i in range(t + 1)]
    inside = [under[i][sets.inside[i]] for i in range(t + 1)]
    forgotten = [under[i][sets.forgotten[i]] for i in range(t + 1)]
    found: dict[str, float] = {}
    if sets.outside:
        outside = [[under[i][one] for one in sets.outside] for i in range(t + 1)]
        found |= _inside_outside(inside, outside)
        pooled = [np.concatenate(row) for row in outside]
        for name, metric in (("auroc", auroc), ("detection_error", detection_error)):
            past = mean_over_tasks(forgotten[:t], pooled[:t], metric=metric)
            found[f"forgotten_outside_{name}"] = past
    if t:
        for name, metric in (("auroc", auroc), ("detection_error", detection_error)):
            value = mean_over_tasks(inside[:t], forgotten[:t], metric=metric)
            found[f"inside_forgotten_{name}"] = value
    return found


def _inside_outside(inside: list[Any], outside: list[list[Any]]) -> dict[str, float]:
    pairs = pair_scores(inside, outside)
    found = {
        "recent_auroc": pairs.recent, "previous_auroc": pairs.previous, "mean_auroc": pairs.mean,
        "combined_auroc": pairs.combined,
    }  # fmt: skip
    further = {"aupr_in": aupr_in, "detection_error": detection_error, "fpr95": fpr_at_tpr}
    means = {k: pair_scores(inside, outside, metric=metric).mean for k, metric in further.items()}
    return found | means


class Familiarity(NamedTuple):
    """Scores of the three sets after a stage, tasks pooled, each under its head."""

    recipe: str
    detector: str
    stage: int
    inside: npt.NDArray[Any]
    forgotten: npt.NDArray[Any]
    outside: npt.NDArray[Any]  # under every head, one after the other


def pooled(familiarity: npt.NDArray[Any], sets: Sets) -> list[npt.NDArray[Any]]:
    """Scores [heads, n] of the inside, forgotten and outside items.

    Examples
    --------
    >>> sets = sets_of([1, 1, 1, 0], [1, 0, 1, 0], task=[0, 0, 1, 2], stage=1)
    >>> [one.tolist() for one in pooled(np.array([[1, 2, 3, 4], [5, 6, 7, 8]]), sets)]
    [[1, 7], [2], [4, 8]]
    """
    under = [familiarity[i if len(familiarity) > 1 else 0] for i in range(sets.stage + 1)]
    known = [
        np.concatenate([own[one] for own, one in zip(under, kind, strict=True)])
        for kind in (sets.inside, sets.forgotten)
    ]
    out = [own[one] for own in under[: len(familiarity)] for one in sets.outside]
    return [*known, np.concatenate([under[0][:0], *out])]


def familiarity_of_first_runs(result: Result) -> list[Familiarity]:
    """Of the first run of every recipe, after the last stage that has tasks to come."""
    first: dict[str, RunKey] = {}
    for run in sorted(result.runs):
        first.setdefault(run.recipe, run)
    last: dict[tuple[RunKey, str], tuple[int, npt.NDArray[Any]]] = {}
    for moment, detector in sorted(result.stored):
        run = RunKey(*moment[:3])
        if first.get(run.recipe) != run:
            continue
        scores = result.stored.get(moment, detector).get(FAMILIARITY)
        if scores is not None and sets(result, run, moment.stage).outside:
            last[run, detector] = moment.stage, scores
    return [
        Familiarity(run.recipe, detector, stage, *pooled(scores, sets(result, run, stage)))
        for (run, detector), (stage, scores) in last.items()
    ]


def novelty(result: Result) -> pd.DataFrame:
    """See `Result.novelty`."""
    return summed(result, "label", result.run_labels)


def summed(result: Result, column: str, names: Sequence[str]) -> pd.DataFrame:
    """Mean and standard deviation over the runs of each name."""
    import pandas as pd

    lines = list(_lines(result, names))
    columns = [column, "detector", "stage", "metric", "value"]
    if not lines:
        raise RecordError(_unscored(result))
    frame = pd.DataFrame(lines, columns=columns)
    by = frame.groupby(columns[:-1], sort=False, observed=True)["value"]
    table = by.agg(["mean", "std", "count"]).reset_index()
    return table.rename(columns={"count": "runs"})


def _named(run: RunKey) -> str:
    return f"run {run.recipe}, seed {run.seed}" + (f", order {run.order}" if run.order else "")


def _unscored(result: Result) -> str:
    """Why there is nothing to compare."""
    diverged = sum(run in result.diverged for run in result.runs)
    if diverged:
        return f"no detector has scored these runs: {diverged} of {len(result.runs)} diverged"
    return (
        "no detector has scored these runs: name some by --detectors Softmax,Energy, in Python by "
        "engram.run(..., detectors=[...])"
    )


def stored_in_order(result: Result) -> list[tuple[Any, str]]:
    """What detectors have stored of the runs, in the order in which these were asked for."""
    place = {run: number for number, run in enumerate(result.runs)}
    own = [one for one in result.stored if RunKey(*one[0][:3]) in place]
    return sorted(own, key=lambda one: (place[RunKey(*one[0][:3])], one))


def _lines(result: Result, names: Sequence[str]) -> Iterator[tuple[str, str, int, str, float]]:
    wanted = dict(zip(result.runs, names, strict=True))
    known: dict[tuple[RunKey, int], Sets] = {}
    for moment, detector in stored_in_order(result):
        run = RunKey(*moment[:3])
        scores = result.stored.get(moment, detector).get(FAMILIARITY)
        if scores is None:
            continue
        if (run, moment.stage) not in known:
            known[run, moment.stage] = sets(result, run, moment.stage)
        for metric, value in compare(scores, known[run, moment.stage]).items():
            yield wanted[run], detector, moment.stage, metric, value
