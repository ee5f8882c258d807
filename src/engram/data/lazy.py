"""Rows that stay on disk: read when they are asked for, by threads, through a cache."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from engram.data.arrays import Array
from engram.data.cache import RowCache, as_bytes
from engram.data.threads import Threads

CACHE = "1GB"


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
        self, shape: tuple[int, ...], dtype: Any = np.uint8, *, cache: int | str = CACHE,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.cache_bytes = as_bytes("cache", cache)
        self.threads = Threads(threads)
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
