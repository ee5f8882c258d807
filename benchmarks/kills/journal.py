"""What a process tells of its training, in a file that survives it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from engram.experiments import Callback, Plan
from engram.records import Rows, run_id

# steps and checkpoints are seen where the process itself trains
BEGUN, STEP, ASKED, WRITTEN, STAGE, WHERE, NOTE = (
    "begun", "step", "asked", "written", "stage", "where", "note"
)  # fmt: skip


class Event(NamedTuple):
    """Something that a process noted, and when (``time.monotonic``, which processes share)."""

    kind: str
    at: float
    words: str


class Position(NamedTuple):
    """Where a run was: steps of a stage."""

    stage: int
    done: int
    total: int


class Journal:
    """Events with their time, appended without a buffer: what is written outlives the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, kind: str, words: str = "") -> None:
        line = f"{kind} {time.monotonic()} {words}\n"
        os.write(self._file, line.encode())


def events(path: Path) -> list[Event]:
    """What a process noted, dead or alive."""
    content = path.read_text() if path.exists() else ""
    lines = content[: content.rfind("\n") + 1].splitlines()
    return [
        Event(kind, float(at), words) for kind, at, words in (one.split(" ", 2) for one in lines)
    ]


def stages(seen: Sequence[Event]) -> set[tuple[str, int]]:
    """The stages that were recorded, by run."""
    found = (one.words.rsplit(" ", 1) for one in seen if one.kind == STAGE)
    return {(run, int(stage)) for run, stage in found}


def positions(seen: Sequence[Event]) -> Iterator[tuple[float, str, Position]]:
    """When which run was where."""
    for one in seen:
        if one.kind == WHERE:
            runs, *where = one.words.rsplit(" ", 3)
            for run in runs.split(","):
                yield one.at, run, Position(*map(int, where))


class Noting(Callback):
    """Notes what a caller is told."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def note(self, text: str) -> None:
        self.journal.note(NOTE, " ".join(text.split()))

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        runs = ",".join(run_id(*plan.key) for plan in plans)
        self.journal.note(WHERE, f"{runs} {stage} {done} {total}")

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        self.journal.note(STAGE, f"{run_id(*plan.key)} {stage}")
