"""RWalk with all its work in every step, and a small method to join with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engram.learner.learner import RunLearner
from engram.methods.ewcpp import moving_average
from engram.methods.method import Method, State, Update
from engram.methods.quadratic_penalty import penalty_gradient
from engram.methods.rwalk import RWalk
from engram.streams.stream import Task


@dataclass(frozen=True, kw_only=True)
class Stepwise(RWalk):
    """The end of an interval as a `torch.where` in every step."""

    def step(self, update: Update, state: State) -> State:
        before, after, grad = update.before, update.after, update.grad
        squared, followed, steps = grad.square(), grad, state["steps"] + 1
        if self.grad == "total" and "importance" in state:
            followed = grad + penalty_gradient(
                before, state["anchor"], state["importance"], self.factor()
            )
        due = steps % self.every == 0
        sets = self.init == "first" and "anchor" not in state
        old = state["running"]
        begun = torch.where(steps == 1, squared, old) if sets else old
        drop = torch.addcmul(state["drop"], followed, before - after)
        extra: State = {}
        if self.impl == "agem":
            used, total = old, state["total"] + squared
            moved = moving_average(old, total / self.every, self.alpha, self.alpha_on)
            extra, running = {"total": total}, torch.where(due, moved, begun)
        else:
            moved = moving_average(old, squared, self.alpha, self.alpha_on)
            used = running = torch.where(steps == 1, squared, moved) if sets else moved
        distance = used * (after - state["origin"]).square()
        gain = drop / ((0.5 if self.kl_half else 1.0) * distance + self.eps)
        gain = gain.clamp(min=0) if self.clamp == "interval" else gain
        return {
            **state,
            **extra,
            "steps": steps,
            "running": running,
            "earned": state["earned"] + torch.where(due, gain, 0.0),
            "drop": torch.where(due, 0.0, drop),
            "origin": torch.where(due, after, state["origin"]),
        }


@dataclass(frozen=True, kw_only=True)
class Ticks(Method):
    """Keeps where the weights were after the last interval, how many there were, and the calls."""

    every: int = 2

    def start(self, learner: RunLearner, task: Task) -> None:
        zero = torch.zeros((), dtype=torch.long)
        vector = torch.zeros_like(learner.vector)
        learner.state = {"steps": zero, "ends": zero, "calls": zero, "seen": vector}

    def step(self, update: Update, state: State) -> State:
        state = {**state, "steps": state["steps"] + 1}
        due = update.every(self.every)
        if due is None:
            return state
        return {
            **state,
            "calls": state["calls"] + 1,  # against the rules, to see them
            "ends": state["ends"] + due,
            "seen": torch.where(due, update.after + state["seen"], state["seen"]),
        }
