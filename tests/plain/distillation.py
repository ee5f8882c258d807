"""Learning without forgetting."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from tests.plain.images import Images
from tests.plain.loop import CLASSES_PER_TASK, Finetune, Net, Settings


class LwF(Finetune):
    """The network before the task says what the old classes should answer on new inputs."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, strength: float,
        temperature: float,
    ) -> None:  # fmt: skip
        super().__init__(images, multi, seed, settings)
        self.strength, self.temperature = strength, temperature
        self.teacher: Net | None = None

    def start(self) -> None:
        if self.task >= 0:
            self.teacher = copy.deepcopy(self.net).eval()

    def backward(self, rows: Tensor) -> None:
        loss = self.cost(rows)
        if self.teacher is not None:
            loss = loss + self.strength * self.distillation(self.images.x[rows], self.teacher)
        loss.backward()

    def distillation(self, x: Tensor, teacher: Net) -> Tensor:
        """Cross-entropy of softened answers: per old head, or over all old classes at once."""
        with torch.no_grad():
            old = teacher(x) / self.temperature
        new = self.net(x)[:, : old.shape[1]] / self.temperature
        width = CLASSES_PER_TASK if self.multi else old.shape[1]
        total = torch.zeros(())
        for a, b in zip(old.split(width, 1), new.split(width, 1), strict=True):
            total = total - (a.softmax(1) * b.log_softmax(1)).sum(1).mean()
        return total
