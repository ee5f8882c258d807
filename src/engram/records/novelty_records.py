"""Records of novelty detectors: item sets, separation, false alarms, tuned options, features.

After stage t a test item of task i is *inside* if the model is right about it now, *forgotten* if
it was right after the item's own stage and is wrong now, and *outside* if its task is still to
come. Items that were never right belong to no set. Everything here is computed from records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.errors import EngramError, RecordError, bad, check_float
from engram.metrics.detection import (
    aupr_in,
    auroc,
    detection_error,
    fpr_at_tpr,
    mean_over_tasks,
    pair_scores,
)
from engram.records.run_arrays import RunKey
from engram.records.scored_items import EvaluationItems

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

FAMILIARITY = "familiarity"  # array [heads, n] of a detector; higher is more familiar
CALIBRATION = "calibration"  # [V] scores of validation rows that the network gets right, else NaN
TUNING = "tuning"  # [G] area under the curve of each combination of options tried
GRID = "grid"  # the combinations, as text in bytes
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ItemSets:
    """Indices of test items in each set after a stage: one array per task.

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


def split_items(right_then: Any, right_now: Any, task: Any, stage: int) -> ItemSets:
    """Split items by whether they were right [n] after their own stage and are right now.

    Examples
    --------
    >>> then, now = [1, 1, 1, 0, 1, 0], [1, 0, 1, 1, 0, 0]
    >>> item_sets = split_items(then, now, task=[0, 0, 0, 0, 0, 2], stage=1)
    >>> item_sets.inside[0].tolist(), item_sets.forgotten[0].tolist(), item_sets.outside[0].tolist()
    ([0, 2, 3], [1, 4], [5])
    """
    then, now, task = (np.asarray(one) for one in (right_then, right_now, task))
    then, now = then.astype(np.bool_), now.astype(np.bool_)
    last = int(task.max(initial=stage))
    return ItemSets(
        stage,
        inside=[np.flatnonzero((task == i) & now) for i in range(stage + 1)],
        forgotten=[np.flatnonzero((task == i) & then & ~now) for i in range(stage + 1)],
        outside=[np.flatnonzero(task == j) for j in range(stage + 1, last + 1)],
    )


def item_sets(result: Result, run: RunKey | int, stage: int) -> ItemSets:
    """See `Result.sets`."""
    number = result.number_of(run)
    who, head = result.runs[number], result.heads[number]
    items = result.items(who.recipe, who.order)
    if items is None:
        raise RecordError(
            f"{_name_run(who)}: its test items were not kept (keep='labels' keeps them)"
        )
    if items.multilabel:
        raise bad("run", "a run that predicts one label per item", "one with label sets")
    if not isinstance(stage, (int, np.integer)) or not 0 <= stage < items.tasks:
        raise bad("stage", f"a number from 0 to {items.tasks - 1}", stage)
    stage = int(stage)
    right = [_load_right(result, who, items, head, k) for k in range(stage + 1)]
    then = right[-1].copy()
    for k, own in enumerate(right):
        then[items.task == k] = own[items.task == k]
    return split_items(then, right[-1], items.task, stage)


def _load_right(
    result: Result, run: RunKey, items: EvaluationItems, head: str, stage: int
) -> npt.NDArray[np.bool_]:
    kept = result.predictions.get(*run, stage)
    if kept is None:
        what = f"predictions of stage {stage + 1} were not kept (keep='labels')"
        raise RecordError(f"{_name_run(run)}: {what}")
    predicted = kept.predicted(items, head=head)
    found = np.zeros(len(items), np.bool_)  # items of tasks that were not scored are not right
    found[: len(predicted)] = predicted == items.targets[: len(predicted), 0]
    return found


