"""Small data, small networks and short runs for tests of rehearsal and distillation methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engram.data.dataset import Data
from engram.engine.engine import Engine
from engram.engine.evaluation import test_items as items_of
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.learner.batch import Batch
from engram.learner.objectives import cross_entropy
from engram.methods.method import Method
from engram.models.forward_pass import Output
from engram.records.stage_result import StageResult
from engram.streams import Stream, class_incremental

SIZES = (31, 12, 24, 17, 28, 9)  # training rows per class, so that tasks differ in size
ORDERS = ((0, 1, 2, 3, 4, 5), (5, 1, 3, 0, 4, 2), (2, 4, 5, 3, 1, 0))
TINY = {"name": "mlp", "hidden": (10,)}
SGD = {"optimizer": "sgd", "lr": 0.05, "epochs": 2, "batch_size": 16, "precision": "float64"}


def clouds(seed: int = 0) -> Data:
    """Six well separated classes in five dimensions, of unequal size, ten test rows each."""
    rng = np.random.default_rng(seed)
    centres = 3 * rng.standard_normal((len(SIZES), 5))

    def drawn(sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        y = np.repeat(np.arange(len(sizes)), sizes)
        return (centres[y] + rng.standard_normal((len(y), 5))).astype(np.float32), y

    return Data.from_arrays(*drawn(SIZES), test=drawn([10] * len(SIZES)))


class Normed(nn.Module):
    """A network with batch normalisation and dropout."""

    def __init__(self, sample_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(sample_shape[0], 8), nn.BatchNorm1d(8)
        self.drop, self.features = nn.Dropout(0.5), 8

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(torch.relu(self.norm(self.first(x))))
        return out


def train(
    method: Method, stream: Stream, *, seed: int = 0, model: Any = TINY, unseen: bool = False,
    **training: Any,
) -> list[StageResult]:  # fmt: skip
    """The stages of one run."""
    run = Run(stream=stream, method=method, model=model, seed=seed, unseen=unseen,
              training=Training(**{**SGD, **training}))  # fmt: skip
    return list(Engine([run], device="cpu", together=False).stages())


def final(method: Method, stream: Stream, **options: Any) -> Tensor:
    return train(method, stream, **options)[-1].learner.vector


def accuracy(stage: StageResult) -> float:
    """Mean over tasks of the accuracy after a stage, in the stream's own view."""
    stream = stage.learner.stream
    rows, stages = items_of(stream)
    scores = torch.as_tensor(stage.scores)
    if stream.head == "multi":
        scores = scores.masked_fill(~stream.visible[stages], -torch.inf)
    right = scores.argmax(1) == stream.targets[rows][:, 0]
    return float(np.mean([right[stages == k].double().mean() for k in range(len(stream))]))


def lockstep_gap(
    methods: Method | Sequence[Method], *, scenario: Callable[..., Stream] = class_incremental,
    model: Any = TINY, **training: Any,
) -> float:  # fmt: skip
    """Largest difference in parameters, over all stages, between lockstep and one run at a time."""
    chosen = [methods] * len(ORDERS) if isinstance(methods, Method) else methods
    data, settings = clouds(), Training(**{**SGD, **training})
    runs = [
        Run(stream=scenario(data, order=order), method=method, model=model, seed=seed,
            training=settings)
        for seed, (order, method) in enumerate(zip(ORDERS, chosen, strict=True))
    ]  # fmt: skip
    together, alone = ({}, {})
    for found, mode in ((together, True), (alone, False)):
        engine = Engine(runs, device="cpu", together=mode)
        if mode and len(engine.groups()) != 1:
            raise AssertionError("the runs do not train together")
        for stage in engine.stages():
            found[stage.run, stage.stage] = stage.learner.vector.clone(), stage.scores
    gaps = [
        max(float((together[k][0] - alone[k][0]).abs().max()),
            float(np.abs(together[k][1] - alone[k][1]).max()) * 1e-4)  # scores are float32
        for k in alone
    ]  # fmt: skip
    return max(gaps)


@dataclass
class Seen:
    """What a method's loss was given, batch by batch."""

    batches: list[Batch]
    terms: list[dict[str, float]]

    def of(self, stage: int) -> list[Batch]:
        return [batch for batch in self.batches if int(batch.now) == stage]

    def values(self, name: str, stage: int) -> list[float]:
        pairs = zip(self.batches, self.terms, strict=True)
        return [terms[name] for batch, terms in pairs if int(batch.now) == stage]


def spied(monkeypatch: Any, kind: type[Method]) -> Seen:
    """Note every batch and every loss of a method (single runs only)."""
    seen, loss = Seen([], []), kind.loss

    def noting(self: Any, net: Any, batch: Batch, state: Any) -> Any:
        terms = loss(self, net, batch, state)
        seen.batches.append(batch)
        seen.terms.append({name: float(term.detach()) for name, term in terms.items()})
        return terms

    monkeypatch.setattr(kind, "loss", noting)
    return seen


class FakeNet:
    """Logits that are given, with cross-entropy as the objective."""

    def __init__(self, logits: Tensor, teacher: Tensor | None = None) -> None:
        self.logits, self.teacher, self.weights = logits, teacher, None

    def __call__(self, x: Tensor, w: Tensor | None = None) -> Output:
        self.weights = w if self.weights is None else self.weights
        return Output(x, self.logits)

    def task(self, batch: Batch) -> Tensor:
        return cross_entropy(self(batch.x, batch.w).logits, batch)

    def frozen(self, snapshot: Any) -> Callable[[Tensor], Output]:
        return lambda x: Output(x, self.teacher)  # type: ignore[arg-type]


def batch_of(
    labels: Sequence[int], *, opened: Sequence[int], now: int, old: Sequence[int] | None = None
) -> Batch:
    """A batch without inputs; every opened class competes for every row."""
    count, table = len(labels), torch.tensor(opened)
    marks = torch.tensor(list(old) if old else [0] * count, dtype=torch.float64)
    return Batch(
        x=torch.zeros(count, 1, dtype=torch.float64), y=torch.tensor(labels)[:, None],
        w=torch.ones(count, dtype=torch.float64), stage=torch.full((count,), now), old=marks,
        open=(table >= 0).expand(count, -1), slot=torch.full((count,), -1),
        opened=table, now=torch.tensor(now),
        key=torch.tensor(0),
    )  # fmt: skip


def logits_for(losses: Sequence[float]) -> Tensor:
    """[B, 2] logits whose cross-entropy at label 0 is as given."""
    margin = -torch.log(torch.expm1(torch.tensor(losses, dtype=torch.float64)))
    return torch.stack([margin, torch.zeros_like(margin)], 1)
