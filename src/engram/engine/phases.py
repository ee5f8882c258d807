"""The phases of a task: which of them train, with which settings, weights and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from engram.engine import host_verbs
from engram.engine.checkpoints import ResumePoint
from engram.engine.optim import reset_optimizer
from engram.engine.stored_values import encode_latents
from engram.engine.training import Training
from engram.errors import unknown
from engram.learner.learner import RunLearner
from engram.learner.parameter_layout import Networks
from engram.learner.tensor_tree import tree_map
from engram.methods.method import Method, Phase

TASK = Phase()


def list_phases(
    method: Method, stage: int, networks: Networks, points: Sequence[ResumePoint] = ()
) -> list[tuple[int, Phase]]:
    """List the training phases of a task by number, from the resume point on."""
    first = points[0].position[0] if points else 0
    phases = list(enumerate(method.phases(stage)))
    return [(number, phase) for number, phase in phases[first:] if _trains(phase, networks)]


def _trains(phase: Phase, networks: Networks) -> bool:
    """Whether a phase takes steps: not if what it is needed for is frozen or absent."""
    if phase.rows == "none":
        return False
    return not phase.needs or any(name.startswith(phase.needs) for name in networks.layout.shapes)


def call_before(learners: Sequence[RunLearner], methods: Sequence[Method], number: int) -> None:
    """Call `Phase.before` of the `number`-th phase of the task, each method its own.

    It is called for diverged runs too, because their state must have the same structure as that of
    the others. They get their initial weights meanwhile, since methods do not expect NaN.
    """
    stage = learners[0].stage
    if methods[0].phases(stage)[number].before is None:
        return
    broken = [(one, one.vector, one.buffers) for one in learners if one.diverged >= 0]
    for one, *_ in broken:
        one.vector, one.buffers = one.networks.initial()
        one.state = tree_map(torch.nan_to_num, one.state)
    host_verbs.call_for_all_with_values(learners, methods, "before", number)
    for one, vector, buffers in broken:
        one.vector, one.buffers = vector, buffers
    encode_latents(learners, methods[0], stage)


@contextmanager
def prepare_phase(
    learners: Sequence[RunLearner], training: Training, phase: Phase, number: int, resumed: bool
) -> Iterator[tuple[Training, list[Tensor]]]:
    """Set weights, optimiser and trainable parameters for a phase.

    Yields the phase's settings and the original masks of trainable parameters. A `resumed` phase
    has its weights and optimiser already.
    """
    settings = _phase_settings(training, phase)
    if (number or phase != TASK or phase.before is not None) and not resumed:
        for learner in learners:
            if phase.reinitialise:
                learner.vector, learner.buffers = learner.networks.initial()
        if phase.reinitialise or training.optim_reset:
            reset_optimizer(settings, learners)
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


def _select_parameters(learner: RunLearner, prefixes: tuple[str, ...]) -> Tensor:
    """Return the mask [P] of the parameters whose names start with one of the prefixes."""
    mask = torch.zeros_like(learner.free)
    views = learner.layout(mask)
    for prefix in prefixes:
        found = [name for name in views if name.startswith(prefix)]
        if not found:
            raise unknown("phase.trainable", prefix, list(views))
        for name in found:
            views[name].fill_(True)
    return mask
