"""A pool with a thousand workers, simulated: no training, but the real planner and retries.

    python -m benchmarks.sweeps.simulation [--recipes 100000] [--workers 1000] [--out FILE.json]

Recipes are read, planned, grouped and divided as a sweep does, and `RetryQueue` decides what
becomes of groups whose workers die. Events (a worker starts, ends a group, dies) follow each other
in simulated time. The process that hands out groups is simulated, too: what it does for a group and
for a message is measured here, on the real messages, and it does one thing at a time.

Three kinds of sweeps: `alike`, where runs share shapes and train in lockstep; `alike, finer`, the
same planned as if there were four times as many workers; and `alone`, the same runs one by one, as
if no two shared a shape.
Mean length of a run that trains alone: `--minutes`; that of a group in lockstep follows from the
axis `runs` of `benchmarks/scaling/cpu.json`. A worker may be a straggler (a quarter of the speed),
may die (its group resumes from the last stage or checkpoint on another one), or may have a slow
disk (twenty times the time for what is recorded after a stage). The lower bound of the makespan:
the work divided by the speed of all workers, or the longest run on a fast one if that is longer.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import pickle
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.sweeps.planner import METHODS, timed
from engram.experiments import Callback, Recipe
from engram.experiments.changed_recipes import merge_equal_plans
from engram.experiments.plan import make_plans_by_recipe
from engram.experiments.pools.planner import (
    Attempt,
    RetryQueue,
    WorkerGroup,
    divide_groups,
    group_plans,
)
from engram.experiments.pools.pool import PlanKey, unique_recipes
from engram.experiments.pools.worker_messages import EventReceiver
from engram.records import Rows

KINDS = {"alike": 1, "alike, finer": 4, "alone": 1}  # workers that are planned for, for each
SCALING = Path(__file__).parents[1] / "scaling" / "cpu.json"
EPOCHS = (1, 2, 5, 10)  # of the recipes in turn: runs cost from one to ten
CHECKPOINT_SECONDS = 300.0  # between checkpoints within a task, the default
START_SECONDS = 2.0  # until a new worker has imported everything
RECORD_SECONDS = 0.05  # of a fast disk, for what is recorded of a group after a stage
NOISE = 0.3  # spread of the logarithm of true costs around those that the planner estimates


@dataclass(frozen=True)
class Trouble:
    """What goes wrong: shares of the workers, and how often one of them dies."""

    stragglers: float = 0.0
    straggler_speed: float = 0.25
    hours_to_death: float = math.inf
    slow_disks: float = 0.0
    disk_factor: float = 20.0


TROUBLES = {
    "none": Trouble(),
    "stragglers": Trouble(stragglers=0.05),
    "deaths": Trouble(hours_to_death=6.0),
    "slow disks": Trouble(slow_disks=0.05),
    "all": Trouble(stragglers=0.05, hours_to_death=6.0, slow_disks=0.05),
}


@dataclass(frozen=True)
class DriverCosts:
    """Seconds of the process that hands out groups: for each group and run, and each message."""

    group: float
    run: float
    message: float


@dataclass
class Progress:
    """How far a run has come, which outlives its worker: stages done, and the part of the next."""

    stages: int = 0
    part: float = 0.0


@dataclass
class Outcome:
    """What a simulated sweep took."""

    makespan: float = 0.0
    driver: float = 0.0  # seconds of handing out and receiving
    useful: float = 0.0  # worker seconds of training that counted
    repeated: float = 0.0  # worker seconds of training that a death undid
    deaths: int = 0
    failed: int = 0  # runs that were given up; repeating the call continues them
    attempts: int = 0
    finished: dict[PlanKey, int] = field(default_factory=dict)  # how often each run was finished


class Simulation:
    """Events of one sweep.

    Parameters
    ----------
    groups
        As the planner divides them, costliest first.
    second
        Multiply-adds that a worker of usual speed does in a second.
    stages
        Stages of each run.
    """

    def __init__(
        self, groups: Sequence[WorkerGroup], workers: int, second: float, stages: int,
        trouble: Trouble, costs: DriverCosts, seed: int = 0,
    ) -> None:  # fmt: skip
        self.rng = np.random.default_rng(seed)
        self.second, self.stages, self.trouble, self.costs = second, stages, trouble, costs
        points = json.loads(SCALING.read_text())["runs"]["points"]
        first = points[0]["run"]
        self.measured = (
            [math.log(point["size"]) for point in points],
            [math.log(point["run"] / first) for point in points],
        )
        places = self.rng.permutation(workers)
        self.speed = np.ones(workers)
        self.speed[places[: round(trouble.stragglers * workers)]] = trouble.straggler_speed
        places = self.rng.permutation(workers)
        self.disk = np.full(workers, RECORD_SECONDS)
        self.disk[places[: round(trouble.slow_disks * workers)]] *= trouble.disk_factor
        self.groups = list(groups)
        self.true = {
            id(group.plans[0]): math.exp(self.rng.normal(0.0, NOISE)) for group in self.groups
        }
        self._factor = {
            plan.key: self.true[id(group.plans[0])] for group in self.groups for plan in group.plans
        }
        self.retries = RetryQueue(self.groups, lambda text: None)
        self.progress: dict[PlanKey, Progress] = {}
        self.events: list[tuple[float, int, str, int, Attempt | None, float]] = []
        self.driver_free = 0.0
        self.number = 0
        self.found = Outcome()

    def lockstep_seconds(self, runs: int) -> float:
        """How many times as long a group takes as one of its runs alone, as measured."""
        size, seconds = self.measured
        return math.exp(np.interp(math.log(runs), size, seconds))

    def stage_seconds(self, group: WorkerGroup, worker: int) -> float:
        """Seconds that a worker trains one stage of a group."""
        own = self._factor[group.plans[0].key] * group.cost / len(group)
        pace = self.second * self.stages * float(self.speed[worker])
        return own * self.lockstep_seconds(len(group)) / pace

    def bound(self) -> float:
        """The least time that any order of these groups on these workers can take."""
        usual = [self.stage_seconds(group, worker=self.fastest) for group in self.groups]
        whole = [self.stages * (one + float(self.disk.min())) for one in usual]
        scaled = sum(whole) * float(self.speed[self.fastest])
        longest = max(
            seconds / self.lockstep_seconds(len(group))
            for seconds, group in zip(whole, self.groups, strict=True)
        )
        return max(scaled / float(self.speed.sum()), longest)

    @property
    def fastest(self) -> int:
        return int(self.speed.argmax())

    def run(self) -> Outcome:
        """Let all events happen."""
        for worker in range(len(self.speed)):
            self._push(START_SECONDS, "free", worker)
        idle: list[int] = []
        while self.events:
            now, _, kind, worker, attempt, begun = heapq.heappop(self.events)
            if kind == "end":
                assert attempt is not None
                self._end(now, attempt)
            elif kind == "death":
                assert attempt is not None
                self._die(now, worker, attempt, begun)
                self._push(now + START_SECONDS, "free", worker)
                self._wake(now, idle)
                continue
            if self.retries.waiting:
                self._hand_out(now, worker)
            else:
                idle.append(worker)
        self.found.failed = len(self.retries.failures)
        return self.found

    def _push(
        self, at: float, kind: str, worker: int, attempt: Attempt | None = None, begun: float = 0.0
    ) -> None:
        self.number += 1
        heapq.heappush(self.events, (at, self.number, kind, worker, attempt, begun))

    def _wake(self, now: float, idle: list[int]) -> None:
        while idle and self.retries.waiting:
            self._hand_out(now, idle.pop())

    def _drive(self, now: float, seconds: float) -> float:
        """Let the driver work, after what it does already; returns when it is done."""
        self.driver_free = max(self.driver_free, now) + seconds
        self.found.driver += seconds
        return self.driver_free

    def _hand_out(self, now: float, worker: int) -> None:
        attempt = self.retries.waiting.popleft()
        group = attempt.group
        start = self._drive(now, self.costs.group + self.costs.run * len(group))
        self.found.attempts += 1
        done = self._progress(group)
        stage = self.stage_seconds(group, worker)
        left = (self.stages - done.stages - done.part) * stage
        left += (self.stages - done.stages) * float(self.disk[worker])
        death = self.rng.exponential(self.trouble.hours_to_death * 3600.0)
        if death < left:
            self._push(start + death, "death", worker, attempt, start)
        else:
            self.found.useful += left
            self._push(start + left, "end", worker, attempt, start)

    def _progress(self, group: WorkerGroup) -> Progress:
        return self.progress.setdefault(group.plans[0].key, Progress())

    def _end(self, now: float, attempt: Attempt) -> None:
        messages = self.stages * len(attempt.group)
        self.found.makespan = max(
            self.found.makespan, self._drive(now, messages * self.costs.message)
        )
        for plan in attempt.group.plans:
            self.found.finished[plan.key] = self.found.finished.get(plan.key, 0) + 1

    def _die(self, now: float, worker: int, attempt: Attempt, begun: float) -> None:
        """Keep what was recorded or saved; the rest is trained again."""
        group, done = attempt.group, self._progress(attempt.group)
        stage, record = self.stage_seconds(group, worker), float(self.disk[worker])
        trained = now - begun
        first = (1.0 - done.part) * stage + record
        if trained < first:
            inside, stages, part = trained, 0, done.part
        else:
            stages, inside = divmod(trained - first, stage + record)
            stages, part = int(stages) + 1, 0.0
        saved = min(math.floor(inside / CHECKPOINT_SECONDS) * CHECKPOINT_SECONDS, stage)
        lost = inside - saved
        self.found.deaths += 1
        self.found.repeated += lost
        self.found.useful += trained - lost
        state = Progress(done.stages + stages, min(part + saved / stage, 1.0))
        for plan in group.plans:
            self.progress[plan.key] = state
        self.retries.handle_loss(attempt, "its worker died")


def contents(count: int) -> list[dict[str, Any]]:
    """Recipes of a grid over methods, lengths and learning rates."""
    return [
        {
            "stream": {"data": "blobs"}, "method": METHODS[i % len(METHODS)], "seeds": 1,
            "label": f"{METHODS[i % len(METHODS)]} {i}", "model": {"name": "mlp", "hidden": [8]},
            "training": {
                "epochs": EPOCHS[(i // len(METHODS)) % len(EPOCHS)],
                "lr": 1e-4 * (1 + i // (len(METHODS) * len(EPOCHS))),
            },
        }
        for i in range(count)
    ]  # fmt: skip


def measure_driver(groups: Sequence[WorkerGroup], contents: dict[PlanKey, Any]) -> DriverCosts:
    """Time what the process with the queue does: choose recipes, send them, receive messages."""
    sample = list(groups[:: max(1, len(groups) // 200)])[:200]
    runs = sum(map(len, sample))

    def send(some: Sequence[WorkerGroup]) -> None:
        for group in some:
            keys = [plan.key for plan in group.plans]
            pickle.dumps((unique_recipes(keys, contents), keys))

    whole = _seconds(lambda: send(sample))
    one = sample[len(sample) // 2].plans[0]
    rows = Rows(recipe=one.recipe, label=one.label, seed=0)
    stages = len(one.run.stream)
    for metric in ("accuracy", "seconds", "steps", "memory_items", "state_bytes", "loss/task"):
        rows.add_array(metric, np.zeros(stages), stage=0, task=np.arange(stages), head="single")
    message = pickle.dumps(("stage", one.key, 0, rows))
    receiver = EventReceiver(Callback(), [plan for group in sample for plan in group.plans])

    def receive() -> None:
        for _ in range(200):
            receiver.receive(*pickle.loads(message))

    return DriverCosts(group=20e-6, run=whole / runs, message=_seconds(receive) / 200)


def _seconds(act: Callable[[], Any], repeats: int = 5) -> float:
    found = []
    for _ in range(repeats):
        began = time.process_time()
        act()
        found.append(time.process_time() - began)
    return min(found)


@dataclass(frozen=True)
class Planned:
    """Groups as large as possible, the recipes of their runs, and processor seconds of planning."""

    groups: list[WorkerGroup]
    contents: dict[PlanKey, dict[str, Any]]
    spent: dict[str, float]

    def divide(self, kind: str, workers: int) -> list[WorkerGroup]:
        """Divide the groups for workers; those of `alone` hold one run, as of unequal shapes."""
        groups = self.groups
        if kind == "alone":
            groups = [
                WorkerGroup((plan,), group.cost / len(group))
                for group in groups for plan in group.plans
            ]  # fmt: skip
        return divide_groups(groups, KINDS[kind] * workers)


def plan(count: int) -> Planned:
    """Plan a sweep as the pools do."""
    spent: dict[str, float] = {}
    asked = contents(count)
    recipes = timed(spent, "recipes", lambda: [Recipe.of(one) for one in asked])
    by_recipe = timed(spent, "plans", lambda: make_plans_by_recipe(recipes))
    plans = timed(
        spent, "merged", lambda: merge_equal_plans([one for some in by_recipe for one in some])
    )
    groups = timed(spent, "groups", lambda: group_plans(plans))
    by_run = {some[0].key: plain for plain, some in zip(asked, by_recipe, strict=True)}
    return Planned(groups, by_run, spent)


def simulate(
    groups: Sequence[WorkerGroup], workers: int, minutes: float, trouble: Trouble,
    costs: DriverCosts, planning: float,
) -> dict[str, float]:  # fmt: skip
    """Simulate a sweep until all is done, repeating the call for runs that were given up."""
    runs = sum(map(len, groups))
    second = sum(group.cost for group in groups) / (runs * minutes * 60.0)  # multiply-adds
    stages = len(groups[0].plans[0].run.stream)
    made = Simulation(groups, workers, second, stages, trouble, costs)
    bound, found = made.bound(), made.run()
    ended = sum(count for count in found.finished.values())
    twice = sum(count > 1 for count in found.finished.values())
    if ended != runs - found.failed or twice:
        raise RuntimeError(f"{ended} of {runs} runs finished, {found.failed} failed, {twice} twice")
    total = planning + found.makespan
    return {
        "groups": len(groups), "attempts": found.attempts, "hours": round(total / 3600, 3),
        "bound_hours": round(bound / 3600, 3), "ratio": round(total / bound, 3),
        "deaths": found.deaths, "given_up": found.failed,
        "repeated": round(found.repeated / (found.useful + found.repeated), 5),
        "planning": round(planning / total, 5),
        "driver_busy": round(found.driver / found.makespan, 5),
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweeps.simulation",
                                     description=__doc__)  # fmt: skip
    parser.add_argument("--recipes", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=5.0, help="mean length of a run, alone")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    planned = plan(given.recipes)
    planning = sum(planned.spent.values())
    facts: dict[str, Any] = {
        "planning_seconds": {name: round(value, 2) for name, value in planned.spent.items()}
    }
    print(facts, flush=True)
    rows = []
    for kind in given.kinds:
        groups = planned.divide(kind, given.workers)
        costs = measure_driver(groups, planned.contents)
        facts[kind] = {
            "ms_per_run_handed_out": round(1e3 * costs.run, 4),
            "ms_per_message": round(1e3 * costs.message, 4),
            "runs_of_a_group": round(statistics.mean(map(len, groups)), 1),
        }
        print(kind, facts[kind], flush=True)
        for name, trouble in TROUBLES.items():
            row = simulate(groups, given.workers, given.minutes, trouble, costs, planning)
            rows.append({"kind": kind, "trouble": name, **row})
            print(json.dumps(rows[-1]), flush=True)
    found = {
        "recipes": given.recipes, "workers": given.workers, "minutes": given.minutes,
        "machine": platform.machine(), "torch": torch.__version__, **facts, "rows": rows,
    }  # fmt: skip
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
