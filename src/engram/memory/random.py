"""Uniform choice without replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engram import keys
from engram.memory.source import Source


def group_key(learner: Source, column: int) -> keys.Key:
    """The key of all draws for one group: by output column, so that class ids do not matter."""
    return keys.fold(learner.seed, "memory", learner.stage, column)


def random_order(key: keys.Key, n: int) -> Tensor:
    """A uniform permutation of 0..n-1, a function of the key alone.

    Examples
    --------
    >>> sorted(random_order(3, 5).tolist())
    [0, 1, 2, 3, 4]
    """
    return keys.bits(key, n).argsort(stable=True)


def random_orders(drawn_by: Sequence[keys.Key], sizes: Sequence[int]) -> list[Tensor]:
    """`random_order` of several groups in one go: small tasks cost calls, not numbers.

    Examples
    --------
    >>> [o.tolist() for o in random_orders([3, 4], [5, 2])] == [
    ...     random_order(3, 5).tolist(), random_order(4, 2).tolist()]
    True
    """
    longest = max(sizes, default=0)
    if len(sizes) == 1 or longest * len(sizes) > 4 * sum(sizes):  # one group dwarfs the others
        return [random_order(key, n) for key, n in zip(drawn_by, sizes, strict=True)]
    drawn = keys.bits(torch.as_tensor(drawn_by, dtype=torch.long), longest)  # [G, longest]
    return [part[:n].argsort(stable=True) for part, n in zip(drawn, sizes, strict=True)]


@dataclass(frozen=True)
class Random:
    """Every row of the group is equally likely."""

    def rank(self, learner: Source, rows: Tensor, column: int, count: int) -> Tensor:
        return random_order(group_key(learner, column), len(rows))[:count]
