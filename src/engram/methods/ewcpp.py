"""EWC++: the Fisher information as a moving average over training steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.errors import check_choice, check_int
from engram.learner.learner import RunLearner
from engram.methods.method import State, Update
from engram.methods.quadratic_penalty import Anchored, check_floats, normalise_importance
from engram.per_run import PerRun
from engram.streams.stream import Task

SIDES = ("batch", "running")
STARTS = ("first", "zero")


def moving_average(old: Tensor, new: Tensor, alpha: float | Tensor, on: str = "batch") -> Tensor:
    """Update a moving average; alpha is the weight of the new value, or of the old with "running".

    Examples
    --------
    >>> old, new = torch.tensor(0.1), torch.tensor(0.5)
    >>> (
    ...     round(moving_average(old, new, 0.9).item(), 6),
    ...     round(moving_average(old, new, 0.9, "running").item(), 6),
    ... )
    (0.46, 0.14)
    """
    return torch.lerp(old, new, alpha if on == "batch" else 1 - alpha)


@dataclass(frozen=True, kw_only=True)
class EWCpp(Anchored):
    """EWC with one Fisher estimate for all tasks: a moving average updated during training.

    F <- alpha g^2 + (1 - alpha) F after every step, g the gradient of the data terms on the batch
    loss = task + strength / 2 * sum over parameters i of F_i (theta_i - theta*_i)^2

    F in the loss is the one at the end of the last task.

    Parameters
    ----------
    strength
        Lambda. RWalk's table 1: 75000 on MNIST; on CIFAR-100 3e6, with samples 1.5e6.
    alpha
        Weight in the moving average, 0 to 1.
    alpha_on
        What alpha weighs: the new ``batch`` (paper), or the ``running`` value.
    init
        F before the first step: the ``first`` batch's, or ``zero``.
    half
        Multiply by strength / 2.
    normalize
        Rescale F to [0, 1] over all parameters at the end of a task (the authors' code).
    update
        ``step``: after every step (paper); ``interval``: with the mean of g^2 over `every` steps
        (the authors' code); an incomplete interval at the end of a task counts with its own mean.
    every
        Steps per interval. RWalk: 10 on MNIST, 50 on CIFAR-100.
    memory
        Exemplars mixed into the task's rows (the "-S" rows of the RWalk paper); None: no exemplars.

    Examples
    --------
    >>> EWCpp(alpha=2)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: alpha: expected a number in [0, 1], got 2

    References
    ----------
    Chaudhry et al. 2018, European Conference on Computer Vision.
    """

    strength: PerRun = 75000.0
    alpha: PerRun = 0.9
    alpha_on: str = "batch"
    init: str = "first"
    half: bool = True
    normalize: bool = False
    update: str = "step"
    every: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_floats(self, {"alpha": (0.0, 1.0)})
        check_choice("alpha_on", self.alpha_on, SIDES)
        check_choice("init", self.init, STARTS)
        check_choice("update", self.update, ("step", "interval"))
        check_int("every", self.every, 1)

    def factor(self) -> float | Tensor:
        return self.strength / 2 if self.half else self.strength

    def start(self, learner: RunLearner, task: Task) -> None:
        zero = torch.zeros_like(learner.vector)
        state = {"running": zero} | learner.state
        state["steps"] = torch.zeros((), dtype=torch.long, device=zero.device)
        if self.update == "interval":
            state["total"] = zero
        learner.state = state

    def step(self, update: Update, state: State) -> State:
        squared, steps = update.grad.square(), state["steps"]
        # the first task has no anchor
        first = steps == 0 if self.init == "first" and "anchor" not in state else None
        if self.update == "step":
            running = self._update_average(state["running"], squared, first)
            return {**state, "running": running, "steps": steps + 1}
        running = (
            state["running"] if first is None else torch.where(first, squared, state["running"])
        )
        total, due = state["total"] + squared, update.every(self.every)
        if due is not None:
            moved = self._update_average(running, total / self.every, None)
            running, total = torch.where(due, moved, running), torch.where(due, 0.0, total)
        return {**state, "running": running, "total": total, "steps": steps + 1}

    def _update_average(self, running: Tensor, batch: Tensor, first: Tensor | None) -> Tensor:
        moved = moving_average(running, batch, self.alpha, self.alpha_on)
        return moved if first is None else torch.where(first, batch, moved)

    def finish(self, learner: RunLearner, task: Task) -> None:
        state = dict(learner.state)
        left = int(state["steps"]) % self.every if self.update == "interval" else 0
        if left:
            state["running"] = self._update_average(state["running"], state["total"] / left, None)
        importance = state["running"]
        if self.normalize:
            importance = normalise_importance(learner, importance, "minmax_global")
        learner.state = state | {"importance": importance, "anchor": learner.vector}
        self.store(learner, task)
