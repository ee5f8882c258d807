"""The phases of a task: which there are, and what each of them needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from engram.engine import host_verbs
from engram.engine.checkpoints import ResumePoint
from engram.engine.optim import make_optimizer
from engram.engine.stored_values import encode_latents
from engram.engine.training import Training
from engram.errors import unknown
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import tree_map
from engram.methods.method import Method, Phase

TASK = Phase()


def list_phases(
    method: Method, stage: int, points: Sequence[ResumePoint] = ()
) -> list[tuple[int, Phase]]:
    """The phases of a task that train anything, by number; not those before a resume point."""
    first = points[0].position[0] if points else 0
    phases = list(enumerate(method.phases(stage)))
    return [(number, phase) for number, phase in phases[first:] if phase.rows != "none"]


def call_between(learners: Sequence[RunLearner], methods: Sequence[Method], phase: Phase) -> None:
    """Let methods edit their learners before the next phase of the task.

    The state of a run that diverged must stay like that of the others, with which it is stacked. So
    the verb is called for it too, on its initial weights, because no method expects what it has.
    """
    if not methods[0].implements("between"):
        return
    broken = [(one, one.vector, one.buffers) for one in learners if one.diverged >= 0]
    for one, *_ in broken:
        one.vector, one.buffers = one.networks.initial()
        one.state = tree_map(torch.nan_to_num, one.state)
    host_verbs.call_for_all_with_values(learners, methods, "between", phase)
    for one, vector, buffers in broken:
        one.vector, one.buffers = vector, buffers
    encode_latents(learners, methods[0], learners[0].stage)


@contextmanager
def prepare_phase(
    learners: Sequence[RunLearner], training: Training, phase: Phase, number: int, resumed: bool
) -> Iterator[tuple[Training, list[Tensor]]]:
    """Weights, optimiser and what may move, as the phase wants them.

    Gives the phase's settings, and what may move in each learner besides the phase. A phase that is
    `resumed` has its weights and optimiser already.
    """
    settings = _phase_settings(training, phase)
    if (number or phase != TASK) and not resumed:
        optimizer = make_optimizer(settings, learners[0].networks)
        for learner in learners:
            if phase.reinitialise:
                learner.vector, learner.buffers = learner.networks.initial()
            if phase.reinitialise or training.optim_reset:
                learner.opt = optimizer.fresh(learner.vector)
    free = [one.free for one in learners]
    if phase.trainable:
        for learner in learners:
            learner.free = learner.free & _select_parameters(learner, phase.trainable)
    try:
        yield settings, free
    finally:
        for learner, before in zip(learners, free, strict=True):
            learner.free = before


def _phase_settings(training: Training, phase: Phase) -> Training:
    changed: dict[str, float] = {"lr": phase.lr} if phase.lr else {}
    if phase.epochs or phase.iterations:
        changed |= {"first_task_scale": 1.0, "iterations": phase.iterations}
        changed |= {"epochs": phase.epochs} if phase.epochs else {}
    return replace(training, **changed) if changed else training  # type: ignore[arg-type]


def _select_parameters(learner: RunLearner, beginnings: tuple[str, ...]) -> Tensor:
    """[P] the parameters whose names begin so."""
    mask = torch.zeros_like(learner.free)
    views = learner.layout(mask)
    for beginning in beginnings:
        found = [name for name in views if name.startswith(beginning)]
        if not found:
            raise unknown("phase.trainable", beginning, list(views))
        for name in found:
            views[name].fill_(True)
    return mask
