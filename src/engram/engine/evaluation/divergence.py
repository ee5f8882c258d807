"""When a run has diverged: its numbers are none, or its loss is beyond all measure.

A run that diverged has no accuracy. A network with exploded weights gives one answer to everything,
which looks like a bad learner that forgets little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from engram.learner.learner import Learner

if TYPE_CHECKING:
    from engram.engine.history import PhaseLog
    from engram.engine.trainers.base import Trainer

# In single precision numbers of this size are 8 apart: the whole cross-entropy of guessing among a
# thousand classes (6.9) is lost in rounding.
BEYOND = 1e8

Sums = Mapping[str, Tensor]


def is_penalty(name: str) -> bool:
    """Whether a loss term pulls at weights.

    A strong one may be huge for a few steps of a sound run; and where it throws the weights away,
    the other terms show it.

    Examples
    --------
    >>> [is_penalty(name) for name in ("penalty", "penalty.1", "task")]
    [True, True, False]
    """
    return name.split(".")[0] == "penalty"


def measured(units: Mapping[str, float], first: Sums, run: int) -> dict[str, float]:
    """The size of every loss term in the first step that had it, over all stages of a run.

    It says in which units a method counts: a sum over pixels is large from the beginning.

    Examples
    --------
    >>> first = {"task": torch.tensor([0.5, 9.0]), "distill": torch.tensor([3e5, 3e5])}
    >>> measured({"task": 0.5}, first, run=1)
    {'task': 0.5, 'distill': 300000.0}
    """
    return {name: abs(float(value[run])) for name, value in first.items()} | dict(units)


def sound_losses(
    logs: Sequence[Sums], units: Sequence[Mapping[str, float]], steps: np.ndarray
) -> list[bool]:
    """[R] whether the losses of a stage are finite and not beyond all measure.

    They are beyond it where the mean of some term over the stage exceeds `BEYOND` times its unit,
    and a unit is at least 1. Penalties need to be finite only.

    Parameters
    ----------
    logs
        Sums of every loss term over parts of the stage, [R] each.
    units
        [R] what `measured` found.
    steps
        [R] steps that each run took.

    Examples
    --------
    >>> logs, units = [{"task": torch.tensor([2.0, 1e9, 1e9])}], [{"task": 0.7}] * 2
    >>> sound_losses(logs, [*units, {"task": 1e7}], np.array([1, 1, 1]))
    [True, False, True]
    """
    if not logs:
        return [True] * len(units)
    taken = np.maximum(steps, 1)
    totals = {}  # a sum that is not finite stays so
    for name, last in logs[-1].items():  # those of before an interruption lie on the CPU
        parts = torch.stack([sums[name].to(last.device, torch.float64) for sums in logs])
        totals[name] = parts.sum(0).cpu().numpy() / taken
    found = []
    for run, unit in enumerate(units):
        sizes = {name: abs(float(total[run])) for name, total in totals.items()}
        limits = {n: math.inf if is_penalty(n) else BEYOND * max(unit.get(n, 1), 1) for n in sizes}
        found.append(all(size < math.inf and size <= limits[n] for n, size in sizes.items()))
    return found


def mark_diverged(learners: Sequence[Learner], trainer: Trainer, log: PhaseLog) -> None:
    """Note in which stage a learner diverged, by its losses or its weights after a phase."""
    first = {name: value.cpu() for name, value in (trainer.first or {}).items()}
    for run, learner in enumerate(learners):
        learner.units = measured(learner.units, first, run)
    logs = [sums for _, _, sums in log.sums]
    sound = sound_losses(logs, [one.units for one in learners], log.steps)
    finite = trainer.finite().tolist()
    for learner, *fine in zip(learners, sound, finite, strict=True):
        if not all(fine):
            learner.diverged = learner.stage


def sound_scores(scores: np.ndarray, rows: np.ndarray, open_: np.ndarray) -> bool:
    """Whether each of the rows [n] can be won by an open column [C], and all scores are numbers.

    Only rows of tasks seen so far count: who has not seen a task need not answer it.
    -inf rules a class out; NaN and +inf are none of a sound run's scores.

    Examples
    --------
    >>> one, two = np.array([True]), np.array([True, True, False])
    >>> sound_scores(np.array([[0.1, -np.inf, np.nan]]), one, two)  # the last class is not open
    True
    >>> sound_scores(np.array([[0.1, np.nan, 0.0]]), one, two)
    False
    """
    shown = scores[rows][:, open_]
    with np.errstate(invalid="ignore"):
        return bool((shown < np.inf).all() and (shown > -np.inf).any(axis=1).all())
