"""Gradient episodic memory: no step against the gradients of past tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from engram import keys
from engram.errors import bad, whole
from engram.learner.batch import Batch
from engram.learner.learner import Learner
from engram.learner.net import Net
from engram.memory import Memory
from engram.methods.base import EITHER, Gradient, Method, ReplaySpec, State, Terms
from engram.methods.dual import nonnegative
from engram.methods.quadratic import check_floats
from engram.streams.core import Task

NARROW, WIDE = 1 << 14, 1 << 20  # columns of a block: fit a cache, or fill a GPU
BLOCKS = 32  # at most so many, because each is a handful of calls


def inner(past: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """M M' [t, t] and M g [t] of past gradients M [t, P] and the present one, in double precision.

    Block by block: the gradients in double precision, twice their size, are never there at once.

    Examples
    --------
    >>> products, along = inner(torch.tensor([[1.0, 2.0]]), torch.tensor([3.0, -1.0]))
    >>> products.tolist(), along.tolist()
    ([[5.0]], [1.0])
    """
    size = past.shape[-1]
    width = max(WIDE if past.is_cuda else NARROW, -(-size // BLOCKS))
    products, along = [], []
    for start in range(0, size, width):
        rows = past[:, start : start + width].double()
        products.append(rows @ rows.mT)
        along.append(rows @ gradient[start : start + width].double())
    if len(products) == 1:
        return products[0], along[0]
    return torch.stack(products).sum(0), torch.stack(along).sum(0)


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
    products, along = inner(past, gradient)
    count = past.shape[0]
    curvature = products + eps * torch.eye(count, dtype=products.dtype, device=past.device)
    # v = margin + u, u >= 0
    v = margin + nonnegative(curvature, along + margin * curvature.sum(-1))
    with torch.autocast(past.device.type, enabled=False):  # the network's precision is not ours
        bent = gradient + past.mT @ v.to(past.dtype)
    return torch.where((along < 0).any(), bent, gradient)


@dataclass(frozen=True, kw_only=True)
class GEM(Method):
    """Project each gradient so that no past task's memory loss increases, to first order.

    g~ = g + M' v, v = argmin over v >= margin of v' (M M' + eps I) v / 2 + (M g)' v,
    whenever some m_t' g < 0; the rows m_t of M are the gradients on each past task's exemplars.

    Parameters
    ----------
    margin
        Lower bound of v, at least 0 (memory strength in the authors' code). CGL: 5.
    eps
        Added to the diagonal, so that linearly dependent gradients cause no trouble.
    size
        Exemplars drawn per past task and step; 0: all of them.
    counted
        Share of a past task's exemplars that enter the loss. The others only pass through the
        network, for batch normalisation: ``GEM(counted=0.2, memory=Memory(fraction=1.0))`` keeps
        whole tasks for that, as CGLB does.
    redraw
        Redraw the rows that enter the loss at every step (CGLB); False: the memory's first ones.
    memory
        Exemplars to keep of each task. CGL: 0.2 of each.

    Examples
    --------
    >>> GEM(margin=-1.0)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: margin: expected a number of at least 0, got -1.0

    References
    ----------
    Lopez-Paz and Ranzato 2017, Advances in Neural Information Processing Systems.
    """

    decides: ClassVar[tuple[str, ...]] = EITHER

    margin: float = 0.5
    eps: float = 1e-3
    size: int = 0
    counted: float = 1.0
    redraw: bool = False
    memory: Memory = field(default=Memory(fraction=0.2))

    def __post_init__(self) -> None:
        infinite = float("inf")
        check_floats(self, {"margin": (0.0, infinite), "eps": (0.0, infinite)})
        whole("size", self.size)
        check_floats(self, {"counted": (0.0, 1.0)})
        if self.counted == 0:
            raise bad("counted", "a share above 0", self.counted)
        if not isinstance(self.memory, Memory):
            raise bad("memory", "a Memory such as Memory(fraction=0.2)", self.memory)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("tasks", self.size)

    def implements(self, verb: str) -> bool:
        return super().implements(verb) and (verb != "loss" or self.counted != 1)

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        if isinstance(self.counted, float) and self.counted == 1:
            return super().loss(net, batch, state)
        logits = net(batch.x, batch.w).logits  # of all rows
        w = torch.where(batch.old > 0, batch.w * self.counts(batch), batch.w)
        return {"task": net.networks.objective(logits, batch._replace(w=w))}

    def counts(self, batch: Batch) -> Tensor:
        """[B] 1 for the rows of a memory batch whose loss counts."""
        real = batch.w > 0
        number = real.sum()
        place = torch.arange(len(real), device=real.device)  # padding is behind
        if self.redraw:
            place = keys.order(keys.fold(batch.key, "counted"), len(real), number).argsort()
        # rounded up, but 0.2 of 235 is 47 whatever the rounding of 0.2
        chosen = place < torch.ceil(number * self.counted * (1 - 1e-6))
        return chosen.to(batch.w.dtype)

    def gradient(self, grad: Gradient, batch: Batch, state: State) -> Tensor:
        gradient = grad(batch)
        if not batch.memory:
            return gradient
        past = torch.stack([grad(one) for one in batch.memory])  # [t, P]
        return project(gradient, past, margin=self.margin, eps=self.eps)

    def finish(self, learner: Learner, task: Task) -> None:
        learner.exemplars = self.memory.update(learner, task.train)
