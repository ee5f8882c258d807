"""Seconds of a few steps: what forecasts are multiplied from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from engram.engine.engine import Engine
from engram.engine.prologue import prologue_of
from engram.engine.run import Run
from engram.methods.base import Method
from engram.reproduce.stage_timing import Spent, hurried, middle, short, stage_seconds
from engram.streams.core import Stream, Task

FEW, MORE = 2, 10  # steps of the two stages of a close look; their difference leaves openings out
SLOW = 1.0  # seconds of a stage with one step above which as few steps as possible must do
SHORT = 0.1  # seconds of a few steps among which the opening of a stage may be the most
THIN = 8  # of so many rows one is enough to time slow steps over whole tasks
APART = ("pair", "apart", "tasks")  # kinds of replay that add rows to every step


class Seconds(NamedTuple):
    """What runs that train together take."""

    step: float  # of all of them
    fixed: float  # of what a stage costs besides steps
    before: float = 0.0  # of what one of them learns before its first task
    timed: bool = True  # or taken from other runs of the same network


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


class Glance(NamedTuple):
    """A stage of two steps, the streams it went over, and how much longer whole ones take."""

    spent: Spent
    streams: Sequence[Stream]
    scale: float
    before: float  # seconds of a prologue

    def seconds(self, factor: float = 1.0) -> Seconds:
        """What runs take, if later steps take so much of the second one."""
        step = self.spent.step * factor
        fixed = self.spent.after + max(self.spent.training - FEW * self.spent.step, 0.0)
        return Seconds(step * self.scale, fixed * self.scale, self.before)


class Timing:
    """Times kinds of runs on a device, and remembers what it found.

    Three looks at a kind, each closer and longer than the one before: `glance`, `look_again`, and
    `look_closely`.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self._groups: dict[Any, Group] = {}  # the one of each kind that was timed
        self._glances: dict[Any, Glance] = {}
        self._again: dict[Any, float] = {}  # seconds of a late step of ten, by kind
        self._close: dict[Any, Seconds] = {}

    def knows(self, group: Group) -> bool:
        """Whether runs of this kind were timed."""
        return group.kind in self._groups

    def of(self, group: Group) -> Seconds:
        """The seconds of a kind; where it was not timed, by others of the same network."""
        kind = group.kind
        if kind in self._close:
            return self._close[kind]
        alike = [k for k, one in self._groups.items() if one.network == group.network]
        if kind in self._glances:
            again = [kind] if kind in self._again else [k for k in alike if k in self._again]
            factors = [self._again[k] / self._glances[k].spent.step for k in again]
            return self._glances[kind].seconds(middle(factors or [1.0]))
        of_one = sorted(self._of_plain(self._groups[k]) for k in alike)[len(alike) // 2]
        before = of_one.before if prologue_of(group.runs[0].method) is not None else 0.0
        step = of_one.step * passes_of(group.runs[0].method)
        return Seconds(step, of_one.fixed, before, timed=False)

    def _of_plain(self, group: Group) -> Seconds:
        """What a method with one pass in a step would take."""
        found = self.of(group)
        return found._replace(step=found.step / passes_of(group.runs[0].method))

    def needed(self, group: Group, *, closely: bool = False) -> float:
        """About how many seconds another look takes: stages after first ones with one step."""
        found = self.of(group)
        if not closely:
            return (1 + MORE) * found.step + 2 * found.fixed
        return 2 * (2 * FEW + MORE) * found.step + 12 * found.fixed

    def glance(self, group: Group) -> None:
        """Time a kind by two steps of one stage, its opening among them; unless it is known."""
        if not self.knows(group):
            self._glances[group.kind] = _glance(group, self.device)
            self._groups[group.kind] = group

    def look_again(self, group: Group) -> None:
        """Time a late step of ten: on CUDA the first ones are not yet replayed."""
        kind, glance = group.kind, self._glances[group.kind]
        slow = SLOW if self.device.type == "cuda" else SHORT
        if kind not in self._again and glance.spent.training * glance.scale < slow:
            found = stage_seconds(group.runs, glance.streams, MORE, self.device, group.lockstep)
            self._again[kind] = found.step

    def look_closely(self, group: Group) -> None:
        """Time a kind by stages of two and of ten steps, unless that was done."""
        if group.kind in self._close:
            return
        if not self.knows(group) and not self._groups:  # the first steps of a process are slow
            thin = [_thinned(stream) for stream in group.streams]
            stage_seconds(group.runs, thin, 1, self.device, group.lockstep)
        self._close[group.kind] = _close_look(group, self.device)
        self._groups.setdefault(group.kind, group)


def passes_of(method: Method) -> int:
    """About how many passes over a batch a step takes, by the form of a method.

    Examples
    --------
    >>> from engram.methods import AGEM, DGR, ER, EWC
    >>> passes_of(EWC()), passes_of(ER()), passes_of(AGEM()), passes_of(DGR())
    (1, 2, 2, 3)
    """
    if method.implements("networks"):  # which learn, too
        return 3
    beside = method.replay(1).kind in APART
    return 2 if beside or method.implements("gradient") else 1


def _stage_of(group: Group, device: Any) -> tuple[Callable[..., Spent], Sequence[Stream], float]:
    """(a function that times a stage, streams with few rows, how much longer whole ones take)."""

    def stage(steps: int, over: Sequence[Stream] = group.streams) -> Spent:
        return stage_seconds(group.runs, over, steps, device, group.lockstep)

    whole_tasks = not group.runs[0].training.batch_size
    thin = [_thinned(s) for s in group.streams] if whole_tasks else group.streams
    return stage, thin, _first_rows(group.streams) / _first_rows(thin)


def _glance(group: Group, device: Any) -> Glance:
    """Two steps of one stage."""
    stage, thin, scale = _stage_of(group, device)
    found, asked = stage(FEW, thin), prologue_of(group.runs[0].method)
    if scale > 1 and found.training * scale < SLOW:  # a fixed part of a step would be multiplied
        thin, scale = group.streams, 1.0
        found = stage(FEW, thin)
    before = 0.0 if asked is None else asked.iterations * found.prologue / FEW / len(group.runs)
    return Glance(found, thin, scale, before)


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


def _prologue_seconds(run: Run, stream: Stream, device: Any) -> float:
    """Seconds of what a run learns before its first task: a few steps of it are timed."""
    asked = prologue_of(run.method)
    if asked is None:
        return 0.0
    few, more = (_first_seconds(run, stream, steps, device) for steps in (FEW, MORE))
    return asked.iterations * max(more - few, few / 100) / (MORE - FEW)


def _first_seconds(run: Run, stream: Stream, steps: int, device: Any) -> float:
    """Seconds of the first stage with a prologue of some steps."""
    training = short(run.training, 1)
    small = replace(run, stream=stream, training=training, method=hurried(run, steps))
    first = next(iter(Engine([small], device=device).stages()))
    return float(first.outcome.seconds)


def small(stream: Stream, batch: int) -> Stream:
    """The stream with just enough rows for full batches, and hardly any to evaluate."""
    return replace(stream, tasks=tuple(_small_task(task, batch) for task in stream))


def _small_task(task: Task, batch: int) -> Task:
    every = max(1, len(task.train) // (2 * batch)) if batch else 1
    return replace(
        task, train=task.train[::every], test=task.test[:1], valid=task.valid[:1],
        post_valid=task.post_valid[:1],
    )  # fmt: skip
