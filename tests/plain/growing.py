"""Distillation with herded exemplars, in networks of one size or with parts that come by task."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.plain.images import Images
from tests.plain.loop import CLASSES_PER_TASK, Finetune, Settings
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


class Boosted(nn.Module):
    """A trunk under a classifier and, while a task is learnt, a second one that adds to it."""

    def __init__(self, trunk: nn.Module, width: int) -> None:
        super().__init__()
        self.trunk, self.width, self.count = trunk, width, 0
        self.fc: Any = nn.Identity()
        self.booster: Any = nn.Identity()

    def grow(self) -> None:
        known, self.count = self.count, self.count + CLASSES_PER_TASK
        self.before, self.fc = self.fc, self.widened(self.fc)
        if known:
            self.trunk.requires_grad_(False)
            self.booster = copy.deepcopy(self.trunk).requires_grad_(True)
            self.added = nn.Linear(self.width, self.count, bias=False)
            bound = (2 * self.width) ** -0.5
            nn.init.uniform_(self.added.weight, -bound, bound)
            self.own = nn.Linear(self.width, self.count)
            nn.init.zeros_(self.own.bias)

    @torch.no_grad()
    def widened(self, old: nn.Module) -> nn.Linear:
        made = nn.Linear(self.width, self.count)
        if isinstance(old, nn.Linear):
            made.weight[: len(old.weight)], made.bias[: len(old.bias)] = old.weight, old.bias
        return made

    def shrink(self) -> None:
        """Drop the second trunk; the first one goes on as it was before the task."""
        self.fc = self.widened(self.before)
        self.trunk.requires_grad_(True)
        self.booster = nn.Identity()

    @property
    def single(self) -> bool:
        return isinstance(self.booster, nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc(self.trunk(x))
        return found if self.single else found + self.added(self.booster(x))


class FOSTER(Herding):
    """A second trunk boosts the first one; both are then distilled into the first one."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, total: int
    ) -> None:
        super().__init__(images, multi, seed, settings, total=total)
        self.net: Any = Boosted(self.net.trunk, self.net.width)

    def weights(self, beta: float) -> Tensor:
        counts = self.images.y[self.training_rows()].bincount()
        found = (1 - beta) / (1 - beta**counts)
        return found / found.mean()

    def cost(self, rows: Tensor) -> Tensor:
        if self.net.single:
            return super().cost(rows)
        x, y = self.images.x[rows], self.images.y[rows]
        with torch.no_grad():
            old = self.net.trunk(x)
            before = self.net.before(old)
        new = self.net.booster(x)
        logits = self.net.fc(old) + self.net.added(new)
        task = F.cross_entropy(logits / self.weights_of_task, y)
        own = F.cross_entropy(self.net.own(new), y)
        return task + own + soft_cross_entropy(logits[:, : before.shape[1]], before, 2.0)

    def learn(self) -> None:
        self.task += 1
        self.weights_of_task, weights = self.weights(0.96), self.weights(0.97)
        self.task -= 1
        super().learn()
        if self.task:
            self.compress(weights)
        self.keep_herded()

    def finish(self) -> None:
        """Exemplars are chosen by the one network that is left."""

    def compress(self, weights: Tensor) -> None:
        teacher = copy.deepcopy(self.net)
        self.net.shrink()
        parts = [*self.net.trunk.parameters(), *self.net.fc.parameters()]
        optimizer = torch.optim.Adam(parts, lr=self.settings.lr, fused=True)
        for rows in self.batches():
            x = self.images.x[rows]
            with torch.no_grad():
                wanted = (teacher(x) / 2).softmax(1) * weights
                wanted /= wanted.sum(1, keepdim=True)
            optimizer.zero_grad()
            (-(wanted * (self.net(x) / 2).log_softmax(1)).sum(1).mean()).backward()
            optimizer.step()


