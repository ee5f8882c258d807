"""ER-ACE against a loop in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import BadArgument
from engram.methods import ER, ERACE
from tests.engine.plain_loop import away, beside
from tests.engine.test_plain_loop import DECAYED
from tests.methods.plain_reservoirs import MEMORY, ReservoirTwin, rows_of, same_memory


@dataclass
class ERACETwin(ReservoirTwin):
    """One pass over memory and new rows; new rows know the classes of their batch only."""

    def loss(self, rows: Tensor, stage: int, key: int) -> tuple[Tensor, Tensor]:
        old = rows_of(self.drawn(stage, key, 0)) if self.slots else rows[:0]
        logits = self.net(self.x(torch.cat([old, rows])), stage + 1)
        memory, new = logits[: len(old)], logits[len(old) :]
        present = self.y(rows).unique()  # sorted: a label's place among them is its new name
        total = F.cross_entropy(new[:, present], torch.searchsorted(present, self.y(rows)))
        if len(old):
            total = total + F.cross_entropy(memory, self.y(old))
        return total, new.detach()


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["plain", "normed"])
def test_weights_and_memory_are_those_of_a_plain_loop(model, together):
    count = 0
    for twin, stage in beside(ERACE(memory=MEMORY), ERACETwin, DECAYED, model=model,
                              together=together):  # fmt: skip
        assert away(twin, stage.learner) < 1e-10
        assert same_memory(twin, stage.learner)
        count += 1
    assert count == 9


def test_plain_replay_differs_where_old_classes_are_pushed():
    method = ER(memory=MEMORY, renew="step", reduce="sum")
    pairs = beside(method, ERACETwin, DECAYED, model="plain", together=False)
    gaps = {(s.run, s.stage): away(t, s.learner) for t, s in pairs}
    assert all(gap > 1e-4 for (_, stage), gap in gaps.items() if stage)


@pytest.mark.parametrize("values", [{"size": -1}, {"memory": "many"}])
def test_bad_values(values):
    with pytest.raises(BadArgument, match=next(iter(values))):
        ERACE(**values)
