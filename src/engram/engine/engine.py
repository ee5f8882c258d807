"""`Engine`: trains runs task by task and yields finished stages.

Runs that share their first tasks are trained once, and a group that runs out of memory is halved.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from engram import distributed
from engram.engine.backend import training_numerics
from engram.engine.checkpoints import Checkpointer
from engram.engine.evaluation import evaluate, scored_items
from engram.engine.grouping import ExecutionMode, RunGrouping
from engram.engine.loop import Progress, train_task
from engram.engine.pretraining import (
    PRETRAINING_STAGE,
    add_pretraining_costs,
    copy_pretraining,
    needs_pretraining,
    train_prologue,
)
from engram.engine.run_definition import Run
from engram.errors import is_out_of_memory
from engram.learner.learner import RunLearner
from engram.learner.structural_key import ByIdentity, structural_key
from engram.learner.tensor_tree import tree_map, tree_shapes
from engram.records.stage_result import StageResult
from engram.streams.stream import Stream

ResumeRun = Callable[[int, RunLearner], int]


@dataclass
class TaskGroup:
    """Runs, by number, that are trained on one task together."""

    places: list[int]
    learners: dict[int, RunLearner]
    stage: int
    mapped: bool


class Engine(RunGrouping):
    """Train runs, alone or in lockstep, and yield every finished stage.

    Parameters and grouping are those of `RunGrouping`.
    """

    @cached_property
    def _prefixes(self) -> SharedPrefixes:
        return SharedPrefixes(self._factory.start)

    def stages(
        self,
        *,
        resume: ResumeRun | None = None,
        progress: Callable[[Sequence[int], int], Progress] | None = None,
        deadline: float | None = None,
        stop_inside: bool = False,
        checkpointer: Checkpointer | None = None,
        until: Sequence[int] = (),
    ) -> Iterator[StageResult]:
        """Train all runs, and yield each stage of each run as soon as it is finished.

        `resume(place, learner)` may load a checkpoint into a new learner and returns the next
        stage. After `deadline` (``time.monotonic``) no further group is started, and with
        `stop_inside` no further stage. `checkpointer` saves runs inside a task, and may end the
        training there; stages finished by then are yielded. `until` has the number of stages to
        train of each run, all of them by default.
        """
        spent: dict[int, float] = {}  # seconds of prologues
        for group in self._tasks(resume, deadline, stop_inside, until):
            report = progress(group.places, max(group.stage, 0)) if progress else None
            copies, done = self._copies(group), list[StageResult]()
            work = deque(_split_by_position(group, list(copies)))
            stopped = False  # inside the task
            while work:
                places = work.popleft()
                learners = [group.learners[place] for place in places]
                before = [Rollback(one) for one in learners]
                runs, fits = [self.runs[place] for place in places], True
                options: dict[str, Any] = {
                    "mapped": group.mapped, "capture": self.capture, "compile": self.compile,
                    "progress": report, "checkpointer": checkpointer, "places": places,
                }  # fmt: skip
                try:
                    with training_numerics(runs[0].training.precision):
                        if group.stage == PRETRAINING_STAGE:
                            results = train_prologue(runs, learners, **options)
                        else:
                            results = train_task(
                                learners, [run.method for run in runs], runs[0].training,
                                group.stage, features=any(run.features for run in runs),
                                rates=[run.training.lr for run in runs], **options,
                            )  # fmt: skip
                except (RuntimeError, MemoryError) as problem:
                    if len(places) == 1 or not is_out_of_memory(problem):
                        raise
                    fits = False
                if not fits:  # train the halves separately, once the error has released its memory
                    self._undo(before)
                    half = len(places) // 2
                    work.extendleft((places[half:], places[:half]))
                    continue
                if results is None:
                    stopped = True
                    break
                for place, learner, result in zip(places, learners, results, strict=True):
                    if group.stage == PRETRAINING_STAGE:
                        spent[place] = result.seconds
                        for other in copies[place]:
                            copy_pretraining(learner, group.learners[other])
                        continue
                    if group.stage == 0:
                        add_pretraining_costs(self.runs[place], result, spent.pop(place, 0.0))
                    result.run = place
                    done += [result, *self._copied(result, copies[place], group)]
                del before, learners, results, result
            yield from self._own_scores(done, {p for many in copies.values() for p in many})
            if stopped:
                return
            del group, done

    def _tasks(
        self,
        resume: ResumeRun | None,
        deadline: float | None,
        stop_inside: bool,
        until: Sequence[int],
    ) -> Iterator[TaskGroup]:
        """Iterate over the tasks of every group of runs, in order of training."""

        def late() -> bool:
            if deadline is None:
                return False
            past, ranks = time.monotonic() > deadline, distributed.current_ranks()
            return past if ranks is None else ranks.broadcast(past)

        for part, modes, learners in self._build_learners(late):
            first = {p: resume(p, one) if resume else 0 for p, one in learners.items()}
            for stage, mode in modes.items():
                here = [
                    p for p in part
                    if first[p] <= max(stage, 0) and learners[p].diverged < 0
                    and not (until and stage >= until[p])
                ]  # fmt: skip
                if stage == PRETRAINING_STAGE:
                    here = [p for p in here if needs_pretraining(learners[p])]
                for places in _split_by_state(here, learners):
                    for start in range(0, len(places), mode.width):
                        if stop_inside and late():
                            break
                        some = places[start : start + mode.width]
                        yield TaskGroup(some, learners, stage, mode.mapped)
            del learners

    def _build_learners(
        self, late: Callable[[], bool]
    ) -> Iterator[tuple[list[int], dict[int, ExecutionMode], dict[int, RunLearner]]]:
        """Build the learners of each part; a part that does not fit in memory is halved."""
        for whole, modes in self.parts():
            waiting = deque([whole])
            while waiting and not late():
                part, learners = waiting.popleft(), None
                try:
                    learners = {place: self.learner(self.runs[place]) for place in part}
                except (RuntimeError, MemoryError) as problem:
                    if len(part) == 1 or not is_out_of_memory(problem):
                        raise
                if learners is None:  # halve the part, once the error has released its memory
                    half = len(part) // 2
                    waiting.extendleft((part[half:], part[:half]))
                    continue
                yield part, modes, learners
                del learners  # before the next ones are built

    def _copies(self, group: TaskGroup) -> dict[int, list[int]]:
        """Return the runs to train, each with the runs that copy it."""
        if self.runs[group.places[0]].training.evaluate_every:  # curves cannot be copied
            return {place: [] for place in group.places}
        # a run inside the task leads, since it has the fewest steps left
        learners = group.learners
        farthest = sorted(group.places, key=lambda place: learners[place].resume_point is None)
        return self._prefixes.leaders(farthest, self.runs, max(group.stage, 0))

    def _copied(
        self, source: StageResult, places: Sequence[int], group: TaskGroup
    ) -> list[StageResult]:
        """Copy the result of a run for others; their scores are replaced later."""
        for place in places:
            copy_learner(source.learner, group.learners[place])
        return [replace(source, run=place, trained=group.learners[place]) for place in places]

    def _undo(self, before: Sequence[Rollback]) -> None:
        """Restore learners after a stage that ran out of memory."""
        for one in before:
            one.restore()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _own_scores(self, done: list[StageResult], copied: set[int]) -> Iterator[StageResult]:
        """Evaluate copies on their own stream, whose tasks to come are in another order.

        Where only tasks learnt so far are scored, the scores of the original run hold for copies.
        """
        if not done:
            return  # a prologue has no scores
        share = sum(one.seconds for one in done if one.run not in copied) / len(done)
        again = []
        for one in done:
            if one.run in copied and not _adopt_scores(one, self.runs[one.run]):
                again.append(one)
        own: dict[int, StageResult] = {}
        if again:
            methods = [self.runs[one.run].method for one in again]
            features = any(self.runs[one.run].features for one in again)
            with training_numerics(self.runs[again[0].run].training.precision):
                found = []
                # alone if runs train so: a mapped pass is rounded in another way
                width = 1 if self.together is False else len(again)
                for start in range(0, len(again), width):
                    some = slice(start, start + width)
                    found += evaluate(
                        [one.learner for one in again[some]], methods[some], features=features
                    )
            own = {one.run: result for one, result in zip(again, found, strict=True)}
        for place, one in enumerate(done):
            result = own.get(one.run, one)
            # the original stream, with the rows set aside for pretraining
            result.run, result.stream = one.run, self.runs[one.run].stream
            result.losses, result.curve = one.losses, one.curve
            result.steps, result.seconds = one.steps, share
            result.last_of_group = place == len(done) - 1
            yield result


def _adopt_scores(copy: StageResult, run: Run) -> bool:
    """Let a copy have the scores of its original; False if it has to be evaluated by itself."""
    learner = copy.learner
    items, given = scored_items(learner, run.method), copy.items
    same = np.array_equal(items.rows, given.rows) and np.array_equal(items.task, given.task)
    if not same or learner.stream.view is not None or copy.held is not None:
        return False
    copy.items, copy.method = items, run.method
    return True


def _split_by_state(places: Sequence[int], learners: dict[int, RunLearner]) -> list[list[int]]:
    """Group runs whose method states can be stacked; they differ only after resuming."""
    found: dict[Any, list[int]] = {}
    for place in places:
        found.setdefault(tree_shapes(learners[place].state), []).append(place)
    return list(found.values())


def _split_by_position(group: TaskGroup, places: list[int]) -> list[list[int]]:
    """Group mapped runs by the position inside the task at which they were interrupted."""
    if not group.mapped:
        return [places]
    found: dict[Any, list[int]] = {}
    for place in places:
        point = group.learners[place].resume_point
        found.setdefault(() if point is None else point.moment, []).append(place)
    return list(found.values())


# -- sharing the training of common first tasks ----------------------------------------------------
# A run is a pure function of its seed, its method and the tasks seen so far. In a study of all
# orders of five tasks, 120 runs share 5 first tasks, 20 first pairs and 60 first triples: one run
# of each group is trained, and the others copy it. Output columns are assigned to classes in the
# order in which they are introduced, hence the copies are exact.


class SharedPrefixes:
    """Find runs that have seen exactly the same tasks up to a stage.

    Only runs that may train together are compared: with equal networks, data and training settings
    except the learning rate. `start` returns a key of the initial weights.
    """

    def __init__(self, start: Callable[[Run], Any] = lambda run: None) -> None:
        self._start = start
        self._hashes: dict[ByIdentity, list[bytes]] = {}
        self._methods: dict[ByIdentity, Any] = {}

    def key(self, run: Run, stage: int) -> Any:
        """Return a key; equal keys mean equal learners after `stage`."""
        method = ByIdentity(run.method)
        if method not in self._methods:
            self._methods[method] = structural_key(run.method)
        met: Any = self._history(run.stream)[stage]
        if run.method.prologue() is not None:  # it has seen rows of all tasks
            met = met, self._history(run.stream)[-1]
        return met, run.seed, run.training.lr, self._methods[method], self._start(run)

    def _history(self, stream: Stream) -> list[bytes]:
        """Return a hash of the first k tasks for every k."""
        key = ByIdentity(stream)
        if key not in self._hashes:
            found, so_far = [], hashlib.blake2b()
            for k, task in enumerate(stream.tasks):
                parts = (task.train, stream.targets[task.train], task.valid,
                         stream.targets[task.valid], stream.visible[k],
                         stream.used_in_training[k])  # fmt: skip
                for part in parts:
                    so_far.update(str(tuple(part.shape)).encode())
                    so_far.update(part.cpu().numpy().tobytes())
                so_far.update((stream.opening == k).numpy().tobytes())
                found.append(so_far.digest())
            self._hashes[key] = found
        return self._hashes[key]

    def leaders(
        self, places: Sequence[int], runs: Sequence[Run], stage: int
    ) -> dict[int, list[int]]:
        """Return the runs to train, each with the runs that copy it."""
        if len(places) == 1:  # no comparison needed: hashing large weights takes seconds
            return {places[0]: []}
        first: dict[Any, int] = {}
        found: dict[int, list[int]] = {}
        for place in places:
            leader = first.setdefault(self.key(runs[place], stage), place)
            found.setdefault(leader, [])
            if leader != place:
                found[leader].append(place)
        return found


def copy_learner(source: RunLearner, target: RunLearner) -> None:
    """Copy the state of a learner; tensors are shared, since stages replace them."""
    target.enter(source.stage)
    for name in ("vector", "free", "exemplars", "values", "diverged", "units"):
        setattr(target, name, getattr(source, name))
    for name in ("buffers", "state", "opt"):
        setattr(target, name, tree_map(lambda leaf: leaf, getattr(source, name)))
    target.ledger = source.ledger.copy()
    target.resume_point = None  # the stage is finished


# -- restoring learners when a stage is repeated ---------------------------------------------------


class Rollback:
    """The state of a learner before a stage; tensors are replaced by stages, never modified."""

    FIELDS = (
        "vector",
        "buffers",
        "free",
        "opened",
        "state",
        "opt",
        "exemplars",
        "values",
        "probes",
        "stage",
        "diverged",
        "units",
        "resume_point",
        "before",
    )

    def __init__(self, learner: RunLearner) -> None:
        self.learner = learner
        self.values = {name: getattr(learner, name) for name in self.FIELDS}
        self.ledger = learner.ledger.copy()

    def restore(self) -> None:
        """Reset the learner to this state."""
        for name, value in self.values.items():
            setattr(self.learner, name, value)
        self.learner.ledger = self.ledger.copy()
