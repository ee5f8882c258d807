"""Who is alive, who is writing, what is recorded: what is seen of processes from outside."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from engram.errors import RecordError
from engram.records import run_id
from engram.records.table_parts import read_part, result_files

T = TypeVar("T")

LIMIT = 300.0  # seconds for anything a child does; only a fault takes as long
GLANCE = 0.001  # seconds between two looks for a file that is being written


def below(ancestor: int, generations: int = 9) -> dict[int, str]:
    """Processes that descend from one, and their command lines."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if words[0] != "Z":  # dead, and only its parent does not know yet
            parents[int(name)] = int(words[1])
    found = {
        one: _command(one) for one in parents if _descends(one, ancestor, parents, generations)
    }
    return found


def _descends(one: int, ancestor: int, parents: dict[int, int], generations: int) -> bool:
    for _ in range(generations):
        one = parents.get(one, 0)
        if one == ancestor:
            return True
    return False


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def being_written(out: Path, writers: Collection[int] | None = None) -> tuple[Path, int] | None:
    """A file in a run directory that does not bear its name yet, and who writes it."""
    for folder, _, names in os.walk(out):
        for name in names:
            if name.startswith(".") and ".tmp-" in name:
                writer = int(name.rpartition(".tmp-")[2].split("-")[1])
                if writers is None or writer in writers:
                    return Path(folder, name), writer
    return None


def wait_for(look: Callable[[], T | None], what: str, every: float = 0.05) -> T:
    """The first thing that is seen; complains after a while."""
    until = time.monotonic() + LIMIT
    while (found := look()) is None:
        if time.monotonic() > until:
            raise TimeoutError(f"waited for {what} in vain")
        time.sleep(every)
    return found


def stages_written(folder: Path) -> Counter[tuple[str, int]]:
    """How often each stage of each run was recorded."""
    while True:
        found: Counter[tuple[str, int]] = Counter()
        try:
            for file in result_files(folder) if folder.is_dir() else ():
                table = read_part(file).select(["recipe", "seed", "order", "stage"])
                stages = set(zip(*(c.to_pylist() for c in table.columns), strict=True))
                found.update((run_id(*run), stage) for *run, stage in stages)
        except RecordError:
            if file.is_there:
                raise
            continue  # merged into another one just now
        return found
