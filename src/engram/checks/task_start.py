"""A group of runs stopped in the middle of a task, to look at single steps."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engram.checks.toys import EXACT, runs_of, streams
from engram.engine.batches.collate import at_step
from engram.engine.batches.latents import encode
from engram.engine.batches.sampler import Minibatches
from engram.engine.batches.sources import build_sampler
from engram.engine.engine import Engine
from engram.engine.loop import open_task, train_task
from engram.engine.trainers.lockstep import LockstepTrainer
from engram.engine.training import Training
from engram.learner.batch import Batch
from engram.learner.learner import Learner
from engram.learner.net import FunctionalNet
from engram.methods.base import Method
from engram.streams import Stream


@dataclass
class TaskStart:
    """Learners that have entered a task, and the batches of its first epoch."""

    method: Method
    learners: list[Learner]
    trainer: LockstepTrainer
    rows: Minibatches

    @property
    def batch(self) -> Batch:
        """The first batch of all runs, [R, ...] leaves."""
        return next(self.batches())

    def batches(self) -> Iterator[Batch]:
        """The batches of all runs, step by step."""
        for step in range(self.rows.live.shape[1]):
            yield self.trainer.collate(at_step(self.rows, torch.tensor([step])))

    def own_batches(self, run: int = 0) -> Iterator[Batch]:
        """The batches of one run."""
        for batch in self.batches():
            yield batch.map(lambda leaf: leaf[run])

    def net(self, batch: Batch, run: int = 0, vector: Tensor | None = None) -> FunctionalNet:
        """A run's networks in training mode, as a loss sees them."""
        one = self.learners[run]
        weights = one.vector if vector is None else vector
        net = FunctionalNet(one.networks, weights, one.buffers, key=batch.key)
        if one.latents:
            net.main = "net.top"
        return net


def task_start(
    method: Method,
    *,
    stage: int = 1,
    model: str = "plain",
    training: Training = EXACT,
    runs: int = 2,
    on: Sequence[Stream] | None = None,
) -> TaskStart:
    """Train up to a task, enter it, sample its first epoch; `on` gives other streams."""
    group = runs_of(method, on or streams()[:runs], model=model, training=training)
    engine = Engine(group, device="cpu", together=True)
    learners, methods = [engine.learner(run) for run in group], [run.method for run in group]
    for past in range(stage):  # one by one: whether the method maps is another question
        for learner in learners:
            train_task([learner], [method], training, past, mapped=False)
    open_task(learners, methods, training, stage)
    encode(learners, method, stage)
    sampler = build_sampler(learners, method, training)
    rows = sampler.epoch(0)
    trainer = LockstepTrainer(learners, methods, training, slots=sampler.slots)
    trainer.load(rows, fixed=False)
    return TaskStart(method, learners, trainer, rows)


def spied(method: Method, verb: str, around: Callable[..., Any]) -> Method:
    """A copy of a method one of whose verbs goes through ``around(original, *args)``."""
    kind = type(method)
    written = inspect.getattr_static(kind, verb)

    def passed_on(self: Any, *args: Any) -> Any:
        return around(written.__get__(self, type(self)), *args)

    spy = copy.copy(method)
    object.__setattr__(spy, "__class__", type(kind.__name__, (kind,), {verb: passed_on}))
    return spy