class Proxied(nn.Module):
    """A trunk under cosines of several vectors a class, which come with the task."""

    def __init__(self, trunk: Any, width: int, proxies: int = 10) -> None:
        super().__init__()
        self.trunk, self.width, self.proxies = trunk, width, proxies
        self.vectors = nn.Parameter(torch.zeros(0, proxies, width))
        self.scale = nn.Parameter(torch.tensor(10.0))

    def grow(self) -> None:
        fresh = torch.randn(CLASSES_PER_TASK, self.proxies, self.width) / self.width**0.5
        self.vectors = nn.Parameter(torch.cat([self.vectors.detach(), fresh]))

    def layers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer before its ReLU, and the features."""
        below = self.trunk[:2](x)
        return below, self.trunk[2:](below)

    def similarity(self, features: Tensor) -> Tensor:
        unit = F.normalize(features, dim=1)
        cosines = torch.einsum("bf,ckf->bck", unit, F.normalize(self.vectors, dim=2))
        return (cosines.softmax(2) * cosines).sum(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.similarity(self.trunk(x))


class PODNet(Herding):
    """The first layer and the features are held; proxies are centres of clusters at first."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, total: int
    ) -> None:
        super().__init__(images, multi, seed, settings, total=total)
        self.net: Any = Proxied(self.net.trunk, self.net.width)
        self.begun = False

    def start(self) -> None:
        if self.task >= 0:
            self.teacher, self.begun = copy.deepcopy(self.net), False

    def training_rows(self) -> Tensor:
        if self.task and not self.begun:  # the net has grown, the optimiser has its vectors
            self.begun = True
            self.imprint()
        return super().training_rows()

    @torch.no_grad()
    def imprint(self) -> None:
        known = CLASSES_PER_TASK * self.task
        length = self.net.vectors[:known].norm(dim=2).mean()
        for label in self.classes_of_task():
            x = self.images.x[self.rows_of_class(label)[:1000]]
            points = F.normalize(self.net.trunk(x), dim=1)
            centres = points[torch.randperm(len(points))[: self.net.proxies]]
            for _ in range(20):
                nearest = torch.cdist(points, centres).argmin(1)
                groups = [points[nearest == k] for k in range(len(centres))]
                centres = torch.stack(
                    [own.mean(0) if len(own) else c for own, c in zip(groups, centres, strict=True)]
                )
            self.net.vectors[label] = F.normalize(centres, dim=1) * length

    def separate(self, features: Tensor, y: Tensor) -> Tensor:
        said = self.net.similarity(features)
        own = self.net.scale * (said.gather(1, y[:, None])[:, 0] - 0.6)
        others = (self.net.scale * said).scatter(1, y[:, None], float("-inf"))
        return torch.relu(others.logsumexp(1) - own).mean()

    def cost(self, rows: Tensor) -> Tensor:
        x, y = self.images.x[rows], self.images.y[rows]
        below, features = self.net.layers(x)
        task = self.separate(features, y)
        if not self.task:
            return task
        with torch.no_grad():
            below_then, features_then = self.teacher.layers(x)
        away = F.normalize(below, dim=1) - F.normalize(below_then, dim=1)
        pooled = ((away.square().sum(1) + 1e-8).sqrt() - 1e-4).mean()
        flat = (1 - F.cosine_similarity(features, features_then)).mean()
        grown = float(len(self.net.vectors) / CLASSES_PER_TASK) ** 0.5
        return task + grown * (3 * pooled + flat)

    def finish(self) -> None:
        self.keep_herded()
        if not self.task:
            return
        parts = [self.net.vectors, self.net.scale]
        optimizer = torch.optim.Adam(parts, lr=self.settings.lr, fused=True)
        rows = self.memory()
        for _ in range(20):
            for some in rows[torch.randperm(len(rows))].split(self.settings.batch_size):
                with torch.no_grad():
                    features = self.net.trunk(self.images.x[some])
                optimizer.zero_grad()
                self.separate(features, self.images.y[some]).backward()
                optimizer.step()


class Column(nn.Module):
    """Linear layers with ReLU between; all but the first also see the layers below of others."""

    def __init__(self, widths: list[int], older: int) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairs)
        self.lateral = nn.ModuleList()
        for below, above in pairs[1:] if older else []:  # one matrix for all older columns
            link = nn.Linear(below * older, above, bias=False)
            nn.init.uniform_(link.weight, -(below**-0.5), below**-0.5)
            self.lateral.append(link)

    def forward(self, x: Tensor, older: list[list[Tensor]]) -> list[Tensor]:
        """Outputs of all layers, the last of which are logits."""
        found: list[Tensor] = []
        for place, layer in enumerate(self.layers):
            x = layer(x)
            if place and older:
                x = x + self.lateral[place - 1](torch.cat([one[place - 1] for one in older], 1))
            x = torch.relu(x) if place < len(self.layers) - 1 else x
            found.append(x)
        return found


class Columns(nn.Module):
    """A column for each task; the older ones stand still."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.widths, self.columns = widths, nn.ModuleList()

    def grow(self) -> None:
        self.columns.requires_grad_(False)
        self.columns.append(Column(self.widths, len(self.columns)))

    def forward(self, x: Tensor, task: int) -> Tensor:
        """Logits of the classes of a task, by its column."""
        x, seen = x.flatten(1), list[list[Tensor]]()
        with torch.no_grad():
            for column in self.columns[:task]:
                seen.append(column(x, seen))
        found: Tensor = self.columns[task](x, seen)[-1]
        return found


class PNN(Finetune):
    """A column for each task, which also sees those before it; of linear layers alone."""

    def __init__(self, images: Images, multi: bool, seed: int, settings: Settings) -> None:
        super().__init__(images, multi, seed, settings)
        layers = [one for one in self.net.trunk if isinstance(one, nn.Linear)]
        widths = [layers[0].in_features, *(one.out_features for one in layers), CLASSES_PER_TASK]
        self.net: Any = Columns(widths)

    def cost(self, rows: Tensor) -> Tensor:
        aim = self.images.y[rows] - CLASSES_PER_TASK * self.task
        return F.cross_entropy(self.net(self.images.x[rows], self.task), aim)

    @torch.no_grad()
    def accuracy(self, task: int) -> float:
        rows = self.rows_of(self.images.test_y, task)
        guess = self.net(self.images.test_x[rows], task).argmax(1) + CLASSES_PER_TASK * task
        return float((guess == self.images.test_y[rows]).double().mean())
