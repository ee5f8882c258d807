"""Measures, functions of a `Result` that give one value per repetition: of accuracy matrices,
orders and novelty detectors.

Every function here returns a `Measure`. Values are aligned with the seeds of the recipe, so that
differences between recipes are taken seed by seed; what is not finished is NaN. Where recipes are
given that differ in their orders alone, there is a value for each order and seed: the mean and the
deviation of a cell are those over orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from engram.metrics.detection import auroc
from engram.records.novelty_records import FAMILIARITY, compare_sets, item_sets
from engram.records.run_arrays import RunKey
from engram.reproduce.paper_table import Floats, Measure

if TYPE_CHECKING:
    from engram.experiments import Recipe
    from engram.records import Result

DISPARITIES = ("aopd", "mopd")


def select_runs(result: Result, recipes: Sequence[Recipe], head: str) -> Result | None:
    """Select the runs of some recipes in a head view; None if there are none.

    `result` knows recipes by their keys, see `engram.reproduce.reproduction.select_by_recipe`.
    """
    keys, orders = {one.key for one in recipes}, {one.order for one in recipes}
    seeds = {seed for one in recipes for seed in one.seeds}
    there = [
        run for run in result.runs
        if run.recipe in keys and run.seed in seeds and run.order in orders
    ]  # fmt: skip
    if not there:
        return None
    found = {name: {getattr(run, name) for run in there} for name in ("recipe", "seed", "order")}
    chosen = result.select(**found)
    if not any(chosen.stages.values()):
        return None
    return chosen.view(head=head)


def _as_list(recipe: Recipe | Sequence[Recipe]) -> Sequence[Recipe]:
    return recipe if isinstance(recipe, Sequence) else [recipe]


def _align_with_seeds(recipes: Sequence[Recipe], runs: Result | None, values: Any) -> Floats:
    """Align values of runs with the recipes and their seeds, [order and seed]."""
    keys = [] if runs is None else [(run.order, run.seed) for run in runs.runs]
    known = dict(zip(keys, values, strict=True))
    wanted = [(one.order, seed) for one in recipes for seed in one.seeds]
    return np.array([known.get(key, np.nan) for key in wanted], np.float64)


def metric(
    name: str,
    recipe: Recipe | Sequence[Recipe],
    *,
    head: str,
    percent: bool = False,
    **options: Any,
) -> Measure:
    """Measure a matrix metric after the last task, such as average_accuracy or forgetting."""
    recipes = _as_list(recipe)

    def measure(result: Result) -> Floats:
        runs = select_runs(result, recipes, head)
        values = () if runs is None else runs.metric(name, **options)
        return _align_with_seeds(recipes, runs, values) * (100.0 if percent else 1.0)

    return measure


def metric_at_stages(
    name: str, recipe: Recipe | Sequence[Recipe], *, head: str, **options: Any
) -> Callable[[int], Measure]:
    """Measure a matrix metric after any stage (from 0), looking up the runs once."""
    known: WeakKeyDictionary[Result, Floats] = WeakKeyDictionary()
    recipes = _as_list(recipe)
    count = sum(len(one.seeds) for one in recipes)

    def curve(result: Result) -> Floats:
        """[order and seed, stage]"""
        if result not in known:
            runs = select_runs(result, recipes, head)
            values = np.empty((0, 0)) if runs is None else runs.curve(name, **options)
            columns = [
                _align_with_seeds(recipes, runs, values[:, k]) for k in range(values.shape[1])
            ]
            known[result] = np.stack(columns, 1) if columns else np.empty((count, 0))
        return known[result]

    def at(stage: int) -> Measure:
        def measure(result: Result) -> Floats:
            values = curve(result)
            unreached = np.full(count, np.nan)
            return values[:, stage] if stage < values.shape[1] else unreached

        return measure

    return at


def newest_task_accuracy(recipe: Recipe | Sequence[Recipe], *, head: str) -> Measure:
    """Measure the accuracy on the last task right after it was learnt."""
    recipes = _as_list(recipe)

    def measure(result: Result) -> Floats:
        runs = select_runs(result, recipes, head)
        if runs is None:
            return _align_with_seeds(recipes, None, ())
        matrix, last = runs.matrix, runs.tasks - 1
        reached = last < min(matrix.shape[1:])
        place = np.where(reached, last, 0)
        values = matrix[np.arange(len(runs)), place, place]
        return _align_with_seeds(recipes, runs, np.where(reached, values, np.nan))

    return measure


def intransigence(recipe: Recipe, reference: Recipe, *, head: str) -> Measure:
    """Measure how far the last task stays below a jointly trained reference, seed by seed.

    The last task of the reference's stream must be that of the recipe's.
    """
    return difference(
        newest_task_accuracy(reference, head=head), newest_task_accuracy(recipe, head=head)
    )


def difference(first: Measure, second: Measure) -> Measure:
    """Subtract the second measure from the first, repetition by repetition."""

    def measure(result: Result) -> Floats:
        a, b = first(result), second(result)
        size = min(len(a), len(b))
        return a[:size] - b[:size]

    return measure


def constant(*values: float) -> Measure:
    """Return given numbers, which need no run.

    Examples
    --------
    >>> constant(3.0)(None).tolist()
    [3.0]
    """
    return lambda result: np.array(values, np.float64)


def order_disparities(
    recipes: Sequence[Recipe],
    units: Sequence[Sequence[int]],
    *,
    head: str = "single",
    percent: bool = True,
) -> dict[str, Measure]:
    """Measure AOPD and MOPD of one method over all its orders, one value per seed.

    Parameters
    ----------
    recipes
        One per order, equal but for ``stream.order``.
    units
        Class ids of every unit: pairs for tasks of two classes, single classes for the class
        level. A unit's performance is the mean accuracy of its classes after the last task.
    """
    from engram import metrics

    # both are computed in one pass over thousands of runs
    known: WeakKeyDictionary[Result, dict[str, Floats]] = WeakKeyDictionary()

    def found(result: Result) -> dict[str, Floats]:
        if result not in known:
            known[result] = both(result)
        return known[result]

    def both(result: Result) -> dict[str, Floats]:
        runs = select_runs(result, recipes, head)
        seeds = recipes[0].seeds
        if runs is None:
            return {which: np.full(len(seeds), np.nan) for which in DISPARITIES}
        # a budget may end before some run does, even before every run
        accuracy = runs.class_accuracy().reindex(
            columns=sorted({c for unit in units for c in unit})
        )
        table = np.stack([accuracy[list(unit)].mean(axis=1) for unit in units], axis=-1)
        orders = {recipe.order for recipe in recipes}
        place: dict[int, list[int]] = {seed: [] for seed in seeds}
        every = runs.runs
        for i, run in enumerate(every):
            place.setdefault(run.seed, []).append(i)
        values: dict[str, list[float]] = {which: [] for which in DISPARITIES}
        for seed in seeds:
            finished = [i for i in place[seed] if not np.isnan(table[i]).any()]
            whole = {every[i].order for i in finished} == orders
            one = metrics.order_disparity(table[finished]) if whole else None
            for which, several in values.items():
                several.append(np.nan if one is None else float(getattr(one, which)))
        return {k: np.array(v) * (100.0 if percent else 1.0) for k, v in values.items()}

    def pick(which: str) -> Measure:
        return lambda result: found(result)[which]

    return {which: pick(which) for which in DISPARITIES}


# Measures of novelty detectors, from stored scores.


# (detector, stage from 0) to the comparisons of one run
Comparisons = dict[tuple[str, int], dict[str, float]]
_KNOWN_COMPARISONS: WeakKeyDictionary[Result, dict[RunKey, Comparisons]] = WeakKeyDictionary()


def detector_comparisons(result: Result, recipe: Recipe) -> dict[int, Comparisons]:
    """Compute every comparison of a recipe's runs by seed, cached per result.

    `result` knows recipes by their keys, see `engram.reproduce.reproduction.select_by_recipe`.
    """
    known = _KNOWN_COMPARISONS.setdefault(result, {})
    own = [run for run in result.runs if (run.recipe, run.order) == (recipe.key, recipe.order)]
    missing = {run for run in own if run not in known and run.seed in recipe.seeds}
    if missing:
        known |= {run: {} for run in missing}
        for moment, name in sorted(result.stored):
            run = RunKey(*moment[:3])
            scores = result.stored.get(moment, name).get(FAMILIARITY) if run in missing else None
            if scores is not None:
                found = compare_sets(scores, item_sets(result, run, moment.stage))
                known[run][detector_class_name(name), moment.stage] = found
    return {run.seed: known[run] for run in own if run in known}


def detector_class_name(probe: str) -> str:
    """Return the class of a detector in lower case from its name, tuned or not.

    Examples
    --------
    >>> detector_class_name("odin epsilon=0.01"), detector_class_name("tuned odin over epsilon")
    ('odin', 'odin')
    """
    return probe.removeprefix("tuned ").split(" ")[0]


def detection_metric(
    recipe: Recipe, detector: str, metric: str, stages: int | Sequence[int],
    *, zeros: Sequence[int] = (),
) -> Measure:  # fmt: skip
    """Measure a comparison in percent, after one stage (from 0) or averaged over several.

    Stages without the number (no earlier tasks, nothing forgotten) are left out of the mean; a run
    that has not finished all of them has none.

    Parameters
    ----------
    detector
        Its class in lower case, such as ``odin``.
    metric
        A name of `engram.records.novelty_records.compare_sets`.
    zeros
        Stages (from 0) that count as 0 in the mean if they have no number.
    """
    wanted = [stages] if isinstance(stages, int) else list(stages)

    def measure(result: Result) -> Floats:
        every = detector_comparisons(result, recipe)
        values = [
            _mean(every.get(seed, {}), detector, metric, wanted, zeros) for seed in recipe.seeds
        ]
        return 100 * np.array(values, np.float64)

    return measure


def _mean(
    found: Comparisons, detector: str, metric: str, stages: Sequence[int], zeros: Sequence[int]
) -> float:
    if not all((detector, stage) in found for stage in stages):
        return float("nan")
    values = np.array([found[detector, stage].get(metric, np.nan) for stage in stages])
    values[np.isnan(values) & np.isin(stages, zeros)] = 0.0
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def auc_against_last_task(result: Result, recipe: Recipe) -> dict[tuple[str, int], list[float]]:
    """Compute the AUC of each task's inside items against the last task before it is learnt.

    By detector and task, with one value for every run that reached the stage.
    """
    found: dict[tuple[str, int], list[float]] = {}
    own = {run for run in result.runs if (run.recipe, run.order) == (recipe.key, recipe.order)}
    for moment, name in sorted(result.stored):
        run = RunKey(*moment[:3])
        scores = result.stored.get(moment, name).get(FAMILIARITY) if run in own else None
        if scores is None:
            continue
        there = item_sets(result, run, moment.stage)
        if len(there.outside) != 1:
            continue
        for task, inside in enumerate(there.inside):
            under = scores[task if len(scores) > 1 else 0]
            value = auroc(under[inside], under[there.outside[0]]) if len(inside) else np.nan
            found.setdefault((detector_class_name(name), task), []).append(float(value))
    return found
