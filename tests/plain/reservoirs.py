"""Methods that replay from a reservoir, which takes rows in while a task is learnt."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tests.plain.images import Images
from tests.plain.loop import CLASSES_PER_TASK, AllHeads, Finetune, Settings


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


class DERpp(AllHeads, Reservoir):
    """One draw has the logits with which its rows were stored, of all heads; another its labels."""

    alpha, beta = 0.5, 1.0

    def backward(self, rows: Tensor) -> None:
        y = self.images.y[rows]
        logits = self.outputs(rows)
        self.said, stop = logits.detach(), len(self.net.heads) * CLASSES_PER_TASK
        loss = F.cross_entropy(logits[:, :stop], y)
        if self.seen:
            dark, labelled = (self.drawn(self.settings.batch_size) for _ in range(2))
            loss = loss + self.alpha * F.mse_loss(self.outputs(dark), self.logits[dark])
            loss = loss + self.beta * self.cost(labelled)
        loss.backward()

    def stepped(self) -> None:
        super().stepped()
        if not self.epoch:  # a row passes by once
            entered = torch.isin(self.batch, self.memory())
            self.logits[self.batch[entered]] = self.said[entered]


class Choosy(Reservoir):
    """Every batch has as many rows of the memory, which has its own rule for those that enter."""

    def cost(self, rows: Tensor) -> Tensor:
        return super().cost(torch.cat([self.drawn(self.settings.batch_size), rows]))

    def stepped(self) -> None:
        if self.epoch:
            return
        for number, row in enumerate(self.batch.tolist()):
            full = self.seen >= len(self.kept)
            place = self.choose(number, row) if full else self.seen
            if place is not None:
                self.kept[place] = row
                self.entered(number, row, place)
            self.seen += 1

    def choose(self, number: int, row: int) -> int | None:
        """The place of a row, of that number in its batch, in a full memory."""
        raise NotImplementedError

    def entered(self, number: int, row: int, place: int) -> None:
        """After a row has taken a place."""


class GSS(Choosy):
    """Rows whose gradient is against those of the memory rows in their batch."""

    def start(self) -> None:
        if self.task < 0:
            self.of_slots = torch.zeros(len(self.kept))  # likeness with which a row entered

    def backward(self, rows: Tensor) -> None:
        old = self.drawn(self.settings.batch_size)
        if not self.epoch:
            self.alike = self.likeness(rows, old)
        Finetune.cost(self, torch.cat([old, rows])).backward()

    def likeness(self, rows: Tensor, old: Tensor) -> Tensor:
        """1 + the largest cosine of each row's gradient to those of `old`."""
        if not len(old):
            return torch.ones(len(rows))
        both, count = torch.cat([old, rows]), len(old)
        weights = {name: one.detach() for name, one in self.net.named_parameters()}
        slopes = vmap(grad(self.row_cost), (None, 0, 0))(
            weights, self.images.x[both], self.images.y[both]
        )
        flat = [one.flatten(1) for one in slopes.values()]
        size = sum(one.square().sum(1) for one in flat).sqrt().clamp(min=1e-12)
        along = sum(one[count:] @ one[:count].T for one in flat)
        return 1 + (along / size[count:, None] / size[:count]).amax(1).clamp(-1, 1)

    def row_cost(self, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(self.net, weights, (x[None],))
        return F.cross_entropy(self.scoped(logits, y[None] // CLASSES_PER_TASK), y[None])

    def choose(self, number: int, row: int) -> int | None:
        own = float(self.alike[number])
        if own >= 1:
            return None
        place = int(torch.multinomial(self.of_slots, 1))
        theirs = float(self.of_slots[place])
        return place if float(torch.rand(())) * (theirs + own) < theirs else None

    def entered(self, number: int, row: int, place: int) -> None:
        self.of_slots[place] = self.alike[number]


class CBRS(Choosy):
    """A row of a class that was never the largest takes the place of one of the largest class."""

    def start(self) -> None:
        if self.task < 0:
            classes = int(self.images.y.max()) + 1
            self.places: list[list[int]] = [[] for _ in range(classes)]  # of each class
            self.passed, self.full = [0] * classes, [False] * classes
            self.labels = self.images.y.tolist()

    def choose(self, number: int, row: int) -> int | None:
        label, most = self.labels[row], max(len(one) for one in self.places)
        largest = [c for c, one in enumerate(self.places) if len(one) == most]
        for c in largest:
            self.full[c] = True
        self.passed[label] += 1
        own = self.places[label]
        if not self.full[label]:
            own = self.places[largest[int(torch.randint(len(largest), ()))]]
        elif float(torch.rand(())) * self.passed[label] > len(own):
            return None
        return own.pop(int(torch.randint(len(own), ())))

    def entered(self, number: int, row: int, place: int) -> None:
        label = self.labels[row]
        self.places[label].append(place)
        if self.seen < len(self.kept):
            self.passed[label] += 1


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


class MER(Reservoir):
    """Reptile within and across batches of new and drawn rows; Adam follows where it led."""

    draws, rate, beta, gamma = 5, 0.1, 0.1, 1.0

    def backward(self, rows: Tensor) -> None:
        weights = list(self.net.parameters())
        start = [one.detach().clone() for one in weights]
        for _ in range(self.draws):
            before = [one.detach().clone() for one in weights]
            drawn = self.drawn(self.settings.batch_size)
            for part in (rows, drawn) if len(drawn) else (rows,):
                slopes = torch.autograd.grad(self.cost(part), weights)
                with torch.no_grad():
                    for own, slope in zip(weights, slopes, strict=True):
                        own -= self.rate * slope
            self.go(before, weights, self.beta)
        for own, old in zip(weights, start, strict=True):
            own.grad = self.gamma * (old - own.detach()) / self.rate
            own.data = old

    @torch.no_grad()
    def go(self, start: list[Tensor], weights: list[nn.Parameter], share: float) -> None:
        for old, own in zip(start, weights, strict=True):
            own.copy_(old + share * (own - old))


class LaMAML(Reservoir):
    """Learns a rate for each weight by looking ahead; slopes of the inner steps are constants."""

    rate, eta, steps, clip = 0.03, 0.1, 3, 2.0

    def start(self) -> None:
        if self.task < 0:
            self.rates: dict[nn.Parameter, Tensor] = {}

    def cost_at(self, rows: Tensor, weights: list[Tensor]) -> Tensor:
        names = [name for name, _ in self.net.named_parameters()]
        x, y = self.images.x[rows], self.images.y[rows]
        logits = functional_call(self.net, dict(zip(names, weights, strict=True)), (x,))
        return F.cross_entropy(self.scoped(logits, y // CLASSES_PER_TASK), y)

    def backward(self, rows: Tensor) -> None:
        own = list(self.net.parameters())
        for p in own:
            if p not in self.rates:
                self.rates[p] = torch.full_like(p, self.rate).requires_grad_(True)
        rates, fast, losses = [self.rates[p] for p in own], own, []
        both = torch.cat([rows, self.drawn(self.settings.batch_size)])
        for part in rows.chunk(self.steps):
            slopes = torch.autograd.grad(self.cost_at(part, fast), fast, retain_graph=True)
            moves = zip(fast, slopes, rates, strict=True)
            fast = [w - s.clamp(-self.clip, self.clip) * a.relu() for w, s, a in moves]
            losses.append(self.cost_at(both, fast))
        found = torch.autograd.grad(sum(losses) / len(losses), [*own, *rates])
        for p, slope in zip([*own, *rates], found, strict=True):
            p.grad = slope
        nn.utils.clip_grad_norm_(rates, self.clip)
        nn.utils.clip_grad_norm_(own, self.clip)
        with torch.no_grad():
            for p, a in zip(own, rates, strict=True):
                a -= self.eta * a.grad
                p -= a.relu() * p.grad
                p.grad = None  # the optimiser has nothing to do


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
