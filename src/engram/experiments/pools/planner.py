"""Groups of runs for workers: which runs train together, in which order, and retries when a
worker is lost (`RetryQueue`).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.errors import EngramError
from engram.experiments import Plan


@dataclass(frozen=True)
class WorkerGroup:
    """Runs that one worker trains at once: several in lockstep, or a single one.

    `cost` is the approximate number of multiply-adds; 0 for runs that cannot be built, which fail
    when a worker trains them.
    """

    plans: tuple[Plan, ...]
    cost: float = math.inf
    lockstep: bool = False

    def __len__(self) -> int:
        return len(self.plans)

    def halves(self) -> list[WorkerGroup]:
        """Split a group that is too large, or failed as a whole, into two."""
        half, share = len(self) // 2, self.cost / 2
        return [
            WorkerGroup(part, share, self.lockstep)
            for part in (self.plans[:half], self.plans[half:])
        ]

    @property
    def words(self) -> str:
        """Describe the runs in a few words."""
        labels = list(dict.fromkeys(plan.label for plan in self.plans))
        first = labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"
        return first if len(self) == 1 else f"{first} ({len(self)} runs)"


def group_plans(
    plans: Sequence[Plan], *, device: str = "cpu", compile: bool = False, exact: bool = False
) -> list[WorkerGroup]:
    """Group runs that train in lockstep on a kind of device, in groups as large as possible.

    Runs that do not train in lockstep are groups of one; with `exact` none do.

    Examples
    --------
    >>> from engram.experiments import Recipe
    >>> from engram.experiments.plan import make_plans
    >>> base = {"stream": {"data": "blobs"}, "method": "ER", "seeds": 2}
    >>> sizes = ([8], [512, 512])  # of hidden layers
    >>> recipes = [Recipe.of(base | {"model": {"name": "mlp", "hidden": one}}) for one in sizes]
    >>> [len(group) for group in group_plans(make_plans(recipes))]
    [2, 1, 1]
    """
    costs: dict[Plan, float] = {}
    how: dict[str, Any] = {
        "device": "cpu", "compile": compile, "plan_for": device,
        "together": False if exact else None,
    }  # fmt: skip
    engine = Engine([plan.run for plan in plans], **how)
    for plan in plans:
        try:
            engine.compatibility_key(plan.run)
            costs[plan] = estimate_work(plan.run, engine.parameters(plan.run))
        except Exception:  # the worker that trains it reports the error, and the others are trained
            continue
    sound, found = list(costs), [WorkerGroup((plan,)) for plan in plans if plan not in costs]
    if not sound:
        return found
    if found:
        runs = [plan.run for plan in sound]
        engine = Engine(runs, **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about models that train alone
        for places in engine.groups():
            members = [sound[place] for place in places]
            parts = [members] if engine.lockstep(places) else [[one] for one in members]
            found += [
                WorkerGroup(tuple(some), sum(costs[one] for one in some), len(some) > 1)
                for some in parts
            ]  # fmt: skip
    return found


def divide_groups(
    groups: Sequence[WorkerGroup], workers: int, most: Callable[[WorkerGroup], int] | None = None
) -> list[WorkerGroup]:
    """Divide groups for so many workers, the costliest first; a free worker takes the next.

    A group in lockstep is divided if it exceeds a worker's share of the total cost, or has more
    runs than a worker has room for, given by `most`.
    """
    part = sum(group.cost for group in groups if group.cost < math.inf) / max(workers, 1)
    found: list[WorkerGroup] = []
    for group in groups:
        count = 1
        if group.lockstep and part > 0:
            count = min(len(group), math.ceil(group.cost / part - 1e-9))
            count = max(count, math.ceil(len(group) / max(1, most(group))) if most else 1)
        found += _split_group(group, count)
    return sorted(found, key=lambda group: -group.cost)


def select_unfinished(groups: Sequence[WorkerGroup], plans: Sequence[Plan]) -> list[WorkerGroup]:
    """Select the groups that have plans to train, with those plans only.

    A resumed sweep keeps the groups with which it began, because the last bits of runs in lockstep
    depend on the group.

    Examples
    --------
    >>> from engram.experiments import Recipe
    >>> from engram.experiments.plan import make_plans
    >>> base = {"stream": {"data": "blobs"}, "method": "ER", "seeds": 6}
    >>> plans = make_plans([Recipe.of(base | {"model": {"name": "mlp", "hidden": [8]}})])
    >>> groups = divide_groups(group_plans(plans), 3)
    >>> (
    ...     [len(group) for group in groups],
    ...     [len(group) for group in select_unfinished(groups, plans[2:])],
    ... )
    ([2, 2, 2], [2, 2])
    """
    left, found = {plan.key for plan in plans}, []
    for group in groups:
        some = tuple(plan for plan in group.plans if plan.key in left)
        if some:
            cost = group.cost * len(some) / len(group)
            found.append(WorkerGroup(some, cost, group.lockstep and len(some) > 1))
    return found


def _split_group(group: WorkerGroup, count: int) -> list[WorkerGroup]:
    """Split a group into parts whose sizes differ by at most one run."""
    if count <= 1:
        return [group]
    bounds = [len(group) * k // count for k in range(count + 1)]
    return [
        WorkerGroup(group.plans[a:b], group.cost * (b - a) / len(group), b - a > 1)
        for a, b in itertools.pairwise(bounds)
    ]


def estimate_work(run: Run, parameters: int) -> float:
    """Estimate the multiply-adds of a run: rows that pass the network forward and backward.

    Examples
    --------
    >>> from engram import class_incremental, load, methods
    >>> stream = class_incremental(load("blobs"))
    >>> from engram.engine.training import Training
    >>> one, two = (
    ...     Run(stream=stream, method=methods.Finetune(), training=t)
    ...     for t in (Training(epochs=3), Training(epochs=6))
    ... )
    >>> estimate_work(one, 100) < estimate_work(two, 100) < 2 * estimate_work(one, 100)
    True
    """
    rows, batch = 0.0, run.training.batch_size
    for stage, task in enumerate(run.stream.tasks):
        epochs, iterations = run.training.length(stage)
        for phase in run.method.phases(stage):
            if phase.rows == "none":
                continue
            steps = phase.iterations or (0 if phase.epochs else iterations)
            length = phase.epochs or epochs
            steps = steps or length * run.training.steps_per_epoch
            rows += 3.0 * (
                steps * (batch or len(task.train)) if steps else length * len(task.train)
            )
        scored = run.stream.tasks if run.unseen else run.stream.tasks[: stage + 1]
        rows += sum(len(one.test) for one in scored)
    return rows * parameters


# Retries of groups that were lost or failed.


MOST_TRIES = 2  # workers that a group may lose before it is divided, or given up
MOST_NODES = 8  # nodes that it may lose, rarely by its own fault
MOST_FAILURES_SHOWN = 5  # failures listed in a message


@dataclass
class Attempt:
    """A group that is being trained by a worker, or waits for one."""

    group: WorkerGroup
    tries: int = 1
    nodes: int = 1  # tries lost with nodes are counted separately
    whole: bool = False  # whether it needs a GPU of its own
    begun: bool = False
    node: str = ""


class RetryQueue:
    """Queue of groups to train; lost groups are queued again, in parts if necessary."""

    def __init__(self, groups: Sequence[WorkerGroup], note: Callable[[str], None]) -> None:
        self.waiting = deque(Attempt(group) for group in groups)
        self.failures: list[str] = []
        self._note = note

    def requeue(self, attempt: Attempt) -> None:
        """Put an attempt back at the front of the queue."""
        self.waiting.appendleft(attempt)

    def handle_failure(self, attempt: Attempt, words: str) -> None:
        """Handle an error in a group: its parts are tried, since one run may be at fault."""
        if len(attempt.group) > 1:
            self._split_group(attempt)
        else:
            self.failures.append(f"{attempt.group.words}: {words}")

    def handle_loss(self, attempt: Attempt, how: str, *, node: bool = False) -> None:
        """Handle the loss of a worker or node: another one tries, up to a limit."""
        group, words = attempt.group, f"{attempt.group.words}: {how}"
        tries, nodes = attempt.tries + (not node), attempt.nodes + node
        if tries <= MOST_TRIES and nodes <= MOST_NODES:
            self._note(f"{words}; another one continues it")
            self.requeue(replace(attempt, tries=tries, nodes=nodes, begun=False, node=""))
        elif len(group) > 1:
            self._note(f"{words}{_again_text()}; its runs are retried separately")
            self._split_group(attempt)
        else:
            kept = "what it recorded is kept; repeat the call to continue"
            self.failures.append(f"{words}{_again_text()}; {kept}")

    def _split_group(self, attempt: Attempt) -> None:
        self.waiting.extendleft(Attempt(half) for half in reversed(attempt.group.halves()))

    def raise_failures(self) -> None:
        """Raise an error that lists the failures, if there are any."""
        if not self.failures:
            return
        said = self.failures[:MOST_FAILURES_SHOWN]
        more = len(self.failures) - len(said)
        raise EngramError("; ".join([*said, *([f"and {more} more"] if more else [])]))


def _again_text() -> str:
    return ", again" if MOST_TRIES > 1 else ""
