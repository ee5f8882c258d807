"""Trainers, which take the optimiser steps of a phase: `single` and `captured` for one run,
`lockstep` and `compiled` for many at once.

Which rows a step sees is in `engram.engine.sampler`, the number of epochs in `engram.engine.loop`.
Begin with `trainer.Trainer`, the protocol, then `single`; `make_trainer` chooses one.
"""

from __future__ import annotations

from collections.abc import Sequence

from engram.engine.trainers.captured import CapturedTrainer
from engram.engine.trainers.compiled import CompiledTrainer
from engram.engine.trainers.lockstep import LockstepTrainer
from engram.engine.trainers.single import SingleTrainer
from engram.engine.trainers.trainer import Trainer
from engram.engine.training import Training
from engram.learner.learner import RunLearner
from engram.methods.method import Method

__all__ = ["Trainer", "make_trainer"]


def make_trainer(
    learners: Sequence[RunLearner], methods: Sequence[Method], training: Training, *, mapped: bool,
    capture: bool = False, compile: bool = False, slots: int = 0, phase: str = "task",
) -> Trainer:  # fmt: skip
    """Make a trainer for runs of equal shapes: in lockstep if `mapped`, otherwise for one run.

    `capture` replays steps as CUDA graphs, `compile` fuses steps of mapped runs. `slots` is the
    size of a reservoir that is updated in every step; `phase` is the value of ``net.phase``.
    """
    if mapped:
        many = CompiledTrainer if compile else LockstepTrainer
        return many(learners, methods, training, capture=capture, slots=slots, phase=phase)
    one = CapturedTrainer if capture else SingleTrainer
    return one(learners[0], methods[0], training, slots=slots, phase=phase)
