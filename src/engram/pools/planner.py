"""Which runs one worker trains at one go, and in which order: those that take longest first."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engram.engine.engine import Engine
from engram.engine.run import Run
from engram.recipes import Plan


@dataclass(frozen=True)
class Group:
    """Runs that one worker trains at one go: in lockstep, or one alone.

    `cost` is about how many multiply-adds they take; nothing is known of runs that cannot be built,
    which are told so by whoever tries to train them.
    """

    plans: tuple[Plan, ...]
    cost: float = math.inf
    lockstep: bool = False

    def __len__(self) -> int:
        return len(self.plans)

    def halves(self) -> list[Group]:
        """Two groups in place of one that is too large, or fails as a whole."""
        half, share = len(self) // 2, self.cost / 2
        return [
            Group(part, share, self.lockstep) for part in (self.plans[:half], self.plans[half:])
        ]

    @property
    def words(self) -> str:
        """Which runs these are, in a few words."""
        labels = list(dict.fromkeys(plan.label for plan in self.plans))
        first = labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"
        return first if len(self) == 1 else f"{first} ({len(self)} runs)"


def groups_of(
    plans: Sequence[Plan], *, device: str = "cpu", compile: bool = False
) -> list[Group]:  # fmt: skip
    """Runs by whom they would train with on a kind of device, as large as can be.

    Runs that do not train in lockstep are groups of one.

    Examples
    --------
    >>> from engram.recipes import Recipe
    >>> from engram.recipes.plan import plans_of
    >>> base = {"stream": {"data": "blobs"}, "method": "ER", "seeds": 2}
    >>> sizes = ([8], [512, 512])  # of hidden layers
    >>> recipes = [Recipe.of(base | {"model": {"name": "mlp", "hidden": one}}) for one in sizes]
    >>> [len(group) for group in groups_of(plans_of(recipes))]
    [2, 1, 1]
    """
    costs: dict[Plan, float] = {}
    engine = Engine([plan.run for plan in plans], device="cpu", compile=compile, plan_for=device)
    for plan in plans:
        try:
            engine.kin(plan.run)
            costs[plan] = cost_of(plan.run, engine.parameters(plan.run))
        except Exception:  # whoever trains it says what is wrong, and the others are trained
            continue
    sound, found = list(costs), [Group((plan,)) for plan in plans if plan not in costs]
    if not sound:
        return found
    if found:
        runs = [plan.run for plan in sound]
        engine = Engine(runs, device="cpu", compile=compile, plan_for=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that models train alone, as is planned here
        for places in engine.groups():
            members = [sound[place] for place in places]
            parts = [members] if engine.lockstep(places) else [[one] for one in members]
            found += [
                Group(tuple(some), sum(costs[one] for one in some), len(some) > 1)
                for some in parts
            ]  # fmt: skip
    return found


def shared_out(
    groups: Sequence[Group], workers: int, most: Callable[[Group], int] | None = None
) -> list[Group]:
    """Groups for so many workers, the costliest first: whoever is free takes the next.

    A group in lockstep that is more than a worker's part of the whole cost is divided, and so is
    one of more runs than a worker has room for, which `most` says.
    """
    part = sum(group.cost for group in groups if group.cost < math.inf) / max(workers, 1)
    found: list[Group] = []
    for group in groups:
        count = 1
        if group.lockstep and part > 0:
            count = min(len(group), math.ceil(group.cost / part - 1e-9))
            count = max(count, math.ceil(len(group) / max(1, most(group))) if most else 1)
        found += _divided(group, count)
    return sorted(found, key=lambda group: -group.cost)


def unfinished(groups: Sequence[Group], plans: Sequence[Plan]) -> list[Group]:
    """Groups of which some plan is still to be trained, with those plans.

    A sweep that goes on has the groups that it had when it began, however much of it is done: the
    last bits of runs in lockstep depend on who trains with them.

    Examples
    --------
    >>> from engram.recipes import Recipe
    >>> from engram.recipes.plan import plans_of
    >>> base = {"stream": {"data": "blobs"}, "method": "ER", "seeds": 6}
    >>> plans = plans_of([Recipe.of(base | {"model": {"name": "mlp", "hidden": [8]}})])
    >>> groups = shared_out(groups_of(plans), 3)
    >>> [len(group) for group in groups], [len(group) for group in unfinished(groups, plans[2:])]
    ([2, 2, 2], [2, 2])
    """
    left, found = {plan.key for plan in plans}, []
    for group in groups:
        some = tuple(plan for plan in group.plans if plan.key in left)
        if some:
            cost = group.cost * len(some) / len(group)
            found.append(Group(some, cost, group.lockstep and len(some) > 1))
    return found


def _divided(group: Group, count: int) -> list[Group]:
    """A group in parts that differ by one run at most."""
    if count <= 1:
        return [group]
    bounds = [len(group) * k // count for k in range(count + 1)]
    return [
        Group(group.plans[a:b], group.cost * (b - a) / len(group), b - a > 1)
        for a, b in itertools.pairwise(bounds)
    ]


def cost_of(run: Run, parameters: int) -> float:
    """About how many multiply-adds a run takes: rows that pass the network, there and back.

    Examples
    --------
    >>> from engram import class_incremental, load, methods
    >>> stream = class_incremental(load("blobs"))
    >>> from engram.engine.training import Training
    >>> one, two = (Run(stream=stream, method=methods.Finetune(), training=t)
    ...             for t in (Training(epochs=3), Training(epochs=6)))
    >>> cost_of(one, 100) < cost_of(two, 100) < 2 * cost_of(one, 100)
    True
    """
    rows, batch = 0.0, run.training.batch_size
    for stage, task in enumerate(run.stream.tasks):
        epochs, iterations = run.training.length(stage)
        for phase in run.method.phases(stage):
            if phase.rows == "none":
                continue
            steps = phase.iterations or (0 if phase.epochs else iterations)
            passes = phase.epochs or epochs
            rows += 3.0 * (
                steps * (batch or len(task.train)) if steps else passes * len(task.train)
            )
        rows += sum(len(one.test) for one in run.stream.tasks)
    return rows * parameters
