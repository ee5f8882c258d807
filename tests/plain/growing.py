"""Distillation with herded exemplars, in networks of one size or with parts that come by task."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


class Expanding(nn.Module):
    """Trunks side by side, of which the newest learns, under one classifier."""

    def __init__(self, trunk: nn.Module, width: int) -> None:
        super().__init__()
        self.trunks, self.width = nn.ModuleList([trunk]), width
        self.fc, self.auxiliary = nn.Identity(), nn.Linear(width, CLASSES_PER_TASK + 1)

    def grow(self) -> None:
        old, known = self.fc, len(self.fc.weight) if isinstance(self.fc, nn.Linear) else 0
        if known:
            self.trunks.append(copy.deepcopy(self.trunks[-1]))
            self.trunks[:-1].requires_grad_(False)
            self.auxiliary.reset_parameters()
        self.fc = nn.Linear(self.width * len(self.trunks), known + CLASSES_PER_TASK)
        if isinstance(old, nn.Linear):
            with torch.no_grad():
                self.fc.weight[:known, : old.in_features] = old.weight
                self.fc.bias[:known] = old.bias

    def features(self, x: Tensor) -> Tensor:
        return torch.cat([trunk(x) for trunk in self.trunks], 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc(self.features(x))
        return found


class DynamicER(Herding):
    """A trunk for each task; the classifier is trained once more on the exemplars."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, total: int
    ) -> None:
        super().__init__(images, multi, seed, settings, total=total)
        self.net: Any = Expanding(self.net.trunk, self.net.width)

    def features(self, x: Tensor) -> Tensor:
        found: Tensor = self.net.features(x)
        return found

    def cost(self, rows: Tensor) -> Tensor:
        y, features = self.images.y[rows], self.features(self.images.x[rows])
        task = F.cross_entropy(self.net.fc(features), y)
        if not self.task:
            return task
        newest, first = features[:, -self.net.width :], CLASSES_PER_TASK * self.task
        aim = torch.where(y >= first, y - first, CLASSES_PER_TASK)
        return task + F.cross_entropy(self.net.auxiliary(newest), aim)

    def finish(self) -> None:
        self.keep_herded()
        if not self.task:
            return
        self.net.fc.reset_parameters()
        optimizer = torch.optim.Adam(self.net.fc.parameters(), lr=self.settings.lr, fused=True)
        rows = self.memory()
        for _ in range(30):
            for some in rows[torch.randperm(len(rows))].split(self.settings.batch_size):
                with torch.no_grad():
                    features = self.features(self.images.x[some])
                optimizer.zero_grad()
                F.cross_entropy(self.net.fc(features) / 5, self.images.y[some]).backward()
                optimizer.step()
