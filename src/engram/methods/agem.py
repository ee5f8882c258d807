"""Averaged gradient episodic memory: one reference gradient for all past tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from engram.errors import check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.memory import Memory, check_memory
from engram.methods.method import ARGMAX_OR_THRESHOLD, Gradient, Method, ReplaySpec, State, Terms
from engram.streams.stream import Task

FLOOR = 1e-12


def project(gradient: Tensor, reference: Tensor) -> Tensor:
    """Remove from the gradient its component against the reference.

    Examples
    --------
    >>> project(torch.tensor([1.0, -2.0]), torch.tensor([1.0, 1.0])).tolist()
    [1.5, -1.5]
    """
    along = (gradient * reference).sum()
    share = along.clamp(max=0) / reference.square().sum().clamp(min=FLOOR)
    return gradient - share * reference


@dataclass(frozen=True, kw_only=True)
class AGEM(Method):
    """Project each gradient so that the mean loss on the memory does not increase, to first order.

    g~ = g - (g' r / r' r) r where g' r < 0, r the gradient on a random batch of the memory.

    Parameters
    ----------
    memory
        Exemplars to keep. ConFER: 2000 in all; IIRC: 20 per class, random.
    size
        Exemplars per step; 0: as many as the batch size.
    masks
        True: the current loss covers the classes that the task shows (the new ones, where every
        task has its own), the reference loss those opened before it, as in IIRC's code.

    Examples
    --------
    >>> AGEM(memory=Memory(total=2000)).describe()["memory"]
    '2,000 items, shared by classes, random'

    References
    ----------
    Chaudhry et al. 2019, International Conference on Learning Representations.
    """

    decides: ClassVar[tuple[str, ...]] = ARGMAX_OR_THRESHOLD

    size: int = 0
    masks: bool = False
    memory: Memory = field(default=Memory(total=500))

    def __post_init__(self) -> None:
        check_int("size", self.size)
        check_memory(self.memory)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("separate", self.size)

    def start(self, learner: RunLearner, task: Task) -> None:
        if self.masks:
            shown = learner.stream.visible[learner.stage]
            learner.state = {"shown": shown.to(learner.device)}

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        if self.masks:
            side = torch.where(batch.old[:, None] > 0, batch.known, state["shown"])  # [B, C]
            batch = batch._replace(open=batch.open & side)
        return {"task": net.task(batch)}

    def gradient(self, grad: Gradient, batch: Batch, state: State) -> Tensor:
        gradient = grad(batch)
        return project(gradient, grad(batch.memory[0])) if batch.memory else gradient

    def finish(self, learner: RunLearner, task: Task) -> None:
        learner.exemplars = self.memory.update(learner, task.train)
        learner.state = {}
