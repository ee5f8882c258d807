"""From runs to finished stages: who trains alone, who trains together, task after task."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import nn

from engram import parallel
from engram.engine.backend import device_of, numerics
from engram.engine.checkpoints.resume_point import Checkpointer
from engram.engine.evaluation.evaluate import answers
from engram.engine.factory import LearnerFactory
from engram.engine.groups.hyperparameters import varying
from engram.engine.groups.prefixes import Prefixes, copy_learner
from engram.engine.groups.rollback import Rollback
from engram.engine.groups.streams import Part, parts_of, side_by_side
from engram.engine.history import StageOutcome
from engram.engine.loop import Progress
from engram.engine.prologue import (
    PROLOGUE,
    is_before,
    pass_on,
    prologue_before,
    prologue_of,
    prologue_parts,
    with_prologue,
)
from engram.engine.run import Run
from engram.engine.trainers.tracing import need_compiler
from engram.errors import bad
from engram.learner.layout import Networks
from engram.learner.learner import Learner
from engram.learner.likeness import ByIdentity, likeness
from engram.learner.tree import shapes
from engram.methods.base import Method

# below this many multiply-adds a step's cost is overhead, which mapping shares between runs
TINY_STEP = 3_000_000
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
SIDE_BY_SIDE = 1  # more make ResNet-32 faster, but LeNet may stand still: decision 30
Resume = Callable[[int, Learner], int]


@dataclass
class FinishedStage:
    """One finished stage of one run."""

    run: int  # place in the list of runs
    stage: int
    outcome: StageOutcome
    learner: Learner
    last_of_group: bool = True  # whether all runs trained together have been yielded


class Way(NamedTuple):
    """How runs go through a task."""

    mapped: bool
    width: int  # how many at once


@dataclass
class TaskGroup:
    """Runs that are to be trained on one task together, by their places."""

    places: list[int]
    learners: dict[int, Learner]
    stage: int
    mapped: bool


def _declared(method: Method, tasks: int) -> Any:
    """What a method says before it trains; floats that differ may decide it."""
    stages = range(tasks)
    replays, phases = [method.replay(k) for k in stages], [method.phases(k) for k in stages]
    # the host fills memories run by run; only a reservoir on the device must have one size for all
    budget = method.memory_budget if any(one.renew == "step" for one in replays) else None
    before = prologue_of(method)
    rhythm = before and (before.iterations, before.batch_size, before.lr)
    return likeness((method.reads, budget, replays, phases, rhythm))


def _settings(run: Run, networks: Networks) -> Any:
    """The settings that runs must share: learning rates may differ, unless others depend on them.

    A further network has a multiple of the rate, and a prologue may have the rate itself.
    """
    depends = prologue_of(run.method) is not None or any(n.lr for n in networks.settings.values())
    own = vars(run.training)
    return tuple(value for name, value in own.items() if depends or name != "lr")


class Engine:
    """Trains runs, alone or in lockstep, and yields every finished stage.

    Parameters
    ----------
    together
        True: runs of equal shapes in lockstep; False: one after the other; None: what pays.
    capture
        Replay steps as CUDA graphs; None: on CUDA.
    compile
        Fuse the operations of a step with ``torch.compile``. It takes seconds to a minute per kind
        of step and pays in long runs; single runs are mapped for it, too.
    plan_for
        Device type by which it is decided who trains in lockstep, where a planner asks for other
        machines; that of `device` unless given.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        device: str | torch.device = "auto",
        together: bool | None = None,
        capture: bool | None = None,
        compile: bool = False,
        group_size: int = 0,
        plan_for: str = "",
    ) -> None:
        if not runs:
            raise bad("runs", "at least one run", "none")
        self.runs = list(runs)
        self.device = device_of(device)
        self.together = together
        self.capture = self.device.type == "cuda" if capture is None else capture
        self.compile = compile
        self.kind = plan_for or self.device.type
        if compile and not plan_for:
            need_compiler(self.device)
        self.group_size = group_size
        # images of runs that train unmapped on CUDA; a mapped convolution wants them as usual
        unmapped = self.device.type == "cuda" and not together and not compile
        self._factory = LearnerFactory(self.device, channels_last=unmapped)
        self._kin: dict[ByIdentity, Any] = {}
        self._declared: dict[Any, Any] = {}  # runs of a study share their method
        self._prefixes = Prefixes(self._factory.start)

    def networks(self, run: Run) -> Networks:
        """The networks of a run, as they begin."""
        return self._factory.networks(run)

    def learner(self, run: Run) -> Learner:
        """A fresh learner for a run."""
        return self._factory.learner(run)

    def groups(self) -> list[list[int]]:
        """Places of runs that train together."""
        return [list(group) for group in self._groups]

    def kin(self, run: Run) -> Any:
        """What runs must have in common to train together; complains of one that cannot train."""
        key = ByIdentity(run)
        if key not in self._kin:
            self._kin[key] = (
                self._factory.shape(run), _settings(run, self._factory.skeleton(run)), run.scope,
                len(run.stream),
                ByIdentity(self._factory.feed(run)), len(run.stream.order),
                self._of_method(run),
            )  # fmt: skip
        return self._kin[key]

    def _of_method(self, run: Run) -> Any:
        key = ByIdentity(run.method), len(run.stream)
        if key not in self._declared:
            self._declared[key] = _declared(run.method, len(run.stream))
        return self._declared[key]

    @cached_property  # needed more than once, and thousands of runs are compared
    def _groups(self) -> list[list[int]]:
        found: dict[Any, list[list[int]]] = {}
        for place, run in enumerate(self.runs):
            for group in found.setdefault(self.kin(run), []):
                fits = not self.group_size or len(group) < self.group_size
                if fits and varying([self.runs[group[0]].method, run.method]) is not None:
                    group.append(place)
                    break
            else:
                found[self.kin(run)].append([place])
        return [group for groups in found.values() for group in groups]

    def maps(self, group: Sequence[int]) -> bool:
        """Whether a group trains in lockstep."""
        run = self.runs[group[0]]
        if reasons := self._factory.skeleton(run).unmappable:
            several = len(group) > 1 and self.together is not False
            if several or self.together or self.compile:
                how = "one run at a time" + (" and is not compiled" if self.compile else "")
                warnings.warn(f"the model trains {how}: {'; '.join(reasons)}", stacklevel=2)
            return False
        if self.compile:
            return True
        if len(group) == 1 or self.together is False:
            return False
        if self.together or self.kind == "cuda":
            return True
        return self._tiny(group)

    def apart(self, group: Sequence[int], stage: int = PROLOGUE) -> bool:
        """Whether mapped runs go one by one all the same, in the prologue or in a task.

        Mapped convolutions become grouped ones, which CUDA does more slowly than one after the
        other (measured for 3 runs of the CIFAR network). A task that is learnt from latents has
        none where the root has them all.
        """
        if self.together is not None:
            return not self.together
        run = self.runs[group[0]]
        if self.kind == "cuda":
            networks = self._factory.skeleton(run)
            latent = stage != PROLOGUE and run.method.replay(stage).latent
            root = networks.root_prefixes if latent else ()
            return any(
                isinstance(one, CONVOLUTIONS) and not f"{name}.".startswith(root)
                for name, one in networks.train.named_modules()
            )
        return self.compile and not self._tiny(group)

    def _ways(self, group: Sequence[int]) -> dict[int, Way]:
        """For each task of a group: whether runs are mapped, and how many go on at once."""
        run, maps = self.runs[group[0]], self.maps(group)
        # a single run gains nothing from being mapped, unless its steps are compiled
        alone = Way(True, 1) if maps and self.compile else Way(False, self.side_by_side)
        first = 0 if prologue_before(run) is None else PROLOGUE
        return {
            stage: Way(True, len(group)) if maps and not self.apart(group, stage) else alone
            for stage in range(first, len(run.stream))
        }

    @property
    def side_by_side(self) -> int:
        """How many runs that are not mapped go on at once, each in a CUDA stream of its own."""
        return SIDE_BY_SIDE if self.capture and self.together is None else 1

    def lockstep(self, group: Sequence[int]) -> bool:
        """Whether several runs of a group train at once, in some task at least."""
        return any(way.mapped and way.width > 1 for way in self._ways(group).values())

    def _tiny(self, group: Sequence[int]) -> bool:
        run = self.runs[group[0]]
        return self.parameters(run) * (run.training.batch_size or 256) < TINY_STEP

    def parameters(self, run: Run) -> int:
        """How many numbers a run trains."""
        return len(self._factory.skeleton(run).layout)

    # -- running ---------------------------------------------------------------------------------
    def stages(
        self,
        *,
        resume: Resume | None = None,
        progress: Callable[[Sequence[int], int], Progress] | None = None,
        deadline: float | None = None,
        stop_inside: bool = False,
        checkpointer: Checkpointer | None = None,
    ) -> Iterator[FinishedStage]:
        """Train everything; yields each stage of each run as soon as it is finished.

        `resume(place, learner)` may load a checkpoint into a fresh learner and returns the first
        stage still to be done. After `deadline` (``time.monotonic``) no further group is begun,
        and with `stop_inside` no further stage. `checkpointer` keeps runs that are inside a task.
        """
        spent: dict[int, float] = {}  # seconds of prologues
        for group in self._tasks(resume, deadline, stop_inside):
            report = progress(group.places, max(group.stage, 0)) if progress else None
            copies, done = self._copies(group), list[FinishedStage]()
            work = deque(_by_position(group, list(copies)))
            while work:
                places = work.popleft()
                learners = [group.learners[place] for place in places]
                before = [Rollback(one) for one in learners]
                outcomes, parts = None, []
                try:
                    with numerics(self.runs[places[0]].training.precision):
                        parts = self._turns(group, places, report, checkpointer)
                        outcomes = side_by_side(parts, self.device, checkpointer)
                except torch.OutOfMemoryError:
                    if len(places) == 1:
                        raise
                del parts
                if outcomes is None:  # the halves go on alone, once the error holds no memory
                    self._undo(before)
                    half = len(places) // 2
                    work.extendleft((places[half:], places[:half]))
                    continue
                for place, learner, outcome in zip(places, learners, outcomes, strict=True):
                    if group.stage == PROLOGUE:
                        spent[place] = outcome.seconds
                        for other in copies[place]:
                            pass_on(learner, group.learners[other])
                        continue
                    if group.stage == 0:
                        run, seconds = self.runs[place], spent.pop(place, 0.0)
                        outcome = with_prologue(run, outcome, seconds)
                    done.append(FinishedStage(place, group.stage, outcome, learner))
                    done += self._copied(done[-1], copies[place], group)
                del before, learners, outcomes
            yield from self._own_scores(done, {p for many in copies.values() for p in many})
            del group, done

    def _turns(
        self, group: TaskGroup, places: Sequence[int], progress: Progress | None,
        checkpointer: Checkpointer | None,
    ) -> list[Part[StageOutcome]]:  # fmt: skip
        """A task, or the prologue, of some runs of a group, as parts that take turns."""
        learners = [group.learners[place] for place in places]
        runs = [self.runs[place] for place in places]
        options: dict[str, Any] = {
            "mapped": group.mapped, "capture": self.capture, "compile": self.compile,
            "progress": progress, "checkpointer": checkpointer, "places": places,
        }  # fmt: skip
        if group.stage == PROLOGUE:
            return prologue_parts(runs, learners, **options)
        methods, training = [run.method for run in runs], runs[0].training
        options["features"] = any(run.features for run in runs)
        options["rates"] = [run.training.lr for run in runs]
        return parts_of(learners, methods, training, group.stage, **options)

    def _tasks(
        self, resume: Resume | None, deadline: float | None, stop_inside: bool
    ) -> Iterator[TaskGroup]:
        """What is to be trained, in order: the tasks of every group of runs."""

        def late() -> bool:
            if deadline is None:
                return False
            past, ranks = time.monotonic() > deadline, parallel.current()
            return past if ranks is None else ranks.of_first(past)

        for part, ways, learners in self._built(late):
            if len(part) > 1 and not all(way.mapped for way in ways.values()):
                for one in learners.values():  # each binds a module to its own weights
                    one.networks = one.networks.twin()
            first = {p: resume(p, one) if resume else 0 for p, one in learners.items()}
            for stage, way in ways.items():
                if stop_inside and late():
                    break
                here = [p for p in part if first[p] <= max(stage, 0) and learners[p].diverged < 0]
                if stage == PROLOGUE:
                    here = [p for p in here if is_before(learners[p])]
                for places in _by_state(here, learners):
                    for start in range(0, len(places), way.width):
                        some = places[start : start + way.width]
                        yield TaskGroup(some, learners, stage, way.mapped)
            del learners

    def _built(
        self, late: Callable[[], bool]
    ) -> Iterator[tuple[list[int], dict[int, Way], dict[int, Learner]]]:
        """The parts with their learners; one whose learners alone have no room goes in halves."""
        for whole, ways in self.parts():
            waiting = deque([whole])
            while waiting and not late():
                part, learners = waiting.popleft(), None
                try:
                    learners = {place: self.learner(self.runs[place]) for place in part}
                except torch.OutOfMemoryError:
                    if len(part) == 1:
                        raise
                if learners is None:  # once the error holds no memory
                    half = len(part) // 2
                    waiting.extendleft((part[half:], part[:half]))
                    continue
                yield part, ways, learners
                del learners  # before the next ones are made

    def parts(self) -> Iterator[tuple[list[int], dict[int, Way]]]:
        """Places of runs that go together, and in which way in each task.

        The prologue is task -1. In a task in which runs are not mapped, each goes for itself.
        """
        for group in self.groups():
            ways = self._ways(group)
            width = max(way.width for way in ways.values())
            for start in range(0, len(group), width):
                yield group[start : start + width], ways

    def _copies(self, group: TaskGroup) -> dict[int, list[int]]:
        """The runs to train, each with those that have met the same tasks and only copy it."""
        if self.runs[group.places[0]].training.evaluate_every:  # curves are a run's own
            return {place: [] for place in group.places}
        # whoever is inside the task leads: it has the shortest way to go
        learners = group.learners
        farthest = sorted(group.places, key=lambda place: learners[place].resume_point is None)
        return self._prefixes.leaders(farthest, self.runs, max(group.stage, 0))

    def _copied(
        self, source: FinishedStage, places: Sequence[int], group: TaskGroup
    ) -> list[FinishedStage]:
        """The finished stage of a run for others that have met the same."""
        for place in places:
            copy_learner(source.learner, group.learners[place])
        return [
            FinishedStage(place, group.stage, source.outcome, group.learners[place])
            for place in places
        ]

    def _undo(self, before: Sequence[Rollback]) -> None:
        """Learners as they were before a stage for which memory did not suffice."""
        for one in before:
            one.restore()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _own_scores(self, done: list[FinishedStage], copied: set[int]) -> Iterator[FinishedStage]:
        """Copies are evaluated on their own stream, whose tasks stand in another order."""
        again = [one for one in done if one.run in copied]
        if again:
            methods = [self.runs[one.run].method for one in again]
            features = any(self.runs[one.run].features for one in again)
            found = answers([one.learner for one in again], methods, features=features)
            for one, answer in zip(again, found, strict=True):
                one.outcome = replace(one.outcome, **answer._asdict())
        if not done:
            return  # a prologue has no scores
        share = sum(one.outcome.seconds for one in done if one.run not in copied) / len(done)
        for place, one in enumerate(done):
            one.outcome = replace(one.outcome, seconds=share)
            one.last_of_group = place == len(done) - 1
            yield one


def _by_state(places: Sequence[int], learners: dict[int, Learner]) -> list[list[int]]:
    """Groups whose method states can be stacked (they always can, unless a resume differs)."""
    found: dict[Any, list[int]] = {}
    for place in places:
        found.setdefault(shapes(learners[place].state), []).append(place)
    return list(found.values())


def _by_position(group: TaskGroup, places: list[int]) -> list[list[int]]:
    """Mapped runs that were interrupted inside the task go on with those that were as far."""
    if not group.mapped:
        return [places]
    found: dict[Any, list[int]] = {}
    for place in places:
        point = group.learners[place].resume_point
        found.setdefault(() if point is None else point.moment, []).append(place)
    return list(found.values())
