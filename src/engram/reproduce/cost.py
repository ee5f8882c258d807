"""What runs will cost: a few steps are timed on the device, the rest is multiplication."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from engram.engine.engine import Engine
from engram.engine.prologue import prologue_of
from engram.engine.run import Run
from engram.engine.training import Training
from engram.methods.base import Method
from engram.recipes import Plan
from engram.streams.core import Stream, Task

FEW, MORE = 2, 10  # steps of the two timed stages; their difference leaves fixed costs out
SLOW = 1.0  # seconds of a stage with one step above which as few steps as possible must do
THIN = 8  # of so many rows one is enough to time slow steps over whole tasks
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
    if kind == "complete":  # each row once, whatever tasks it was in
        return len(torch.cat([task.train for task in tasks[: stage + 1]]).unique())
    memory = run.method.memory_budget
    if kind != "union" or memory is None or not stage:
        return own
    classes = len({c for task in tasks[:stage] for c in task.shown})
    kept = memory.capacity(groups=classes, sizes=past)
    return own + min(sum(past), sum(past) if kept is None else kept)


def estimate(
    plans: Sequence[Plan], *, device: Any = "auto", together: bool | None = None,
    group_size: int = 0, tell: Tell | None = None,
) -> list[CostEstimate]:  # fmt: skip
    """Time a few steps of every group of runs and extrapolate; `tell` hears what is timed next."""
    if not plans:
        return []
    engine = Engine([p.run for p in plans], device=device, together=together, group_size=group_size)
    shrunk: dict[int, Stream] = {}
    known: dict[Any, tuple[float, float, float]] = {}
    costs: list[CostEstimate] = []
    groups = engine.groups()
    for place, group in enumerate(groups):
        if tell is not None:
            tell(plans[group[0]].label, place, len(groups))
        lockstep = engine.maps(group) and not engine.apart(group)
        timed = group if lockstep else group[:1]
        runs = [engine.runs[one] for one in timed]
        for run in runs:
            if id(run.stream) not in shrunk:
                shrunk[id(run.stream)] = _small(run.stream, run.training.batch_size)
        streams = [shrunk[id(run.stream)] for run in runs]
        if not known:  # the first steps of a process are slow
            _stage_seconds(runs, [_thinned(s) for s in streams], 1, engine.device, lockstep)
        key = (len(runs), *_alike(runs[0]))
        if key not in known:
            before = _prologue_seconds(runs[0], streams[0], engine.device)
            known[key] = (*_time(runs, streams, engine.device, lockstep), before)
        costs.append(_cost([plans[one] for one in group], lockstep, *known[key]))
    return costs


def _alike(run: Run) -> tuple[Any, ...]:
    """What the time of a step depends on; heads and strengths do not matter."""
    parts = getattr(run.method, "parts", (run.method,))
    kinds = tuple((type(p).__name__, getattr(p, "variant", "")) for p in parts)
    model = repr(run.model) if isinstance(run.model, (str, dict)) else id(run.model)
    training = (run.training.batch_size, run.loss, run.training.precision)
    return model, kinds, training, id(run.stream.data), len(run.stream.order)


def _cost(
    plans: Sequence[Plan], lockstep: bool, step: float, fixed: float, before: float
) -> CostEstimate:
    totals = []
    for plan in plans:
        run = plan.run
        batches = sum(len(task.test) for task in run.stream) / (run.training.batch_size or 1000)
        evaluation = len(run.stream) * (fixed + batches * step * FORWARD_SHARE)
        totals.append(steps_of(run) * step + evaluation)
    labels = tuple(dict.fromkeys(plan.label for plan in plans))
    return CostEstimate(
        label=labels[0], labels=labels, runs=len(plans), lockstep=lockstep,
        steps=max(steps_of(plan.run) for plan in plans), step_seconds=step,
        seconds=(max(totals) if lockstep else sum(totals)) + before * len(plans),
    )  # fmt: skip


def _time(
    runs: Sequence[Run], streams: Sequence[Stream], device: Any, lockstep: bool
) -> tuple[float, float]:
    """(seconds of a step, of what a stage costs besides) of all runs at once."""

    def stage(steps: int, over: Sequence[Stream] = streams) -> float:
        return _stage_seconds(runs, over, steps, device, lockstep)

    thin = [_thinned(s) for s in streams] if not runs[0].training.batch_size else streams
    scale = _first_rows(streams) / _first_rows(thin)
    one = stage(1, thin)
    if one * scale > SLOW:  # once more: the first step of a kind may wait for kernels
        one = min(one, stage(1, thin))
    if one * scale > SLOW:
        step = max(stage(2, thin) - one, one / 10)
        return step * scale, max(one - step, 0.0) * scale
    few, more = stage(FEW), stage(MORE)
    if more < SLOW:  # cheap enough to look twice: other processes only ever slow things down
        few, more = min(few, stage(FEW)), min(more, stage(MORE))
    step = max((more - few) / (MORE - FEW), few / FEW / 100)
    return step, max(few - FEW * step, 0.0)


def _thinned(stream: Stream) -> Stream:
    """The stream with a few of its rows; a slow step over all of them takes that much longer."""
    tasks = tuple(replace(task, train=task.train[::THIN]) for task in stream)
    return replace(stream, tasks=tasks)


def _first_rows(streams: Sequence[Stream]) -> int:
    return max(len(streams[0].tasks[0].train), 1)


def _stage_seconds(
    runs: Sequence[Run], streams: Sequence[Stream], steps: int, device: Any, lockstep: bool
) -> float:
    """Seconds of the second stage, in which penalties and memories are at work."""
    small = [
        replace(run, stream=stream, training=_short(run.training, steps), method=_hurried(run, 1))
        for run, stream in zip(runs, streams, strict=True)
    ]
    last = min(1, len(streams[0]) - 1)
    engine = Engine(small, device=device, together=lockstep or None)
    spent = 0.0
    for stage in engine.stages():
        if stage.stage == last:
            spent += stage.outcome.seconds
            if stage.last_of_group:
                break
    return spent


def _prologue_seconds(run: Run, stream: Stream, device: Any) -> float:
    """Seconds of what a run learns before its first task: a few steps of it are timed."""
    asked = prologue_of(run.method)
    if asked is None:
        return 0.0
    few, more = (_first_seconds(run, stream, steps, device) for steps in (FEW, MORE))
    return asked.iterations * max(more - few, few / 100) / (MORE - FEW)


def _first_seconds(run: Run, stream: Stream, steps: int, device: Any) -> float:
    """Seconds of the first stage with a prologue of some steps."""
    training = _short(run.training, 1)
    small = replace(run, stream=stream, training=training, method=_hurried(run, steps))
    first = next(iter(Engine([small], device=device).stages()))
    return float(first.outcome.seconds)


def _hurried(run: Run, steps: int) -> Method:
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


def _short(training: Training, steps: int) -> Training:
    # one step of the first stage is enough to have a past
    return replace(
        training, iterations=steps, epochs=1, first_factor=1 / steps, evaluate_every=0, patience=0,
        restore_best=False, schedule="constant", min_lr=0.0,
    )  # fmt: skip


def _small(stream: Stream, batch: int) -> Stream:
    """The stream with just enough rows for full batches, and hardly any test rows."""
    return replace(stream, tasks=tuple(_small_task(task, batch) for task in stream))


def _small_task(task: Task, batch: int) -> Task:
    every = max(1, len(task.train) // (2 * batch)) if batch else 1
    return replace(
        task, train=task.train[::every], test=task.test[:1], post_valid=task.post_valid[:1]
    )
