"""Features of rows under weights that stand still, computed once and found again by their inputs.

A method whose frozen transformer is asked about the same rows in every epoch and evaluation would
otherwise pass them anew each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from engram.data.dataset import Data
from engram.learner.feed import Feed

MOST_KEPT_BYTES = 1 << 30  # of features; those that were made first go first


class _Place(NamedTuple):
    """Where a row stands: in which group, and at which position."""

    group: int
    position: int


class RowFeatures:
    """Features of the rows of a feed, which are made for whole groups of rows.

    Rows of the same class and part of the split are a group. As it is always passed as a whole, in
    the order of its rows, features do not depend on the batch that first asked for them, and are
    the same after a resumed run has made them again.

    Examples
    --------
    >>> data = Data.from_arrays(torch.arange(8.0)[:, None], [0, 0, 1, 1] * 2)
    >>> known = RowFeatures(Feed(data, device=torch.device("cpu")))
    >>> passed = []
    >>> def double(x):
    ...     passed.append(len(x))
    ...     return 2 * x
    >>> x = data.x[:2]
    >>> [known.find(x, "double", double).tolist() for _ in range(2)]
    [[[0.0], [2.0]], [[0.0], [2.0]]]
    >>> known.find(x + 0.5, "double", double) is None  # no rows of the data
    True
    >>> len(passed) <= 2
    True
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._made: dict[tuple[Hashable, int], Tensor] = {}
        self._bytes = 0

    def find(self, x: Tensor, key: Hashable, compute: Callable[[Tensor], Tensor]) -> Tensor | None:
        """Return the features [B, F] of inputs under a key; None if one of them is no known row.

        `compute` makes features of inputs; under equal keys it must make equal ones.
        """
        places = [self._places.get(content) for content in _contents(x)]
        if not places or any(place is None for place in places):
            return None
        known = [place for place in places if place is not None]
        tables = {group: self._table(key, group, compute) for group in {p.group for p in known}}
        return torch.stack([tables[place.group][place.position] for place in known])

    def _table(self, key: Hashable, group: int, compute: Callable[[Tensor], Tensor]) -> Tensor:
        found = self._made.get((key, group))
        if found is None:
            rows = self._groups[group]
            with torch.no_grad():
                found = compute(self._feed(rows))
            self._made[key, group] = found
            self._bytes += found.nbytes
            while self._bytes > MOST_KEPT_BYTES and len(self._made) > 1:
                self._bytes -= self._made.pop(next(iter(self._made))).nbytes
        return found

    @cached_property
    def _groups(self) -> list[Tensor]:
        return _group_rows(self._feed.data)

    @cached_property
    def _places(self) -> dict[bytes, _Place]:
        """Where the rows are, by their inputs; equal rows have the features of the last one."""
        return {
            content: _Place(group, position)
            for group, rows in enumerate(self._groups)
            for position, content in enumerate(_contents(self._feed(rows)))
        }

    def __deepcopy__(self, memo: dict[int, object]) -> RowFeatures:
        return self  # copies of networks share what is known

    def __reduce__(self) -> tuple[type[RowFeatures], tuple[Feed]]:
        return RowFeatures, (self._feed,)  # another process makes its own


def _group_rows(data: Data) -> list[Tensor]:
    """Return the rows of each class in each part of the split, in order."""
    part = torch.zeros(len(data), dtype=torch.long)  # of rows that are left out
    for number, rows in enumerate((data.train, data.valid, data.test), start=1):
        part[rows] = number
    first = data.y if data.y.ndim == 1 else data.y[:, 0]
    codes = (first.long() - first.long().min()) * 4 + part
    return [(codes == code).nonzero()[:, 0] for code in codes.unique()]


def _contents(x: Tensor) -> list[bytes]:
    """Return a checksum of each row of inputs."""
    rows = x.detach().contiguous().flatten(1).view(torch.uint8).numpy()
    return [hashlib.blake2b(row.data, digest_size=16).digest() for row in rows]


def digest(*values: Tensor) -> bytes:
    """Return a checksum of tensors, which stands for them in a key.

    Examples
    --------
    >>> digest(torch.zeros(2)) == digest(torch.zeros(2)), digest(torch.ones(2)) == digest()
    (True, False)
    """
    found = hashlib.blake2b(digest_size=16)
    for one in values:
        found.update(one.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.digest()
