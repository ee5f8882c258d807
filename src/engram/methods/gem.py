"""Gradient episodic memory: no step against the gradients of past tasks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engram.errors import bad, whole
from engram.learner.batch import Batch
from engram.learner.learner import Learner
from engram.memory import Memory
from engram.methods.base import Gradient, Method, Replay, State
from engram.methods.dual import nonnegative
from engram.methods.quadratic import check_floats
from engram.streams.core import Task


def project(
    gradient: Tensor, past: Tensor, *, margin: float | Tensor = 0.0, eps: float | Tensor = 1e-3
) -> Tensor:
    """The gradient [P] bent so that it agrees with those of past tasks [t, P].

    g + M' v with v the minimiser of v' (M M' + eps I) v / 2 + (M g)' v over v >= margin; g itself
    where it goes against none of them.

    Examples
    --------
    >>> g, past = torch.tensor([-2.0, 3.0]), torch.tensor([[1.0, 0.0]])
    >>> project(g, past, eps=0.0).tolist()
    [0.0, 3.0]
    """
    # the dual is tiny; in double precision it costs nothing and nearly parallel memories are safe
    rows = past.double()
    products = rows @ rows.mT  # [t, t]
    along = rows @ gradient.double()  # [t]
    count = past.shape[0]
    curvature = products + eps * torch.eye(count, dtype=products.dtype, device=past.device)
    # v = margin + u, u >= 0
    v = margin + nonnegative(curvature, along + margin * curvature.sum(-1))
    bent = gradient + past.mT @ v.to(past.dtype)
    return torch.where((along < 0).any(), bent, gradient)


@dataclass(frozen=True, kw_only=True)
class GEM(Method):
    """Project every gradient so that no past task's memory loss grows, to first order.

    g~ = g + M' v, v = argmin over v >= margin of v' (M M' + eps I) v / 2 + (M g)' v,
    whenever some m_t' g < 0; the rows m_t of M are the gradients on each past task's exemplars.

    Parameters
    ----------
    margin
        Lower bound of v (memory strength in the authors' code).
    eps
        Keeps the problem solvable where past gradients depend on each other.
    size
        Exemplars drawn per past task and step; 0 takes all of them.
    memory
        What is kept of each task.

    Examples
    --------
    >>> GEM(margin=-1.0)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: margin: expected a number in [0, inf], got -1.0

    References
    ----------
    Lopez-Paz and Ranzato 2017, Advances in Neural Information Processing Systems.
    """

    margin: float = 0.5
    eps: float = 1e-3
    size: int = 0
    memory: Memory = field(default=Memory(fraction=0.2))

    def __post_init__(self) -> None:
        infinite = float("inf")
        check_floats(self, {"margin": (0.0, infinite), "eps": (0.0, infinite)})
        whole("size", self.size)
        if not isinstance(self.memory, Memory):
            raise bad("memory", "a Memory such as Memory(fraction=0.2)", self.memory)

    def replay(self, stage: int) -> Replay:
        return Replay("tasks", self.size)

    def gradient(self, grad: Gradient, batch: Batch, state: State) -> Tensor:
        gradient = grad(batch)
        if not batch.memory:
            return gradient
        past = torch.stack([grad(one) for one in batch.memory])  # [t, P]
        return project(gradient, past, margin=self.margin, eps=self.eps)

    def finish(self, learner: Learner, task: Task) -> None:
        learner.exemplars = self.memory.update(learner, task.train)
