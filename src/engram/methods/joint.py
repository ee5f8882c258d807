"""Joint training on all tasks so far: the upper bound of comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engram.errors import check_choice, check_int
from engram.learner.learner import RunLearner
from engram.methods.method import ARGMAX_OR_THRESHOLD, Method, Phase, ReplaySpec
from engram.streams.stream import Task

INITS = ("continue", "scratch")


@dataclass(frozen=True, kw_only=True)
class Joint(Method):
    """Train at task k on all training rows of tasks 1..k.

    The upper bound of every comparison (UB, JOINT in the papers). It reads rows that no memory
    holds, which the ledger of a run records. Labels are those visible in each row's own task.

    Parameters
    ----------
    init
        ``continue`` from the weights of the previous task, or ``scratch``: every task starts from
        the run's initial weights, with a fresh optimiser (the reference of RWalk's intransigence).
    skip
        Do not train the first `skip` tasks. With ``scratch`` the later ones are unaffected, which
        saves most of the time when only the last model matters.

    Examples
    --------
    >>> Joint().replay(3)
    ReplaySpec(kind='past', size=0)
    >>> Joint(init="scrach")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: init: unknown name 'scrach', did you mean 'scratch'? ...
    """

    reads: ClassVar[str] = "past"
    decides: ClassVar[tuple[str, ...]] = ARGMAX_OR_THRESHOLD

    init: str = "continue"
    skip: int = 0

    def __post_init__(self) -> None:
        check_choice("init", self.init, INITS)
        check_int("skip", self.skip)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("past")

    def phases(self, stage: int) -> tuple[Phase, ...]:
        return (Phase(rows="none" if stage < self.skip else "task"),)

    def start(self, learner: RunLearner, task: Task) -> None:
        if self.init == "continue":
            return
        if "initial" not in learner.state:
            learner.state = {"initial": learner.snapshot()}
            return
        initial = learner.state["initial"]
        learner.vector = initial["vector"].clone()
        learner.buffers = {k: torch.clone(v) for k, v in initial["buffers"].items()}
        learner.opt = {}  # the engine creates a new one
