"""The processes that train into one directory, one after the other, until one may finish."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.kills import child
from benchmarks.kills.journal import (
    BEGUN,
    NOTE,
    STAGE,
    STEP,
    WHERE,
    WRITTEN,
    Event,
    Position,
    events,
    positions,
    stages,
)
from benchmarks.kills.watch import GLANCE, LIMIT, being_written, below, stages_written, wait_for
from benchmarks.kills.work import Work, environment

# Children are forked from a process that has imported everything and computed nothing.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["benchmarks.kills.child", "pandas", "pyarrow.parquet", "safetensors.torch", "torch._dynamo"]
)
BEFORE = Position(0, 0, 0)  # the first step
EARLY = 0.15  # of moments count from the start of a process, not from its first step


@dataclass(frozen=True)
class Order:
    """A kill that is to be."""

    victim: str  # process, worker or driver
    sent: signal.Signals
    writing: bool  # while a file does not bear its name yet


@dataclass
class Death:
    """A process that was ended from outside, and what that cost."""

    order: Order
    at: float
    number: int  # of the process that trained, or handed out work
    told: set[tuple[str, int]]  # stages that were said to be recorded
    kept: set[tuple[str, int]] = field(default_factory=set)  # those that are, afterwards
    again: int = 0  # of these, trained once more
    where: Position = BEFORE
    file: str = ""  # that it was writing
    steps_lost: int = 0
    seconds_lost: float = 0.0
    allowed: float = float("inf")  # seconds: the interval, and how long until somebody asked for it

    def row(self) -> dict[str, Any]:
        """Its part of a line of the table."""
        return {
            "killed": self.order.victim, "signal": self.order.sent.name, "writing": self.file,
            "stage": self.where.stage, "step": self.where.done, "of steps": self.where.total,
            "stages before": len(self.told), "stages after": len(self.kept),
            "stages lost": len(self.told - self.kept), "stages again": self.again,
            "steps lost": self.steps_lost, "seconds lost": round(self.seconds_lost, 2),
        }  # fmt: skip


class Lives:
    """Processes that do some work in a directory."""

    def __init__(
        self, work: Work, out: Path, chance: random.Random, whole: int = 0, cluster: Any = None
    ) -> None:
        self.work, self.out, self.chance, self.cluster = work, out, chance, cluster
        self.whole = whole  # steps or stages of the work, see `come`
        self.process: Any = None
        self.count = 0
        self.deaths: list[Death] = []
        self._others: set[int] | None = None  # workers beside one that was killed

    @property
    def alone(self) -> bool:
        """Whether the process trains by itself, without workers."""
        return self.work.how.victims == ("process",)

    def journal(self, number: int) -> Path:
        return self.out.parent / f"{self.out.name}.{number}"

    def seen(self) -> list[Event]:
        """What all of them noted."""
        return [one for number in range(self.count) for one in events(self.journal(number))]

    # -- life ------------------------------------------------------------------------------------
    def _start(self, pool: str = "") -> None:
        address = self.cluster.address if self.cluster is not None and not pool else ""
        options = {"pool": pool, "address": address}
        where = str(self.out), str(self.journal(self.count))
        self.process = FORKS.Process(
            target=child.train, args=(self.work, *where, options, environment())
        )
        self.process.start()
        self.count += 1

    def finish(self, pool: str = "") -> None:
        """Let the last one come to its end."""
        if self.process is None:
            self._start(pool)
        self.process.join(LIMIT)
        if self.process.exitcode != 0:
            self.process.kill()
            said = [one.words for one in self.seen() if one.kind == NOTE]
            raise RuntimeError(f"a child failed (exit code {self.process.exitcode}): {said}")
        for death in self.deaths:
            self._count_cost(death)

    def _workers(self) -> list[int]:
        """Who trains for the process that hands out work."""
        if self.cluster is not None:
            found = below(self.cluster.process.pid)
            return [one for one, said in found.items() if said.startswith("ray::train_group")]
        helpers = below(self.process.pid, generations=1)  # among them who forks workers
        return [one for helper in helpers for one in below(helper, generations=1)]

    # -- death -----------------------------------------------------------------------------------
    def end_by(self, planned: Sequence[Order]) -> list[Death]:
        """Kill as ordered, one after the other; fewer, if the work was done before."""
        for order in planned:
            if self.process is None:
                self._start()
            if (victim := self._at_some_moment(order)) is None:
                break
            self._kill(order, victim)
        return self.deaths

    def _at_some_moment(self, order: Order) -> int | None:
        """Wait until it is time; who is to be killed, unless the work was done before."""
        there = self.come(self.seen()) if self.count > 1 or self.deaths else 0
        early = self.alone and self.chance.random() < EARLY
        # of what is left, so that the last part of it is rarely missed
        target = (
            there
            if early
            else there + self.chance.randint(1, max(1, 3 * (self.whole - there) // 4))
        )
        wait_for(lambda: self._under_way(target, early), "a child that trains", 0.005)
        if not self.alone:
            self.process.join(self.chance.uniform(0, 0.2))  # a sleep, unless it ends before
        every = GLANCE if order.writing else 0.05
        found = wait_for(lambda: self._victim(order), f"a {order.victim}", every)
        return found or None

    def come(self, seen: Sequence[Event]) -> int:
        """How far the work has come: in steps, or, where workers take them, in stages."""
        return sum(one.kind == STEP for one in seen) if self.alone else len(stages(seen))

    def _under_way(self, target: int, early: bool) -> bool | None:
        """Whether the work has come so far; of a sweep that lost a worker: whether it goes on."""
        if not self.process.is_alive():
            return True
        last = events(self.journal(self.count - 1))
        if early:
            return any(one.kind == BEGUN for one in last) or None
        lost = max((one.at for one in self.deaths), default=0.0)
        if not any(one.kind in (WHERE, STEP) and one.at > lost for one in last):
            return None
        return self.come(self.seen()) >= target or None

    def _victim(self, order: Order) -> int | None:
        """Who is to be killed now; 0 if nobody is there any more, None if it is not time yet."""
        if not self.process.is_alive():
            return 0
        if order.writing:
            found = being_written(self.out)
            writer = None if found is None else found[1]
            own = writer == self.process.pid
            return writer if own == self.alone and self._may(writer) else None
        if order.victim == "worker":
            there = [one for one in self._workers() if self._may(one)]
            return self.chance.choice(there) if there else None
        return int(self.process.pid)

    def _may(self, victim: int | None) -> bool:
        """A group that loses two workers is tried in halves: a second one must be another's."""
        return self._others is None or victim in self._others

    def _kill(self, order: Order, victim: int) -> None:
        workers = [] if self.alone else self._workers()
        os.kill(victim, order.sent)
        at = time.monotonic()
        if order.victim == "worker":
            self._others = set(workers) - {victim}
            wait_for(lambda: _gone(victim), "the end of a worker")
        else:
            self._others = None
            self.process.join(LIMIT)
            if self.process.exitcode in (None, 0):
                self.process.kill()
                if self.process.exitcode is None:
                    raise TimeoutError("a child did not end")
                return  # it had finished
            self.process = None
            wait_for(lambda: all(map(_gone, workers)) or None, "the end of orphaned workers")
        seen = [one for one in self.seen() if one.at <= at or order.victim != "worker"]
        death = Death(order, at, self.count - 1, stages(seen))
        death.kept = set(stages_written(self.out))
        death.where = max(
            ((when, where) for when, _, where in positions(seen)), default=(0, death.where)
        )[1]
        left = being_written(self.out, [victim])
        if left is not None:
            death.file = left[0].name[1:].partition(".tmp-")[0]
        self.deaths.append(death)

    # -- what it cost ----------------------------------------------------------------------------
    def _count_cost(self, death: Death) -> None:
        seen = self.seen()
        if death.order.victim != "worker":  # else the sweep has gone on by itself
            after = range(death.number + 1, self.count)
            later = [one for number in after for one in events(self.journal(number))]
            death.again = len(stages(later) & death.kept)
        if self.alone:
            count_steps(death, events(self.journal(death.number)), self.work.every)
        else:
            _count_told(death, seen)


