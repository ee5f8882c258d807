"""Rows that stay on disk until they are asked for, with the cache and the threads that read
them.
"""

from __future__ import annotations

import math
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from engram.data.checked_files import total_memory
from engram.data.conversion import Array
from engram.errors import bad, check_int

DEFAULT_CACHE = "1GB"


class LazyRows(ABC):
    """[N, ...] inputs behind the face of an array: shape, dtype, ``len``, rows by number.

    A subclass says what row i is (`read`) and by what the whole is known (`identity`), which must
    not take a look at every byte.

    Parameters
    ----------
    shape, dtype
        Of all rows together.
    cache
        Bytes of rows that are kept in memory (0: none), as a number or as text such as "2GB".
    threads
        Threads that read; None: as many as there are processors, 16 at most.
    """

    identity: str

    def __init__(
        self, shape: tuple[int, ...], dtype: Any = np.uint8, *, cache: int | str = DEFAULT_CACHE,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.cache_bytes = parse_bytes("cache", cache)
        self.threads = WorkerThreads(threads)
        self._renew()

    @abstractmethod
    def read(self, row: int) -> Array:
        """One row, from where it lies."""

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, rows: Any) -> Array:
        if isinstance(rows, (int, np.integer)):
            one: Array = self.gather(np.array([range(len(self))[rows]]))[0]
            return one
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        return self.gather(np.asarray(rows))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:] if dtype is None else self[:].astype(dtype)

    def gather(self, rows: Array) -> Array:
        """[n, ...] some rows, each read once, and not at all where the cache has it."""
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows from 0 to {len(self) - 1}, not {rows.min()} to {rows.max()}")
        distinct, inverse = np.unique(rows, return_inverse=True)
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        if len(distinct) == len(rows):
            self._fill(rows, out)
            return out
        found = np.empty((len(distinct), *self.shape[1:]), self.dtype)
        self._fill(distinct, found)
        np.take(found, inverse.reshape(-1), axis=0, out=out)
        return out

    def _fill(self, rows: Array, out: Array) -> None:
        if self._process != os.getpid():  # locks do not survive a fork
            self._renew()
        missing = np.flatnonzero(~self.cache.take(rows, out))

        def some(places: Array) -> None:
            for place in places.tolist():
                out[place] = self.read(int(rows[place]))

        self.threads.each(some, missing)
        self.cache.put(rows[missing], out[missing])

    def _renew(self) -> None:
        self._process = os.getpid()
        self.cache = RowCache(self.cache_bytes, self.shape, self.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cache": None, "_process": -1}


# ------------------------------------------------------------------------------------------------
# A cache of rows with a limited size

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
          "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", re.IGNORECASE)


def parse_bytes(argument: str, value: Any, *, of_memory: bool = True) -> int:
    """A number of bytes, also as text with a unit; if `of_memory`, at most what the machine has.

    Examples
    --------
    >>> parse_bytes("cache", 4096), parse_bytes("cache", "1.5MB"), parse_bytes("cache", "1 MiB")
    (4096, 1500000, 1048576)
    >>> parse_bytes("cache", "much")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: cache: expected a number of bytes, or text such as '2GB', got 'much'
    """
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is not None and found[2].upper() in _UNITS:
        value = int(float(found[1]) * _UNITS[found[2].upper()])
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise bad(argument, "a number of bytes, or text such as '2GB'", value)
    if of_memory and value > total_memory():
        raise bad(argument, f"at most the memory of this machine ({total_memory()} bytes)", value)
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


# ------------------------------------------------------------------------------------------------
# Threads that share work on rows

MAX_THREADS = 16
_SHARES = 4  # for each thread, so that a slow one does not keep the others waiting


def count_processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkerThreads:
    """So many threads, made when they are needed; None: one for each processor, 16 at most.

    Examples
    --------
    >>> found = np.zeros(100, int)
    >>> def square(places):
    ...     found[places] = places**2
    >>> WorkerThreads(2).each(square, np.arange(100))
    >>> int(found.sum())
    328350
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = (
            min(MAX_THREADS, count_processors())
            if count is None
            else check_int("threads", count, 1)
        )
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def each(self, work: Callable[[Array], None], places: Array) -> None:
        """Call `work` for shares of some places; the first error is raised."""
        if self.count == 1 or len(places) < 2:
            work(places)
            return
        if self._pool is None or self._process != os.getpid():  # threads do not survive a fork
            self._pool, self._process = ThreadPoolExecutor(self.count, "engram-read"), os.getpid()
        shares = np.array_split(places, min(len(places), _SHARES * self.count))
        for done in [self._pool.submit(work, share) for share in shares]:
            done.result()

    def __getstate__(self) -> dict[str, Any]:
        return {"count": self.count, "_pool": None, "_process": -1}
