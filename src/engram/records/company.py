"""The rows of many runs after one stage at once: the numbers of `record_stage`, run after run.

A study of orders records a thousand runs per stage, each with test items in an order of its own.
One after the other, most of the time would be spent on calling functions, not on counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.records import views
from engram.records.items import Bools, Ints, Items
from engram.records.table import Rows


def kind(items: Items) -> Any:
    """Runs whose items are of one kind can share a `Block`; None for items that cannot at all."""
    if items.multilabel or items.targets.shape[1] != 1 or items.targets.min(initial=0) < 0:
        return None
    return len(items), items.tasks, items.width


@dataclass
class Block:
    """Rows of R runs that differ in their numbers only, [R, K].

    Examples
    --------
    >>> block = Block(2)
    >>> block.add("steps", [[7.0], [8.0]])
    >>> rows = block.rows(recipe="r", label="ER", seed=[0, 1], order="", stage=3)
    >>> rows.frame()[["seed", "metric", "value"]].values.tolist()
    [[0, 'steps', 7.0], [1, 'steps', 8.0]]
    """

    runs: int
    _metric: list[str] = field(default_factory=list)
    _head: list[str] = field(default_factory=list)
    _numbers: dict[str, list[Any]] = field(
        default_factory=lambda: {name: [] for name in ("value", "task", "cls", "step")}
    )

    def add(
        self, metric: str | Sequence[str], value: Any, *, task: Any = -1, cls: Any = -1,
        step: Any = -1, head: str = "",
    ) -> None:  # fmt: skip
        """Values [R, k] with their places, which are broadcast to that shape."""
        shape = np.shape(value)
        self._metric += [metric] * shape[1] if isinstance(metric, str) else list(metric)
        self._head += [head] * shape[1]
        for name, one in (("value", value), ("task", task), ("cls", cls), ("step", step)):
            self._numbers[name].append(np.broadcast_to(one, shape))

    def rows(self, *, recipe: Any, label: Any, seed: Any, order: Any, stage: int) -> Rows:
        """The long table of all runs, one run after the other; who they are comes as [R] each."""
        who = {"recipe": recipe, "label": label, "seed": seed, "order": order}
        apart = {k: v if isinstance(v, str) else np.asarray(v)[:, None] for k, v in who.items()}
        numbers = {k: np.concatenate(parts, axis=1) for k, parts in self._numbers.items()}
        rows = Rows()
        rows.add_array(self._metric, stage=stage, head=self._head, **apart, **numbers)
        return rows

    def __len__(self) -> int:
        """K, the rows of one run."""
        return len(self._metric)


def add_stage(
    block: Block, scores: Sequence[Any], items: Sequence[Items], *, stage: int, average: str
) -> bool:
    """What `record_stage` adds for each run; False, and nothing added, where runs differ in form.

    All items must be of one `kind`.
    """
    every = _Stacked(items)
    open_ = every.opening <= stage  # [R, C]
    here = every.number > 0  # [R, T * C]
    if len(set(open_.sum(1).tolist())) > 1 or len(set(here.sum(1).tolist())) > 1:
        return False
    runs = np.arange(len(items))[:, None]
    opened, cells = _true(open_), _true(here)  # [R, k], [R, m]
    task, column = np.divmod(cells, every.width)
    cls = every.classes[runs, column]
    tasks = np.arange(every.tasks)
    rounded = views.round_scores(np.stack([np.asarray(one, np.float32) for one in scores]))
    table = rounded.astype(np.float32)
    for head in views.HEADS:
        said = every.predict(table, open_, head)
        by_class = every.class_accuracy(said)  # [R, T, C]
        micro = average != "macro"
        accuracy = every.task_accuracy(said) if micro else views.macro(by_class)
        block.add("accuracy", accuracy, task=tasks, head=head)
        flat = by_class.reshape(len(items), -1)
        block.add("class_accuracy", flat[runs, cells], task=task, cls=cls, head=head)
        share = every.predicted_share(said, stage)[runs, opened]
        block.add("predicted", share, cls=every.classes[runs, opened], head=head)
    if stage == 0:
        block.add("class_count", every.number[runs, cells], task=task, cls=cls)
    return True


def _true(mask: Bools) -> Ints:
    """[R, k] places of the k true entries of each row, ascending."""
    return np.nonzero(mask)[1].reshape(len(mask), -1)


class _Stacked:
    """The items of R runs, one axis more than those of one run."""

    def __init__(self, items: Sequence[Items]) -> None:
        self.runs, self.tasks, self.width = len(items), items[0].tasks, items[0].width
        self.task = np.stack([one.task for one in items])  # [R, n]
        self.target = np.stack([one.targets[:, 0] for one in items])  # [R, n]
        self.opening = np.stack([one.opening for one in items])  # [R, C]
        self.visible = np.stack([one.visible for one in items])  # [R, T, C]
        self.classes = np.stack([one.classes for one in items])  # [R, C]
        self._cell = self.task * self.width + self.target  # [R, n] of the flat class table
        everything = np.ones(self.task.shape, np.bool_)
        self.number = self._count(self._cell, everything, self.tasks * self.width)

    def _count(self, place: npt.NDArray[Any], which: Bools, size: int) -> Ints:
        """[R, size] how often each place [R, n] occurs among the chosen items of each run."""
        own = place + np.arange(self.runs)[:, None] * size
        found = np.bincount(own[which], minlength=self.runs * size)
        return found.reshape(self.runs, size)

    def predict(self, table: npt.NDArray[Any], open_: Bools, head: str) -> Ints:
        """As `views.predict`, [R, n]; rounded scores hold no NaN."""
        if head == "multi":
            mask = self.visible[np.arange(self.runs)[:, None], self.task]  # [R, n, C]
        else:
            mask = open_[:, None, :]
        return np.asarray(np.where(mask, table, -np.inf).argmax(axis=-1))

    def class_accuracy(self, said: Ints) -> views.Floats:
        right = self._count(self._cell, said == self.target, self.tasks * self.width)
        return views.shares(right, self.number).reshape(self.runs, self.tasks, self.width)

    def task_accuracy(self, said: Ints) -> views.Floats:
        everything = np.ones(self.task.shape, np.bool_)
        size = self._count(self.task, everything, self.tasks)
        return views.shares(self._count(self.task, said == self.target, self.tasks), size)

    def predicted_share(self, said: Ints, stage: int) -> views.Floats:
        seen = self.task <= stage
        size = np.maximum(seen.sum(1), 1)[:, None]
        return np.asarray(self._count(said, seen, self.width) / size)
