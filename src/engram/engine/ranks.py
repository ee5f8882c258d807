"""Runs whose passes several ranks share: what cannot be is refused by name."""

from __future__ import annotations

from engram.engine.engine import Engine
from engram.errors import bad
from engram.models.adapter import cannot_split
from engram.parallel import Ranks


def check_ranks(engine: Engine, ranks: Ranks) -> None:
    """Refuse runs that would not give the numbers of one process, before anything is trained."""
    if engine.compile:
        raise bad("compile", "False where several processes share a run", True)
    for run in engine.runs:
        size = run.training.batch_size
        if size and size < ranks.world:
            wanted = f"at least {ranks.world} rows, one for each process"
            raise bad("batch_size", wanted, size)
        for reason in cannot_split(engine.networks(run).train):
            raise bad("model", "layers whose rows can be shared between processes", reason)
