"""Rows that the host holds, fetched ahead of the steps that need them, pinned where that helps."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.data.core import Data

AHEAD = 2  # steps whose rows are fetched while the present one is computed


class Prefetch:
    """Stored inputs of rows of a data set; those that were announced are fetched by a thread.

    Whether rows were announced changes no value: others are fetched when they are asked for.

    Examples
    --------
    >>> data = Data.from_arrays(torch.arange(10.0).reshape(5, 2), [0, 1, 0, 1, 0])
    >>> prefetch = Prefetch(data, torch.device("cpu"))
    >>> prefetch.announce([torch.tensor([1]), torch.tensor([4, 0])])
    >>> prefetch(torch.tensor([4, 0])).tolist(), len(prefetch)
    ([[8.0, 9.0], [0.0, 1.0]], 1)
    """

    def __init__(self, data: Data, device: torch.device) -> None:
        self.data, self.device = data, device
        self._waiting: deque[tuple[np.ndarray, Future[Tensor]]] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def __len__(self) -> int:
        return len(self._waiting)

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, ...] inputs of rows [n], on the device."""
        wanted = rows.cpu().numpy()
        for place, (known, found) in enumerate(self._waiting):
            if np.array_equal(known, wanted):
                del self._waiting[place]
                return found.result().to(self.device, non_blocking=True)
        return self._fetch(wanted).to(self.device, non_blocking=True)

    def announce(self, rows: Iterable[Tensor]) -> None:
        """Rows that will be asked for, batch after batch."""
        if self._thread is None or self._process != os.getpid():  # no thread survives a fork
            self._thread, self._process = ThreadPoolExecutor(1, "engram-prefetch"), os.getpid()
            self._waiting.clear()
        for some in rows:
            wanted = some.reshape(-1).cpu().numpy()
            self._waiting.append((wanted, self._thread.submit(self._fetch, wanted)))

    def clear(self) -> None:
        """What was announced is not wanted any more."""
        while self._waiting:
            self._waiting.popleft()[1].cancel()

    def _fetch(self, rows: np.ndarray) -> Tensor:
        found = self.data.stored(torch.from_numpy(rows))
        return found.pin_memory() if self.device.type == "cuda" else found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_waiting": deque(), "_thread": None, "_process": -1}
