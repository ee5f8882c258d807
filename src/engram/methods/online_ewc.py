"""Online elastic weight consolidation: a running sum of Fisher information, the latest anchor."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engram.learner.learner import RunLearner
from engram.methods.ewc import EWC
from engram.methods.quadratic_penalty import check_floats
from engram.per_run import PerRun
from engram.streams.stream import Task


def decay_importance(old: Tensor, new: Tensor, gamma: float) -> Tensor:
    """Add the new importance to gamma times the old one.

    Examples
    --------
    >>> import torch
    >>> round(decay_importance(torch.tensor(0.5), torch.tensor(0.2), 0.8).item(), 6)
    0.6
    """
    return gamma * old + new


@dataclass(frozen=True, kw_only=True)
class OnlineEWC(EWC):
    """EWC with one decaying sum of Fisher information, anchored at the latest weights.

    F_k = gamma F_(k-1) + Fisher of task k
    loss = task + strength / 2 * sum over parameters i of F_i (theta_i - theta*_i)^2

    Parameters
    ----------
    gamma
        Decay of the importances of earlier tasks, 0 to 1. ConFER: 1.
    gamma_in_loss
        Multiply the penalty by gamma once more, as the code of van de Ven does.
    strength
        Lambda. ConFER: 5000.
    half, labels, group, term, batch_statistics, memory
        As in `EWC`.

    Examples
    --------
    >>> OnlineEWC(gamma=1.5)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: gamma: expected a number in [0, 1], got 1.5

    References
    ----------
    Schwarz et al. 2018, International Conference on Machine Learning.
    """

    gamma: PerRun = 1.0
    gamma_in_loss: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_floats(self, {"gamma": (0.0, 1.0)})

    def factor(self) -> float | Tensor:
        return super().factor() * self.gamma if self.gamma_in_loss else super().factor()

    def finish(self, learner: RunLearner, task: Task) -> None:
        importance = self.importance_of(learner)
        if "importance" in learner.state:
            importance = decay_importance(learner.state["importance"], importance, self.gamma)
        learner.state = {"importance": importance, "anchor": learner.vector}
        self.store(learner, task)
