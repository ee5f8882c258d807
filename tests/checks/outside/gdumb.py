"""GDumb (Prabhu et al. 2020, ECCV): keep a balanced memory, and train on nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from engram import Memory, Method


def untouched(gradient):
    """The gradient itself, for `average_gradient`."""
    return gradient


def objective(net, batch):
    """The mean over the rows of a batch."""
    return net.task(batch)


@dataclass(frozen=True, kw_only=True)
class GDumb(Method):
    """Nothing is learnt while a task passes by; after it, all anew on the memory.

    The dumb learner takes full gradients of the memory with momentum, in `finish`.
    """

    memory: Memory = field(default=Memory(total=60))
    steps: int = 10
    rate: float = 0.3
    momentum: float = 0.8

    def start(self, learner, task):
        if learner.stage == 0:
            learner.state = {"first": learner.vector.clone()}

    def loss(self, net, batch, state):
        return {"task": 0 * net.task(batch)}

    def finish(self, learner, task):
        learner.exemplars = self.memory.update(learner, task.train)
        rows, stages = learner.exemplars.rows, learner.exemplars.stages
        learner.vector = learner.state["first"].clone()
        speed = torch.zeros_like(learner.vector)
        for _ in range(self.steps):
            slope = learner.average_gradient(
                objective, transform=untouched, group="full", rows=rows, stages=stages
            )
            speed = self.momentum * speed + slope
            learner.vector = learner.vector - self.rate * speed
