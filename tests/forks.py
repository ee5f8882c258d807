"""Children that die: forks of one process that has imported everything and computed nothing."""

from __future__ import annotations

import multiprocessing

# One server for all tests of a process, and for the pools: whoever starts it first decides what is
# imported there. The tests' own modules, too: a child would otherwise import them for itself.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "engram.pools.processes", "engram.recipes", "engram.records", "pandas", "pyarrow.parquet",
        "safetensors.torch", "torch._dynamo", "pytest", "tests.recipes.test_crash",
        "tests.recipes.test_two_at_once", "tests.probes.test_kills",
    ]
)  # fmt: skip
