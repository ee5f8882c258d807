"""Seconds of a few steps: what forecasts are multiplied from."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from engram.engine.engine import Engine
from engram.engine.prologue import PROLOGUE, prologue_of
from engram.engine.run import Run
from engram.engine.training import Training
from engram.learner import warm
from engram.methods.base import Method
from engram.streams.core import Stream, Task

FEW, MORE = 2, 10  # steps of the two stages of a close look; their difference leaves openings out
SLOW = 1.0  # seconds of a stage with one step above which as few steps as possible must do
SHORT = 0.1  # seconds of a few steps among which the opening of a stage may be the most
THIN = 8  # of so many rows one is enough to time slow steps over whole tasks


class Seconds(NamedTuple):
    """What runs that train together take."""

    step: float  # of all of them
    fixed: float  # of what a stage costs besides steps
    before: float = 0.0  # of what one of them learns before its first task
    timed: bool = True  # or taken from other runs of the same network


class Spent(NamedTuple):
    """Seconds of a stage: until its last step, and from there on; and of prologues before it."""

    training: float
    after: float
    prologue: float = 0.0

    @property
    def total(self) -> float:
        return self.training + self.after


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that train together, as many of them as are timed, and small streams for them."""

    places: Sequence[int]
    lockstep: bool
    runs: Sequence[Run]
    streams: Sequence[Stream]

    @property
    def network(self) -> tuple[Any, ...]:
        """What most of a step's time depends on."""
        run, data = self.runs[0], self.runs[0].stream.data
        model = repr(run.model) if isinstance(run.model, (str, dict)) else id(run.model)
        training = (run.training.batch_size, run.loss, run.training.precision, run.training.augment)
        rows = (data.sample_shape, type(data.x), data.crop)
        # whole tasks are batches where no size is given: other rows are other steps
        whole = None if run.training.batch_size else id(data)
        return len(self.runs), model, training, rows, whole, len(run.stream.order)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What the time of a step depends on; heads, strengths and which rows do not matter."""
        method = self.runs[0].method
        parts = getattr(method, "parts", (method,))
        return *self.network, tuple((type(p).__name__, getattr(p, "variant", "")) for p in parts)


class Timing:
    """Times kinds of runs on a device, and remembers what it found."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._known: dict[Any, Seconds] = {}
        self._close: set[Any] = set()
        self._groups: dict[Any, Group] = {}  # the one of each kind that was timed

    def knows(self, group: Group) -> bool:
        """Whether runs of this kind were timed."""
        return group.kind in self._known

    def of(self, group: Group) -> Seconds:
        """The seconds of a kind; where it was not timed, of the slowest of the same network."""
        if self.knows(group):
            return self._known[group.kind]
        alike = [kind for kind, one in self._groups.items() if one.network == group.network]
        return max(self._known[kind] for kind in alike)._replace(timed=False)

    def needed(self, group: Group) -> float:
        """About how many seconds a close look takes: six stages after first ones with one step."""
        found = self.of(group)
        return 2 * (2 * FEW + MORE) * found.step + 12 * found.fixed

    def look(self, group: Group, *, closely: bool) -> None:
        """Time a kind of runs, unless that was done."""
        kind = group.kind
        if kind in (self._close if closely else self._known):
            return
        if closely and not self._known:  # the first steps of a process are slow
            thin = [_thinned(stream) for stream in group.streams]
            stage_seconds(group.runs, thin, 1, self.device, group.lockstep)
        self._known[kind] = (_close_look if closely else _quick_look)(group, self.device)
        self._groups[kind] = group
        if closely:
            self._close.add(kind)


def _stage_of(group: Group, device: Any) -> tuple[Callable[..., Spent], Sequence[Stream], float]:
    """(a function that times a stage, streams with few rows, how much longer whole ones take)."""

    def stage(steps: int, over: Sequence[Stream] = group.streams) -> Spent:
        return stage_seconds(group.runs, over, steps, device, group.lockstep)

    whole_tasks = not group.runs[0].training.batch_size
    thin = [_thinned(s) for s in group.streams] if whole_tasks else group.streams
    return stage, thin, _first_rows(group.streams) / _first_rows(thin)


