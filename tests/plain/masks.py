"""Methods with masks for each task: HAT gates units, SupSup and PackNet choose weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.plain.images import Images
from tests.plain.loop import Finetune, Settings


class Masked(Finetune):
    """Testing asks with the task of the rows."""

    asked = 0

    def accuracy(self, task: int) -> float:
        self.asked = task
        return super().accuracy(task)

    def linear(self) -> list[nn.Linear]:
        return [one for one in self.net.trunk if isinstance(one, nn.Linear)]


class HAT(Masked):
    """Sigmoid gates behind every hidden layer, which sharpen in every epoch."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, scale: float = 400.0,
        sparsity: float = 0.75,
    ) -> None:  # fmt: skip
        super().__init__(images, multi, seed, settings)
        self.scale, self.sparsity = scale, sparsity
        self.gates: list[list[Tensor]] = []
        self.used = [torch.zeros(one.out_features) for one in self.linear()]
        self.s = 1.0

    def start(self) -> None:
        self.net.embedding = nn.ParameterList(torch.randn(len(one)) for one in self.used)

    def batches(self) -> Iterator[Tensor]:
        count = math.ceil(len(self.own_rows()) / self.settings.batch_size)
        for number, rows in enumerate(super().batches()):
            share = number % count / (count - 1)
            self.s = 1 / self.scale + (self.scale - 1 / self.scale) * share
            yield rows

    def gated(self, x: Tensor, gates: list[Tensor]) -> Tensor:
        layers = iter(gates)
        for one in self.net.trunk:
            x = one(x)
            if isinstance(one, nn.ReLU):
                x = x * next(layers)
        return torch.cat([head(x) for head in self.net.heads], 1)

    def cost(self, rows: Tensor) -> Tensor:
        x, y = self.images.x[rows], self.images.y[rows]
        gates = [torch.sigmoid(self.s * e) for e in self.net.embedding]
        logits = self.scoped(self.gated(x, gates), y // 2)
        left = [1 - used for used in self.used]
        more = sum((gate * free).sum() for gate, free in zip(gates, left, strict=True))
        return F.cross_entropy(logits, y) + self.sparsity * more / sum(map(torch.sum, left))

    def backward(self, rows: Tensor) -> None:
        super().backward(rows)
        before = torch.ones(1)
        for layer, used, e in zip(self.linear(), self.used, self.net.embedding, strict=True):
            if self.task:
                layer.weight.grad *= 1 - torch.minimum(used[:, None], before)
                layer.bias.grad *= 1 - used
            before = used
            with torch.no_grad():
                steep = (self.s * e).clamp(-50, 50).cosh() + 1
                e.grad *= self.scale / self.s * steep / (e.cosh() + 1)

    @torch.no_grad()
    def stepped(self) -> None:
        for e in self.net.embedding:
            e.clamp_(-6, 6)

    @torch.no_grad()
    def finish(self) -> None:
        self.gates.append([(e > 0).float() for e in self.net.embedding])
        self.used = [torch.maximum(*pair) for pair in zip(self.used, self.gates[-1], strict=True)]

    def scores(self, x: Tensor) -> Tensor:
        return self.gated(x, self.gates[self.asked])


class LargestHalf(torch.autograd.Function):
    """1 for the largest entries, with the gradient of the entries themselves."""

    @staticmethod
    def forward(_, sizes: Tensor, share: float) -> Tensor:  # type: ignore[override,no-untyped-def]
        rows = sizes.flatten()
        least = rows.kthvalue(len(rows) - round(share * len(rows)) + 1).values
        return (sizes >= least).to(sizes)

    @staticmethod
    def backward(_, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override,no-untyped-def]
        return slope, None


class SupSup(Masked):
    """Scores choose among random weights of one size; of a head, each row by itself."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, share: float = 0.5
    ) -> None:
        super().__init__(images, multi, seed, settings)
        self.share, self.masks = share, list[list[Tensor]]()

    def start(self) -> None:
        shapes = [one.weight.shape for one in self.linear()] + [(2, self.net.width)]
        self.net.chosen = nn.ParameterList(
            torch.empty(shape).uniform_(-1, 1) / math.sqrt(shape[1]) for shape in shapes
        )

    @torch.no_grad()
    def settle(self) -> None:
        """The weights of a network whose newest head has just come."""
        for one in (*self.linear(), *self.net.heads):
            one.weight.copy_(one.weight.sign() * math.sqrt(2 / one.in_features))
            one.bias.zero_()
            one.requires_grad_(False)

    def batches(self) -> Iterator[Tensor]:
        self.settle()
        yield from super().batches()

    def choose(self) -> list[Tensor]:
        *inner, head = self.net.chosen
        rows = [LargestHalf.apply(row.abs(), self.share) for row in head]
        return [*(LargestHalf.apply(one.abs(), self.share) for one in inner), torch.stack(rows)]

    def masked(self, x: Tensor, masks: list[Tensor], task: int) -> Tensor:
        layers = iter(masks)
        for one in self.net.trunk:
            x = F.linear(x, one.weight * next(layers)) if isinstance(one, nn.Linear) else one(x)
        heads = [head.weight for head in self.net.heads]
        heads[task] = heads[task] * next(layers)
        return torch.cat([F.linear(x, head) for head in heads], 1)

    def cost(self, rows: Tensor) -> Tensor:
        x, y = self.images.x[rows], self.images.y[rows]
        return F.cross_entropy(self.scoped(self.masked(x, self.choose(), self.task), y // 2), y)

    @torch.no_grad()
    def finish(self) -> None:
        self.masks.append(self.choose())

    def scores(self, x: Tensor) -> Tensor:
        return self.masked(x, self.masks[self.asked], self.asked)


class PackNet(Masked):
    """Most of a task's weights are pruned for the tasks to come; the rest stays as it is."""

    def __init__(
        self, images: Images, multi: bool, seed: int, settings: Settings, *, share: float = 0.75,
        retrain: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(images, multi, seed, settings)
        self.share, self.retrain = share, retrain
        self.owner = [torch.zeros_like(one.weight, dtype=torch.long) for one in self.linear()]

    def batches(self) -> Iterator[Tensor]:
        for layer in self.linear():
            layer.bias.requires_grad_(not self.task)
        self.mine = [(owner == self.task).float() for owner in self.owner]
        yield from super().batches()

    @torch.no_grad()
    def prune(self) -> None:
        for layer, owner in zip(self.linear(), self.owner, strict=True):
            own = (owner == self.task).flatten().nonzero()[:, 0]
            sizes = layer.weight.flatten()[own].abs()
            gone = own[sizes.argsort()[: int(self.share * len(own))]]
            layer.weight.view(-1)[gone] = 0.0
            owner.view(-1)[gone] = self.task + 1
        self.mine = [(owner == self.task).float() for owner in self.owner]

    def backward(self, rows: Tensor) -> None:
        super().backward(rows)
        for layer, mine in zip(self.linear(), self.mine, strict=True):
            layer.weight.grad *= mine

    def finish(self) -> None:
        self.prune()
        optimizer = torch.optim.Adam(self.net.parameters(), lr=self.settings.lr, fused=True)
        rows = self.own_rows()
        for _ in range(self.retrain):
            for some in rows[torch.randperm(len(rows))].split(self.settings.batch_size):
                optimizer.zero_grad()
                self.backward(some)
                optimizer.step()

    def scores(self, x: Tensor) -> Tensor:
        owners = iter(self.owner)
        for one in self.net.trunk:
            if isinstance(one, nn.Linear):
                x = F.linear(x, one.weight * (next(owners) <= self.asked), one.bias)
            else:
                x = one(x)
        return torch.cat([head(x) for head in self.net.heads], 1)
