"""Estimates of training time: a few steps are timed on the device and extrapolated."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from engram.engine.engine import Engine
from engram.engine.pretraining import PRETRAINING_STAGE, declared_pretraining
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.experiments import Plan
from engram.learner import torch_startup
from engram.methods.method import Method
from engram.streams.stream import Stream, Task

FORWARD_SHARE = 1 / 3  # share of a step for evaluation, which has no backward pass


TimingCallback = Callable[[str, int, int], None]  # label, place and number of groups


@dataclass(frozen=True)
class CostEstimate:
    """Estimated cost of runs that train together."""

    label: str  # label of the first run
    labels: tuple[str, ...]
    runs: int
    lockstep: bool
    steps: int  # steps of the longest run
    step_seconds: float  # of one step of all runs that train together, or of one run
    seconds: float  # in total
    timed: bool = True  # otherwise estimated from runs of the same network by another method


def count_steps(run: Run, stages: int = 0) -> int:
    """Count the optimiser steps of a run, as far as known beforehand.

    Over all tasks, or over so many `stages`.
    """
    return sum(_count_stage_steps(run, stage) for stage in range(stages or len(run.stream)))


def _count_stage_steps(run: Run, stage: int) -> int:
    if all(phase.rows == "none" for phase in run.method.phases(stage)):
        return 0
    epochs, iterations = run.training.length(stage)
    if iterations:
        return iterations
    rows, batch = _count_epoch_rows(run, stage), run.training.batch_size
    per = 1 if not batch else math.ceil(rows / batch)
    return epochs * per


def _count_epoch_rows(run: Run, stage: int) -> int:
    """Count the rows of one epoch of a stage."""
    tasks = run.stream.tasks
    own, kind = len(tasks[stage].train), run.method.replay(stage).kind
    past = [len(task.train) for task in tasks[:stage]]
    if kind == "past":
        return own + sum(past)
    if kind == "complete":
        return _count_distinct([task.train for task in tasks[: stage + 1]])
    memory = run.method.memory
    if kind != "union" or memory is None or not stage:
        return own
    classes = len({c for task in tasks[:stage] for c in task.shown})
    kept = memory.capacity(groups=classes, sizes=past)
    return own + min(sum(past), sum(past) if kept is None else kept)


def _count_scored_rows(run: Run, stages: int) -> int:
    """Count the rows that a run evaluates after so many stages and their epochs."""
    stream, kind = run.stream, run.stream.held_out
    tests = [len(task.test) for task in stream]
    held = [len(getattr(task, kind)) if kind else 0 for task in stream]
    return sum(
        sum(tests if run.unseen else tests[: stage + 1]) + sum(held[: stage + 1])
        + _count_validated_rows(run, stage)
        for stage in range(stages)
    )  # fmt: skip


def _count_validated_rows(run: Run, stage: int) -> int:
    """Count the rows validated for early stopping and the learning rate in a stage."""
    if not run.training.validates:
        return 0
    every = run.method.replay(stage).kind == "complete"  # validates on all tasks so far
    tasks = run.stream.tasks[0 if every else stage : stage + 1]
    return run.training.length(stage)[0] * _count_distinct([task.valid for task in tasks])


def _count_distinct(rows: Sequence[torch.Tensor]) -> int:
    """Count distinct rows over tasks."""
    return len(torch.cat(list(rows)).unique())


def estimate_costs(
    plans: Sequence[Plan], *, device: Any = "auto", together: bool | None = None,
    group_size: int = 0, tell: TimingCallback | None = None, limit: float | None = None,
) -> list[CostEstimate]:  # fmt: skip
    """Time a few steps of every group of runs and extrapolate; `tell` receives the next group.

    With a `limit` in seconds, every kind of run is timed by two steps, those first that probably
    take longest; the costliest are timed again, and then more closely, in the remaining time. If
    the limit is reached first, one kind for each network is timed in any case; the others are
    estimated from it by the passes of a step (`count_passes`), and marked as not timed.
    """
    if not plans:
        return []
    engine = Engine([p.run for p in plans], device=device, together=together, group_size=group_size)
    groups, shrunk = [], dict[int, Stream]()
    for places in engine.groups():
        lockstep = engine.maps(places) and not engine.runs_separately(places)
        runs = [engine.runs[one] for one in (places if lockstep else places[:1])]
        for run in runs:
            if id(run.stream) not in shrunk:
                shrunk[id(run.stream)] = shrink_stream(run.stream, run.training.batch_size)
        groups.append(TimedGroup(places, lockstep, runs, [shrunk[id(run.stream)] for run in runs]))

    def told(group: TimedGroup, *of: int) -> None:
        if tell is not None:
            tell(plans[group.places[0]].label, *of)

    timing = RunTimer(engine.device)
    # runs on copied images represent those without: making the copies is part of their steps
    order = sorted(groups, key=lambda group: group.runs[0].stream.data.copies is None)
    if limit is not None:
        _time_within_limit(limit, timing, order, told)
    for place, group in enumerate(order if limit is None else ()):
        told(group, place, len(groups))
        timing.time_closely(group)
    return [
        _make_cost_estimate(
            [plans[one] for one in group.places], group.lockstep, timing.seconds_of(group)
        )
        for group in groups
    ]


def _time_within_limit(
    limit: float, timing: RunTimer, groups: Sequence[TimedGroup], tell: Callable[..., Any]
) -> None:
    """Time kinds of runs for so many seconds: each once, then the costliest more closely."""
    ends = torch_startup.Stopwatch(-limit)  # without the time of torch's one-off startup
    steps, by_kind, by_network = dict[Any, int](), dict[Any, TimedGroup](), dict[Any, TimedGroup]()
    for group in groups:
        by_kind.setdefault(group.kind, group)
    for kind, group in by_kind.items():
        steps[kind] = max(map(count_steps, group.runs))
    kinds = sorted(
        by_kind.values(), key=lambda one: -steps[one.kind] * count_passes(one.runs[0].method)
    )
    for group in kinds:
        by_network.setdefault(group.network, group)
    first = list(by_network.values())
    order = [*first, *(group for group in kinds if all(group is not one for one in first))]
    for place, group in enumerate(order):
        if place < len(first) or ends.seconds < 0:
            tell(group, place, len(order))
            timing.time_quickly(group)

    def costliest() -> list[TimedGroup]:
        known = filter(timing.is_timed, kinds)
        return sorted(known, key=lambda one: -steps[one.kind] * timing.seconds_of(one).step)

    for group in costliest():
        if ends.seconds + timing.seconds_needed(group) < 0:
            timing.time_late_step(group)
    for group in costliest():
        if ends.seconds + timing.seconds_needed(group, closely=True) < 0:
            timing.time_closely(group)


def _make_cost_estimate(plans: Sequence[Plan], lockstep: bool, found: RunSeconds) -> CostEstimate:
    totals = []
    for plan in plans:
        run = plan.run
        batches = _count_scored_rows(run, plan.stages) / (run.training.batch_size or 1000)
        besides = plan.stages * found.fixed + batches * found.step * FORWARD_SHARE
        totals.append(count_steps(run, plan.stages) * found.step + besides)
    labels = tuple(dict.fromkeys(plan.label for plan in plans))
    return CostEstimate(
        label=labels[0], labels=labels, runs=len(plans), lockstep=lockstep,
        steps=max(count_steps(plan.run, plan.stages) for plan in plans), step_seconds=found.step,
        seconds=(max(totals) if lockstep else sum(totals)) + found.before * len(plans),
        timed=found.timed,
    )  # fmt: skip


# Timing of a few steps.


FEW_STEPS, MORE_STEPS = (
    2,
    10,
)  # steps of the two stages of a close timing, whose difference excludes the fixed part
SLOW_STAGE_SECONDS = (
    1.0  # seconds of a one-step stage above which as few steps as possible are timed
)
SHORT_STEPS_SECONDS = (
    0.1  # seconds of a few steps below which the fixed part of a stage may dominate
)
ROW_STRIDE = 8  # one of so many rows is enough to time slow steps over whole tasks
REPLAY_ADDING_ROWS = ("pair", "separate", "tasks")  # kinds of replay that add rows to every step


class RunSeconds(NamedTuple):
    """Seconds of runs that train together."""

    step: float  # a step of all of them
    fixed: float  # a stage besides its steps
    before: float = 0.0  # pretraining of one of them
    timed: bool = True  # otherwise estimated from other runs of the same network


@dataclass(frozen=True, eq=False)
class TimedGroup:
    """Runs that train together, as many as are timed, with small streams for them."""

    places: Sequence[int]
    lockstep: bool
    runs: Sequence[Run]
    streams: Sequence[Stream]

    @property
    def network(self) -> tuple[Any, ...]:
        """The key of the network and batch, which mostly determine the time of a step."""
        run, data = self.runs[0], self.runs[0].stream.data
        model = repr(run.model) if isinstance(run.model, (str, dict)) else id(run.model)
        training = (run.training.batch_size, run.loss, run.training.precision, run.training.augment)
        rows = (data.sample_shape, type(data.x), data.crop)
        # without a batch size, whole tasks are batches, so their rows matter
        whole = None if run.training.batch_size else id(data)
        return len(self.runs), model, training, rows, whole, len(run.stream.order)

    @property
    def kind(self) -> tuple[Any, ...]:
        """The key of all that determines the time of a step, such as shapes but not strengths."""
        method = self.runs[0].method
        parts = getattr(method, "parts", (method,))
        return *self.network, tuple((type(p).__name__, getattr(p, "variant", "")) for p in parts)


class QuickTiming(NamedTuple):
    """Timing of a stage of two steps over reduced streams, and the factor for whole ones."""

    spent: StageSeconds
    streams: Sequence[Stream]
    scale: float
    before: float  # seconds of pretraining

    def seconds(self, factor: float = 1.0) -> RunSeconds:
        """Return the seconds of runs whose later steps take `factor` times the second one."""
        step = self.spent.step * factor
        fixed = self.spent.after + max(self.spent.training - FEW_STEPS * self.spent.step, 0.0)
        return RunSeconds(step * self.scale, fixed * self.scale, self.before)


class RunTimer:
    """Times kinds of runs on a device and caches the results.

    A kind can be timed in three ways, each more exact and longer: `time_quickly`, `time_late_step`,
    and `time_closely`.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self._groups: dict[Any, TimedGroup] = {}  # kind: the group that was timed
        self._glances: dict[Any, QuickTiming] = {}
        self._again: dict[Any, float] = {}  # kind: seconds of a late step of ten
        self._close: dict[Any, RunSeconds] = {}

    def is_timed(self, group: TimedGroup) -> bool:
        """Return whether runs of this kind were timed."""
        return group.kind in self._groups

    def seconds_of(self, group: TimedGroup) -> RunSeconds:
        """Return the seconds of a kind, or an estimate from others of the same network."""
        kind = group.kind
        if kind in self._close:
            return self._close[kind]
        alike = [k for k, one in self._groups.items() if one.network == group.network]
        if kind in self._glances:
            again = [kind] if kind in self._again else [k for k in alike if k in self._again]
            factors = [self._again[k] / self._glances[k].spent.step for k in again]
            return self._glances[kind].seconds(upper_median(factors or [1.0]))
        of_one = sorted(self._of_plain(self._groups[k]) for k in alike)[len(alike) // 2]
        before = of_one.before if declared_pretraining(group.runs[0].method) is not None else 0.0
        step = of_one.step * count_passes(group.runs[0].method)
        return RunSeconds(step, of_one.fixed, before, timed=False)

    def _of_plain(self, group: TimedGroup) -> RunSeconds:
        """Estimate the seconds of a method with one pass in a step."""
        found = self.seconds_of(group)
        return found._replace(step=found.step / count_passes(group.runs[0].method))

    def seconds_needed(self, group: TimedGroup, *, closely: bool = False) -> float:
        """Estimate the seconds of another timing."""
        found = self.seconds_of(group)
        if not closely:
            return (1 + MORE_STEPS) * found.step + 2 * found.fixed
        return 2 * (2 * FEW_STEPS + MORE_STEPS) * found.step + 12 * found.fixed

    def time_quickly(self, group: TimedGroup) -> None:
        """Time a kind by two steps of one stage, its fixed part included, unless timed before."""
        if not self.is_timed(group):
            self._glances[group.kind] = _time_quickly(group, self.device)
            self._groups[group.kind] = group

    def time_late_step(self, group: TimedGroup) -> None:
        """Time a late step of ten, since on CUDA the first ones do not replay a graph yet."""
        kind, glance = group.kind, self._glances[group.kind]
        slow = SLOW_STAGE_SECONDS if self.device.type == "cuda" else SHORT_STEPS_SECONDS
        if kind not in self._again and glance.spent.training * glance.scale < slow:
            found = time_stage(group.runs, glance.streams, MORE_STEPS, self.device, group.lockstep)
            self._again[kind] = found.step

    def time_closely(self, group: TimedGroup) -> None:
        """Time a kind by stages of two and of ten steps, unless done before."""
        if group.kind in self._close:
            return
        if not self.is_timed(group) and not self._groups:  # the first steps of a process are slow
            thin = [_thin_stream(stream) for stream in group.streams]
            time_stage(group.runs, thin, 1, self.device, group.lockstep)
        self._close[group.kind] = _time_closely(group, self.device)
        self._groups.setdefault(group.kind, group)


def count_passes(method: Method) -> int:
    """Estimate the passes over a batch in a step from the verbs of a method.

    Examples
    --------
    >>> from engram.methods import AGEM, DGR, ER, EWC
    >>> count_passes(EWC()), count_passes(ER()), count_passes(AGEM()), count_passes(DGR())
    (1, 2, 2, 3)
    """
    if method.implements("networks"):  # further networks are trained too
        return 3
    beside = method.replay(1).kind in REPLAY_ADDING_ROWS
    return 2 if beside or method.implements("gradient") else 1


def _make_stage_timer(
    group: TimedGroup, device: Any
) -> tuple[Callable[..., StageSeconds], Sequence[Stream], float]:
    """Return a function that times a stage, its streams with few rows, and their factor."""

    def stage(steps: int, over: Sequence[Stream] = group.streams) -> StageSeconds:
        return time_stage(group.runs, over, steps, device, group.lockstep)

    whole_tasks = not group.runs[0].training.batch_size
    thin = [_thin_stream(s) for s in group.streams] if whole_tasks else group.streams
    return stage, thin, _first_rows(group.streams) / _first_rows(thin)


def _time_quickly(group: TimedGroup, device: Any) -> QuickTiming:
    """Time two steps of one stage."""
    stage, thin, scale = _make_stage_timer(group, device)
    found, asked = stage(FEW_STEPS, thin), declared_pretraining(group.runs[0].method)
    if (
        scale > 1 and found.training * scale < SLOW_STAGE_SECONDS
    ):  # otherwise a fixed part of the step would be multiplied
        thin, scale = group.streams, 1.0
        found = stage(FEW_STEPS, thin)
    before = (
        0.0 if asked is None else asked.iterations * found.prologue / FEW_STEPS / len(group.runs)
    )
    return QuickTiming(found, thin, scale, before)


def _time_closely(group: TimedGroup, device: Any) -> RunSeconds:
    """Time by two and ten steps, twice if that is cheap; by fewer if steps are slow."""
    stage, thin, scale = _make_stage_timer(group, device)
    before = _time_pretraining(group.runs[0], group.streams[0], device)
    one = stage(1, thin).total
    if one * scale > SLOW_STAGE_SECONDS:  # again, as the first step may compile kernels
        one = min(one, stage(1, thin).total)
    if one * scale > SLOW_STAGE_SECONDS:
        step = max(stage(2, thin).total - one, one / 10)
        return RunSeconds(step * scale, max(one - step, 0.0) * scale, before)
    few, more = stage(FEW_STEPS).total, stage(MORE_STEPS).total
    if more < SLOW_STAGE_SECONDS:  # cheap enough to time twice and take the minimum
        few, more = min(few, stage(FEW_STEPS).total), min(more, stage(MORE_STEPS).total)
    step = max((more - few) / (MORE_STEPS - FEW_STEPS), few / FEW_STEPS / 100)
    return RunSeconds(step, max(few - FEW_STEPS * step, 0.0), before)


def _thin_stream(stream: Stream) -> Stream:
    """Reduce a stream to one of `ROW_STRIDE` rows; a step over all takes that much longer."""
    tasks = tuple(replace(task, train=task.train[::ROW_STRIDE]) for task in stream)
    return replace(stream, tasks=tasks)


def _first_rows(streams: Sequence[Stream]) -> int:
    return max(len(streams[0].tasks[0].train), 1)


def _time_pretraining(run: Run, stream: Stream, device: Any) -> float:
    """Estimate the seconds of pretraining by timing a few of its steps."""
    asked = declared_pretraining(run.method)
    if asked is None:
        return 0.0
    few, more = (_time_first_stage(run, stream, steps, device) for steps in (FEW_STEPS, MORE_STEPS))
    return asked.iterations * max(more - few, few / 100) / (MORE_STEPS - FEW_STEPS)


def _time_first_stage(run: Run, stream: Stream, steps: int, device: Any) -> float:
    """Time the first stage with pretraining of some steps."""
    training = shorten_training(run.training, 1)
    small = replace(run, stream=stream, training=training, method=shorten_pretraining(run, steps))
    first = next(iter(Engine([small], device=device).stages()))
    return float(first.seconds)


def shrink_stream(stream: Stream, batch: int) -> Stream:
    """Reduce a stream to just enough rows for full batches, with few to evaluate."""
    return replace(stream, tasks=tuple(_shrink_task(task, batch) for task in stream))


def _shrink_task(task: Task, batch: int) -> Task:
    every = max(1, len(task.train) // (2 * batch)) if batch else 1
    return replace(
        task, train=task.train[::every], test=task.test[:1], valid=task.valid[:1],
        post_valid=task.post_valid[:1],
    )  # fmt: skip


# Timing of one stage.


class StageSeconds(NamedTuple):
    """Seconds of a stage up to its last step, and after it.

    Also those of one of its late steps, and of pretraining before it.
    """

    training: float
    after: float
    step: float
    prologue: float = 0.0

    @property
    def total(self) -> float:
        return self.training + self.after


def time_stage(
    runs: Sequence[Run], streams: Sequence[Stream], steps: int, device: Any, lockstep: bool
) -> StageSeconds:
    """Time the second stage, in which penalties and memories are active."""
    small = [
        replace(
            run,
            stream=stream,
            training=shorten_training(run.training, steps),
            method=shorten_pretraining(run, steps),
        )
        for run, stream in zip(runs, streams, strict=True)
    ]
    last = min(1, len(streams[0]) - 1)
    engine = Engine(small, device=device, together=lockstep or None)
    watch = _StageWatch(engine.device, declared_pretraining(runs[0].method) is not None)
    spent = 0.0
    for stage in engine.stages(progress=watch.entered, checkpointer=watch):
        if stage.stage == last:
            spent += stage.seconds
            if stage.last_of_group:
                break
    training = watch.seconds.get(last, 0.0)
    before = watch.seconds.get(PRETRAINING_STAGE, 0.0)
    return StageSeconds(
        training, max(spent - training, 0.0), watch.late_step(steps, training), before
    )


class _StageWatch:
    """Checkpointer that records the time of every step instead of saving.

    The engine asks after each step whether to save, which separates late from early steps.
    """

    every = 0.0  # asked after each step
    should_stop = False

    def __init__(self, device: torch.device, prologue: bool) -> None:
        self.device, self.prologue = device, prologue
        self.seconds: dict[int, float] = {}
        self._began, self._seen = 0.0, set[int]()
        self._marks: list[float] = []  # time at the end of each step of the stage

    def due(self) -> bool:
        self._marks.append(self._now())
        return False

    def save(self, *_: Any) -> None:
        """Save nothing."""

    def late_step(self, steps: int, training: float) -> float:
        """Return the seconds of a step in the later half of a stage, summed over phases."""
        marks = self._marks
        phases = [marks[start : start + steps] for start in range(0, len(marks), steps)]
        if steps < 2 or not phases or len(phases[-1]) != steps:
            return training / steps
        late = [phase[(steps - 1) // 2 :] for phase in phases]
        return sum(upper_median(np.diff(times).tolist()) for times in late)

    def entered(self, places: Sequence[int], stage: int) -> Callable[[int, int], None]:
        if self.prologue and not self._seen.issuperset(places):  # pretraining
            stage = PRETRAINING_STAGE
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
        return time.perf_counter() - torch_startup.warm_up_seconds()


def upper_median(values: Sequence[float]) -> float:
    """Return the median, of two middle values the greater one."""
    return sorted(values)[len(values) // 2]


def shorten_pretraining(run: Run, steps: int) -> Method:
    """Shorten a method's pretraining to a few steps, which does not change the time of tasks.

    Tasks that it replaces are trained, or there would be nothing to time.
    """
    if getattr(run.method, "skip", 0):
        passed: dict[str, Any] = {"skip": 0}
        return replace(run.method, **passed)
    if declared_pretraining(run.method) is None or not hasattr(run.method, "root_iterations"):
        return run.method
    shorter: dict[str, Any] = {"root_iterations": steps}
    return replace(run.method, **shorter)


def shorten_training(training: Training, steps: int) -> Training:
    """Return training settings for a few steps."""
    # one step of the first stage is enough to fill memories and importances
    return replace(
        training, iterations=steps, epochs=1, first_task_scale=1 / steps, evaluate_every=0,
        patience=0, restore_best=False, schedule="constant", stop_lr=0.0,
    )  # fmt: skip
