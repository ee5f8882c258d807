"""Runs on features that stand still, with what plain code needs to do the same from all rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engram.checks.toy_runs import EXACT, make_streams
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.methods.method import Method
from engram.records.stage_result import StageResult
from engram.streams import Stream


class Backbone(nn.Module):
    """A small network, to be frozen."""

    def __init__(self, sample_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.features = 10
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(6, 10), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


FROZEN = {"name": Backbone, "freeze": True}


class Seen(NamedTuple):
    """A stage of a run, and the features of all rows that it has seen."""

    stage: StageResult
    z: Tensor  # [n, F] of the training rows of the tasks so far
    y: Tensor  # [n] their classes as columns
    rows: Tensor  # [n]
    test: Tensor  # [m, F] of the test rows of the tasks so far

    def scores(self, method: Method) -> Tensor:
        """What the method answers to the test rows, in full precision."""
        learner = self.stage.learner
        rows = torch.cat([t.test for t in learner.stream.tasks[: self.stage.stage + 1]])
        x = learner.feed(rows)
        return method.answer(learner.net(), x, learner.state, torch.tensor(-1)).logits

    @property
    def classes(self) -> int:
        return int(self.stage.learner.seen.sum())


def stages(
    method: Method, *, together: bool, model: Any = FROZEN, on: list[Stream] | None = None
) -> Iterator[Seen]:
    """All stages of a run on each stream; of one seed, which a frozen backbone follows."""
    runs = [
        Run(stream=stream, method=method, model=model, training=EXACT)
        for stream in on or make_streams()
    ]
    engine = Engine(runs, device="cpu", together=together)
    assert len(engine.groups()) == 1
    for stage in engine.stages():
        learner, done = stage.learner, stage.learner.stream.tasks[: stage.stage + 1]
        rows, tests = (torch.cat([getattr(t, k) for t in done]) for k in ("train", "test"))
        net = learner.net()
        z, test = (net(learner.feed(r)).features for r in (rows, tests))
        yield Seen(stage, z, learner.stream.targets[rows][:, 0], rows, test)
