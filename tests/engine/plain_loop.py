"""Hand-written loops in plain PyTorch: no padding, no masks, torch.optim, nn.BatchNorm1d.

The head grows by one block of rows per task, as people write it. Only the order of rows and the
initial weights are taken from Engram.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram import keys
from engram.checks.toy_runs import MODELS, make_streams
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.learner.learner import RunLearner
from engram.methods.method import Method
from engram.records.stage_result import StageResult
from engram.streams import Stream

Used = list[nn.Parameter]
OPTIMIZERS = {
    "sgd": lambda p, t: torch.optim.SGD(
        p, lr=t.lr, momentum=t.momentum, weight_decay=t.weight_decay
    ),
    "adam": lambda p, t: torch.optim.Adam(p, lr=t.lr, betas=t.betas, weight_decay=t.weight_decay),
    "adamw": lambda p, t: torch.optim.AdamW(p, lr=t.lr, betas=t.betas, weight_decay=t.weight_decay),
}


class Plain(nn.Module):
    """Linear, batch normalisation where wanted, ReLU, and one head block per task."""

    def __init__(self, first: RunLearner, normed: bool) -> None:
        super().__init__()
        params = first.params
        weight = params["net.backbone.first.weight" if normed else "net.backbone.lower.0.weight"]
        self.trunk = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
        self.norm = nn.BatchNorm1d(weight.shape[0], dtype=torch.float64) if normed else None
        opening = first.stream.opening
        self.heads = nn.ModuleList(
            nn.Linear(weight.shape[0], int((opening == k).sum()), dtype=torch.float64)
            for k in range(len(first.stream))
        )
        for mine, theirs in self.pairs(params):
            mine.data.copy_(theirs)

    def pairs(self, params: dict[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Own parameters beside those of a learner."""
        first = "net.backbone.first" if self.norm is not None else "net.backbone.lower.0"
        yield self.trunk.weight, params[f"{first}.weight"]
        yield self.trunk.bias, params[f"{first}.bias"]
        if self.norm is not None:
            yield self.norm.weight, params["net.backbone.norm.weight"]
            yield self.norm.bias, params["net.backbone.norm.bias"]
        start = 0
        for head in self.heads:
            stop = start + head.out_features
            yield head.weight, params["net.head.weight"][start:stop]
            yield head.bias, params["net.head.bias"][start:stop]
            start = stop

    def forward(self, x: Tensor, tasks: int) -> Tensor:
        """Logits of the classes of the first `tasks` tasks."""
        h = self.trunk(x.flatten(1))
        h = torch.relu(h if self.norm is None else self.norm(h))
        return torch.cat([head(h) for head in self.heads[:tasks]], 1)

    def in_use(self, tasks: int) -> list[nn.Parameter]:
        """Parameters that exist after so many tasks."""
        found = [*self.trunk.parameters(), *(self.norm.parameters() if self.norm else ())]
        return found + [p for head in self.heads[:tasks] for p in head.parameters()]


@dataclass
class Twin:
    """Finetuning by hand; subclasses add a memory or a penalty."""

    stream: Stream
    training: Training
    seed: int
    net: Plain
    past: list[Any] = field(default_factory=list)

    def x(self, rows: Tensor) -> Tensor:
        return self.stream.data.gather(rows).double()

    def y(self, rows: Tensor) -> Tensor:
        return self.stream.targets[rows][:, 0]

    def batches(self, stage: int) -> Iterator[Tensor]:
        """Row numbers, epoch after epoch; the last batch of an epoch is short."""
        train, size = self.stream.tasks[stage].train, self.training.batch_size
        for epoch in range(self.training.epochs):
            key = keys.fold(self.seed, "order", stage, epoch)
            order = train[keys.permutation(key, len(train), len(train))]
            for number, rows in enumerate(order.split(size)):
                yield self.joined(rows, stage, epoch, number)

    def joined(self, rows: Tensor, stage: int, epoch: int, number: int) -> Tensor:
        return rows

    def penalty(self) -> Tensor | float:
        return 0.0

    def run(self, stage: int) -> None:
        """Train one task."""
        self.net.train()
        used = self.net.in_use(stage + 1)
        optimizer = OPTIMIZERS[self.training.optimizer](used, self.training)
        for rows in self.batches(stage):
            optimizer.zero_grad()
            loss = F.cross_entropy(self.net(self.x(rows), stage + 1), self.y(rows))
            loss.backward()
            plain = [p.grad.clone() for p in used]
            extra = self.penalty()
            if isinstance(extra, Tensor):
                extra.backward()
            before = [p.detach().clone() for p in used]
            optimizer.step()
            self.after_step(used, before, plain)
        self.finish(stage)

    def after_step(
        self, used: list[nn.Parameter], before: list[Tensor], plain: list[Tensor]
    ) -> None:
        pass

    def finish(self, stage: int) -> None:
        pass


