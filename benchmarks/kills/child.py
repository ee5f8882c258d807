"""A process that trains and tells, in a file that survives it, how far it has come."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.kills.journal import ASKED, BEGUN, STEP, WRITTEN, Journal, Noting
from benchmarks.kills.work import Work
from engram.engine.trainers.step import TrainingStep
from engram.experiments.checkpointing import StepSaver


def _then(function: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    def noted(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        finally:  # a save that was asked for by SIGTERM ends by an exception
            note()

    return noted


def train(work: Work, out: str, journal: str, options: dict[str, str], env: dict[str, str]) -> None:
    """The whole life of a child; `env` is what it must know of its environment."""
    import torch

    os.environ.update(env)
    torch.set_num_threads(1)
    notes = Journal(Path(journal))
    TrainingStep._count = _then(TrainingStep._count, lambda: notes.note(STEP))  # type: ignore[method-assign]
    StepSaver.save = _then(StepSaver.save, lambda: notes.note(WRITTEN))  # type: ignore[method-assign]
    StepSaver.due = _then(StepSaver.due, lambda: notes.note(ASKED))  # type: ignore[method-assign]
    notes.note(BEGUN)
    try:
        work.train(Path(out), Noting(notes), **options)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)
