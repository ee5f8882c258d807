"""A cache of rows with a limited size: fixed slots, replaced at random."""

from __future__ import annotations

import math
import re
import threading
from typing import Any

import numpy as np

from engram.data.arrays import Array
from engram.data.limits import memory
from engram.errors import bad

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
          "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", re.IGNORECASE)


def as_bytes(argument: str, value: Any) -> int:
    """A number of bytes, also as text with a unit; at most what the machine has.

    Examples
    --------
    >>> as_bytes("cache", 4096), as_bytes("cache", "1.5MB"), as_bytes("cache", "1 MiB")
    (4096, 1500000, 1048576)
    >>> as_bytes("cache", "much")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: cache: expected a number of bytes, or text such as '2GB', got 'much'
    """
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is not None and found[2].upper() in _UNITS:
        value = int(float(found[1]) * _UNITS[found[2].upper()])
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise bad(argument, "a number of bytes, or text such as '2GB'", value)
    if value > memory():
        raise bad(argument, f"at most the memory of this machine ({memory()} bytes)", value)
    return value


class RowCache:
    """Holds some of N rows in as many bytes as it may; safe to use from several threads.

    Rows are wanted in shuffled epochs. A cache that drops what was used longest ago drops just what
    comes next: where half of the rows fit it would answer 15% of the reads, chance 28%.

    Examples
    --------
    >>> cache = RowCache(4, (100, 2), np.dtype(np.uint8))  # two rows of a hundred
    >>> cache.put(np.array([7, 9]), np.array([[1, 2], [3, 4]], np.uint8))
    >>> out = np.zeros((2, 2), np.uint8)
    >>> cache.take(np.array([9, 8]), out).tolist(), out.tolist()
    ([True, False], [[3, 4], [0, 0]])
    """

    def __init__(self, size: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        each = math.prod(shape[1:]) * dtype.itemsize
        self.slots = min(size // max(each, 1), shape[0])
        self.hits = self.reads = 0
        self._slot = np.full(shape[0] if self.slots else 0, -1, np.int32)  # of each row
        self._row = np.full(self.slots, -1, np.int32)  # in each slot
        # memory is taken as slots are filled, not before
        self._held = np.empty((self.slots, *shape[1:]), dtype)
        self._used = 0
        self._random = np.random.default_rng(0)
        self._lock = threading.Lock()

    def take(self, rows: Array, out: Array) -> Array:
        """Copy what is here of `rows` into `out`; says which rows were."""
        if not self.slots:
            return np.zeros(len(rows), bool)
        with self._lock:
            slot = self._slot[rows]
            there = slot >= 0
            if there.any():
                out[there] = self._held[slot[there]]
            self.reads += len(rows)
            self.hits += int(there.sum())
        return there

    def put(self, rows: Array, values: Array) -> None:
        """Keep distinct rows, in place of others where all slots are taken."""
        if not self.slots or not len(rows):
            return
        with self._lock:
            new = self._slot[rows] < 0  # another thread may have been faster
            rows, values = rows[new][: self.slots], values[new][: self.slots]
            free = np.arange(self._used, min(self._used + len(rows), self.slots))
            self._used += len(free)
            slots = free
            if len(free) < len(rows):
                drawn = self._random.integers(self.slots, size=len(rows) - len(free))
                slots = np.concatenate([free, np.setdiff1d(drawn, free)])  # each once
            rows, values = rows[: len(slots)], values[: len(slots)]
            gone = self._row[slots]
            self._slot[gone[gone >= 0]] = -1
            self._slot[rows], self._row[slots] = slots, rows
            self._held[slots] = values
