"""Groups of runs, handed out to the workers of a cluster until all are through."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from engram.errors import EngramError
from engram.pools.base import Key, recipes_of
from engram.pools.cluster import Room, look
from engram.pools.memory import Need
from engram.pools.parcels import pack, unpack
from engram.pools.planner import Group
from engram.pools.remote import Job, Order, train_group
from engram.pools.retries import Attempt, Retries
from engram.pools.telling import Hearing
from engram.recipes.recorder import Recorder
from engram.records import run_id

LOOK_EVERY = 2.0  # seconds between looks at what the cluster has: nodes come and go
GRACE = 120.0  # seconds in which workers that are told to end may save what is going on
WAITING = 60.0  # seconds without a free place before it is said
SIXTEENTHS = 16  # in which GPUs are divided
FILLED = 0.8  # of a GPU's memory that groups may take


@dataclass
class Dispatcher:
    """Hands out groups, hears of them, and tries again what was lost.

    Parameters
    ----------
    groups
        Costliest first.
    contents
        Recipes as plain values, by the keys of their runs.
    needs
        What groups need, as far as it was measured.
    workers
        How many groups go on at once; 0: as many as there is room for.
    """

    groups: Sequence[Group]
    job: Job
    recorder: Recorder
    room: Room
    contents: Mapping[Key, dict[str, Any]]
    needs: Callable[[Group], Need | None]
    workers: int = 0
    shared: bool = True
    deadline: float | None = None

    def __post_init__(self) -> None:
        self.retries = Retries(self.groups, self.recorder.callback.note)
        self._busy: dict[Any, tuple[int, Attempt]] = {}  # by task
        self._open: dict[int, Attempt] = {}  # by number: those whose letters count
        self._numbers = itertools.count(1)
        self._hearing = Hearing(self.recorder.callback, self.recorder.plans)
        self._last, self._said = time.monotonic(), False
        self._looked = time.monotonic()
        slots = self.workers or max(self.room.cpus, 1)
        per_group = slots // max(1, min(len(self.groups), slots))
        self.cpus = max(1, min(per_group, self.room.cores_of_a_node))

    # -- the loop --------------------------------------------------------------------------------
    def work(self, mailbox: Any) -> None:
        """Until every group is through; what went wrong is in `retries`."""
        import ray

        self._mailbox, self._task = mailbox, ray.remote(train_group)
        self._reading = mailbox.read.remote()
        try:
            while self.retries.waiting or self._busy:
                self._round()
        except BaseException:
            self._dismiss()
            raise

    def _round(self) -> None:
        import ray

        window = self._window()
        while self.retries.waiting and len(self._busy) < window and not self._late():
            self._hand_out(self.retries.waiting.popleft())
        if self._late():
            self.retries.waiting.clear()
            self._cancel_queued()
        if not self._busy:
            return
        ready, _ = ray.wait([self._reading, *self._busy], num_returns=1, timeout=1.0)
        if self._reading in ready:
            self._read()
        for task in [one for one in ready if one in self._busy]:
            self._end(task)
        self._say_waiting()

    def _window(self) -> int:
        """How many groups are handed out at once: as many as there are places now.

        For a task that waits, Ray starts a process that has nothing imported yet, and ends the one
        that has finished another task.
        """
        if self.workers:
            return self.workers
        if time.monotonic() - self._looked > LOOK_EVERY:
            self._looked, self.room = time.monotonic(), look(self.room)
        if self.job.device != "cuda" or not self.retries.waiting:
            return max(1, self.room.cpus // self.cpus)
        part = self.resources(self.retries.waiting[0])["num_gpus"]
        return max(1, min(self.room.cpus, int(self.room.gpus / part)))

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _hand_out(self, attempt: Attempt) -> None:
        import ray

        number, plans = next(self._numbers), attempt.group.plans
        files = None
        if not self.shared and self.recorder.folder is not None:
            packed = pack(self.recorder.folder, plans)
            files = ray.put(packed) if packed else None
            for plan in plans:  # for the worker, which cannot
                assert self.recorder.claims is not None
                self.recorder.claims.take(run_id(*plan.key))
        keys = tuple(plan.key for plan in plans)
        order = Order(
            attempt=number, tries=attempt.tries + attempt.nodes - 1, threads=self.cpus,
            contents=recipes_of(keys, self.contents), keys=keys, shared=self.shared,
            files=None if files is None else [files],
        )  # fmt: skip
        attempt.begun, self._open[number] = False, attempt
        options = self.resources(attempt)
        task = self._task.options(max_retries=0, **options).remote(self.job, order, self._mailbox)
        self._busy[task] = number, attempt

    def resources(self, attempt: Attempt) -> dict[str, float]:
        """What a group is to have: cores, its measured part of a GPU or of a node's memory."""
        need, runs = self.needs(attempt.group), len(attempt.group)
        if self.job.device != "cuda":
            found: dict[str, float] = {"num_cpus": self.cpus}
            if need is not None:
                found["memory"] = int(min(need.of(runs), self.room.largest_memory))
            return found
        part = 1.0 if need is None or attempt.whole else need.of(runs) / (FILLED * need.room)
        if self.workers:
            part = max(part, min(1.0, self.room.gpus / self.workers))
        gpus = min(1.0, math.ceil(part * SIXTEENTHS) / SIXTEENTHS)
        return {"num_cpus": 1, "num_gpus": gpus}

    # -- letters ---------------------------------------------------------------------------------
    def _read(self) -> None:
        import ray

        letters = ray.get(self._reading)
        self._reading = self._mailbox.read.remote()
        for number, words in letters:
            attempt = self._open.get(number)
            if attempt is not None:  # else it was given up, and another one does its work
                self._hear(attempt, *words)

    def _hear(self, attempt: Attempt, kind: str, *told: Any) -> None:
        if kind == "begun":
            attempt.begun, attempt.node = True, told[0]
            self._last = time.monotonic()
        elif kind == "files":
            assert self.recorder.folder is not None
            self.recorder.folder.check_there()
            unpack(self.recorder.folder.path, *told)
        else:
            self._hearing.hear(kind, *told)

    # -- ends ------------------------------------------------------------------------------------
    def _end(self, task: Any) -> None:
        """A task has ended: its last letters, then whatever follows from how it ended."""
        import ray

        ray.get(self._mailbox.wake.remote())
        self._read()
        number, attempt = self._busy.pop(task)
        del self._open[number]
        self._last = time.monotonic()
        if not self.shared and self.recorder.claims is not None:
            for plan in attempt.group.plans:
                self.recorder.claims.let_go(run_id(*plan.key))
        try:
            kind, words = ray.get(task)
        except ray.exceptions.TaskCancelledError:
            return
        except ray.exceptions.OutOfMemoryError:
            kind, words = "memory", "the node ran out of memory"
        except ray.exceptions.RayTaskError as problem:
            said = str(problem.cause or problem).strip().splitlines()[-1]
            raise EngramError(f"a worker of the cluster cannot run Engram: {said}") from problem
        except ray.exceptions.RayError as problem:
            kind = "node" if isinstance(problem, ray.exceptions.NodeDiedError) else "worker"
            words = ""
        self._follow(attempt, kind, words)

    def _follow(self, attempt: Attempt, kind: str, words: str) -> None:
        """What becomes of a group whose attempt has ended in some way."""
        retries = self.retries
        if kind == "fatal":
            raise EngramError(f"{attempt.node}: {words}")
        if kind == "absent":  # that node does not see the run directory: files travel from now on
            self.shared = False
            retries.again(attempt)
        elif kind == "worker":
            retries.lost(attempt, "its worker process ended early")
        elif kind in ("node", "ended"):
            retries.lost(attempt, f"its node {attempt.node}".rstrip() + " ended early", node=True)
        elif kind == "memory" and len(attempt.group) == 1 and self._divides and not attempt.whole:
            retries.again(replace(attempt, whole=True))
        elif kind != "done":
            retries.failed(attempt, words)

    @property
    def _divides(self) -> bool:
        """Whether groups may have to share a device."""
        return self.job.device == "cuda"

    # -- stopping --------------------------------------------------------------------------------
    def _say_waiting(self) -> None:
        """Once: that the cluster has no place for what waits."""
        idle = time.monotonic() - self._last > WAITING
        if idle and not self._said and not any(one.begun for _, one in self._busy.values()):
            self._said = True
            asked = ", ".join(f"{k} {v:g}" for k, v in self.resources(self._first()).items())
            self.recorder.callback.note(f"no node of the cluster has room for a group ({asked})")

    def _first(self) -> Attempt:
        return next(attempt for _, attempt in self._busy.values())

    def _cancel_queued(self) -> None:
        import ray

        for task, (_, attempt) in self._busy.items():
            if not attempt.begun:
                ray.cancel(task)

    def _dismiss(self) -> None:
        """Let workers save what is going on and end; hear of it, for a while."""
        import ray

        self.retries.waiting.clear()
        until = time.monotonic() + GRACE
        with suppress(ray.exceptions.RayError):  # the cluster may be what went
            ray.get(self._mailbox.stop.remote(), timeout=GRACE)
            self._cancel_queued()
            while self._busy and time.monotonic() < until:
                ready, _ = ray.wait([self._reading, *self._busy], num_returns=1, timeout=1.0)
                if self._reading in ready:
                    self._read()
                for task in [one for one in ready if one in self._busy]:
                    ray.get(self._mailbox.wake.remote(), timeout=GRACE)
                    self._read()
                    del self._open[self._busy.pop(task)[0]]
            for task in self._busy:
                ray.cancel(task, force=True)
