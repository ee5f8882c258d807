"""Several stages on one device at once, each in a CUDA stream of its own.

A convolution of a small batch leaves most of a large device idle, and mapped over runs it becomes a
grouped convolution, which is slower. Recorded steps of several runs, replayed in several streams,
fill the device: each run takes the very steps that it would take alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from engram.engine.checkpoints.resume_point import Midway, Saver
from engram.learner.learner import Learner

Outcome = TypeVar("Outcome")
_STREAMS: dict[torch.device, list[torch.cuda.Stream]] = {}


@dataclass
class Part(Generic[Outcome]):
    """A stage of one run, or of runs that share their steps, as a generator of turns."""

    turns: Generator[list[Midway] | None, None, list[Outcome]]
    places: Sequence[int]
    learners: Sequence[Learner]


def side_by_side(
    parts: Sequence[Part[Outcome]], device: torch.device, saver: Saver | None = None
) -> list[Outcome]:
    """Outcomes of all parts, in their order.

    They take turns at launching a slice of steps. Where a save is due, each part stops at its next
    slice and all are saved at once.
    """
    streams = _streams(device, len(parts))
    found: dict[int, list[Outcome]] = {}
    waiting: dict[int, list[Midway]] = {}
    while len(found) < len(parts):
        for index, part in enumerate(parts):
            if index in found or index in waiting:
                continue
            with streams[index]:
                try:
                    states = next(part.turns)
                except StopIteration as end:
                    found[index] = end.value
                    continue
            if states is not None:
                waiting[index] = states
        if saver is not None and waiting and len(waiting) + len(found) == len(parts):
            order = sorted(waiting)
            _save(saver, [parts[index] for index in order], [waiting[index] for index in order])
            waiting.clear()
    if len(parts) > 1 and device.type == "cuda":
        torch.cuda.synchronize(device)  # what comes next runs in another stream
    return [outcome for index in range(len(parts)) for outcome in found[index]]


def _save(saver: Saver, parts: Sequence[Part[Any]], states: Sequence[list[Midway]]) -> None:
    saver.save(
        [place for part in parts for place in part.places],
        [learner for part in parts for learner in part.learners],
        [state for own in states for state in own],
    )


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
