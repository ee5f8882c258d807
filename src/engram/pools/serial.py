"""One run after the other."""

from __future__ import annotations

from engram.pools.base import Work
from engram.records import Result


def train(work: Work) -> Result:
    """See `engram.pools.base.Pool`."""
    return work.here(together=False)
