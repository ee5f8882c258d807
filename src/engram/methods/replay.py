"""Replay of a fixed share of every task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engram.errors import number
from engram.learner.learner import Learner
from engram.memory import Memory
from engram.methods import base
from engram.streams.core import Task


@dataclass(frozen=True, kw_only=True)
class Replay(base.Method):
    """Keep a random share of every task, and train on the task and all that was kept.

    The REPLAY of the skeleton benchmark (Wei et al. 2024), there with class-balanced cross-entropy
    (``loss="balanced"`` of the training settings) and full batches. It is
    ``ER(memory=Memory(fraction=0.2), mix="union")``; with a share of 1 it sees what
    `Joint` sees.

    Parameters
    ----------
    fraction
        Share of each task's rows, rounded up, never cut later.

    Examples
    --------
    >>> Replay().memory_budget
    Memory(fraction=0.2)
    """

    decides: ClassVar[tuple[str, ...]] = base.EITHER

    fraction: float = 0.2

    def __post_init__(self) -> None:
        number("fraction", self.fraction, 0.0, 1.0, open_low=True)

    def replay(self, stage: int) -> base.ReplaySpec:
        return base.ReplaySpec("union")

    def finish(self, learner: Learner, task: Task) -> None:
        learner.exemplars = self.memory_budget.update(learner, task.train)

    @property
    def memory_budget(self) -> Memory:
        return Memory(fraction=self.fraction)
