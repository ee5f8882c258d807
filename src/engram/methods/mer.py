"""Meta-experience replay: Reptile over batches that join the new rows with rows of a reservoir."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from engram.errors import check_float, check_int
from engram.learner.batch import Batch
from engram.memory import Memory, check_memory
from engram.methods.method import ARGMAX_OR_THRESHOLD, Gradient, Method, ReplaySpec, State
from engram.per_run import PerRun


def divide_rows(batch: Batch, count: int) -> list[Batch]:
    """Divide a batch into `count` parts, of every count-th row each; 0: each row by itself.

    One part is the batch itself. Padding at the end of a batch moves none of its other rows.

    Examples
    --------
    >>> rows, none = torch.arange(5.0), torch.zeros(0)
    >>> batch = Batch(*[rows] * 7, *[none] * 3)
    >>> [part.x.tolist() for part in divide_rows(batch, 2)], len(divide_rows(batch, 0))
    ([[0.0, 2.0, 4.0], [1.0, 3.0]], 5)
    """
    count = min(count or len(batch.w), len(batch.w))
    if count == 1:
        return [batch]
    rows = batch._replace(memory=())
    return [rows.select(slice(place, None, count)) for place in range(count)]


@dataclass(frozen=True, kw_only=True)
class MER(Method):
    """Take small steps on new and stored rows in turn, then move towards where they led (MER).

    For each of `batches` draws from the memory, beginning where the one before ended:
        v <- theta; v <- v - rate * gradient(v) on the new rows, then on the drawn ones
        theta <- theta + beta * (v - theta)
    the update follows gamma * (where training stood - theta) / rate

    With SGD at the learning rate `rate` the weights become those of the paper. The memory is a
    reservoir updated at every step.

    Parameters
    ----------
    batches
        Draws from the memory per step. Riemer et al.: 5 or 10.
    size
        Rows per draw; 0: as many as the batch size. Riemer et al.: 5 to 100.
    steps
        Inner steps on the new rows, and on the drawn ones, of every batch; 0: one step for each
        row, as Riemer et al. do.
    rate
        Learning rate of the inner steps. Riemer et al.: .03 or .1.
    beta
        Share of the way that a batch moves the weights. Riemer et al.: .01 to .1.
    gamma
        Share of the way of all batches that the update goes; Adam undoes it. Riemer et al.: 1.
    memory
        A reservoir. Riemer et al.: 200 to 5120 rows in all.

    Examples
    --------
    >>> MER().replay(0)
    ReplaySpec(kind='separate', size=0, renew='step', draws=5)

    References
    ----------
    Riemer et al. 2019, International Conference on Learning Representations.
    """

    decides: ClassVar[tuple[str, ...]] = ARGMAX_OR_THRESHOLD

    batches: int = 5
    size: int = 0
    steps: int = 1
    rate: PerRun = 0.1
    beta: PerRun = 0.1
    gamma: PerRun = 1.0
    memory: Memory = field(default=Memory(total=500, policy="reservoir"))

    def __post_init__(self) -> None:
        check_int("batches", self.batches, 1)
        check_int("size", self.size)
        check_int("steps", self.steps)
        check_float("rate", self.rate, open_low=True)
        check_float("beta", self.beta, 0.0, 1.0, open_low=True)
        check_float("gamma", self.gamma, 0.0, 1.0, open_low=True)
        check_memory(self.memory)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("separate", self.size, renew="step", draws=self.batches)

    def gradient(self, grad: Gradient, batch: Batch, state: State) -> Tensor:
        found, moved = grad(batch), torch.zeros_like(grad.vector)
        # the sum of what was subtracted from the weights: rounded less than their difference
        for number, drawn in enumerate(batch.memory):
            within = torch.zeros_like(moved)
            again = batch if number == 0 else batch._replace(key=drawn.key)  # noise of its own
            for part in (*divide_rows(again, self.steps), *divide_rows(drawn, self.steps)):
                at = grad.vector - self.rate * (moved + within)
                within = within + (found if part is batch else grad(part, at=at))
            moved = moved + self.beta * within
        return self.gamma * moved
