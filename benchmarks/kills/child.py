"""A process that trains and tells, in a file that survives it, how far it has come."""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engram
from engram.engine.trainers.lockstep import LockstepTrainer
from engram.engine.trainers.single import SingleTrainer
from engram.methods.base import Method
from engram.recipes import Callback
from engram.recipes.step_saver import StepSaver

BEGUN, STEP, ASKED, WRITTEN, RECORDED = b"b", b"s", b"a", b"w", b"r"
_EVENT = struct.Struct("<cd")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is trained, and how often it is written down inside a task."""

    method: Method
    runs: int  # one is trained alone, more are trained in lockstep
    epochs: int
    every: float  # seconds between two checkpoints inside a task
    classes: int = 6
    per_class: int = 120

    def run(self, out: Path, callback: Callback | None = None) -> engram.Result:
        data = engram.load("blobs", classes=self.classes, per_class=self.per_class)
        return engram.run(
            engram.class_incremental(data, classes_per_task=2),
            method=self.method, model={"name": "mlp", "hidden": [16, 16]}, seeds=self.runs, out=out,
            device="cpu", together=self.runs > 1, keep="parameters", callback=callback,
            epochs=self.epochs, batch_size=8, lr=0.01, checkpoint_every=self.every,
        )  # fmt: skip


class Journal:
    """Events with their time, appended without a buffer: what is written outlives the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, kind: bytes) -> None:
        os.write(self._file, _EVENT.pack(kind, time.monotonic()))


def events(path: Path) -> list[tuple[bytes, float]]:
    """What a process noted, dead or alive."""
    content = path.read_bytes() if path.exists() else b""
    return list(_EVENT.iter_unpack(content[: len(content) // _EVENT.size * _EVENT.size]))


class _Noting(Callback):
    """Notes recorded stages, once for a group."""

    def __init__(self, journal: Journal, runs: int) -> None:
        self.journal, self.runs, self._count = journal, runs, 0

    def stage(self, plan: Any, stage: int, rows: Any) -> None:
        self._count += 1
        if self._count % self.runs == 0:
            self.journal.note(RECORDED)


def _then(function: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    def noted(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        finally:  # a save that was asked for by SIGTERM ends by an exception
            note()

    return noted


def train(work: Work, out: str, journal: str) -> None:
    """The whole life of a child."""
    import torch

    torch.set_num_threads(1)
    notes = Journal(Path(journal))
    for trainer in (SingleTrainer, LockstepTrainer):
        trainer._step = _then(trainer._step, lambda: notes.note(STEP))  # type: ignore[method-assign]
    StepSaver.save = _then(StepSaver.save, lambda: notes.note(WRITTEN))  # type: ignore[method-assign]
    StepSaver.due = _then(StepSaver.due, lambda: notes.note(ASKED))  # type: ignore[method-assign]
    notes.note(BEGUN)
    try:
        work.run(Path(out), _Noting(notes, work.runs))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)
