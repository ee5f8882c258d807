"""Large studies and Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 256  # runs from which on it is worth a look at all objects


@contextmanager
def settled(runs: int) -> Iterator[None]:
    """While many runs train, the collector passes over what was there before them.

    Plans, streams and modules of thousands of runs are a million objects that live to the end. The
    collector goes through all of them again whenever a stage has made a quarter as many, which
    takes longer than to record the stage.
    """
    if runs < MANY or gc.get_freeze_count():  # somebody else has settled it
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
