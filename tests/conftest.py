from __future__ import annotations

import gc
import os
import shutil
import sys
from pathlib import Path

# Before torch is imported, and inherited by processes that tests start: the tests run in several
# processes already, and more threads than cores only slow each other down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Features are kept on disk only by tests that name a folder.
os.environ["ENGRAM_CACHE"] = "off"
# No pool of compiling processes either, each of which would import torch first.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest
import torch
from hypothesis import settings

from engram.errors import USER_MODULES

torch.set_num_threads(1)

# What tests write is synced file by file, which on a disk takes as long as all the rest of such a
# test. Memory does as well: no test cuts the power. Not where memory is scarce (containers).
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# The same examples every time, so that a failure is never luck; no deadline, because the first
# call of a torch function is slow.
settings.register_profile("engram", derandomize=True, deadline=None)
settings.load_profile("engram")


def pytest_collection_finish():
    """Modules and tests stay: the garbage collector need not look at a million objects again.

    And it looks less often than at every 700 new objects, of which a toy run makes thousands.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(trylast=True)  # behind the slowest tests
def pytest_terminal_summary(terminalreporter):
    """One plain line, whatever the verbosity: what ran and what failed."""
    count = {name: len(found) for name, found in terminalreporter.stats.items()}
    failed = count.get("failed", 0) + count.get("error", 0)
    passed, skipped = count.get("passed", 0), count.get("skipped", 0)
    terminalreporter.write_line("")
    terminalreporter.write_line(f"{passed} passed, {failed} failed, {skipped} skipped")


@pytest.fixture(autouse=True)
def forget_user_modules():
    """Modules that one test wrote and imported are not there for the next: names may be equal.

    Nor are the folders in which it looked for them.
    """
    folders = list(sys.path)
    yield
    sys.path[:] = folders
    here = Path(__file__).parents[1]
    for name in USER_MODULES & sys.modules.keys():
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and here not in Path(file).parents:
            del sys.modules[name]
    USER_MODULES.clear()


@pytest.fixture(scope="session")
def engram_data() -> Path:
    """Directory of real data sets, from the environment variable ENGRAM_DATA."""
    named = os.environ.get("ENGRAM_DATA")
    if not named:
        pytest.skip("ENGRAM_DATA is not set: no real data to test on")
    path = Path(named)
    if not path.is_dir():
        pytest.fail(f"ENGRAM_DATA: expected a directory, got {named!r}")
    return path
