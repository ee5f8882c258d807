"""Continual learning as one writes it for oneself: torch.nn, torch.optim, a loop per task.

Nothing of Engram is imported here. A learner draws its weights, its shuffles and its memory from
torch's own generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.plain.images import SIDE, Images

CLASSES_PER_TASK = 2
CLOSED = float("-inf")


@dataclass(frozen=True)
class Settings:
    """What both sides train with."""

    epochs: int = 8
    batch_size: int = 16
    lr: float = 0.005


class Trunk(nn.Module):
    """One convolution and one hidden layer."""

    def __init__(self, channels: int = 6, width: int = 24) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.hidden = nn.Linear(channels * (SIDE // 2) ** 2, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.hidden(torch.relu(self.conv(x)).flatten(1)))


class Net(nn.Module):
    """A trunk and one head per task, which comes with the task."""

    def __init__(self, trunk: nn.Module | None = None, width: int = 24) -> None:
        super().__init__()
        self.trunk, self.width = trunk or Trunk(width=width), width
        self.heads = nn.ModuleList()

    def grow(self) -> None:
        self.heads.append(nn.Linear(self.width, CLASSES_PER_TASK))

    def forward(self, x: Tensor) -> Tensor:
        features = self.trunk(x)
        return torch.cat([head(features) for head in self.heads], 1)


class Finetune:
    """Train on one task after the other; the other methods say what they do besides."""

    make_net: Callable[[], Any] = Net  # with `trunk`, `heads` and `grow`

    def __init__(self, images: Images, multi: bool, seed: int, settings: Settings) -> None:
        torch.manual_seed(seed)
        self.images, self.multi, self.settings = images, multi, settings
        self.net, self.task = type(self).make_net(), -1

    # -- data ------------------------------------------------------------------------------------
    def rows_of(self, y: Tensor, task: int) -> Tensor:
        return torch.nonzero(y // CLASSES_PER_TASK == task).flatten()

    def own_rows(self) -> Tensor:
        return self.rows_of(self.images.y, self.task)

    def training_rows(self) -> Tensor:
        """What an epoch goes over."""
        return self.own_rows()

    def batches(self) -> Iterator[Tensor]:
        for _ in range(self.settings.epochs):
            rows = self.training_rows()
            yield from rows[torch.randperm(len(rows))].split(self.settings.batch_size)

    # -- training --------------------------------------------------------------------------------
    def scoped(self, logits: Tensor, tasks: Tensor) -> Tensor:
        """Multi-head: the classes of a row's own task; else all classes that have a head."""
        if not self.multi:
            return logits
        column = torch.arange(logits.shape[1]) // CLASSES_PER_TASK
        return logits.masked_fill(column != tasks[:, None], CLOSED)

    def cost(self, rows: Tensor) -> Tensor:
        """Mean cross-entropy."""
        x, y = self.images.x[rows], self.images.y[rows]
        return F.cross_entropy(self.scoped(self.net(x), y // CLASSES_PER_TASK), y)

    def backward(self, rows: Tensor) -> None:
        self.cost(rows).backward()

    def learn(self) -> None:
        """One task."""
        self.start()
        self.task += 1
        self.net.grow()
        optimizer = torch.optim.Adam(self.net.parameters(), lr=self.settings.lr, fused=True)
        self.net.train()
        for rows in self.batches():
            optimizer.zero_grad()
            self.backward(rows)
            optimizer.step()
            self.stepped()
        self.net.eval()
        self.finish()

    def start(self) -> None:
        """Before a task, on the network of the task before."""

    def stepped(self) -> None:
        """After a step."""

    def finish(self) -> None:
        """After a task."""

    # -- testing ---------------------------------------------------------------------------------
    def scores(self, x: Tensor) -> Tensor:
        return self.net(x)

    @torch.no_grad()
    def accuracy(self, task: int) -> float:
        rows = self.rows_of(self.images.test_y, task)
        scores = self.scores(self.images.test_x[rows])
        guess = self.scoped(scores, torch.full((len(rows),), task)).argmax(1)
        return float((guess == self.images.test_y[rows]).double().mean())

    def matrix(self) -> np.ndarray:
        """[T, T] accuracy on task j after task k; NaN for tasks to come."""
        count = int(self.images.y.max() + 1) // CLASSES_PER_TASK
        found = np.full((count, count), np.nan)
        for k in range(count):
            self.learn()
            found[k, : k + 1] = [self.accuracy(j) for j in range(k + 1)]
        return found


class AllHeads(Finetune):
    """The heads of tasks to come exist from the start, and stand still until their task comes."""

    def __init__(self, images: Images, *args: Any, **options: Any) -> None:
        super().__init__(images, *args, **options)
        tasks = int(images.y.max() + 1) // CLASSES_PER_TASK
        self.coming = [nn.Linear(self.net.width, CLASSES_PER_TASK) for _ in range(tasks)]
        self.net.grow = lambda: self.net.heads.append(self.coming.pop(0))
        self.logits = torch.zeros(len(images.y), tasks * CLASSES_PER_TASK)  # stored with rows

    def outputs(self, rows: Tensor) -> Tensor:
        """Logits of all classes."""
        features = self.net.trunk(self.images.x[rows])
        said = [head(features) for head in self.net.heads]
        for head in self.coming:
            said.append(F.linear(features, head.weight.detach(), head.bias.detach()))
        return torch.cat(said, 1)


class Joint(Finetune):
    """Every task goes over all rows so far, from the weights of the task before."""

    def training_rows(self) -> Tensor:
        return torch.cat([self.rows_of(self.images.y, task) for task in range(self.task + 1)])