def _gone(process: int) -> bool | None:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z" or None


def count_steps(death: Death, seen: list[Event], every: float) -> None:
    """What a dead process had done since it last wrote a checkpoint."""
    marks = [place for place, one in enumerate(seen) if one.kind in (WRITTEN, STAGE)]
    since = seen[marks[-1] if marks else 0 :]
    steps = [one.at for one in since if one.kind == STEP]
    # training begins with the first step of a process, not with what it reads before
    first = next((one.at for one in seen if one.kind == STEP), death.at)
    asked = [first, *(one.at for one in seen if one.kind != STEP and one.at > first), death.at]
    if not _recorded_untold(death, seen):
        death.steps_lost = len(steps)
        death.seconds_lost = steps[-1] - max(since[0].at, first) if steps else 0.0
    death.allowed = every + max(after - before for before, after in pairwise(sorted(asked)))


def _recorded_untold(death: Death, seen: list[Event]) -> bool:
    """Whether it died between recording its last stage, of all runs, and saying so."""
    runs = {run for _, run, where in positions(seen) if where.stage == death.where.stage}
    return bool(runs) and {(run, death.where.stage) for run in runs} <= death.kept - death.told


def _count_told(death: Death, seen: list[Event]) -> None:
    """How far those who went on had to go back, by what was told: rough, and never too little."""
    before: dict[str, list[tuple[float, Position]]] = {}
    after: dict[str, list[Position]] = {}
    for at, run, where in positions(seen):
        if at <= death.at:
            before.setdefault(run, []).append((at, where))
        else:
            after.setdefault(run, []).append(where)
    for run in before.keys() & after.keys():
        back, last = min(after[run]), before[run][-1]
        known = [at for at, where in before[run] if where[:2] <= back[:2]]
        began = max(known, default=before[run][0][0])
        death.seconds_lost = max(death.seconds_lost, death.at - began)
        if back.stage == last[1].stage:
            death.steps_lost = max(death.steps_lost, last[1].done - back.done)
