"""Riemannian walk: EWC++ and a path integral measured in Fisher distance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.errors import check_choice, check_int
from engram.learner.learner import RunLearner
from engram.methods.ewcpp import SIDES, STARTS, moving_average
from engram.methods.method import State, Update
from engram.methods.quadratic_penalty import (
    NORMS,
    Anchored,
    check_floats,
    normalise_importance,
    penalty_gradient,
)
from engram.methods.si import GRADIENTS
from engram.per_run import PerRun
from engram.streams.stream import Task

AVERAGES = ("mean", "agem_accumulate", "literal_half_first")


def loss_drop_per_distance(
    drop: Tensor, fisher: Tensor, moved: Tensor, eps: float | Tensor, kl_half: bool
) -> Tensor:
    """Compute the loss drop per distance on the manifold: drop / (F moved^2 / 2 + eps)."""
    return drop / ((0.5 if kl_half else 1.0) * fisher * moved.square() + eps)


def average_scores(old: Tensor | None, new: Tensor, how: str) -> Tensor:
    """Average a score over tasks; `old` is None after the first task.

    Examples
    --------
    >>> average_scores(torch.tensor([10.0, 2.0]), torch.tensor([20.0, 6.0]), "mean").tolist()
    [15.0, 4.0]
    """
    if old is None:
        return new / 2 if how == "literal_half_first" else new
    mean = (old + new) / 2
    return old + mean if how == "agem_accumulate" else mean


@dataclass(frozen=True, kw_only=True)
class RWalk(Anchored):
    """Penalise changes by Fisher information plus the drop in loss per unit of Fisher distance.

    F <- alpha g^2 + (1 - alpha) F and drop_i += -g_i (theta_i after - theta_i before), every step
    score_i += max(0, drop_i / (F_i moved_i^2 / 2 + eps)), every `every` steps
    score over tasks: the mean of the old one and the task's, at the end of a task
    loss = task + strength * sum over parameters i of (F_i + score_i) (theta_i - theta*_i)^2,
    F and score each rescaled to [0, 1]

    Parameters
    ----------
    strength
        Lambda. RWalk's table 1: 1000; 500 on CIFAR-100 with samples.
    alpha, alpha_on, init
        As in `EWCpp`.
    every
        Steps per interval. RWalk: 10 on MNIST, 50 on CIFAR-100.
    eps
        Damping, which the paper leaves open.
    kl_half
        The half in the distance (paper); False: the authors' code.
    flush
        An interval cut short by the end of a task counts; False: it is dropped.
    clamp
        Clamp scores at 0 in every ``interval``, or in the sum over the ``task``.
    avg
        ``mean``: with the first task unhalved; ``agem_accumulate``: the mean is added to the old
        score (the authors' code); ``literal_half_first``: the first task's is halved, too.
    norm
        ``minmax_global``: over all parameters that may move (the authors' code); ``per_tensor``:
        layer by layer; ``max_only``: divided by the maximum.
    half
        strength / 2 in place of strength.
    grad
        g of the ``task`` loss (the authors' code), or of the ``total`` with the penalty (the
        paper's text).
    impl
        ``paper``; ``agem``: F moves once per interval by a sum of g^2 that is not cleared within a
        task, after the score has used the F before.
    memory
        Exemplars mixed into the task's rows (the "-S" rows of the RWalk paper); None: no exemplars.

    Examples
    --------
    >>> RWalk(every=0)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: every: expected a whole number of at least 1, got 0

    References
    ----------
    Chaudhry et al. 2018, European Conference on Computer Vision.
    """

    strength: PerRun = 1000.0
    alpha: PerRun = 0.9
    alpha_on: str = "batch"
    init: str = "first"
    every: int = 10
    eps: PerRun = 1e-3
    kl_half: bool = True
    flush: bool = True
    clamp: str = "interval"
    avg: str = "mean"
    norm: str = "minmax_global"
    half: bool = False
    grad: str = "task"
    impl: str = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_floats(self, {"alpha": (0.0, 1.0), "eps": (1e-12, float("inf"))})
        check_int("every", self.every, 1)
        check_choice("alpha_on", self.alpha_on, SIDES)
        check_choice("init", self.init, STARTS)
        check_choice("clamp", self.clamp, ("interval", "task"))
        check_choice("avg", self.avg, AVERAGES)
        check_choice("norm", self.norm, NORMS)
        check_choice("grad", self.grad, GRADIENTS)
        check_choice("impl", self.impl, ("paper", "agem"))

    def factor(self) -> float | Tensor:
        return self.strength / 2 if self.half else self.strength

    def start(self, learner: RunLearner, task: Task) -> None:
        zero = torch.zeros_like(learner.vector)
        fresh: State = {"drop": zero, "origin": learner.vector, "earned": zero}
        fresh["steps"] = torch.zeros((), dtype=torch.long, device=zero.device)
        if self.impl == "agem":
            fresh["total"] = zero
        learner.state = {"running": zero} | learner.state | fresh

    def step(self, update: Update, state: State) -> State:
        before, after, grad = update.before, update.after, update.grad
        followed, squared = grad, grad.square()
        if self.grad == "total" and "importance" in state:
            pull = penalty_gradient(before, state["anchor"], state["importance"], self.factor())
            followed = grad + pull
        state = {
            **state,
            "steps": state["steps"] + 1,
            "drop": torch.addcmul(state["drop"], followed, before - after),
        }
        if self.impl == "paper":
            moved = moving_average(state["running"], squared, self.alpha, self.alpha_on)
            state["running"] = self._start_fisher(state, squared, moved)
        else:
            state["total"] = state["total"] + squared
            if self.every > 1:  # else the first step ends an interval, which sets F
                state["running"] = self._start_fisher(state, squared, state["running"])
        due = update.every(self.every)
        return state if due is None else self._end_interval(due, after, state)

    def _start_fisher(self, state: State, squared: Tensor, later: Tensor) -> Tensor:
        """Initialise F in the first step of the first task, if `init` says so."""
        if self.init == "zero" or "anchor" in state:
            return later
        return torch.where(state["steps"] == 1, squared, later)

    def _end_interval(self, due: Tensor, after: Tensor, state: State) -> State:
        """Add what the parameters gained to their scores, where an interval is `due` to end."""
        gain = torch.where(due, self._gain(state, after), 0.0)
        ended = {
            "earned": state["earned"] + gain,
            "drop": torch.where(due, 0.0, state["drop"]),
            "origin": torch.where(due, after, state["origin"]),
        }
        if self.impl == "agem":
            mean = state["total"] / self.every
            moved = moving_average(state["running"], mean, self.alpha, self.alpha_on)
            ended["running"] = torch.where(due, moved, state["running"])
        return state | ended

    def _gain(self, state: State, after: Tensor) -> Tensor:
        moved = after - state["origin"]
        gain = loss_drop_per_distance(
            state["drop"], state["running"], moved, self.eps, self.kl_half
        )
        return gain.clamp(min=0) if self.clamp == "interval" else gain

    def finish(self, learner: RunLearner, task: Task) -> None:
        state = dict(learner.state)
        earned = state["earned"]
        if self.flush and int(state["steps"]) % self.every:
            earned = earned + self._gain(state, learner.vector)
        score = average_scores(state.get("score"), earned.clamp(min=0), self.avg)
        parts = (normalise_importance(learner, one, self.norm) for one in (state["running"], score))
        importance = torch.stack(list(parts)).sum(0)
        learner.state = state | {
            "score": score, "importance": importance, "anchor": learner.vector,
        }  # fmt: skip
        self.store(learner, task)
