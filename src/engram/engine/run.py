"""What one run is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from engram.engine.evaluation.judging import LOSSES, check_judging
from engram.engine.training import Training
from engram.errors import bad, whole
from engram.methods.answers import check_arguments
from engram.methods.base import Method
from engram.streams.core import Stream


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """Everything one run is made of."""

    stream: Stream
    method: Method
    model: Any = "mlp"
    training: Training = field(default_factory=Training)
    seed: int = 0
    features: bool = False  # keep the features of the test items after each stage, for probes
    begun: bool = False  # the run goes on from an earlier one: what comes before task 0 is done

    def __post_init__(self) -> None:
        whole("seed", self.seed)
        if not isinstance(self.method, Method):
            raise bad("method", "a method such as engram.methods.ER()", self.method)
        check_arguments(self.method)
        if self.stream.online and (self.training.epochs > 1 and not self.training.iterations):
            raise bad("epochs", "1, because the stream is online", self.training.epochs)
        check_judging(self)
        memory = self.method.memory_budget
        if memory is not None:
            memory.check(groups=int(self.stream.visible.sum()), tasks=len(self.stream))

    @property
    def scope(self) -> str:
        """The training scope, with ``auto`` resolved by the stream's head."""
        return self._meant("scope")

    @property
    def loss(self) -> str:
        """The training loss, with ``auto`` resolved by the stream's labels."""
        return self._meant("loss")

    def _meant(self, name: str) -> str:
        said: str = getattr(self.training, name)
        return automatic(self.stream)[name] if said == "auto" else said


def automatic(stream: Stream) -> dict[str, str]:
    """What ``auto`` stands for in the settings of a run over a stream.

    Examples
    --------
    >>> from engram import class_incremental, load
    >>> automatic(class_incremental(load("blobs")))
    {'scope': 'seen', 'loss': 'ce'}
    """
    scope = "own" if stream.head == "multi" else "seen"
    return {"scope": scope, "loss": LOSSES[stream.labels]}


def check_exemplars(run: Run) -> None:
    """Refuse a memory that asks for more exemplars per class or task than any of them has rows."""
    memory, stream = run.method.memory_budget, run.stream
    if memory is None:
        return
    for kind, asked in (("class", memory.per_class), ("task", memory.per_task)):
        if asked is None:
            continue
        sizes = [len(task.train) for task in stream.tasks]
        if kind == "class":
            sizes = [_largest_class(stream, k) for k in range(len(stream))]
        if asked > max(sizes):
            expected = f"at most {max(sizes)}, the training rows of the largest {kind}"
            raise bad(f"memory.per_{kind}", expected, asked)


def check_validation(stream: Stream, training: Training, stages: Iterable[int]) -> None:
    """Refuse tasks without the validation rows that settings watch."""
    if not training.validates:
        return
    for stage in stages:
        task = stream.tasks[stage]
        if len(task.valid) == 0:
            wanted = "in-task validation rows for plateau, patience or restore_best"
            how = "such as valid=0.1; a small share of few rows may be none"
            raise bad("stream", f"{wanted} ({how})", f"{len(task.train)} rows, all for training, "
                      f"in task {stage}")  # fmt: skip


def _largest_class(stream: Stream, stage: int) -> int:
    """Training rows of a task's largest class."""
    labels = stream.targets[stream.tasks[stage].train]
    return int(torch.bincount(labels[labels >= 0]).max())
