"""Function distance regularisation: exemplars with what the network answered after their task."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engram.errors import check_choice, check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import mean
from engram.memory import Memory, check_memory
from engram.methods.method import Gradient, Method, ReplaySpec, State, Terms
from engram.per_run import PerRun
from engram.streams.stream import Task

FLOOR = 1e-12  # of a squared distance


def probability_distance(logits: Tensor, then: Tensor, classes: Tensor) -> Tensor:
    """Compute the Euclidean distance [B] between the probabilities of logits and earlier ones.

    `classes` [B, C] are those among which a row is classified. Distances below 1e-6 are 0: right
    after a task they are rounding errors, whose direction the gradient would follow at full length.

    Examples
    --------
    >>> now, then = torch.tensor([[0.0, 0.0, 9.0]]), torch.tensor([[50.0, 0.0, 9.0]])
    >>> round(probability_distance(now, then, torch.tensor([[True, True, False]])).item(), 4)
    0.7071
    """
    now, before = (torch.where(classes, one, -torch.inf).softmax(-1) for one in (logits, then))
    squares = (now - before).square().sum(-1)
    return torch.where(squares > FLOOR, squares.clamp(min=FLOOR).sqrt(), 0.0)


@dataclass(frozen=True, kw_only=True)
class FDR(Method):
    """Hold the answers to exemplars where they were after their task (FDR).

    loss = task + alpha * mean over drawn exemplars of ||softmax(z) - softmax(z then)||_2, with z
    then the logits after the exemplar's task, over the classes that compete for the exemplar

    Parameters
    ----------
    alpha
        Weight of the distance.
    update
        ``joint``: one update along both gradients; ``alternating``: the update goes along the
        gradient of the task, and then along that of the distance where the first one led, which
        for plain SGD are two steps.
    size
        Exemplars per step; 0: as many as the batch size.
    memory
        Exemplars to keep, with their logits.

    Examples
    --------
    >>> FDR().replay(1)
    ReplaySpec(kind='separate', size=0)

    References
    ----------
    Benjamin et al. 2019, International Conference on Learning Representations.
    """

    alpha: PerRun = 1.0
    update: str = "joint"
    size: int = 0
    memory: Memory = field(default=Memory(total=500, shared_by="task"))

    def __post_init__(self) -> None:
        check_float("alpha", self.alpha)
        check_choice("update", self.update, ("joint", "alternating"))
        check_int("size", self.size)
        check_memory(self.memory)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("separate", self.size)

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        if "logits" in batch.values and not batch.memory:  # exemplars by themselves
            return {"distance": self._distance(net, batch)}
        terms = {"task": net.task(batch)}
        if batch.memory and self.update == "joint":
            terms["distance"] = self._distance(net, batch.memory[0])
        return terms

    def _distance(self, net: Net, kept: Batch) -> Tensor:
        logits = net(kept.x, kept.w).logits
        rows = probability_distance(logits, kept.values["logits"], kept.open)
        return self.alpha * mean(rows, kept.w)

    def gradient(self, grad: Gradient, batch: Batch, state: State) -> Tensor:
        found = grad(batch)
        if self.update == "joint" or not batch.memory:
            return found
        there = grad.vector - batch.clock.lr * found
        return found + grad(batch.memory[0], at=there)

    def remember(self, net: Net, batch: Batch, state: State) -> dict[str, Tensor]:
        return {"logits": net(batch.x, batch.w).logits}

    def finish(self, learner: RunLearner, task: Task) -> None:
        learner.exemplars = self.memory.update(learner, task.train)
