"""Runs of equal shapes in lockstep where that is faster, as `engram.run` does."""

from __future__ import annotations

from engram.pools.base import Work
from engram.records import Result


def train(work: Work) -> Result:
    """See `engram.pools.base.Pool`."""
    return work.here(together=None)
