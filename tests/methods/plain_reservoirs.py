"""Plain loops whose memory is a reservoir that takes rows in one by one, after the step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from engram import keys
from engram.learner.learner import RunLearner
from engram.memory import Memory
from tests.engine.plain_loop import OPTIMIZERS, Twin

ROOM = 10
MEMORY = Memory(total=ROOM, policy="reservoir")


class Slot(NamedTuple):
    """One exemplar and what was kept with it."""

    row: int
    stage: int
    value: Tensor


@dataclass
class ReservoirTwin(Twin):
    """Algorithm R, a loop over rows; the loss of a step is for subclasses to say."""

    slots: list[Slot] = field(default_factory=list)
    seen: int = 0

    def run(self, stage: int) -> None:
        self.net.train()
        used = self.net.in_use(stage + 1)
        optimizer = OPTIMIZERS[self.training.optimizer](used, self.training)
        train, size = self.stream.tasks[stage].train, self.training.batch_size
        for epoch in range(self.training.epochs):
            order = train[
                keys.permutation(
                    keys.fold(self.seed, "order", stage, epoch), len(train), len(train)
                )
            ]
            for number, rows in enumerate(order.split(size)):
                key = keys.fold(self.seed, "step", stage, epoch, number)
                optimizer.zero_grad()
                loss, values = self.loss(rows, stage, key)
                loss.backward()
                optimizer.step()
                if epoch == 0:  # a row passes by once
                    for row, value in zip(rows.tolist(), values, strict=True):
                        self.take(Slot(row, stage, value))

    def loss(self, rows: Tensor, stage: int, key: int) -> tuple[Tensor, Tensor]:
        """The loss of a step, and what is kept with each of its rows if it enters."""
        raise NotImplementedError

    def drawn(self, stage: int, key: int, number: int) -> list[Slot]:
        """Exemplars with replacement, as many as a full batch of the task has rows."""
        count = min(self.training.batch_size, len(self.stream.tasks[stage].train))
        where = keys.randint(keys.fold(key, "memory", number), len(self.slots), count)
        return [self.slots[i] for i in where.tolist()]

    def take(self, slot: Slot) -> None:
        if len(self.slots) < ROOM:
            self.slots.append(slot)
        else:
            key = keys.fold(keys.fold(self.seed, "memory", "reservoir"), self.seen)
            place = int(keys.randint(key, self.seen + 1, 1))
            if place < ROOM:
                self.slots[place] = slot
        self.seen += 1


def rows_of(slots: list[Slot]) -> Tensor:
    return torch.tensor([one.row for one in slots])


def same_memory(twin: ReservoirTwin, learner: RunLearner) -> bool:
    """The same rows of the same tasks in the same slots."""
    kept = learner.exemplars
    mine = [(one.row, one.stage) for one in twin.slots]
    pairs = list(zip(kept.rows.tolist(), kept.stages.tolist(), strict=True))
    return mine == pairs and kept.seen == twin.seen
