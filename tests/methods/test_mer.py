"""MER against loops in plain PyTorch."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods import ER, MER
from tests.engine.plain_loop import away, beside
from tests.engine.test_plain_loop import DECAYED
from tests.methods import small
from tests.methods.plain_reservoirs import MEMORY, ReservoirTwin, rows_of, same_memory

METHOD = MER(batches=3, rate=0.2, beta=0.4, gamma=0.7, memory=MEMORY)


@dataclass
class MERTwin(ReservoirTwin):
    """Takes the inner steps on copies of the network, as the paper words them."""

    steps: int = 1

    def loss(self, rows: Tensor, stage: int, key: int) -> tuple[Tensor, Tensor]:
        used = self.net.in_use(stage + 1)
        with torch.no_grad():
            self.net(self.x(rows), stage + 1)  # running statistics follow the weights themselves
        now = copy.deepcopy(self.net)
        for number in range(METHOD.batches):
            before = copy.deepcopy(now)
            drawn = rows_of(self.drawn(stage, key, number)) if self.slots else rows[:0]
            for part in (*self.split(rows), *self.split(drawn)):
                self.descend(now, part, stage)
            self.go(before, now, METHOD.beta, stage)
            now = before
        self.go(end := copy.deepcopy(self.net), now, METHOD.gamma, stage)
        pairs = zip(used, end.in_use(stage + 1), strict=True)
        # a loss with the gradient (theta - theta') / rate
        away = sum((p * (p.detach() - q.detach()) / METHOD.rate).sum() for p, q in pairs)
        return away, torch.zeros(len(rows))

    def split(self, rows: Tensor) -> list[Tensor]:
        count = self.steps or len(rows)
        return [part for i in range(count) if len(part := rows[i::count])]

    def descend(self, net: torch.nn.Module, rows: Tensor, stage: int) -> None:
        used = net.in_use(stage + 1)
        loss = F.cross_entropy(net(self.x(rows), stage + 1), self.y(rows))
        with torch.no_grad():
            for weight, slope in zip(used, torch.autograd.grad(loss, used), strict=True):
                weight -= METHOD.rate * slope

    @torch.no_grad()
    def go(self, start: torch.nn.Module, end: torch.nn.Module, share: float, stage: int) -> None:
        for one, other in zip(start.in_use(stage + 1), end.in_use(stage + 1), strict=True):
            one += share * (other - one)


@dataclass
class InThrees(MERTwin):
    steps: int = 3


@dataclass
class RowByRow(MERTwin):
    steps: int = 0


KINDS = [
    (MERTwin, 1, "plain"),
    (MERTwin, 1, "normed"),
    (InThrees, 3, "plain"),
    (RowByRow, 0, "plain"),
]


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize(("kind", "steps", "model"), KINDS)
def test_weights_and_memory_are_those_of_a_plain_loop(kind, steps, model, together):
    count, method = 0, replace(METHOD, steps=steps)
    for twin, stage in beside(method, kind, DECAYED, model=model, together=together):
        assert away(twin, stage.learner) < 1e-10
        assert same_memory(twin, stage.learner)
        count += 1
    assert count == 9


def test_one_batch_and_whole_steps_at_a_small_rate_are_replay():
    """Without look-ahead the update is the sum of both gradients."""
    memory = Memory(total=30, policy="reservoir")
    ours = MER(batches=1, rate=1e-9, beta=1.0, memory=memory)
    other = ER(memory=memory, renew="step", reduce="sum")
    streams = small.stream()
    ends = [small.after(one, on=streams).vector for one in (ours, other)]
    assert float((ends[0] - ends[1]).abs().max()) < 1e-6


@pytest.mark.parametrize(
    "values",
    [{"batches": 0}, {"size": -1}, {"steps": -1}, {"rate": 0.0}, {"beta": 1.5}, {"gamma": 0.0},
     {"memory": 5}],
)  # fmt: skip
def test_bad_values(values):
    with pytest.raises(BadArgument, match=next(iter(values))):
        MER(**values)
