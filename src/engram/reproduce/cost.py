"""What runs will cost: a few steps are timed on the device, the rest is multiplication."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engram.engine.engine import Engine
from engram.engine.run import Run
from engram.learner import warm
from engram.recipes import Plan
from engram.reproduce.timing import Group, Seconds, Timing, passes_of, small
from engram.streams.core import Stream

FORWARD_SHARE = 1 / 3  # of a step: evaluation does no backward pass


Tell = Callable[[str, int, int], None]  # label, place and number of groups


@dataclass(frozen=True)
class CostEstimate:
    """The estimate for runs that train together."""

    label: str  # of the first run
    labels: tuple[str, ...]
    runs: int
    lockstep: bool
    steps: int  # of the longest run
    step_seconds: float  # of one step of all runs that train together, or of one run
    seconds: float  # in all
    timed: bool = True  # else taken from runs of the same network, by another method


def steps_of(run: Run) -> int:
    """Optimiser steps of a run over all tasks, as far as they are known beforehand."""
    return sum(_stage_steps(run, stage) for stage in range(len(run.stream)))


def _stage_steps(run: Run, stage: int) -> int:
    if all(phase.rows == "none" for phase in run.method.phases(stage)):
        return 0
    epochs, iterations = run.training.length(stage)
    if iterations:
        return iterations
    rows, batch = _rows(run, stage), run.training.batch_size
    per = 1 if not batch else math.ceil(rows / batch)
    return epochs * per


def _rows(run: Run, stage: int) -> int:
    """Rows that one epoch of a stage goes over."""
    tasks = run.stream.tasks
    own, kind = len(tasks[stage].train), run.method.replay(stage).kind
    past = [len(task.train) for task in tasks[:stage]]
    if kind == "past":
        return own + sum(past)
    if kind == "complete":
        return _distinct([task.train for task in tasks[: stage + 1]])
    memory = run.method.memory_budget
    if kind != "union" or memory is None or not stage:
        return own
    classes = len({c for task in tasks[:stage] for c in task.shown})
    kept = memory.capacity(groups=classes, sizes=past)
    return own + min(sum(past), sum(past) if kept is None else kept)


def _scored_rows(run: Run) -> int:
    """Rows that a run evaluates: after every stage those of all tasks, in epochs the task's own."""
    stream, kind = run.stream, run.stream.held_out
    held = sum(len(getattr(task, kind)) for task in stream) if kind else 0
    after = len(stream) * (sum(len(task.test) for task in stream) + held)
    return after + sum(_validated_rows(run, stage) for stage in range(len(stream)))


def _validated_rows(run: Run, stage: int) -> int:
    """Rows that early stopping and the learning rate look at, in all epochs of a stage."""
    if not run.training.validates:
        return 0
    every = run.method.replay(stage).kind == "complete"  # is validated on all tasks so far
    tasks = run.stream.tasks[0 if every else stage : stage + 1]
    return run.training.length(stage)[0] * _distinct([task.valid for task in tasks])


def _distinct(rows: Sequence[torch.Tensor]) -> int:
    """How many rows there are, each once, whatever tasks it is in."""
    return len(torch.cat(list(rows)).unique())


def estimate(
    plans: Sequence[Plan], *, device: Any = "auto", together: bool | None = None,
    group_size: int = 0, tell: Tell | None = None, limit: float | None = None,
) -> list[CostEstimate]:  # fmt: skip
    """Time a few steps of every group of runs and extrapolate; `tell` hears what is timed next.

    With a `limit` in seconds, every kind of run is timed by two steps, those first that seem to
    take longest, and the costliest again, and then more closely, in the time that is left. Where
    the limit comes first, one kind for each network is timed in any case; what others take is
    guessed from it by the passes of a step (`passes_of`), and they say so.
    """
    if not plans:
        return []
    engine = Engine([p.run for p in plans], device=device, together=together, group_size=group_size)
    groups, shrunk = [], dict[int, Stream]()
    for places in engine.groups():
        lockstep = engine.maps(places) and not engine.apart(places)
        runs = [engine.runs[one] for one in (places if lockstep else places[:1])]
        for run in runs:
            if id(run.stream) not in shrunk:
                shrunk[id(run.stream)] = small(run.stream, run.training.batch_size)
        groups.append(Group(places, lockstep, runs, [shrunk[id(run.stream)] for run in runs]))

    def told(group: Group, *of: int) -> None:
        if tell is not None:
            tell(plans[group.places[0]].label, *of)

    timing = Timing(engine.device)
    # runs on copied images stand for those without: making the copies is part of their steps
    order = sorted(groups, key=lambda group: group.runs[0].stream.data.copies is None)
    if limit is not None:
        _within(limit, timing, order, told)
    for place, group in enumerate(order if limit is None else ()):
        told(group, place, len(groups))
        timing.look_closely(group)
    return [
        _cost([plans[one] for one in group.places], group.lockstep, timing.of(group))
        for group in groups
    ]


def _within(
    limit: float, timing: Timing, groups: Sequence[Group], tell: Callable[..., Any]
) -> None:
    """Time kinds of runs for so many seconds: each once, then those that matter more closely."""
    ends = warm.Stopwatch(-limit)  # what torch does once in a process is nobody's time
    steps, by_kind, by_network = dict[Any, int](), dict[Any, Group](), dict[Any, Group]()
    for group in groups:
        by_kind.setdefault(group.kind, group)
    for kind, group in by_kind.items():
        steps[kind] = max(map(steps_of, group.runs))
    kinds = sorted(
        by_kind.values(), key=lambda one: -steps[one.kind] * passes_of(one.runs[0].method)
    )
    for group in kinds:
        by_network.setdefault(group.network, group)
    first = list(by_network.values())
    order = [*first, *(group for group in kinds if all(group is not one for one in first))]
    for place, group in enumerate(order):
        if place < len(first) or ends.seconds < 0:
            tell(group, place, len(order))
            timing.glance(group)

    def costliest() -> list[Group]:
        known = filter(timing.knows, kinds)
        return sorted(known, key=lambda one: -steps[one.kind] * timing.of(one).step)

    for group in costliest():
        if ends.seconds + timing.needed(group) < 0:
            timing.look_again(group)
    for group in costliest():
        if ends.seconds + timing.needed(group, closely=True) < 0:
            timing.look_closely(group)


def _cost(plans: Sequence[Plan], lockstep: bool, found: Seconds) -> CostEstimate:
    totals = []
    for plan in plans:
        run = plan.run
        batches = _scored_rows(run) / (run.training.batch_size or 1000)
        besides = len(run.stream) * found.fixed + batches * found.step * FORWARD_SHARE
        totals.append(steps_of(run) * found.step + besides)
    labels = tuple(dict.fromkeys(plan.label for plan in plans))
    return CostEstimate(
        label=labels[0], labels=labels, runs=len(plans), lockstep=lockstep,
        steps=max(steps_of(plan.run) for plan in plans), step_seconds=found.step,
        seconds=(max(totals) if lockstep else sum(totals)) + found.before * len(plans),
        timed=found.timed,
    )  # fmt: skip
