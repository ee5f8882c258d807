"""Hand-written PyTorch loops: what a careful user would write without a library.

Data as one tensor, index batches, the same network and fused optimiser, the same evaluation of the
tasks learnt so far after every task. Each class trains the tasks of a stream once.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.data import Data
from engram.streams.stream import Stream

SEEN = -1e9


class Loop:
    """Finetuning; the other methods differ in what they add to a step."""

    def __init__(self, data: Data, *, fused: bool = True, lr: float = 1e-3) -> None:
        flat = data.x.reshape(len(data), -1)
        self.x = flat.float() / 255 if flat.dtype == torch.uint8 else flat
        self.y = data.labels
        torch.manual_seed(0)
        width = self.x.shape[1]
        self.net = nn.Sequential(
            nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
            nn.Linear(256, data.n_classes),
        )  # fmt: skip
        self.fused, self.lr = fused, lr

    def train(self, stream: Stream, *, batch: int, epochs: int = 1) -> list[float]:
        """All tasks; after each, the accuracy on every task learnt so far."""
        seen = torch.zeros(stream.data.n_classes, dtype=torch.bool)
        found = []
        for number, task in enumerate(stream.tasks, start=1):
            seen[list(task.new)] = True
            optimizer = torch.optim.Adam(self.net.parameters(), lr=self.lr, fused=self.fused)
            self.start(task)
            for _ in range(epochs):
                rows = task.train[torch.randperm(len(task.train))]
                for at in range(0, len(rows), batch):
                    self.step(optimizer, rows[at : at + batch], seen)
            self.finish(task, seen)
            found += [self.accuracy_on(one.test, seen) for one in stream.tasks[:number]]
        return found

    def logits(self, rows: Tensor, seen: Tensor) -> Tensor:
        return self.net(self.x[rows]).masked_fill(~seen, SEEN)

    def loss(self, rows: Tensor, seen: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(rows, seen), self.y[rows])

    def step(self, optimizer: torch.optim.Optimizer, rows: Tensor, seen: Tensor) -> None:
        optimizer.zero_grad()
        self.loss(rows, seen).backward()
        optimizer.step()

    @torch.no_grad()
    def accuracy_on(self, rows: Tensor, seen: Tensor) -> float:
        answer = self.logits(rows, seen).argmax(1)
        return float((answer == self.y[rows]).float().mean())

    def start(self, task: object) -> None: ...

    def finish(self, task: object, seen: Tensor) -> None: ...


class ER(Loop):
    """One memory batch of equal size joins every batch; 500 exemplars, class-balanced."""

    memory: Tensor = torch.empty(0, dtype=torch.long)
    kept: dict[int, Tensor] = {}  # noqa: RUF012

    def loss(self, rows: Tensor, seen: Tensor) -> Tensor:
        if len(self.memory):
            drawn = self.memory[torch.randint(len(self.memory), (len(rows),))]
            rows = torch.cat([rows, drawn])
        return super().loss(rows, seen)

    def finish(self, task, seen: Tensor) -> None:  # type: ignore[no-untyped-def,override]
        quota = 500 // int(seen.sum())
        self.kept = {c: rows[:quota] for c, rows in self.kept.items()}
        for c in task.new:
            own = task.train[self.y[task.train] == c]
            self.kept[c] = own[torch.randperm(len(own))[:quota]]
        self.memory = torch.cat(list(self.kept.values()))


class EWC(Loop):
    """Quadratic penalties with a per-sample Fisher, kept as one quadratic."""

    strength = 5000.0
    anchor: list[Tensor] = []  # noqa: RUF012
    fisher: list[Tensor] = []  # noqa: RUF012

    def loss(self, rows: Tensor, seen: Tensor) -> Tensor:
        total = super().loss(rows, seen)
        for p, a, f in zip(self.net.parameters(), self.anchor, self.fisher, strict=False):
            total = total + self.strength / 2 * (f * (p - a) ** 2).sum()
        return total

    def finish(self, task, seen: Tensor) -> None:  # type: ignore[no-untyped-def,override]
        new = self.per_sample_fisher(task.train, seen)
        here = [p.detach().clone() for p in self.net.parameters()]
        if not self.anchor:
            self.anchor, self.fisher = here, new
            return
        total = [f + n for f, n in zip(self.fisher, new, strict=True)]
        self.anchor = [
            torch.where(t > 0, (f * a + n * h) / t.clamp(min=1e-30), h)
            for f, a, n, h, t in zip(self.fisher, self.anchor, new, here, total, strict=True)
        ]
        self.fisher = total

    def per_sample_fisher(self, rows: Tensor, seen: Tensor, chunk: int = 64) -> list[Tensor]:
        """Mean of squared per-sample gradients, mapped over samples."""
        params = {k: v.detach() for k, v in self.net.named_parameters()}

        def one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            logits = torch.func.functional_call(self.net, weights, (x[None],))
            return F.cross_entropy(logits.masked_fill(~seen, SEEN), y[None])

        each = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))
        sums = [torch.zeros_like(p) for p in params.values()]
        for at in range(0, len(rows), chunk):
            part = rows[at : at + chunk]
            grads = each(params, self.x[part], self.y[part])
            for total, g in zip(sums, grads.values(), strict=True):
                total += (g**2).sum(0)
        return [total / len(rows) for total in sums]


class SI(Loop):
    """Path integral of the task gradient along the actual steps."""

    strength, xi = 1.0, 0.1
    omega: list[Tensor] = []  # noqa: RUF012
    anchor: list[Tensor] = []  # noqa: RUF012

    def start(self, task: object) -> None:
        self.begin = [p.detach().clone() for p in self.net.parameters()]
        self.path = [torch.zeros_like(p) for p in self.begin]

    def step(self, optimizer: torch.optim.Optimizer, rows: Tensor, seen: Tensor) -> None:
        params = list(self.net.parameters())
        grads = torch.autograd.grad(self.loss(rows, seen), params)
        before = [p.detach().clone() for p in params]
        for i, (p, g) in enumerate(zip(params, grads, strict=True)):
            p.grad = g.clone()
            if self.omega:
                p.grad += 2 * self.strength * self.omega[i] * (before[i] - self.anchor[i])
        optimizer.step()
        for w, g, p, b in zip(self.path, grads, params, before, strict=True):
            w -= g * (p.detach() - b)

    def finish(self, task: object, seen: Tensor) -> None:
        end = [p.detach().clone() for p in self.net.parameters()]
        new = [
            w / ((e - b) ** 2 + self.xi) for w, e, b in zip(self.path, end, self.begin, strict=True)
        ]
        self.omega = [o + n for o, n in zip(self.omega, new, strict=True)] if self.omega else new
        self.anchor = end


class Permuted(Loop):
    """Finetuning on permuted images; those of a task are made once, and evaluated once learnt."""

    def train(self, stream: Stream, *, batch: int) -> list[float]:
        """All tasks, one epoch each; after each, the accuracy on every task learnt so far."""
        tables = stream.view.table  # type: ignore[union-attr]
        whole, labels, found = self.x, self.y, []
        every = torch.ones(stream.data.n_classes, dtype=torch.bool)
        tests: list[tuple[Tensor, Tensor]] = []
        for task, table in zip(stream.tasks, tables, strict=False):
            optimizer = torch.optim.Adam(self.net.parameters(), lr=self.lr, fused=self.fused)
            self.x, self.y = whole[task.train][:, table], labels[task.train]
            tests.append((whole[task.test][:, table], labels[task.test]))
            rows = torch.randperm(len(self.x))
            for at in range(0, len(rows), batch):
                self.step(optimizer, rows[at : at + batch], every)
            found += [self.accuracy(*one) for one in tests]
        self.x, self.y = whole, labels
        return found

    @torch.no_grad()
    def accuracy(self, x: Tensor, y: Tensor, size: int = 1024) -> float:
        right = 0
        for at in range(0, len(x), size):
            right += int((self.net(x[at : at + size]).argmax(1) == y[at : at + size]).sum())
        return right / len(x)


class LwF(Loop):
    """Distillation of the network before the task, over the classes before it, at temperature 2."""

    strength, temperature = 1.0, 2.0
    teacher: nn.Sequential | None = None
    old: Tensor = torch.empty(0, dtype=torch.long)  # classes before the task

    def loss(self, rows: Tensor, seen: Tensor) -> Tensor:
        x = self.x[rows]
        out = self.net(x)
        total = F.cross_entropy(out.masked_fill(~seen, SEEN), self.y[rows])
        if self.teacher is None:
            return total
        with torch.no_grad():
            target = (self.teacher(x)[:, self.old] / self.temperature).softmax(1)
        return total + self.strength * F.cross_entropy(out[:, self.old] / self.temperature, target)

    def finish(self, task: object, seen: Tensor) -> None:
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)
        self.old = seen.nonzero()[:, 0]


LOOPS = {"Finetune": Loop, "ER": ER, "EWC": EWC, "SI": SI, "LwF": LwF}
