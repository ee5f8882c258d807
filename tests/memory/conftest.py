from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from engram.memory import Exemplars, Memory


class Said(NamedTuple):
    features: Tensor
    logits: Tensor


class ToyLearner:
    """Labels and network answers from tables; `run` walks through tasks."""

    def __init__(self, labels: Tensor, columns: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = labels if labels.dim() == 2 else labels[:, None]
        self.stream = SimpleNamespace(labels="set" if self.table.shape[1] > 1 else "single")
        self.seed = seed
        self.stage = 0
        self.exemplars = Exemplars.empty()
        self.opened = torch.zeros(columns, dtype=torch.long)
        self.features = torch.randn(len(labels), 4, generator=generator)
        self.logits = torch.randn(len(labels), columns, generator=generator)
        self.weights = torch.randn(columns, 4, generator=generator)
        self.asked: list[Tensor] = []

    def labels(self, rows: Tensor) -> Tensor:
        return self.table[rows]

    def answers(self, rows: Tensor) -> Said:
        self.asked.append(rows)
        return Said(self.features[rows], self.logits[rows])

    def class_weights(self) -> Tensor:
        return self.weights

    def run(self, memory: Memory, tasks: list[Tensor]) -> list[Exemplars]:
        """Exemplars after each task."""
        history = []
        for stage, rows in enumerate(tasks):
            self.stage = stage
            self.exemplars = memory.update(self, rows)
            history.append(self.exemplars)
        return history


@pytest.fixture
def toy() -> Callable[..., ToyLearner]:
    return ToyLearner


@pytest.fixture
def class_stream() -> Callable[..., tuple[ToyLearner, list[Tensor]]]:
    def make(
        classes: int, rows_per_class: int, per_task: int = 1, seed: int = 0
    ) -> tuple[ToyLearner, list[Tensor]]:
        labels = torch.arange(classes).repeat_interleave(rows_per_class)
        tasks = torch.arange(len(labels)).split(rows_per_class * per_task)
        return ToyLearner(labels, classes, seed), list(tasks)

    return make
