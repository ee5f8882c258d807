"""Methods that train on what they kept: experience replay and iCaRL."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.plain.images import Images
from tests.plain.loop import CLASSES_PER_TASK, AllHeads, Finetune, Net, Settings


class Rehearsal(Finetune):
    """Keeps rows of every class, best first, so that a class is cut from behind."""

    def __init__(self, images: Images, multi: bool, seed: int, settings: Settings) -> None:
        super().__init__(images, multi, seed, settings)
        self.kept: dict[int, Tensor] = {}

    def classes_of_task(self) -> list[int]:
        return self.images.y[self.own_rows()].unique().tolist()

    def rows_of_class(self, label: int) -> Tensor:
        return torch.nonzero(self.images.y == label).flatten()

    def memory(self) -> Tensor:
        return torch.cat(list(self.kept.values()))

    def keep_at_random(self, total: int) -> None:
        """The same number of each class seen, within the total."""
        for label in self.classes_of_task():
            rows = self.rows_of_class(label)
            self.kept[label] = rows[torch.randperm(len(rows))]
        quota = total // len(self.kept)
        self.kept = {label: rows[:quota] for label, rows in self.kept.items()}


class ER(Rehearsal):
    """As many rows of the memory join every batch."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, total: int
    ) -> None:
        super().__init__(images, multi, seed, settings)
        self.total = total

    def backward(self, rows: Tensor) -> None:
        if self.kept:
            memory = self.memory()
            drawn = memory[torch.randint(len(memory), (self.settings.batch_size,))]
            rows = torch.cat([rows, drawn])
        self.cost(rows).backward()

    def finish(self) -> None:
        self.keep_at_random(self.total)


class XDER(AllHeads, ER):
    """Matches stored logits of all heads, those of later heads rewritten when rows are drawn."""

    alpha, beta, gamma, eta, margin = 0.3, 0.8, 0.85, 0.1, 0.3

    def start(self) -> None:
        self.draws = torch.zeros(len(self.images.y))

    def excess(self, wrong: Tensor, right: Tensor) -> Tensor:
        gap = (wrong + self.margin - right).relu()
        return gap.sum() / (gap > 0).sum().clamp(min=1)

    def cost(self, rows: Tensor) -> Tensor:
        start = self.task * CLASSES_PER_TASK
        stop, y = start + CLASSES_PER_TASK, self.images.y[rows]
        logits = self.outputs(rows)
        loss = F.cross_entropy(logits[:, start:stop], y - start)
        if self.kept:
            memory, size = self.memory(), self.settings.batch_size
            first, second = (memory[torch.randint(len(memory), (size,))] for _ in range(2))
            now, answer = self.outputs(first), self.outputs(second)
            loss = loss + self.alpha * F.mse_loss(now, self.logits[first])
            loss = loss + self.beta * F.cross_entropy(answer[:, :start], self.images.y[second])
            share = logits[:, :stop].softmax(1)
            past = share[:, :start].amax(1).detach()
            loss = loss + self.eta * self.excess(past, share[:, start:].amax(1))
            drawn, where = torch.cat([first, second]).unique(return_inverse=True)
            place = torch.full_like(drawn, len(where)).scatter_reduce_(
                0, where, torch.arange(len(where)), "amin"
            )
            said = torch.cat([now, answer])[place]
            self.draws[drawn] += 1
            chosen = torch.rand(len(drawn)) * self.draws[drawn] < 1
            self.rewrite(drawn[chosen], said.detach()[chosen], slice(start, None))
            logits, y = torch.cat([logits, said]), torch.cat([y, self.images.y[drawn]])
        if self.coming:
            own = logits.unflatten(1, (-1, CLASSES_PER_TASK)).amax(2)
            own = own.gather(1, (y // CLASSES_PER_TASK)[:, None])[:, 0]
            loss = loss + self.eta * self.excess(logits[:, stop:].amax(1), own)
        return loss

    def backward(self, rows: Tensor) -> None:
        self.cost(rows).backward()

    def rewrite(self, rows: Tensor, new: Tensor, part: slice) -> None:
        """Store new logits of a part of the classes, below those of the labels."""
        own = self.logits[rows, self.images.y[rows]]
        new = new[:, part]
        top = new.amax(1)
        scale = torch.where(top > own, (self.gamma * own / top).clamp(0, 1), 1.0)
        self.logits[rows, part] = scale[:, None] * new

    @torch.no_grad()
    def finish(self) -> None:
        before, start = self.memory() if self.kept else None, self.task * CLASSES_PER_TASK
        super().finish()
        kept = self.memory()
        old = kept[torch.isin(kept, before)] if before is not None else kept[:0]
        new = kept[~torch.isin(kept, old)]
        self.rewrite(old, self.outputs(old), slice(start, None))
        self.logits[new] = self.outputs(new)
        if start:
            self.rewrite(new, self.outputs(new), slice(0, start))


class ICaRL(Rehearsal):
    """Binary cross-entropy with the old network's answers, herding, the nearest class mean."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, per_class: int
    ) -> None:
        super().__init__(images, multi, seed, settings)
        self.per_class = per_class
        self.teacher: Net | None = None
        self.means = torch.zeros(0)

    def start(self) -> None:
        if self.task >= 0:
            self.teacher = copy.deepcopy(self.net).eval()

    def training_rows(self) -> Tensor:
        return torch.cat([self.own_rows(), self.memory()]) if self.kept else self.own_rows()

    def cost(self, rows: Tensor) -> Tensor:
        logits = self.net(self.images.x[rows])
        targets = F.one_hot(self.images.y[rows], logits.shape[1]).float()
        if self.teacher is not None:
            with torch.no_grad():
                old = self.teacher(self.images.x[rows]).sigmoid()
            targets[:, : old.shape[1]] = old
        return F.binary_cross_entropy_with_logits(logits, targets)

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        return F.normalize(self.net.trunk(x), dim=1)

    def finish(self) -> None:
        for label in self.classes_of_task():
            rows = self.rows_of_class(label)
            self.kept[label] = rows[self.herded(self.features(self.images.x[rows]))]
        means = [self.features(self.images.x[rows]).mean(0) for rows in self.kept.values()]
        self.means = F.normalize(torch.stack(means), dim=1)

    def herded(self, features: Tensor) -> list[int]:
        """Each pick brings the mean of the picks nearest to the mean of all."""
        chosen: list[int] = []
        for _ in range(self.per_class):
            total = features[chosen].sum(0)
            gap = features.mean(0) - (features + total) / (len(chosen) + 1)
            distance = gap.norm(dim=1)
            distance[chosen] = float("inf")
            chosen.append(int(distance.argmin()))
        return chosen

    def scores(self, x: Tensor) -> Tensor:
        return -torch.cdist(self.features(x), self.means)
