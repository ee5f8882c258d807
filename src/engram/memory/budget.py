"""`Memory`: how many exemplars a method may keep, and the policy that selects them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Self

import torch
from torch import Tensor

from engram import keys
from engram.errors import (
    BadArgument,
    bad,
    check_choice,
    check_fields,
    check_float,
    check_int,
    plural,
)
from engram.memory.exemplars import Exemplars
from engram.memory.ranking_policies import (
    HERDING_RULES,
    PLANE_TRANSFORMS,
    Policy,
    PolicyLearner,
    Ranking,
    RowGroup,
    check_policy,
    first_label,
    group_by_class,
    group_key,
    make_ranking,
    policy_name,
    random_order,
    random_orders,
    reservoir,
    select_items,
)
from engram.per_run import PerRun
from engram.streams.row_numbers import exact_fraction

BUDGETS = ("per_class", "per_task", "total", "fraction")
SHARED_BY = ("class", "task")
_ROUNDING = {
    "ceil": math.ceil,
    "floor": math.floor,
    "nearest": lambda x: math.floor(x + Fraction(1, 2)),
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Memory:
    """A replay buffer: a budget of exemplars and a policy that selects them.

    A class that recurs in a later task counts as a separate group there: quotas are per (task,
    class) pair. Rows without a visible label are never stored.

    Parameters
    ----------
    per_class
        Items per class; grows with the classes. Classes with fewer rows keep all of them.
    per_task
        Items per task, of any class, never reduced; tasks with fewer rows keep all of them.
    total
        Items in total, shared equally by the classes seen; the lowest-ranked items are dropped. An
        upper bound: if there are fewer rows, all of them are kept.
    fraction
        Share of every task's rows, never reduced.
    shared_by
        What gets equal shares of `total`: every ``class`` seen, or every ``task``.
    policy
        A name from `policies`, or your own: an object with ``rank(learner, rows, column, count)``,
        or such a function, returning positions in `rows`, best first (`Policy`).
    quota
        Rounding of a class's share of `total`; ``ceil`` may exceed the total.
    shrink
        If tasks share the total: ``equal`` reduces every old task to ``total // tasks``;
        ``random`` drops as many old items as new ones need, from any task, and so fills the total.
    rounding
        For `fraction`: ``ceil``, ``floor`` or ``nearest``.
    strict
        For `per_class`: reject classes with fewer rows.
    normalize, dedupe, rule
        For herding, see `engram.memory.ranking_policies.herding_order`.
    pd_transform
        For the plane distance: ``abs_eps`` or ``softplus``.

    Examples
    --------
    >>> Memory(total=500)
    Memory(total=500)
    >>> Memory(per_class=20, policy="herding").describe()
    '20 items per class, herding'
    >>> Memory(total=500, shared_by="task").describe()
    '500 items, shared by tasks, random'
    >>> Memory(total=500, per_class=20)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: memory: expected exactly one of ..., got per_class=20, total=500
    """

    per_class: int | None = None
    per_task: int | None = None
    total: int | None = None
    fraction: PerRun | None = None
    shared_by: str = "class"
    policy: str | Policy | Ranking = "random"
    quota: str = "floor"
    shrink: str = "equal"
    rounding: str = "ceil"
    strict: bool = False
    normalize: bool = True
    dedupe: bool = True
    rule: str = "distance"
    pd_transform: str = "abs_eps"

    def __new__(cls, *_args: Any, **fields: Any) -> Self:
        check_fields(cls, fields)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in BUDGETS if getattr(self, name) is not None}
        if len(given) != 1:
            got = ", ".join(f"{k}={v}" for k, v in given.items()) or "none"
            raise BadArgument(f"memory: expected exactly one of {', '.join(BUDGETS)}, got {got}")
        for name, value in given.items():
            if name == "fraction":
                check_float("fraction", value, 0.0, 1.0, open_low=True)
            else:
                check_int(name, value, low=1)
        check_choice("shared_by", self.shared_by, SHARED_BY)
        if self.shared_by == "task" and self.total is None:
            expected = f"'class' with {self._budget()}, because only a total can be shared"
            raise bad("shared_by", expected, self.shared_by)
        check_choice("quota", self.quota, ("floor", "ceil"))
        check_choice("shrink", self.shrink, ("equal", "random"))
        check_choice("rounding", self.rounding, _ROUNDING)
        check_choice("rule", self.rule, HERDING_RULES)
        check_choice("pd_transform", self.pd_transform, PLANE_TRANSFORMS)
        check_policy(self.policy)
        if self._by_step and (self.total is None or self.shared_by == "task"):
            shared = ", shared_by='task'" if self.shared_by == "task" else ""
            got = f"{self._budget()}{shared}"
            raise BadArgument(f"policy: {self.policy!r} needs the budget total, got {got}")

    @property
    def _by_step(self) -> bool:
        """Whether rows enter one by one, whatever their class."""
        return self.policy in ("reservoir", "admit")

    # -- description -----------------------------------------------------------------------------
    def _budget(self) -> str:
        return next(f"{name}={v}" for name in BUDGETS if (v := getattr(self, name)) is not None)

    def __repr__(self) -> str:
        shown = [
            f"{f.name}={v!r}" for f in fields(self) if (v := getattr(self, f.name)) != f.default
        ]
        return f"Memory({', '.join(shown)})"

    def describe(self) -> str:
        """Describe the memory in one line, for tables and logs."""
        if self.fraction is not None:
            size = f"{self.fraction:g} of each task"
        elif self.per_class is not None:
            size = f"{plural(self.per_class, 'item')} per class"
        elif self.per_task is not None:
            size = f"{plural(self.per_task, 'item')} per task"
        else:
            groups = {"class": "classes", "task": "tasks"}[self.shared_by]
            shared = "" if self._by_step else f", shared by {groups}"
            size = plural(self.total or 0, "item") + shared
        return f"{size}, {policy_name(self.policy)}"

    def capacity(
        self, *, groups: int | None = None, sizes: Sequence[int] | None = None
    ) -> int | None:
        """Return an upper bound of the number of items, None if it is not known.

        Parameters
        ----------
        groups
            (task, class) pairs of the whole stream; decides `per_class` and a quota of ``ceil``.
        sizes
            Training rows of each task; decides `fraction` and `per_task`.

        Examples
        --------
        >>> Memory(total=100).capacity(), Memory(per_class=20).capacity()
        (100, None)
        >>> Memory(per_class=20).capacity(groups=10)
        200
        """
        if self.fraction is not None:
            return None if sizes is None else sum(self._share(n) for n in sizes)
        if self.per_task is not None:
            return None if sizes is None else sum(min(self.per_task, n) for n in sizes)
        if self.per_class is not None:
            return None if groups is None else self.per_class * groups
        total = self.total or 0
        if self.quota == "floor" or self._by_step or self.shared_by == "task":
            return total
        return None if groups is None else max(g * -(-total // g) for g in range(1, groups + 1))

    def check(self, *, groups: int, tasks: int) -> None:
        """Raise for a budget that leaves some class or task without an item.

        Examples
        --------
        >>> Memory(total=7).check(groups=10, tasks=5)
        Traceback (most recent call last):
        ...
        engram.errors.BadArgument: total: expected at least one item for each of 10 classes ...
        """
        if self.total is None or self._by_step:
            return
        if self.shared_by == "task":
            _check_enough("total", self.total, tasks, "tasks")
        elif self.quota == "floor":
            _check_enough("total", self.total, groups, "classes")

    # -- selection -------------------------------------------------------------------------------
    def update(self, learner: PolicyLearner, rows: Tensor) -> Exemplars:
        """Return the exemplars after a task, from those before it and the task's training rows.

        Reads the learner without changing it. A second call in the same task returns the same
        exemplars (except for a reservoir, which would see the rows twice).
        """
        if self.policy == "admit":
            wanted = (
                "another policy, where no ReplaySpec(..., renew='step') lets a method admit rows"
            )
            raise bad("memory.policy", wanted, self.policy)
        rows = rows.cpu()
        labels = learner.labels(rows)  # [n, L]
        by_task = self.shared_by == "task" or (self.total is None and self.per_class is None)
        if self.policy == "reservoir" or by_task:
            first = first_label(labels)
            shown = first >= 0
            if not bool(shown.all()):
                rows, first = rows[shown], first[shown]
            if self.policy == "reservoir":
                return reservoir(learner, rows, first, self.total or 0)
            return self._by_task(learner, rows)
        return self._by_class(learner, group_by_class(rows, labels))

    def _by_class(self, learner: PolicyLearner, groups: list[RowGroup]) -> Exemplars:
        old = _earlier_exemplars(learner)
        if not groups:
            return old
        if self.total is None:
            quota = self.per_class or 0
            self._refuse_small(groups, quota)
        else:
            count = _count_groups(old) + len(groups)
            if self.quota == "floor" and count > self.total:  # a stream without a known end
                classes = {*old.columns.tolist(), *(group.column for group in groups)}
                self.check(groups=len(classes), tasks=learner.stage + 1)
                old = _drop_groups(learner, old, self.total - len(groups))
                count = _count_groups(old) + len(groups)
            quota = self.total // count if self.quota == "floor" else -(-self.total // count)
            old = old.take(old.ranks < quota)
        return old.join(*self._pick(learner, groups, quota))

    def _by_task(self, learner: PolicyLearner, rows: Tensor) -> Exemplars:
        old = _earlier_exemplars(learner)
        if self.total is None:
            quota = self._share(len(rows)) if self.per_task is None else self.per_task
        else:
            tasks = learner.stage + 1
            self.check(groups=0, tasks=tasks)
            quota = self.total // tasks
        (new,) = self._pick(learner, [RowGroup(-1, rows)], quota)
        if self.total is not None:
            if self.shrink == "equal":
                old = old.take(old.ranks < quota)
            else:
                old = _thin_out(learner, old, self.total - len(new))
        return old.join(new)

    def _share(self, rows: int) -> int:
        # exact, so that 0.07 of 100 is 7 and not 8
        return int(_ROUNDING[self.rounding](exact_fraction(self.fraction or 0.0) * rows))

    def _refuse_small(self, groups: list[RowGroup], quota: int) -> None:
        small = {g.column: len(g.rows) for g in groups if len(g.rows) < quota}
        if self.strict and small:
            column, rows = min(small.items(), key=lambda item: item[1])
            raise bad(
                "per_class", f"at most {rows}, the rows of the class in column {column}", quota
            )

    def _pick(self, learner: PolicyLearner, groups: list[RowGroup], quota: int) -> list[Exemplars]:
        counts = [min(quota, len(group.rows)) for group in groups]
        if self.policy == "random":
            drawn_by = [group_key(learner, group.column) for group in groups]
            orders = random_orders(drawn_by, [len(group.rows) for group in groups])
        else:
            rank = self._ranking()
            wanted = zip(groups, counts, strict=True)
            orders = [rank(learner, group.rows, group.column, n) for group, n in wanted]
        chosen = zip(groups, orders, counts, strict=True)
        return [select_items(learner, group, order[:n]) for group, order, n in chosen]

    def _ranking(self) -> Ranking:
        return make_ranking(
            self.policy,
            normalize=self.normalize,
            dedupe=self.dedupe,
            rule=self.rule,
            pd_transform=self.pd_transform,
        )


def check_memory(memory: object, *, optional: bool = False) -> None:
    """Raise unless the argument is a `Memory` (or None, if optional).

    Examples
    --------
    >>> check_memory(5)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: memory: expected a Memory such as Memory(total=500), got 5
    """
    if not isinstance(memory, Memory) and not (optional and memory is None):
        raise bad("memory", f"a Memory such as Memory(total=500){', or None' * optional}", memory)


def _check_enough(argument: str, budget: int, shares: int, what: str) -> None:
    if budget < shares:
        expected = f"at least one item for each of {shares} {what} ({argument}={shares} or more)"
        raise bad(argument, expected, budget)


def _earlier_exemplars(learner: PolicyLearner) -> Exemplars:
    """Return the exemplars of earlier tasks."""
    old = learner.exemplars
    return old.take(old.stages != learner.stage)


def _count_groups(old: Exemplars) -> int:
    return int((old.ranks == 0).sum())  # every ranking has one item of rank 0


def _drop_groups(learner: PolicyLearner, old: Exemplars, room: int) -> Exemplars:
    """Keep `room` groups of old items: as many of each class as the others have, by lot.

    The lot of a group never changes, so those kept are a uniform sample of all so far.
    """
    firsts = old.take(old.ranks == 0)
    lots = torch.stack(
        [
            keys.bits(keys.fold(learner.seed, "memory", "lot", stage, column), 1)[0]
            for stage, column in zip(firsts.stages.tolist(), firsts.columns.tolist())
        ]
    )
    order = lots.argsort(stable=True)
    turn = torch.empty_like(order)  # the place of a group among those of its class
    for column in firsts.columns.unique():
        own = order[firsts.columns[order] == column]
        turn[own] = torch.arange(len(own))
    kept = order[turn[order].argsort(stable=True)[:room]]
    pairs = zip(firsts.stages[kept].tolist(), firsts.columns[kept].tolist())
    stays = set(pairs)
    every = zip(old.stages.tolist(), old.columns.tolist())
    return old.take(torch.tensor([pair in stays for pair in every], dtype=torch.bool))


def _thin_out(learner: PolicyLearner, old: Exemplars, room: int) -> Exemplars:
    """Keep a uniform sample of `room` old items, in their old order."""
    if len(old) <= room:
        return old
    order = random_order(keys.fold(learner.seed, "memory", "drop", learner.stage), len(old))
    return old.take(torch.sort(order[:room]).values)
