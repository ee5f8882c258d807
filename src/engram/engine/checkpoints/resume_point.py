"""Where a run stood inside a task, so that it can go on at the very next step.

A learner's own state covers its weights, method state, optimiser and memory. This is the rest: how
far the task had come, what its schedule and its log knew, and what the trainer held besides.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from engram.engine.checkpoints.single import rebuild, structure
from engram.learner.learner import Learner
from engram.learner.tree import flatten, tree_map

if TYPE_CHECKING:
    from engram.engine.history import History
    from engram.engine.loop import PhaseTraining
    from engram.learner.warm import Stopwatch

Position = tuple[int, int, int]  # phase, epoch (or stretch of iterations) in it, steps of that


@dataclass
class ResumePoint:
    """One run inside a task.

    `facts` are plain numbers, `tensors` a tree; together they are all that a fresh process needs
    besides the learner's state.
    """

    position: Position
    facts: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)

    def packed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name and JSON, for a file."""
        named = flatten(self.tensors).items()
        flat = {f"resume/{k}": v.detach().cpu().contiguous().clone() for k, v in named}
        facts = {"position": list(self.position), "facts": self.facts}
        return flat, facts | {"structure": structure(self.tensors)}

    @classmethod
    def unpacked(cls, tensors: dict[str, Tensor], facts: dict[str, Any]) -> ResumePoint:
        """What `packed` wrote."""
        flat = {k.removeprefix("resume/"): v for k, v in tensors.items() if k.startswith("resume/")}
        phase, epoch, step = facts["position"]
        tree = rebuild(facts["structure"], flat)
        return cls((phase, epoch, step), facts["facts"], tree)

    @property
    def moment(self) -> tuple[int, ...]:
        """Runs of one moment can go on together: the position, and the steps of log entries."""
        return *self.position, *(entry[0] for entry in self.facts["log"]["sums"])


def restore(now: PhaseTraining, points: Sequence[ResumePoint]) -> None:
    """Be where the runs were when `StepSlices` made these."""
    device = now.learners[0].device

    def move(tree: Any) -> Any:
        return tree_map(lambda leaf: leaf.to(device), tree)

    _, *start = points[0].position
    now.start = (start[0], start[1])
    facts = [one.facts for one in points]
    for name, array in now.schedule.arrays().items():
        array[:] = [one["schedule"][name] for one in facts]
    now.log.load_state_dict([one["log"] for one in facts], [one.tensors["curve"] for one in points])
    if now.best is not None and points[0].tensors["best"]:
        now.best.saved = [move(one.tensors["best"]["0"]) for one in points]
    states = [move(one.tensors["trainer"]) for one in points]
    now.trainer.load_state_dict(states, [one["steps"] for one in facts])
    for learner, one in zip(now.learners, facts, strict=True):
        learner.ledger.become(one["ledger"])


class Checkpointer(Protocol):
    """Keeps runs that are inside a task; asked between slices of a few seconds."""

    @property
    def every(self) -> float:
        """Seconds between two saves."""
        ...

    def due(self) -> bool:
        """Whether it is time to save."""
        ...

    def save(
        self, places: Sequence[int], learners: Sequence[Learner], points: Sequence[ResumePoint]
    ) -> None:
        """Write the states of runs that train together."""
        ...

    @property
    def stops(self) -> bool:
        """Whether training is to end behind what was saved: a signal came, or time is up."""
        ...


ASKED_OFTEN = 5  # times that a checkpointer is asked within its interval, at least


class Slices:
    """Cuts steps into slices of about `seconds`, so that a checkpointer is asked in time."""

    def __init__(self, seconds: float = 1.0, first: int = 1) -> None:
        self.seconds, self.steps = seconds, first

    def took(self, steps: int, seconds: float) -> None:
        """Learn from a slice how many steps the next one may have."""
        wanted = int(steps * self.seconds / max(seconds, 1e-6))
        self.steps = min(max(wanted, 1), 4 * self.steps)  # the first steps may wait for kernels


class StepSlices:
    """Cuts the steps of a phase into slices, after which a checkpoint may be due.

    Parameters
    ----------
    now, history, clock
        The phase, what those before it gave, and the seconds of the task.
    free
        What may move in each run, by its method, not by the phase.
    checkpointer
        Says when it is time to save.
    keeps_end
        Whether to save behind the last step, too: no stage will be recorded then.
    """

    def __init__(
        self, now: PhaseTraining, history: History, clock: Stopwatch, free: Sequence[Tensor],
        checkpointer: Checkpointer | None, keeps_end: bool = False,
    ) -> None:  # fmt: skip
        self.now, self.history, self.clock, self.free = now, history, clock, free
        self.checkpointer, self._keeps_end = checkpointer, keeps_end
        self.sliced = checkpointer is not None
        seconds = 1.0 if checkpointer is None else min(1.0, checkpointer.every / ASKED_OFTEN)
        self._slices, self._began = Slices(seconds), 0.0
        self._taken = 0  # steps of the present slice; epochs may be shorter than a slice

    def cut(self, start: int, stop: int) -> int:
        """Where the slice that goes on at `start` ends, at `stop` at the latest."""
        if not self.sliced:
            return stop
        if not self._taken:
            self._began = time.perf_counter()
        return min(stop, start + max(self._slices.steps - self._taken, 1))

    def took(self, steps: int) -> None:
        """Steps were launched. Only at the end of a slice the device is waited for.

        An epoch may be a single step, and the host is to prepare the next ones meanwhile.
        """
        self._taken += steps
        if self._taken < self._slices.steps:
            return
        if self.now.learners[0].device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        self._slices.took(self._taken, time.perf_counter() - self._began)
        self._taken = 0

    @property
    def due(self) -> bool:
        """Whether it is time to save."""
        if self.checkpointer is None:
            return False
        at_end = self._keeps_end and self.now.log.done >= self.now.log.total
        return at_end or self.checkpointer.due()

    def stopped(self, epoch: int, start: int) -> list[ResumePoint] | None:
        """Where the runs stand if the slice from `start` came to an end inside."""
        if self.checkpointer is None:
            return None
        now = self.now
        done = start + int(np.max(now.trainer.steps)) - int(now.log.steps.max())
        now.log.count(now.live[:, start:done])
        return self.points(epoch, done)

    def points(self, epoch: int, step: int) -> list[ResumePoint]:
        """Where the runs stand."""
        self.now.trainer.write_back()
        position = (self.now.number, epoch, step)
        return [self._point(run, position) for run in range(len(self.free))]

    def _point(self, run: int, position: Position) -> ResumePoint:
        """All that is needed to go on at this position."""
        now = self.now
        log, curve = now.log.state_dict(run)
        earlier, earlier_curve = self.history.state_dict(run)
        schedule = {name: value[run].item() for name, value in now.schedule.arrays().items()}
        best = now.best.saved if now.best is not None else []
        facts = {
            "seconds": self.clock.seconds, "ledger": now.learners[run].ledger.to_dict(),
            "earlier": earlier, "log": log, "schedule": schedule,
            "steps": int(np.asarray(now.trainer.steps).reshape(-1)[run]),
        }  # fmt: skip
        tensors = {
            "free": self.free[run], "earlier": earlier_curve, "curve": curve,
            "trainer": now.trainer.state_dict(run), "best": {"0": best[run]} if best else {},
        }  # fmt: skip
        return ResumePoint(position, facts, tensors)
