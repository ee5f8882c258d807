"""What one phase of a task needs, and what all of them gave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from engram.engine.checkpoints.resume_point import Midway, arrays_of, curve_of
from engram.engine.driver import Driver
from engram.engine.optim import optimizer_of
from engram.engine.training import Training
from engram.errors import unknown
from engram.learner.learner import Learner
from engram.methods.base import Phase

TASK = Phase()


class Trained:
    """Losses, curves and steps of R runs over the phases of a task."""

    def __init__(self, runs: int) -> None:
        self.losses: list[list[tuple[int, dict[str, float]]]] = [[] for _ in range(runs)]
        self.curve: list[tuple[int, list[np.ndarray]]] = []
        self.steps = [0] * runs
        self._before = 0  # steps of earlier phases

    def of_run(self, run: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a run's earlier phases gave, as numbers and tensors."""
        facts = {"losses": self.losses[run], "steps": self.steps[run], "before": self._before}
        return {"earlier": facts}, {"earlier": arrays_of([(s, c[run]) for s, c in self.curve])}

    def restore(self, midways: Sequence[Midway]) -> None:
        """The reverse of `of_run`, for all runs."""
        earlier = [one.facts["earlier"] for one in midways]
        self.losses = [[(step, terms) for step, terms in one["losses"]] for one in earlier]
        self.steps, self._before = [one["steps"] for one in earlier], earlier[0]["before"]
        curves = [curve_of(one.tensors["earlier"]) for one in midways]
        self.curve = [
            (step, [curve[place][1] for curve in curves])
            for place, (step, _) in enumerate(curves[0])
        ]

    def add(self, driver: Driver) -> None:
        """Append what a phase gave; its steps go on where those of the one before ended."""
        start = self._before
        for own, more in zip(self.losses, driver.losses(), strict=True):
            own += [(start + step, terms) for step, terms in more]
        self.curve += [(start + step, scores) for step, scores in driver.curve]
        own_steps = zip(self.steps, driver.own_steps(), strict=True)
        self.steps = [done + more for done, more in own_steps]
        self._before += driver.done


@contextmanager
def prepared(
    learners: Sequence[Learner], training: Training, phase: Phase, number: int, resumed: bool
) -> Iterator[Training]:
    """Weights, optimiser and what may move, as the phase wants them; gives its settings.

    A phase that is `resumed` has its weights and optimiser already.
    """
    settings = _settings(training, phase)
    if (number or phase != TASK) and not resumed:
        optimizer = optimizer_of(settings, learners[0].networks)
        for learner in learners:
            if phase.fresh:
                learner.vector, learner.buffers = learner.networks.initial()
            if phase.fresh or training.optim_reset:
                learner.opt = optimizer.fresh(learner.vector)
    free = [one.free for one in learners]
    if phase.moves:
        for learner in learners:
            learner.free = learner.free & _named(learner, phase.moves)
    try:
        yield settings
    finally:
        for learner, before in zip(learners, free, strict=True):
            learner.free = before


def _settings(training: Training, phase: Phase) -> Training:
    changed: dict[str, float] = {"lr": phase.lr} if phase.lr else {}
    if phase.epochs or phase.iterations:
        changed |= {"first_factor": 1.0, "iterations": phase.iterations}
        changed |= {"epochs": phase.epochs} if phase.epochs else {}
    return replace(training, **changed) if changed else training  # type: ignore[arg-type]


def _named(learner: Learner, beginnings: tuple[str, ...]) -> torch.Tensor:
    """[P] the parameters whose names begin so."""
    mask = torch.zeros_like(learner.free)
    views = learner.layout(mask)
    for beginning in beginnings:
        found = [name for name in views if name.startswith(beginning)]
        if not found:
            raise unknown("phase.moves", beginning, list(views))
        for name in found:
            views[name].fill_(True)
    return mask
