"""A uniform sample of everything that passed by, without knowing how much will."""

from __future__ import annotations

import torch
from torch import Tensor

from engram import keys
from engram.errors import bad
from engram.memory.exemplars import Exemplars
from engram.memory.random import random_order
from engram.memory.source import Source


def draw_slots(key: keys.Key, seen: int, count: int) -> Tensor:
    """[count] for the n-th row ever (n = seen + 1 ..), a whole number below n: 0..n-1.

    Examples
    --------
    >>> draw_slots(1, 0, 3)[0].item()  # the first row has one place to go
    0
    """
    place = torch.arange(seen, seen + count)
    return keys.below(keys.fold(key, place), place + 1)


def settle(slots: Tensor, seen: int, size: int) -> Tensor:
    """[min(size, seen + n)] which of the n new rows ends in each slot, -1 = the old one stays.

    The n-th row ever takes slot n-1 while the reservoir fills, then the slot drawn for it, if there
    is one of that number. The last to enter a slot stays.

    Parameters
    ----------
    slots
        [n] draws of `draw_slots`; those of the first `size` rows are not looked at.

    Examples
    --------
    >>> settle(torch.tensor([0, 0, 1, 3]), seen=0, size=2).tolist()  # a, b, c, d: a and c stay
    [0, 2]
    """
    arrival = torch.arange(len(slots))
    place = arrival + seen
    target = torch.where(place < size, place, slots)
    inside = target < size
    holder = torch.full((min(size, seen + len(slots)),), -1, dtype=torch.long)
    return holder.scatter_reduce_(0, target[inside], arrival[inside], "amax")


def reservoir(learner: Source, rows: Tensor, columns: Tensor, size: int) -> Exemplars:
    """Let `rows` pass by, in random order, and return the reservoir after them.

    Parameters
    ----------
    columns
        [n] first label of each row.
    """
    old = learner.exemplars
    if len(old) != min(size, old.seen):
        expected = f"{min(size, old.seen)} of {old.seen} rows, as a reservoir of {size} keeps them"
        raise bad("exemplars", expected, len(old))
    key = keys.fold(learner.seed, "memory", "reservoir")
    visit = random_order(keys.fold(key, "visit", learner.stage, old.seen), len(rows))
    holder = settle(draw_slots(key, old.seen, len(rows)), old.seen, size)
    fresh = holder >= 0
    source = visit[holder[fresh]]
    rows, columns = rows[source], columns[source]
    stages = torch.full_like(rows, learner.stage)
    return Exemplars(
        _place(fresh, old.rows, rows),
        _place(fresh, old.stages, stages),
        _place(fresh, old.columns, columns),
        torch.arange(len(holder)),
        old.seen + len(visit),
    )


def _place(fresh: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Old values, new ones where `fresh`."""
    values = before.new_full(fresh.shape, -1)
    values[: len(before)] = before
    values[fresh] = after
    return values
