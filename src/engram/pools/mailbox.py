"""Letters from workers all over a cluster to whoever started them; an actor of Ray.

It imports nothing of the package, so that it begins at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

PATIENCE = 2.0  # seconds for which a reader waits for letters that do not come


class Mailbox:
    """Keeps letters in their order until they are read; tells workers when to end.

    Parameters
    ----------
    left
        Seconds until nothing further is begun; None: no end. They are counted here, because the
        clocks of machines differ.
    """

    def __init__(self, left: float | None = None) -> None:
        self._until = None if left is None else time.monotonic() + left
        self._letters: list[tuple[int, tuple[Any, ...]]] = []
        self._awake = asyncio.Event()
        self._stop = False

    async def tell(self, attempt: int, words: tuple[Any, ...]) -> bool:
        """Take a letter of an attempt; whether it is to end."""
        self._letters.append((attempt, words))
        self._awake.set()
        return self._stop

    async def read(self) -> list[tuple[int, tuple[Any, ...]]]:
        """The letters since the last reading; waits a while for the first."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._awake.wait(), PATIENCE)
        self._awake.clear()
        found, self._letters = self._letters, []
        return found

    async def wake(self) -> None:
        """Let whoever reads have what is there."""
        self._awake.set()

    async def left(self) -> float | None:
        """Seconds until nothing further is begun."""
        return None if self._until is None else self._until - time.monotonic()

    async def stop(self) -> None:
        """Let every worker know that it is to save what is going on, and end."""
        self._stop = True