def _quick_look(group: Group, device: Any) -> Seconds:
    """By two steps of one stage, its opening among them; by ten more where that takes no time."""
    stage, thin, scale = _stage_of(group, device)
    found, asked = stage(FEW, thin), prologue_of(group.runs[0].method)
    if scale > 1 and found.training * scale < SLOW:  # a fixed part of a step would be multiplied
        thin, scale = group.streams, 1.0
        found = stage(FEW, thin)
    before = 0.0 if asked is None else asked.iterations * found.prologue / FEW / len(group.runs)
    step = found.training / FEW
    if found.training * scale < SHORT:
        more = stage(MORE, thin).training
        step = min(step, max((more - found.training) / (MORE - FEW), more / MORE / 10))
    opening = found.training - FEW * step
    return Seconds(step * scale, (found.after + opening) * scale, before)


def _close_look(group: Group, device: Any) -> Seconds:
    """By two and by ten steps, twice where that is cheap; by few where steps are slow."""
    stage, thin, scale = _stage_of(group, device)
    before = _prologue_seconds(group.runs[0], group.streams[0], device)
    one = stage(1, thin).total
    if one * scale > SLOW:  # once more: the first step of a kind may wait for kernels
        one = min(one, stage(1, thin).total)
    if one * scale > SLOW:
        step = max(stage(2, thin).total - one, one / 10)
        return Seconds(step * scale, max(one - step, 0.0) * scale, before)
    few, more = stage(FEW).total, stage(MORE).total
    if more < SLOW:  # cheap enough to look twice: other processes only ever slow things down
        few, more = min(few, stage(FEW).total), min(more, stage(MORE).total)
    step = max((more - few) / (MORE - FEW), few / FEW / 100)
    return Seconds(step, max(few - FEW * step, 0.0), before)


def _thinned(stream: Stream) -> Stream:
    """The stream with a few of its rows; a slow step over all of them takes that much longer."""
    tasks = tuple(replace(task, train=task.train[::THIN]) for task in stream)
    return replace(stream, tasks=tasks)


def _first_rows(streams: Sequence[Stream]) -> int:
    return max(len(streams[0].tasks[0].train), 1)


def stage_seconds(
    runs: Sequence[Run], streams: Sequence[Stream], steps: int, device: Any, lockstep: bool
) -> Spent:
    """Seconds of the second stage, in which penalties and memories are at work."""
    small = [
        replace(
            run, stream=stream, training=_short(run.training, steps), method=_hurried(run, steps)
        )
        for run, stream in zip(runs, streams, strict=True)
    ]
    last = min(1, len(streams[0]) - 1)
    engine = Engine(small, device=device, together=lockstep or None)
    watch = _Watch(engine.device, prologue_of(runs[0].method) is not None)
    spent = 0.0
    for stage in engine.stages(progress=watch.entered):
        if stage.stage == last:
            spent += stage.outcome.seconds
            if stage.last_of_group:
                break
    training = watch.seconds.get(last, 0.0)
    return Spent(training, max(spent - training, 0.0), watch.seconds.get(PROLOGUE, 0.0))


class _Watch:
    """Seconds from the beginning of a stage to its last step, by stage; as progress is told."""

    def __init__(self, device: torch.device, prologue: bool) -> None:
        self.device, self.prologue = device, prologue
        self.seconds: dict[int, float] = {}
        self._began, self._seen = 0.0, set[int]()

    def entered(self, places: Sequence[int], stage: int) -> Callable[[int, int], None]:
        if self.prologue and not self._seen.issuperset(places):  # told as the first stage
            stage = PROLOGUE
            self._seen.update(places)
        self._began = self._now()

        def stepped(done: int, of: int) -> None:
            now = self._now()
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._began
            self._began = now

        return stepped

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - warm.spent()


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


def small(stream: Stream, batch: int) -> Stream:
    """The stream with just enough rows for full batches, and hardly any test rows."""
    return replace(stream, tasks=tuple(_small_task(task, batch) for task in stream))


def _small_task(task: Task, batch: int) -> Task:
    every = max(1, len(task.train) // (2 * batch)) if batch else 1
    return replace(
        task, train=task.train[::every], test=task.test[:1], post_valid=task.post_valid[:1]
    )
