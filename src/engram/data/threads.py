"""Threads that share work on rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from engram.data.arrays import Array
from engram.errors import whole

MOST = 16
_SHARES = 4  # for each thread, so that a slow one does not keep the others waiting


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Threads:
    """So many threads, made when they are needed; None: one for each processor, 16 at most.

    Examples
    --------
    >>> found = np.zeros(100, int)
    >>> def square(places):
    ...     found[places] = places**2
    >>> Threads(2).each(square, np.arange(100))
    >>> int(found.sum())
    328350
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = min(MOST, processors()) if count is None else whole("threads", count, 1)
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