def compare_sets(familiarity: npt.NDArray[Any], sets: ItemSets) -> dict[str, float]:
    """Compare the three sets after one stage by scores [heads, n].

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
    """Scores of the three sets after a stage, with tasks pooled, each item under its head."""

    recipe: str
    detector: str
    stage: int
    inside: npt.NDArray[Any]
    forgotten: npt.NDArray[Any]
    outside: npt.NDArray[Any]  # under every head in turn


def pool_scores(familiarity: npt.NDArray[Any], sets: ItemSets) -> list[npt.NDArray[Any]]:
    """Pool the scores [heads, n] of the inside, forgotten and outside items over tasks.

    Examples
    --------
    >>> item_sets = split_items([1, 1, 1, 0], [1, 0, 1, 0], task=[0, 0, 1, 2], stage=1)
    >>> [one.tolist() for one in pool_scores(np.array([[1, 2, 3, 4], [5, 6, 7, 8]]), item_sets)]
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
    """Pool the scores of the first run of every recipe, after the last stage with tasks to come."""
    first: dict[str, RunKey] = {}
    for run in sorted(result.runs):
        first.setdefault(run.recipe, run)
    last: dict[tuple[RunKey, str], tuple[int, npt.NDArray[Any]]] = {}
    for moment, detector in sorted(result.stored):
        run = RunKey(*moment[:3])
        if first.get(run.recipe) != run:
            continue
        scores = result.stored.get(moment, detector).get(FAMILIARITY)
        if scores is not None and item_sets(result, run, moment.stage).outside:
            last[run, detector] = moment.stage, scores
    return [
        Familiarity(
            run.recipe, detector, stage, *pool_scores(scores, item_sets(result, run, stage))
        )
        for (run, detector), (stage, scores) in last.items()
    ]


def novelty_table(result: Result) -> pd.DataFrame:
    """See `Result.novelty`."""
    return summarise_detectors(result, "label", result.run_labels)


def summarise_detectors(result: Result, column: str, names: Sequence[str]) -> pd.DataFrame:
    """Average the comparisons over the runs of each name, with standard deviations."""
    import pandas as pd

    lines = list(_detector_lines(result, names))
    columns = [column, "detector", "stage", "metric", "value"]
    if not lines:
        raise RecordError(_explain_missing_scores(result))
    frame = pd.DataFrame(lines, columns=columns)
    by = frame.groupby(columns[:-1], sort=False, observed=True)["value"]
    table = by.agg(["mean", "std", "count"]).reset_index()
    return table.rename(columns={"count": "runs"})


def _name_run(run: RunKey) -> str:
    return f"run {run.recipe}, seed {run.seed}" + (f", order {run.order}" if run.order else "")


def _explain_missing_scores(result: Result) -> str:
    """Explain why there are no scores to compare."""
    diverged = sum(run in result.diverged for run in result.runs)
    if diverged:
        return f"no detector has scored these runs: {diverged} of {len(result.runs)} diverged"
    return (
        "no detector has scored these runs: use --detectors Softmax,Energy, or in Python "
        "engram.run(..., detectors=[...])"
    )


def list_stored_detectors(result: Result) -> list[tuple[Any, str]]:
    """List (run and stage, detector) of all stored scores, in the order of the runs."""
    place = {run: number for number, run in enumerate(result.runs)}
    own = [one for one in result.stored if RunKey(*one[0][:3]) in place]
    return sorted(own, key=lambda one: (place[RunKey(*one[0][:3])], one))


def _detector_lines(
    result: Result, names: Sequence[str]
) -> Iterator[tuple[str, str, int, str, float]]:
    wanted = dict(zip(result.runs, names, strict=True))
    known: dict[tuple[RunKey, int], ItemSets] = {}
    for moment, detector in list_stored_detectors(result):
        run = RunKey(*moment[:3])
        scores = result.stored.get(moment, detector).get(FAMILIARITY)
        if scores is None:
            continue
        if (run, moment.stage) not in known:
            known[run, moment.stage] = item_sets(result, run, moment.stage)
        for metric, value in compare_sets(scores, known[run, moment.stage]).items():
            yield wanted[run], detector, moment.stage, metric, value


# False alarms. After every stage a detector also scores the newest task's validation rows that the
# network gets right. A score has a conformal p-value against these; below a given rate it raises an
# alarm. On items like the validation rows, alarms come at that rate. Later they may not, since the
# network and the detector change, which an AUC does not show because it has no threshold.


