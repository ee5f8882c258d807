"""Maximally interfered retrieval: replay of the rows that the coming update would harm most."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import vmap

from engram.errors import bad, check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.memory import Memory, check_memory
from engram.methods.method import ARGMAX_OR_THRESHOLD, Gradient, Method, ReplaySpec, State
from engram.streams.stream import Task


def measure_harm(after: Net, before: Net, batch: Batch) -> Tensor:
    """Compute how much higher the training objective [B] of each row alone is `after` a step."""
    found, own = (net(batch.x, batch.w).logits for net in (after, before))

    def of_one(w: Tensor) -> Tensor:
        row = batch._replace(w=w)
        return before.task(row, logits=found) - before.task(row, logits=own)

    alone = torch.eye(len(batch.w), dtype=batch.w.dtype, device=batch.w.device)
    harm: Tensor = vmap(of_one)(alone)
    return harm


def find_repeats(slot: Tensor) -> Tensor:
    """Find the rows [B] whose slot an earlier row has, too.

    Examples
    --------
    >>> find_repeats(torch.tensor([4, 2, 4, 4])).tolist()
    [False, False, True, True]
    """
    return (slot[:, None] == slot).tril(-1).any(1)


@dataclass(frozen=True, kw_only=True)
class MIR(Method):
    """Replay the memory rows whose loss an update on the new rows alone would raise most (MIR).

    g = gradient of the loss of the new rows
    harm(x) = loss of x at theta - lr g, minus loss of x at theta, for `candidates` memory rows x
    update by g + gradient of the mean loss of the `size` candidates of most harm

    Rows of the current task are no candidates. The memory is a reservoir updated at every step.

    Parameters
    ----------
    candidates
        Memory rows drawn per step, of which the most interfered are chosen. Aljundi et al.: 50.
    size
        How many of them are replayed. Aljundi et al.: 10.
    lr
        Rate of the update that is tried; 0: that of the step.
    memory
        A reservoir. Aljundi et al.: 50 rows per class on MNIST.

    Examples
    --------
    >>> MIR().replay(0)
    ReplaySpec(kind='separate', size=50, renew='step')
    >>> MIR(candidates=5)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: size: expected at most 5, the number of candidates, got 10

    References
    ----------
    Aljundi et al. 2019, Advances in Neural Information Processing Systems 32.
    """

    decides: ClassVar[tuple[str, ...]] = ARGMAX_OR_THRESHOLD

    candidates: int = 50
    size: int = 10
    lr: float = 0.0
    memory: Memory = field(default=Memory(total=500, policy="reservoir"))

    def __post_init__(self) -> None:
        check_int("candidates", self.candidates, 1)
        if check_int("size", self.size, 1) > self.candidates:
            raise bad("size", f"at most {self.candidates}, the number of candidates", self.size)
        check_float("lr", self.lr)
        check_memory(self.memory)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("separate", self.candidates, renew="step")

    def start(self, learner: RunLearner, task: Task) -> None:
        if learner.stage:
            learner.state = {"past": torch.zeros((), device=learner.device)}  # there are candidates

    def gradient(self, grad: Gradient, batch: Batch, state: State) -> Tensor:
        found = grad(batch)
        if "past" not in state:
            return found
        return found + grad(self.retrieve(grad, found, batch))

    def retrieve(self, grad: Gradient, found: Tensor, batch: Batch) -> Batch:
        """Return the candidates of a batch that a step along `found` [P] would harm most."""
        (rows,) = batch.memory
        rate = self.lr or batch.clock.lr
        tried, now = grad.given(grad.vector - rate * found), grad.given(grad.vector)
        may = (rows.w > 0) & (rows.stage < rows.now) & ~find_repeats(rows.slot)
        harm = torch.where(may, measure_harm(tried, now, rows), -torch.inf)
        worst = harm.topk(self.size).indices
        # with too few candidates, others fill the places and do not count
        return rows._replace(w=rows.w * may).select(worst)
