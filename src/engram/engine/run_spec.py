"""What one run is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from engram.engine.training import Training
from engram.errors import bad, whole
from engram.memory import Memory
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

    def __post_init__(self) -> None:
        whole("seed", self.seed)
        if not isinstance(self.method, Method):
            raise bad("method", "a method such as engram.methods.ER()", self.method)
        if self.stream.online and (self.training.epochs > 1 and not self.training.iterations):
            raise bad("epochs", "1, because the stream is online", self.training.epochs)
        if self.method.memory_budget is not None:
            self._check_memory(self.method.memory_budget)

    def _check_memory(self, memory: Memory) -> None:
        """A budget that is too small for the stream, or larger than its data, is a mistake."""
        stream = self.stream
        memory.check(groups=int(stream.visible.sum()), tasks=len(stream))
        rows = sum(len(task.train) for task in stream.tasks)
        if memory.total is not None and memory.total > rows:
            raise bad("memory.total", f"at most {rows}, the stream's training rows", memory.total)
        if memory.per_class is not None:
            largest = max(_largest_class(stream, k) for k in range(len(stream)))
            if memory.per_class > largest:
                expected = f"at most {largest}, the rows of the largest class"
                raise bad("memory.per_class", expected, memory.per_class)

    @property
    def scope(self) -> str:
        """The training scope, with ``auto`` resolved by the stream's head."""
        if self.training.scope != "auto":
            return self.training.scope
        return "own" if self.stream.head == "multi" else "seen"


def _largest_class(stream: Stream, stage: int) -> int:
    """Training rows of a task's largest class."""
    labels = stream.targets[stream.tasks[stage].train]
    return int(torch.bincount(labels[labels >= 0]).max())