class ReplayTwin(Twin):
    """The batch and as many rows of the memory, drawn with replacement, in one mean."""

    def joined(self, rows: Tensor, stage: int, epoch: int, number: int) -> Tensor:
        if stage == 0:
            return rows
        kept = self.past[-1]  # rows in the memory, put there by the test
        key = keys.fold(keys.fold(self.seed, "step", stage, epoch, number), "memory", 0)
        size = min(self.training.batch_size, len(self.stream.tasks[stage].train))
        return torch.cat([kept[keys.randint(key, len(kept), size)], rows])


class EWCTwin(Twin):
    """One quadratic per past task, each with its own Fisher and its own anchor."""

    strength = 3.0

    def penalty(self) -> Tensor | float:
        total: Tensor | float = 0.0
        for used, fisher, anchor in self.past:
            for p, f, a in zip(used, fisher, anchor, strict=True):
                total = total + self.strength / 2 * (f * (p - a).square()).sum()
        return total

    def finish(self, stage: int) -> None:
        self.net.eval()
        used = self.net.in_use(stage + 1)
        fisher = [torch.zeros_like(p) for p in used]
        rows = self.stream.tasks[stage].train
        for row in rows:
            loss = F.cross_entropy(self.net(self.x(row[None]), stage + 1), self.y(row[None]))
            for f, g in zip(fisher, torch.autograd.grad(loss, used), strict=True):
                f += g.square() / len(rows)
        self.past.append((used, fisher, [p.detach().clone() for p in used]))


class SITwin(Twin):
    """Path integrals of the task's own gradient, without the penalty's."""

    strength, xi = 0.7, 0.1

    def run(self, stage: int) -> None:
        self.path = {p: torch.zeros_like(p) for p in self.net.in_use(stage + 1)}
        self.start = {p: p.detach().clone() for p in self.path}
        super().run(stage)

    def penalty(self) -> Tensor | float:
        omega: dict[nn.Parameter, Tensor] = self.past[-1] if self.past else {}
        total: Tensor | float = 0.0
        for p, importance in omega.items():
            total = total + self.strength * (importance * (p - self.start[p]).square()).sum()
        return total

    def after_step(
        self, used: list[nn.Parameter], before: list[Tensor], plain: list[Tensor]
    ) -> None:
        for p, old, g in zip(used, before, plain, strict=True):
            self.path[p] -= g * (p.detach() - old)

    def finish(self, stage: int) -> None:
        omega = dict(self.past[-1]) if self.past else {}
        for p, path in self.path.items():
            gain = path / ((p.detach() - self.start[p]).square() + self.xi)
            omega[p] = omega.get(p, 0) + gain
        self.past.append(omega)


def away(twin: Twin, learner: RunLearner) -> float:
    """Largest difference between a twin and a learner, statistics included."""
    gaps = [float((a.detach() - b).abs().max()) for a, b in twin.net.pairs(learner.params)]
    if twin.net.norm is not None:
        for mine, theirs in (("running_mean", "mean"), ("running_var", "var")):
            other = learner.buffers[f"net.backbone.norm.{theirs}"]
            gaps.append(float((getattr(twin.net.norm, mine) - other).abs().max()))
    return max(gaps)


def beside(
    method: Method, kind: type[Twin], training: Training, *, model: str, together: bool
) -> Iterator[tuple[Twin, StageResult]]:
    """Each stage of three runs, with the twin that has been trained as far."""
    runs = [
        Run(stream=stream, method=method, model=MODELS[model], training=training, seed=seed)
        for seed, stream in enumerate(make_streams())
    ]
    engine = Engine(runs, device="cpu", together=together)
    twins = [
        kind(run.stream, training, run.seed, Plain(engine.learner(run), model == "normed"))
        for run in runs
    ]
    for stage in engine.stages():
        twins[stage.run].run(stage.stage)
        yield twins[stage.run], stage
