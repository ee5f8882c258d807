"""Distillation with herded exemplars, in networks of one size or with parts that come by task."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.plain.images import Images
from tests.plain.loop import CLASSES_PER_TASK, Settings
from tests.plain.rehearsal import Rehearsal


def soft_cross_entropy(said: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """Mean over rows of the cross-entropy of softened answers."""
    log_p = (said / temperature).log_softmax(1)
    return -((wanted / temperature).softmax(1) * log_p).sum(1).mean()


class Herding(Rehearsal):
    """An epoch goes over the task and all exemplars, which are herded, equally many per class."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, total: int
    ) -> None:
        super().__init__(images, multi, seed, settings)
        self.total = total

    def training_rows(self) -> Tensor:
        return torch.cat([self.own_rows(), self.memory()]) if self.kept else self.own_rows()

    def features(self, x: Tensor) -> Tensor:
        found: Tensor = self.net.trunk(x)
        return found

    @torch.no_grad()
    def keep_herded(self) -> None:
        quota = self.total // (len(self.kept) + CLASSES_PER_TASK)
        for label in self.classes_of_task():
            rows = self.rows_of_class(label)
            unit = F.normalize(self.features(self.images.x[rows]), dim=1)
            middle, total, chosen = unit.mean(0), torch.zeros_like(unit[0]), list[int]()
            for number in range(min(quota, len(rows))):
                distance = (middle - (unit + total) / (number + 1)).norm(dim=1)
                distance[chosen] = float("inf")
                chosen.append(int(distance.argmin()))
                total = total + unit[chosen[-1]]
            self.kept[label] = rows[chosen]
        self.kept = {label: rows[:quota] for label, rows in self.kept.items()}

    def finish(self) -> None:
        self.keep_herded()


class WA(Herding):
    """The old network is distilled; after the task, weights of new classes are made as long."""

    def start(self) -> None:
        if self.task >= 0:
            self.teacher = copy.deepcopy(self.net).eval()

    def cost(self, rows: Tensor) -> Tensor:
        if not self.task:
            return super().cost(rows)
        x = self.images.x[rows]
        logits = self.net(x)
        with torch.no_grad():
            old = self.teacher(x)
        share = old.shape[1] / logits.shape[1]
        task = F.cross_entropy(logits, self.images.y[rows])
        held = soft_cross_entropy(logits[:, : old.shape[1]], old, 2.0)
        return (1 - share) * task + share * held

    @torch.no_grad()
    def finish(self) -> None:
        if self.task:
            *older, newest = self.net.heads
            length = torch.cat([head.weight for head in older]).norm(dim=1).mean()
            newest.weight *= length / newest.weight.norm(dim=1).mean()
        self.keep_herded()
