"""Synaptic intelligence, also known as path integral (PI)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from engram.errors import check_choice
from engram.learner.learner import RunLearner
from engram.methods.method import State, Update
from engram.methods.quadratic_penalty import Anchored, check_floats, penalty_gradient
from engram.per_run import PerRun
from engram.streams.stream import Task

GRADIENTS = ("task", "total")
CLAMPS = ("none", "task_term", "total")


def path_contribution(path: Tensor, moved: Tensor, xi: float) -> Tensor:
    """Compute a task's importance: loss drop along the path over the squared distance moved.

    Examples
    --------
    >>> round(path_contribution(torch.tensor(1.25), torch.tensor(-0.75), 0.1).item(), 6)
    1.886792
    """
    return path / (moved.square() + xi)


@dataclass(frozen=True, kw_only=True)
class SI(Anchored):
    """Penalise changes to parameters by how much each contributed to the drop in loss.

    omega_i += -g_i (theta_i after - theta_i before), in every step
    Omega_i += omega_i / ((theta_i end - theta_i start)^2 + xi), at the end of a task
    loss = task + strength * sum over parameters i of Omega_i (theta_i - theta*_i)^2

    Parameters
    ----------
    strength
        c of the paper; no half. ConFER: 1; RWalk: 0.1 on MNIST, 10 on CIFAR-100.
    xi
        Damping. Code of van de Ven: 0.1; of the RWalk authors: 0.001.
    clamp
        ``none``: Omega may decrease (paper); ``task_term``: clamp each task's contribution at 0 (PI
        in the RWalk paper); ``total``: clamp the sum (the authors' code).
    grad
        g of the ``task`` loss, or of the ``total`` with its penalty (code of van de Ven).
    memory
        Exemplars mixed into the task's rows (the "-S" rows of the RWalk paper); None: no exemplars.

    Examples
    --------
    >>> SI.pi(strength=10.0) == SI(strength=10.0, xi=0.001, clamp="task_term")
    True

    References
    ----------
    Zenke et al. 2017, International Conference on Machine Learning.
    """

    strength: PerRun = 1.0
    xi: PerRun = 0.1
    clamp: str = "none"
    grad: str = "task"

    @classmethod
    def pi(cls, **options: Any) -> SI:
        """Make the baseline PI of the RWalk paper (strength 0.1 for MNIST, 10 for CIFAR)."""
        return replace(cls(strength=0.1, xi=1e-3, clamp="task_term"), **options)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_floats(self, {"xi": (1e-12, float("inf"))})
        check_choice("clamp", self.clamp, CLAMPS)
        check_choice("grad", self.grad, GRADIENTS)

    def start(self, learner: RunLearner, task: Task) -> None:
        zero = torch.zeros_like(learner.vector)
        # the task starts where the last one ended, so one vector is both start and anchor
        learner.state = {**learner.state, "path": zero, "anchor": learner.vector}

    def step(self, update: Update, state: State) -> State:
        before, after, grad = update.before, update.after, update.grad
        if self.grad == "total" and "importance" in state:
            grad = grad + penalty_gradient(
                before, state["anchor"], state["importance"], self.factor()
            )
        return {**state, "path": torch.addcmul(state["path"], grad, before - after)}

    def finish(self, learner: RunLearner, task: Task) -> None:
        state = learner.state
        term = path_contribution(state["path"], learner.vector - state["anchor"], self.xi)
        if self.clamp == "task_term":
            term = term.clamp(min=0)
        total = state["importance"] + term if "importance" in state else term
        if self.clamp == "total":
            total = total.clamp(min=0)
        learner.state = {**state, "importance": total, "anchor": learner.vector}
        self.store(learner, task)
