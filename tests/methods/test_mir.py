"""MIR against a loop in plain PyTorch."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engram import keys
from engram.errors import BadArgument
from engram.methods import MIR
from tests.engine.plain_loop import away, beside
from tests.engine.test_plain_loop import DECAYED
from tests.methods.plain_reservoirs import MEMORY, ReservoirTwin, Slot, same_memory

METHOD = MIR(candidates=40, size=3, memory=MEMORY)


@dataclass
class MIRTwin(ReservoirTwin):
    """Tries a step on a copy of the network, and adds the loss of the rows that it harms most."""

    candidates: int = 40
    size: int = 3

    def loss(self, rows: Tensor, stage: int, key: int) -> tuple[Tensor, Tensor]:
        used = self.net.in_use(stage + 1)
        own = F.cross_entropy(self.net(self.x(rows), stage + 1), self.y(rows))
        if not stage:
            return own, torch.zeros(len(rows))
        slopes = torch.autograd.grad(own, used, retain_graph=True)
        tried = copy.deepcopy(self.net)
        with torch.no_grad():
            for weight, slope in zip(tried.in_use(stage + 1), slopes, strict=True):
                weight -= self.training.lr * slope
            chosen = self.most_harmed(tried, stage, key)
        if chosen:
            mine = torch.tensor(chosen)
            loss = F.cross_entropy(self.net(self.x(mine), stage + 1), self.y(mine))
            own = own + loss
        return own, torch.zeros(len(rows))

    def most_harmed(self, tried: torch.nn.Module, stage: int, key: int) -> list[int]:
        drawn = self.drawn(stage, key, 0)
        x = self.x(torch.tensor([one.row for one in drawn]))
        y = self.y(torch.tensor([one.row for one in drawn]))
        now = copy.deepcopy(self.net)  # scoring moves no statistics
        harm = [F.cross_entropy(net(x, stage + 1), y, reduction="none") for net in (tried, now)]
        rise = {one: float(a - b) for one, a, b in zip(drawn, *harm, strict=True)}
        past = [one for one in sorted(rise, key=rise.__getitem__, reverse=True)
                if one.stage < stage]  # fmt: skip
        return [one.row for one in past[: self.size]]

    def drawn(self, stage: int, key: int, number: int) -> list[Slot]:
        where = keys.randint(keys.fold(key, "memory", number), len(self.slots), self.candidates)
        return [self.slots[i] for i in where.tolist()]


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["plain", "normed"])
def test_weights_and_memory_are_those_of_a_plain_loop(model, together):
    count = 0
    for twin, stage in beside(METHOD, MIRTwin, DECAYED, model=model, together=together):
        assert away(twin, stage.learner) < 1e-10
        assert same_memory(twin, stage.learner)
        count += 1
    assert count == 9


@dataclass
class Mild(MIRTwin):
    """Retrieves the least interfered rows."""

    def most_harmed(self, tried: torch.nn.Module, stage: int, key: int) -> list[int]:
        everything = MIRTwin(**{**vars(self), "size": self.candidates})
        return everything.most_harmed(tried, stage, key)[-self.size :]


def test_the_comparison_sees_which_rows_are_retrieved():
    pairs = beside(METHOD, Mild, DECAYED, model="plain", together=False)
    gaps = {(s.run, s.stage): away(t, s.learner) for t, s in pairs}
    assert all((gap > 1e-4) == bool(stage) for (_, stage), gap in gaps.items())


@pytest.mark.parametrize(
    "values", [{"candidates": 0}, {"size": 0}, {"size": 51}, {"lr": -1.0}, {"memory": 5}]
)
def test_bad_values(values):
    with pytest.raises(BadArgument, match=next(iter(values))):
        MIR(**values)
