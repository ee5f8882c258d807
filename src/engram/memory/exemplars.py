"""`Exemplars`: the rows that a memory holds, as row numbers and not as copies of data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Fields(NamedTuple):
    rows: Tensor  # [n] row numbers of the data
    stages: Tensor  # [n] the task in which the row was stored, which decides its visible labels
    columns: Tensor  # [n] output column of the group, or of the first label if groups are tasks
    ranks: Tensor  # [n] position in the ranking of the group; the slot, for a reservoir
    seen: int = 0  # rows seen so far, for a reservoir


class Exemplars(_Fields):
    """Stored (row, stage) pairs; all four tensors are int64 on the CPU.

    ``len`` counts the items; a row stored for two classes, or in two tasks, counts twice.

    Examples
    --------
    >>> kept = Exemplars.empty()
    >>> len(kept), kept.seen
    (0, 0)
    >>> one, two = torch.tensor([7]), torch.tensor([2])
    >>> kept = kept.join(Exemplars(one, one * 0, two, one * 0))
    >>> len(kept), kept.counts(4).tolist(), kept.nbytes(784)
    (1, [0, 0, 1, 0], 784)
    """

    __slots__ = ()

    # `len` is the number of items, so `_make` and `repr`, which use the number of fields in a named
    # tuple, are redefined.
    def __len__(self) -> int:
        return self.rows.shape[0]

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Exemplars:  # type: ignore[override]
        return cls(*iterable)

    def __repr__(self) -> str:
        stages = self.stages.unique().tolist()
        return f"Exemplars({len(self)} items of tasks {stages}, {self.seen} rows seen)"

    @classmethod
    def empty(cls) -> Exemplars:
        """Return exemplars without items."""
        none = torch.empty(0, dtype=torch.long)
        return cls(none, none, none, none)

    def take(self, which: Tensor) -> Exemplars:
        """Select items by position or by a mask."""
        rows, stages, columns, ranks, seen = self
        return Exemplars(rows[which], stages[which], columns[which], ranks[which], seen)

    def join(self, *others: Exemplars) -> Exemplars:
        """Append the items of `others`; the number of rows seen is unchanged."""
        parts = zip(*(part[:4] for part in (self, *others)), strict=True)
        rows, stages, columns, ranks = (torch.cat(part) for part in parts)
        return Exemplars(rows, stages, columns, ranks, self.seen)

    def counts(self, columns: int = 0) -> Tensor:
        """Count the items [C] per output column, with at least `columns` entries."""
        return torch.bincount(self.columns[self.columns >= 0], minlength=columns)

    def nbytes(self, sample_bytes: int) -> int:
        """Return the bytes that the samples themselves would need."""
        return len(self) * sample_bytes