Floats = npt.NDArray[np.float64]
PLACE = ["detector", "stage", "task"]


def p_values(scores: Any, calibration: Any) -> Floats:
    """Compute conformal p-values [n] of scores against calibration scores.

    A p-value is the share of calibration scores, the item included, that are no more familiar. NaN
    in the calibration does not count; a score that is NaN is the least familiar of all.

    Examples
    --------
    >>> p_values([0.1, 0.35, 0.9, np.nan], [0.2, 0.3, 0.4, np.nan]).tolist()
    [0.25, 0.75, 1.0, 0.25]
    """
    scores, kept = np.asarray(scores, np.float64), np.asarray(calibration, np.float64)
    kept = np.sort(kept[~np.isnan(kept)])
    below = np.searchsorted(kept, np.where(np.isnan(scores), -np.inf, scores), side="right")
    return np.asarray((1 + below) / (len(kept) + 1), np.float64)


def balanced_p_values(scores: Any, calibration: Any, classes: Any) -> Floats:
    """Compute conformal p-values [n] where every class of the calibration has the same weight.

    For rows of all classes in about equal numbers, of some of which few calibration rows are there.
    The item itself has the mean weight, and NaN is the least familiar of all. With as many rows of
    every class they are those of `p_values`.

    Examples
    --------
    >>> balanced_p_values([0.1, 0.35], [0.2, 0.3, 0.4, 0.1], ["a", "a", "a", "b"]).round(3).tolist()
    [0.6, 0.867]
    """
    scores, kept = (
        np.nan_to_num(np.asarray(one, np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        for one in (scores, calibration)
    )
    _, place, counts = np.unique(classes, return_inverse=True, return_counts=True)
    order = np.argsort(kept, kind="stable")
    weights = (1 / counts)[place][order]
    below = np.concatenate([[0.0], np.cumsum(weights)])
    found = below[np.searchsorted(kept[order], scores, side="right")]
    own = weights.mean()
    return np.asarray((own + found) / (own + below[-1]), np.float64)


def false_alarms(result: Result, rate: float) -> pd.DataFrame:
    """See `Result.false_alarms`."""
    return alarm_table(result, rate, "label", result.run_labels)


def alarm_table(result: Result, rate: float, column: str, names: Sequence[str]) -> pd.DataFrame:
    """Average false alarms over the runs of each name, which goes into `column`."""
    import pandas as pd

    check_float("rate", rate, 0.0, 1.0)
    lines = list(_alarm_lines(result, rate, names))
    if not lines:
        wanted = "detectors and validation rows (valid=0.1 of a stream)"
        raise RecordError(f"these runs have no calibrated threshold: it takes {wanted}")
    place = [column, *PLACE]
    frame = pd.DataFrame(lines, columns=[*place, "frozen", "renewed"])
    by = frame.groupby(place, sort=False, observed=True)
    return by.agg(frozen=("frozen", "mean"), renewed=("renewed", "mean"), runs=("frozen", "size")) \
        .reset_index()  # fmt: skip


def _alarm_lines(
    result: Result, rate: float, names: Sequence[str]
) -> Iterator[tuple[str, str, int, int, float, float]]:
    wanted = dict(zip(result.runs, names, strict=True))
    calibrations: dict[tuple[RunKey, str], dict[int, Any]] = {}
    for moment, detector in list_stored_detectors(result):
        run = RunKey(*moment[:3])
        arrays = result.stored.get(moment, detector)
        if not {FAMILIARITY, CALIBRATION} <= set(arrays):
            continue
        known = calibrations.setdefault((run, detector), {})
        known[moment.stage] = arrays[CALIBRATION]
        familiarity, inside = arrays[FAMILIARITY], item_sets(result, run, moment.stage).inside
        for task, places in enumerate(inside):
            own = familiarity[task if len(familiarity) > 1 else 0][places]
            alarms = [_alarm_share(own, known.get(k), rate) for k in (task, moment.stage)]
            yield wanted[run], detector, moment.stage, task, alarms[0], alarms[1]


def _alarm_share(scores: Any, calibration: Any, rate: float) -> float:
    """Compute the share of scores that raise an alarm; NaN without scores or calibration."""
    if calibration is None or not len(scores) or np.isnan(calibration).all():
        return float("nan")
    return float((p_values(scores, calibration) <= rate).mean())


# Options chosen by `engram.novelty.Tuned`.


COLUMNS = ["label", "seed", "order", "detector", "option", "value", "auroc"]


def best_index(areas: Any) -> int:
    """Return the index of the largest area, the first of equal ones; NaN counts as lowest.

    Examples
    --------
    >>> best_index([np.nan, 0.7, 0.9, 0.9])
    2
    """
    return int(np.nan_to_num(np.asarray(areas), nan=-1.0).argmax())


def tuning_table(result: Result) -> pd.DataFrame:
    """See `Result.tuned`."""
    import pandas as pd

    # dtype object, so that whole numbers stay whole
    table = pd.DataFrame(list(_tuning_lines(result)), columns=COLUMNS, dtype=object)
    return table.astype({"seed": int, "auroc": float})


def describe_tuning(result: Result) -> list[str]:
    """Describe what was chosen for each detector and label, and how often, in one sentence each."""
    table = tuning_table(result)
    found = []
    for (label, detector), own in table.groupby(["label", "detector"], sort=False):
        runs = own.groupby(["seed", "order"], sort=False)
        chosen = [
            ", ".join(f"{option}={value}" for option, value in zip(run["option"], run["value"]))
            for _, run in runs
        ]
        counts = {one: chosen.count(one) for one in dict.fromkeys(chosen)}
        shown = "; ".join(f"{one} ({n} of {len(chosen)} runs)" for one, n in counts.items())
        area = runs["auroc"].first().mean()
        found.append(f"{detector} ({label}): {shown}, AUC {area:.3f} against the outside set")
    return found


def _tuning_lines(result: Result) -> Iterator[tuple[Any, ...]]:
    wanted = dict(zip(result.runs, result.run_labels, strict=True))
    for moment, detector in list_stored_detectors(result):
        run = RunKey(*moment[:3])
        arrays = result.stored.get(moment, detector)
        if not {TUNING, GRID} <= set(arrays):
            continue
        points = json.loads(bytes(np.asarray(arrays[GRID], np.uint8)))
        choice = best_index(arrays[TUNING])
        for option, value in points[choice].items():
            area = float(arrays[TUNING][choice])
            yield wanted[run], run.seed, run.order, detector, option, value, area


# Features of the three sets of test items.


STATISTICS = ("norm", "mean", "deviation")  # [n] each, of an item's features
PLACES, SAMPLE = "places", "sample"  # [m] indices of test items, and [m, F] their features
# Inside items of the first task, of those between it and the newest, and of the newest.
DRAWN_GROUPS = ("first inside", "inside between", "newest inside", "forgotten", "outside")
GROUPS = ("inside", *DRAWN_GROUPS)


class FeatureSample(NamedTuple):
    """Features of some test items of one run after a stage, and the set of each."""

    recipe: str
    stage: int
    features: npt.NDArray[Any]  # [m, F]
    task: npt.NDArray[Any]  # [m]
    kind: npt.NDArray[Any]  # [m] inside, forgotten, outside, or "" for items that never were right


def group_items(found: ItemSets) -> dict[str, npt.NDArray[np.int64]]:
    """Group the indices of items.

    Examples
    --------
    >>> from engram.records.novelty_records import split_items
    >>> found = split_items([1, 1, 1, 1, 0], [1, 0, 1, 1, 0], task=[0, 0, 1, 2, 3], stage=2)
    >>> {name: places.tolist() for name, places in group_items(found).items()}
    {'inside': [0, 2, 3], 'first inside': [0], 'inside between': [2], 'newest inside': [3], ...}
    """
    t = found.stage
    none: list[Any] = [np.empty(0, np.int64)]
    newest = found.inside[t:] if t else []  # a first task counts as first only
    parts = (found.inside, found.inside[:1], found.inside[1:t], newest)
    every = (*parts, found.forgotten, found.outside)
    return {name: np.concatenate([*none, *part]) for name, part in zip(GROUPS, every, strict=True)}


def has_features(result: Result) -> bool:
    """Return whether any run stored statistics of features."""
    return any(True for _ in _stored_features(result))


def _stored_features(result: Result) -> Iterator[tuple[RunKey, int, dict[str, Any]]]:
    known = set(result.runs)
    for moment, probe in sorted(result.stored):
        run = RunKey(*moment[:3])
        if run in known and probe.split(" ")[0] == "features":
            arrays = result.stored.get(moment, probe)
            if set(STATISTICS) <= set(arrays):
                yield run, moment.stage, arrays


def feature_table(result: Result, column: str, names: Sequence[str]) -> pd.DataFrame:
    """Average over the items of each set, then over the runs of each name."""
    import pandas as pd

    wanted = dict(zip(result.runs, names, strict=True))
    lines = []
    for run, stage, arrays in _stored_features(result):
        for name, places in group_items(item_sets(result, run, stage)).items():
            for statistic in STATISTICS:
                if len(places):
                    value = float(arrays[statistic][places].astype(np.float64).mean())
                    lines.append((wanted[run], stage, name, statistic, value))
    if not lines:
        raise RecordError("these runs stored no features (use probes=[engram.probes.Features])")
    frame = pd.DataFrame(lines, columns=[column, "stage", "set", "statistic", "value"])
    by = frame.groupby([column, "stage", "set", "statistic"], sort=False)["value"]
    table = by.agg(["mean", "std", "count"]).reset_index()
    return table.rename(columns={"count": "runs"})


def feature_samples(result: Result, stages: Sequence[int] = (0, 1)) -> list[FeatureSample]:
    """Return the feature samples of the first run of every recipe, after the given stages."""
    first: dict[str, RunKey] = {}
    for run in sorted(result.runs):
        first.setdefault(run.recipe, run)
    found = []
    for run, stage, arrays in _stored_features(result):
        if stage in stages and first[run.recipe] == run and SAMPLE in arrays:
            found.append(_draw_sample(result, run, stage, arrays))
    return found


def _draw_sample(result: Result, run: RunKey, stage: int, arrays: dict[str, Any]) -> FeatureSample:
    items, places = result.items(run.recipe, run.order), arrays[PLACES].astype(np.int64)
    found = item_sets(result, run, stage)
    assert items is not None  # else there are no sets either
    kind = np.full(len(items.task), "", dtype="<U9")
    for name in ("inside", "forgotten", "outside"):
        for part in getattr(found, name):
            kind[part] = name
    features = arrays[SAMPLE].astype(np.float32)
    return FeatureSample(run.recipe, stage, features, items.task[places], kind[places])


# A map of features in two dimensions.


FEWEST = 5  # items that t-SNE needs
ITERATIONS = 500  # enough for some hundred items


def embed_in_plane(features: npt.NDArray[Any], *, seed: int = 0) -> npt.NDArray[np.float64]:
    """Embed features [m, F] in two dimensions by t-SNE; NaN for fewer than five items.

    Examples
    --------
    >>> embed_in_plane(np.eye(6)).shape, bool(np.isnan(embed_in_plane(np.eye(3))).all())
    ((6, 2), True)
    """
    try:
        from sklearn.manifold import TSNE
    except ModuleNotFoundError as error:
        raise EngramError(
            "a map of features needs scikit-learn: pip install scikit-learn"
        ) from error
    clean = np.nan_to_num(np.asarray(features, np.float64))
    if len(clean) < FEWEST:
        return np.full((len(clean), 2), np.nan)
    near = min(30.0, (len(clean) - 1) / 3)
    made = TSNE(
        perplexity=near, init="random", random_state=seed, max_iter=ITERATIONS
    ).fit_transform(clean)
    return np.asarray(made, np.float64)
