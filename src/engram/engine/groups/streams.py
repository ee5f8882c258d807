"""Several stages on one device at once, each in a CUDA stream of its own.

A convolution of a small batch leaves most of a large device idle, and mapped over runs it becomes a
grouped convolution, which is slower. Recorded steps of several runs, replayed in several streams,
fill the device: each run takes the very steps that it would take alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from engram.engine.backend import numerics
from engram.engine.checkpoints.resume_point import Checkpointer, ResumePoint
from engram.engine.history import StageOutcome
from engram.engine.loop import Progress, train_task
from engram.engine.training import Training
from engram.learner.learner import Learner
from engram.methods.base import Method

Outcome = TypeVar("Outcome")
_STREAMS: dict[torch.device, list[torch.cuda.Stream]] = {}


@dataclass
class Part(Generic[Outcome]):
    """A stage of one run, or of runs that share their steps, as a generator of turns."""

    turns: Generator[list[ResumePoint] | None, None, list[Outcome]]
    places: Sequence[int]
    learners: Sequence[Learner]


def parts_of(
    learners: Sequence[Learner], methods: Sequence[Method], training: Training, stage: int, *,
    mapped: bool, capture: bool = False, compile: bool = False, progress: Progress | None = None,
    features: bool = False, checkpointer: Checkpointer | None = None, places: Sequence[int] = (),
    rates: Sequence[float] = (),
) -> list[Part[StageOutcome]]:  # fmt: skip
    """Learners on task `stage`: mapped runs share their steps, others are a part each.

    `places` are the numbers of the runs, by which a `checkpointer` knows them; `rates` their
    learning rates, where they differ from that of `training`.
    """
    wide = len(learners) if mapped else 1
    count, parts = len(learners) // wide, []
    for number, report in enumerate(_reports(progress, count)):
        mine = slice(number * wide, (number + 1) * wide)
        turns = train_task(
            learners[mine], methods[mine], training, stage, mapped=mapped, capture=capture,
            compile=compile, progress=report, features=features, checkpointer=checkpointer,
            beside=count, rates=rates[mine],
        )  # fmt: skip
        parts.append(Part(turns, places[mine], learners[mine]))
    return parts


def run_task(
    learners: Sequence[Learner], methods: Sequence[Method], training: Training, stage: int,
    **options: Any,
) -> list[StageOutcome]:  # fmt: skip
    """Train and evaluate learners on a task, from its beginning to its end."""
    with numerics(training.precision):
        parts = parts_of(learners, methods, training, stage, **options)
        found = side_by_side(parts, learners[0].device, options.get("checkpointer"))
    return [one for one in found if one is not None]


def _reports(progress: Progress | None, count: int) -> Sequence[Progress | None]:
    """For each of `count` parts; the steps reported are their mean."""
    if progress is None or count == 1:
        return [progress] * count
    done = [0] * count

    def report(steps: int, total: int, number: int) -> None:
        done[number] = steps
        progress(sum(done) // count, total)

    return [partial(report, number=number) for number in range(count)]


def side_by_side(
    parts: Sequence[Part[Outcome]], device: torch.device, checkpointer: Checkpointer | None = None
) -> list[Outcome | None]:
    """Outcomes of all parts, in their order.

    They take turns at launching a slice of steps. Where a save is due, each part stops at its next
    slice and all are saved at once. If training is to end then, runs inside the task have None.
    """
    streams = _streams(device, len(parts))
    found: dict[int, list[Outcome | None]] = {}
    waiting: dict[int, list[ResumePoint]] = {}
    while len(found) < len(parts):
        for index, part in enumerate(parts):
            if index in found or index in waiting:
                continue
            with streams[index]:
                try:
                    points = next(part.turns)
                except StopIteration as end:
                    found[index] = list(end.value)
                    continue
            if points is not None:
                waiting[index] = points
        if checkpointer is not None and waiting and len(waiting) + len(found) == len(parts):
            order = sorted(waiting)
            checkpointer.save(
                [place for index in order for place in parts[index].places],
                [learner for index in order for learner in parts[index].learners],
                [point for index in order for point in waiting[index]],
            )
            if checkpointer.stops:
                break
            waiting.clear()
    for index in waiting:  # they stop here
        parts[index].turns.close()
        found[index] = [None] * len(parts[index].places)
    if len(parts) > 1 and device.type == "cuda":
        torch.cuda.synchronize(device)  # what comes next runs in another stream
    return [outcome for index in range(len(parts)) for outcome in found[index]]


def _streams(device: torch.device, count: int) -> list[Any]:
    """Contexts to launch in: the present stream for a single part, else one for each.

    Streams are used again, and with them the memory that torch holds for each.
    """
    if count == 1 or device.type != "cuda":
        return [contextlib.nullcontext()] * count
    known = _STREAMS.setdefault(device, [])
    known += [torch.cuda.Stream(device) for _ in range(count - len(known))]
    for stream in known[:count]:
        stream.wait_stream(torch.cuda.current_stream(device))
    return [torch.cuda.stream(stream) for stream in known[:count]]
