"""Generative replay as a loop in plain PyTorch: deep copies, torch.optim, a head per task."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram import keys
from engram.checks.toy_runs import SPLIT_MODELS, make_clouds
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.learner.learner import RunLearner
from engram.methods.dgr import DGR
from engram.records.stage_result import StageResult
from engram.streams import Stream, class_incremental, task_incremental
from tests.engine.plain_loop import OPTIMIZERS, Plain, Twin, away

ORDERS = ((0, 1, 2, 3, 4, 5), (5, 1, 3, 0, 4, 2))


class PlainVAE(nn.Module):
    """The autoencoder written once more, with the weights of a learner's."""

    def __init__(self, params: dict[str, Tensor]) -> None:
        super().__init__()
        own = {k.removeprefix("generator."): v for k, v in params.items() if k[:10] == "generator."}
        names = ("encoder.0", "encoder.2", "mean", "logvar", "decoder.0", "decoder.2", "decoder.4")
        self.layers = nn.ModuleList()
        for name in names:
            weight, bias = own[f"{name}.weight"], own[f"{name}.bias"]
            layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
            layer.weight.data.copy_(weight)
            layer.bias.data.copy_(bias)
            self.layers.append(layer)
        self.names = names

    def draw(self, z: Tensor) -> Tensor:
        *_, a, b, c = self.layers
        return c(torch.relu(b(torch.relu(a(z)))))

    def cost(self, x: Tensor, noise: Tensor) -> Tensor:
        """Gaussian: mean over numbers of half the squared error, divergence over their number."""
        a, b, mean, logvar, *_ = self.layers
        h = torch.relu(b(torch.relu(a(x))))
        mu, lv = mean(h), logvar(h)
        error = 0.5 * (self.draw(mu + torch.exp(lv / 2) * noise) - x) ** 2
        kl = -0.5 * (1 + lv - mu**2 - lv.exp())
        return error.mean() + kl.sum(1).mean() / x.shape[1]

    def away(self, params: dict[str, Tensor]) -> float:
        gaps = []
        for name, layer in zip(self.names, self.layers, strict=True):
            gaps.append((layer.weight - params[f"generator.{name}.weight"]).abs().max())
            gaps.append((layer.bias - params[f"generator.{name}.bias"]).abs().max())
        return float(torch.stack(gaps).detach().max())


@dataclass
class ScholarTwin(Twin):
    """A solver and a generator; copies of both draw and label what is replayed."""

    generator: PlainVAE = None  # type: ignore[assignment]
    method: DGR = field(default_factory=DGR)
    sizes: list[int] = field(default_factory=list)  # classes of each task

    def seen_by(self, rows: Tensor) -> Tensor:
        return self.x(rows).flatten(1)

    def logits(self, net: Plain, x: Tensor, tasks: int) -> Tensor:
        return net(x, tasks)

    def steps(self, stage: int) -> Iterator[tuple[Tensor, Any]]:
        train, size = self.stream.tasks[stage].train, self.training.batch_size
        for epoch in range(self.training.epochs):
            key = keys.fold(self.seed, "order", stage, epoch)
            order = train[keys.permutation(key, len(train), len(train))]
            for number, rows in enumerate(order.split(size)):
                yield rows, keys.fold(self.seed, "step", stage, epoch, number)

    def noise(self, key: Any, purpose: str, rows: int) -> Tensor:
        return keys.normal(keys.fold(key, purpose), rows, self.method.noise).double()

    def run(self, stage: int) -> None:
        old = copy.deepcopy(self.net).eval(), copy.deepcopy(self.generator)
        self.net.train()
        used = [*self.moving(stage), *self.generator.parameters()]
        optimizer = OPTIMIZERS[self.training.optimizer](used, self.training)
        for rows, key in self.steps(stage):
            optimizer.zero_grad()
            self.cost(rows, key, stage, *old).backward()
            optimizer.step()

    def moving(self, stage: int) -> list[nn.Parameter]:
        return self.net.in_use(stage + 1)

    def cost(self, rows: Tensor, key: Any, stage: int, solver: Plain, before: PlainVAE) -> Tensor:
        x, y, count = self.seen_by(rows), self.y(rows), len(rows)
        own = self.generator.cost(x, self.noise(key, "own", count))
        if stage == 0:
            return self.task(self.logits(self.net, x, 1), y, 0) + own
        with torch.no_grad():
            dreams = before.draw(self.noise(key, "dreams", count))
            labels = self.logits(solver, dreams, stage)
        both = self.logits(self.net, torch.cat([dreams, x]), stage + 1)
        again = self.generator.cost(dreams, self.noise(key, "again", count))
        share = 1 / (stage + 1)
        new, replayed = self.task(both[count:], y, stage), self.replay(both[:count], labels, stage)
        return share * (new + own) + (1 - share) * (replayed + again)

    def task(self, logits: Tensor, y: Tensor, stage: int) -> Tensor:
        if self.stream.head != "multi":
            return F.cross_entropy(logits, y)
        own = logits.split(self.sizes[: stage + 1], 1)[-1]
        return F.cross_entropy(own, y - sum(self.sizes[:stage]))

    def replay(self, student: Tensor, teacher: Tensor, stage: int) -> Tensor:
        if self.stream.head != "multi":
            return self.one_head(student, teacher)
        parts = zip(
            student.split(self.sizes[: stage + 1], 1)[:-1], teacher.split(self.sizes[:stage], 1),
            strict=True,
        )  # fmt: skip
        return torch.stack([self.one_head(new, old) for new, old in parts]).mean()

    def one_head(self, student: Tensor, teacher: Tensor) -> Tensor:
        """The student may have further classes, the new ones, behind the teacher's."""
        if not self.method.distill:
            return F.cross_entropy(student, teacher.argmax(1))
        target = torch.zeros_like(student)
        target[:, : teacher.shape[1]] = torch.softmax(teacher / 2, 1)
        return 4 * F.cross_entropy(student / 2, target)


def twins_of(
    method: DGR, kind: type[ScholarTwin], training: Any, *, model: str, multi: bool, together: bool
) -> Iterator[tuple[ScholarTwin, StageResult]]:  # fmt: skip
    """Each stage of two runs with tasks of unequal size, and the twin that is as far."""
    make = task_incremental if multi else class_incremental
    on: list[Stream] = [
        make(make_clouds(), order=list(order), classes_per_task=2) for order in ORDERS
    ]
    runs = [
        Run(stream=stream, method=method, model=SPLIT_MODELS[model], training=training, seed=seed)
        for seed, stream in enumerate(on)
    ]
    engine = Engine(runs, device="cpu", together=together)
    twins = []
    for run in runs:
        first: RunLearner = engine.learner(run)
        twin = kind(run.stream, training, run.seed, Plain(first, model == "normed"))
        twin.generator, twin.method = PlainVAE(first.params), method
        twin.sizes = [2] * len(run.stream)
        twins.append(twin)
    for stage in engine.stages():
        twins[stage.run].run(stage.stage)
        yield twins[stage.run], stage


def distance(twin: ScholarTwin, learner: RunLearner) -> float:
    return max(away(twin, learner), twin.generator.away(learner.params))
