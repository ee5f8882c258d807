"""Seconds of one stage with a few steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from engram.engine.engine import Engine
from engram.engine.prologue import PROLOGUE, prologue_of
from engram.engine.run import Run
from engram.engine.training import Training
from engram.learner import warm
from engram.methods.base import Method
from engram.streams.core import Stream


class Spent(NamedTuple):
    """Seconds of a stage: until its last step, and from there on.

    Also those of a late step of it, and of prologues before it.
    """

    training: float
    after: float
    step: float
    prologue: float = 0.0

    @property
    def total(self) -> float:
        return self.training + self.after


def stage_seconds(
    runs: Sequence[Run], streams: Sequence[Stream], steps: int, device: Any, lockstep: bool
) -> Spent:
    """Seconds of the second stage, in which penalties and memories are at work."""
    small = [
        replace(run, stream=stream, training=short(run.training, steps), method=hurried(run, steps))
        for run, stream in zip(runs, streams, strict=True)
    ]
    last = min(1, len(streams[0]) - 1)
    engine = Engine(small, device=device, together=lockstep or None)
    watch = _Watch(engine.device, prologue_of(runs[0].method) is not None)
    spent = 0.0
    for stage in engine.stages(progress=watch.entered, checkpointer=watch):
        if stage.stage == last:
            spent += stage.outcome.seconds
            if stage.last_of_group:
                break
    training = watch.seconds.get(last, 0.0)
    before = watch.seconds.get(PROLOGUE, 0.0)
    return Spent(training, max(spent - training, 0.0), watch.late_step(steps, training), before)


class _Watch:
    """Seconds from the beginning of a stage to its last step, by stage; as progress is told.

    It also has itself asked after every step, as if to save, to tell late steps from early ones.
    """

    every = 0.0  # seconds between two saves, so that each step is a slice
    stops = False

    def __init__(self, device: torch.device, prologue: bool) -> None:
        self.device, self.prologue = device, prologue
        self.seconds: dict[int, float] = {}
        self._began, self._seen = 0.0, set[int]()
        self._marks: list[float] = []  # when each step of the stage was done

    def due(self) -> bool:
        self._marks.append(self._now())
        return False

    def save(self, *_: Any) -> None:
        """Nothing is kept."""

    def late_step(self, steps: int, training: float) -> float:
        """Seconds of a step in the later half of a stage; the sum, where it has several phases."""
        marks = self._marks
        phases = [marks[start : start + steps] for start in range(0, len(marks), steps)]
        if steps < 2 or not phases or len(phases[-1]) != steps:
            return training / steps
        late = [phase[(steps - 1) // 2 :] for phase in phases]
        return sum(middle(np.diff(times).tolist()) for times in late)

    def entered(self, places: Sequence[int], stage: int) -> Callable[[int, int], None]:
        if self.prologue and not self._seen.issuperset(places):  # told as the first stage
            stage = PROLOGUE
            self._seen.update(places)
        self._began, self._marks = self._now(), []

        def stepped(done: int, of: int) -> None:
            now = self._now()
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._began
            self._began = now

        return stepped

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - warm.spent()


def middle(values: Sequence[float]) -> float:
    """The value in the middle, of two the greater one."""
    return sorted(values)[len(values) // 2]


def hurried(run: Run, steps: int) -> Method:
    """The method with a prologue of a few steps: tasks take no longer after a long one.

    Tasks that it passes over are trained, or there would be nothing to time.
    """
    if getattr(run.method, "skip", 0):
        passed: dict[str, Any] = {"skip": 0}
        return replace(run.method, **passed)
    if prologue_of(run.method) is None or not hasattr(run.method, "root_iterations"):
        return run.method
    shorter: dict[str, Any] = {"root_iterations": steps}
    return replace(run.method, **shorter)


def short(training: Training, steps: int) -> Training:
    """Settings for a few steps."""
    # one step of the first stage is enough to have a past
    return replace(
        training, iterations=steps, epochs=1, first_factor=1 / steps, evaluate_every=0, patience=0,
        restore_best=False, schedule="constant", min_lr=0.0,
    )  # fmt: skip
