"""Methods that replay from a reservoir, which takes rows in while a task is learnt."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.plain.images import Images
from tests.plain.loop import CLASSES_PER_TASK, Finetune, Settings


class Reservoir(Finetune):
    """Keeps every row of the first epoch with the same probability."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, total: int
    ) -> None:
        super().__init__(images, multi, seed, settings)
        self.kept, self.seen = torch.empty(total, dtype=torch.long), 0
        self.batch, self.epoch = torch.empty(0), 0

    def batches(self) -> Iterator[Tensor]:
        for epoch in range(self.settings.epochs):
            rows, self.epoch = self.training_rows(), epoch
            for batch in rows[torch.randperm(len(rows))].split(self.settings.batch_size):
                self.batch = batch
                yield batch

    def stepped(self) -> None:
        if self.epoch:
            return
        for row in self.batch.tolist():
            place = self.seen
            if self.seen >= len(self.kept):
                place = int(torch.randint(self.seen + 1, ()))
            if place < len(self.kept):
                self.kept[place] = row
            self.seen += 1

    def memory(self) -> Tensor:
        return self.kept[: self.seen]

    def drawn(self, count: int) -> Tensor:
        memory = self.memory()
        return memory[torch.randint(len(memory), (count,))] if self.seen else memory

    def row_costs(self, net: nn.Module, rows: Tensor) -> Tensor:
        x, y = self.images.x[rows], self.images.y[rows]
        return F.cross_entropy(self.scoped(net(x), y // CLASSES_PER_TASK), y, reduction="none")


class MIR(Reservoir):
    """Replays the rows whose loss a step on the new ones would raise most."""

    candidates, size = 50, 10

    def backward(self, rows: Tensor) -> None:
        self.cost(rows).backward()
        if not self.task:
            return
        drawn = self.drawn(self.candidates).unique()
        drawn = drawn[self.images.y[drawn] // CLASSES_PER_TASK < self.task]
        if len(drawn):
            self.cost(drawn[self.find_harm(drawn).argsort(descending=True)[: self.size]]).backward()

    @torch.no_grad()
    def find_harm(self, rows: Tensor) -> Tensor:
        tried = copy.deepcopy(self.net)
        for new, own in zip(tried.parameters(), self.net.parameters(), strict=True):
            new -= self.settings.lr * own.grad
        return self.row_costs(tried, rows) - self.row_costs(self.net, rows)


class CLSER(Reservoir):
    """Two averages of the network teach it; the stable one is tested."""

    strength, decay, rates = 2.0, 0.99, {"plastic": 1.0, "stable": 0.9}  # those for split MNIST

    def start(self) -> None:
        if self.task < 0:
            self.means = {name: copy.deepcopy(self.net) for name in self.rates}
            self.steps = 0

    def cost(self, rows: Tensor) -> Tensor:
        for mean in self.means.values():  # a head comes with its task
            mean.heads.extend(copy.deepcopy(self.net.heads[len(mean.heads) :]))
        old = self.drawn(self.settings.batch_size)
        rows = torch.cat([old, rows])
        x, y = self.images.x[rows], self.images.y[rows]
        logits = self.net(x)
        loss = F.cross_entropy(self.scoped(logits, y // CLASSES_PER_TASK), y)
        if not len(old):
            return loss
        with torch.no_grad():
            said = [self.means[name](x[: len(old)]) for name in ("stable", "plastic")]
            sure = [one.softmax(1).gather(1, y[: len(old), None]) for one in said]
            wanted = torch.where(sure[0] > sure[1], *said)
        return loss + self.strength * F.mse_loss(logits[: len(old)], wanted)

    @torch.no_grad()
    def stepped(self) -> None:
        super().stepped()
        self.steps += 1
        keep = min(1 - 1 / (self.steps + 1), self.decay)
        for name, rate in self.rates.items():
            if torch.rand(()) < rate:
                pairs = zip(self.means[name].parameters(), self.net.parameters(), strict=True)
                for mean, own in pairs:
                    mean.lerp_(own, 1 - keep)

    def scores(self, x: Tensor) -> Tensor:
        scores: Tensor = self.means["stable"](x)
        return scores


class PCR(Reservoir):
    """Contrasts rows with the class vectors of the rows in their batch."""

    temperature = 0.09

    def cosines(self, x: Tensor) -> Tensor:
        vectors = torch.cat([head.weight for head in self.net.heads])
        return F.normalize(self.net.trunk(x), dim=1) @ F.normalize(vectors, dim=1).T

    def cost(self, rows: Tensor) -> Tensor:
        rows = torch.cat([self.drawn(self.settings.batch_size), rows])
        x, y = self.images.x[rows], self.images.y[rows]
        shares = (self.cosines(x) / self.temperature)[:, y].log_softmax(1)  # [B, B]
        return -shares.gather(1, torch.arange(len(y))[:, None]).mean()

    def scores(self, x: Tensor) -> Tensor:
        return self.cosines(x)


class SCR(Reservoir):
    """Draws features of a class together, and answers by the nearest mean of what is kept."""

    temperature, width, least = 0.07, 128, 0.2

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, total: int
    ) -> None:
        super().__init__(images, multi, seed, settings, total=total)
        features = self.net.width
        self.projection = nn.Sequential(
            nn.Linear(features, features), nn.ReLU(), nn.Linear(features, self.width)
        )
        # trained by the optimiser of the network
        self.net.projection = self.projection

    def crop(self, x: Tensor) -> Tensor:
        """A random part of each image, stretched to its size."""
        count = len(x)
        area = torch.empty(count).uniform_(self.least, 1)
        ratio = torch.empty(count).uniform_(math.log(3 / 4), math.log(4 / 3)).exp()
        scale = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 1).clamp(max=1)
        theta = torch.zeros(count, 2, 3)
        theta[:, :, :2] = torch.diag_embed(scale)
        theta[:, :, 2] = (1 - scale) * torch.empty(count, 2).uniform_(-1, 1)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, padding_mode="border", align_corners=False)

    def cost(self, rows: Tensor) -> Tensor:
        rows = torch.cat([self.drawn(self.settings.batch_size), rows])
        x, y = self.images.x[rows], self.images.y[rows].repeat(2)
        z = F.normalize(self.projection(self.net.trunk(torch.cat([x, self.crop(x)]))), dim=1)
        itself = torch.eye(len(y), dtype=torch.bool)
        shares = (z @ z.T / self.temperature).masked_fill(itself, -1e9).log_softmax(1)
        alike = (y[:, None] == y) & ~itself
        return -((shares * alike).sum(1) / alike.sum(1)).mean()

    @torch.no_grad()
    def finish(self) -> None:
        rows = self.memory()
        features, y = F.normalize(self.net.trunk(self.images.x[rows]), dim=1), self.images.y[rows]
        means = [features[y == label].mean(0) for label in range(int(y.max()) + 1)]
        self.means = F.normalize(torch.stack(means), dim=1)

    def scores(self, x: Tensor) -> Tensor:
        return F.normalize(self.net.trunk(x), dim=1) @ self.means.T
