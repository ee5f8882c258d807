"""Measures of what detectors find novel: from stored scores to one value per repetition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from engram.metrics.novelty import auroc
from engram.records.arrange import RunKey
from engram.records.novelty import FAMILIARITY, compare, sets
from engram.reproduce.table import Floats, Measure

if TYPE_CHECKING:
    from engram.recipes import Recipe
    from engram.records import Result

# (detector, stage from 0) to the comparisons of one run
Comparisons = dict[tuple[str, int], dict[str, float]]
_KNOWN: WeakKeyDictionary[Result, dict[RunKey, Comparisons]] = WeakKeyDictionary()


def comparisons(result: Result, recipe: Recipe) -> dict[int, Comparisons]:
    """Every comparison of a recipe's runs, by seed; made once for each result.

    `result` knows recipes by their keys, see `engram.reproduce.run.by_key`.
    """
    known = _KNOWN.setdefault(result, {})
    own = [run for run in result.runs if (run.recipe, run.order) == (recipe.key, recipe.order)]
    missing = {run for run in own if run not in known and run.seed in recipe.seeds}
    if missing:
        known |= {run: {} for run in missing}
        for moment, name in sorted(result.stored):
            run = RunKey(*moment[:3])
            scores = result.stored.get(moment, name).get(FAMILIARITY) if run in missing else None
            if scores is not None:
                found = compare(scores, sets(result, run, moment.stage))
                known[run][class_of(name), moment.stage] = found
    return {run.seed: known[run] for run in own if run in known}


def class_of(probe: str) -> str:
    """The class of a detector from its name: without options, whether tuned or not.

    Examples
    --------
    >>> class_of("odin epsilon=0.01"), class_of("tuned odin over epsilon")
    ('odin', 'odin')
    """
    return probe.removeprefix("tuned ").split(" ")[0]


def detected(recipe: Recipe, detector: str, metric: str, stages: int | Sequence[int]) -> Measure:
    """A comparison, in percent: after one stage (from 0), or the mean over several.

    Stages without the number (no earlier tasks, nothing forgotten) do not count in a mean; a run
    that has not got through all of them has none.

    Parameters
    ----------
    detector
        Its class in lower case, such as ``odin``.
    metric
        A name of `engram.records.novelty.compare`.
    """
    wanted = [stages] if isinstance(stages, int) else list(stages)

    def measure(result: Result) -> Floats:
        every = comparisons(result, recipe)
        values = [_mean(every.get(seed, {}), detector, metric, wanted) for seed in recipe.seeds]
        return 100 * np.array(values, np.float64)

    return measure


def _mean(found: Comparisons, detector: str, metric: str, stages: Sequence[int]) -> float:
    if not all((detector, stage) in found for stage in stages):
        return float("nan")
    values = np.array([found[detector, stage].get(metric, np.nan) for stage in stages])
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def last_outside(result: Result, recipe: Recipe) -> dict[tuple[str, int], list[float]]:
    """By detector and task: AUC of the task's inside items against the last task, before that.

    One value for every run that got so far.
    """
    found: dict[tuple[str, int], list[float]] = {}
    own = {run for run in result.runs if (run.recipe, run.order) == (recipe.key, recipe.order)}
    for moment, name in sorted(result.stored):
        run = RunKey(*moment[:3])
        scores = result.stored.get(moment, name).get(FAMILIARITY) if run in own else None
        if scores is None:
            continue
        there = sets(result, run, moment.stage)
        if len(there.outside) != 1:
            continue
        for task, inside in enumerate(there.inside):
            under = scores[task if len(scores) > 1 else 0]
            value = auroc(under[inside], under[there.outside[0]]) if len(inside) else np.nan
            found.setdefault((class_of(name), task), []).append(float(value))
    return found
