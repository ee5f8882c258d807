"""Options of commands that spread recipes over processes and machines."""

from __future__ import annotations

from typing import Annotated

import typer

from engram.errors import bad, whole
from engram.pools import POOLS, find_pool

Pool = Annotated[
    str, typer.Option(metavar="|".join(POOLS), help=f"How to run: {'; '.join(POOLS.values())}.")
]
Workers = Annotated[
    int,
    typer.Option(
        help="Number of processes, or of concurrent groups on a cluster (0: one per core)."
    ),
]


def check_pool(pool: str, workers: int, address: str | None) -> None:
    """Complain about a pool that is not there, or whose options do not belong together."""
    find_pool(pool, "--pool")
    whole("--workers", workers)
    if address is not None and pool != "ray":
        raise bad("--address", f"--pool ray with it ({pool!r} does not use a cluster)", address)
