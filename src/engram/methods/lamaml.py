"""La-MAML: steps whose learning rates, one for each weight, are learnt by looking ahead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from engram.errors import check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.memory import Memory, check_memory
from engram.methods.mer import divide_rows
from engram.methods.method import (
    ARGMAX_OR_THRESHOLD,
    Gradient,
    Method,
    ReplaySpec,
    State,
    Update,
)
from engram.per_run import PerRun
from engram.streams.stream import Task

FLOOR = 1e-12


def shorten(vector: Tensor, length: float) -> Tensor:
    """Scale a vector down to a length if it is longer; 0: leave it.

    Examples
    --------
    >>> shorten(torch.tensor([3.0, 4.0]), 1.0), shorten(torch.tensor([3.0, 4.0]), 0.0)
    (tensor([0.6000, 0.8000]), tensor([3., 4.]))
    """
    return vector * (length / vector.norm().clamp(min=FLOOR)).clamp(max=1.0) if length else vector


@dataclass(frozen=True, kw_only=True)
class LaMAML(Method):
    """Steps on new rows at learnt rates per weight, judged on new and stored rows (La-MAML).

    v_0 = theta; v_k = v_(k-1) - relu(alpha) * gradient(v_(k-1)) on the k-th part of the new rows
    L = mean over k of the loss of new and drawn rows at v_k
    alpha <- alpha - eta dL/dalpha, then theta <- theta - relu(alpha) * dL/dtheta

    Gradients of the inner steps count as constants (first-order). Each weight moves at its own
    learnt rate: the run's optimiser, learning rate, momentum and weight decay have no part in it.
    The memory is a reservoir updated at every step.

    Parameters
    ----------
    rate
        Learning rate alpha that every weight begins with. Gupta et al.: .03 to .15.
    eta
        Learning rate of the learning rates; 0 keeps them. Gupta et al.: .1 to .35.
    steps
        Inner steps per batch, each on a part of the new rows; 0: one for each row. Gupta et al.: a
        row each on MNIST, parts of 2 to 4 rows elsewhere.
    clip
        Largest entry of a gradient of the inner steps, and largest length of the gradients of L; 0:
        no bound. Gupta et al.: 2.
    size
        Rows drawn per step; 0: as many as the batch size. Gupta et al.: 10, as many as new ones.
    memory
        A reservoir. Gupta et al.: 200 to 500 rows in all.

    Notes
    -----
    It is made for tasks that are given, or that share their classes. Where new classes compete with
    old ones, steps on new rows alone lead so far that weights learn to stand back from the new.

    Examples
    --------
    >>> LaMAML(size=10).replay(0)
    ReplaySpec(kind='separate', size=10, renew='step')

    References
    ----------
    Gupta, Yadav and Paull 2020, Advances in Neural Information Processing Systems 33.
    """

    decides: ClassVar[tuple[str, ...]] = ARGMAX_OR_THRESHOLD

    rate: PerRun = 0.03
    eta: PerRun = 0.1
    steps: int = 3
    clip: float = 2.0
    size: int = 0
    memory: Memory = field(default=Memory(total=500, policy="reservoir"))

    def __post_init__(self) -> None:
        check_float("rate", self.rate, open_low=True)
        check_float("eta", self.eta)
        check_int("steps", self.steps)
        check_float("clip", self.clip)
        check_int("size", self.size)
        check_memory(self.memory)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("separate", self.size, renew="step")

    def start(self, learner: RunLearner, task: Task) -> None:
        if not learner.state:
            learner.state = {"rates": torch.full_like(learner.vector, self.rate)}

    def gradient(self, grad: Gradient, batch: Batch, state: State) -> Tensor:
        (drawn,) = batch.memory
        found, rates = grad(batch), state["rates"].clamp(min=0)
        both = batch._replace(memory=()).join(drawn)
        # padding last, so that noise drawn by place is the same alone and in lockstep
        both = both.select((both.w == 0).to(torch.uint8).argsort(stable=True))
        path = slope = ascent = torch.zeros_like(grad.vector)
        at, number = grad.vector, torch.zeros_like(batch.w[0])
        for part in divide_rows(batch, self.steps):
            inner = found if part is batch else grad(part, at=at)
            path = path + (inner.clamp(-self.clip, self.clip) if self.clip else inner)
            at = torch.addcmul(grad.vector, rates, path, value=-1)
            there = (part.w > 0).any().to(rates.dtype)  # lockstep: a part may be padding alone
            ahead = there * grad(both, at=at)
            slope, ascent = slope + ahead, torch.addcmul(ascent, ahead, path)
            number = number + there
        slope = shorten(slope / number.clamp(min=1), self.clip)
        ascent = ascent / number.clamp(min=1) * (rates > 0)
        grad.keep(slope=slope, ascent=shorten(ascent, self.clip))
        return slope

    def step(self, update: Update, state: State) -> tuple[Tensor, State]:
        rates = state["rates"] + self.eta * update.kept["ascent"]
        return update.before - rates.clamp(min=0) * update.kept["slope"], {"rates": rates}
