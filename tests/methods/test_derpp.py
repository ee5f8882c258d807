"""DER++ against a loop in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import BadArgument
from engram.methods import DERpp
from engram.per_run import PerRun
from tests.engine.plain_loop import away, beside
from tests.engine.test_plain_loop import DECAYED
from tests.methods.plain_reservoirs import MEMORY, ReservoirTwin, rows_of, same_memory


@dataclass
class DERppTwin(ReservoirTwin):
    """Three passes: the rows, a draw with its logits, another draw with its labels."""

    alpha: PerRun = 0.3
    beta: PerRun = 0.7
    every: bool = True  # outputs of classes to come are compared, too

    def loss(self, rows: Tensor, stage: int, key: int) -> tuple[Tensor, Tensor]:
        every, seen = len(self.net.heads), int((self.stream.opening <= stage).sum())
        logits = self.net(self.x(rows), every)
        total = F.cross_entropy(logits[:, :seen], self.y(rows))
        if self.slots:
            dark, labelled = self.drawn(stage, key, 0), self.drawn(stage, key, 1)
            compared = None if self.every else seen
            then = torch.stack([one.value for one in dark])[:, :compared]
            now = self.net(self.x(rows_of(dark)), every)[:, :compared]
            total = total + self.alpha * F.mse_loss(now, then)
            other = rows_of(labelled)
            answer = self.net(self.x(other), stage + 1)
            total = total + self.beta * F.cross_entropy(answer, self.y(other))
        return total, logits.detach()


@dataclass
class Seen(DERppTwin):
    every: bool = False


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["plain", "normed"])
def test_weights_memory_and_logits_are_those_of_a_plain_loop(model, together):
    method = DERpp(alpha=0.3, beta=0.7, memory=MEMORY)
    count = 0
    for twin, stage in beside(method, DERppTwin, DECAYED, model=model, together=together):
        learner = stage.learner
        assert away(twin, learner) < 1e-10
        assert same_memory(twin, learner)
        kept = torch.stack([one.value for one in twin.slots])
        assert (kept - learner.values["logits"]).abs().max() < 1e-10
        assert learner.memory_bytes() == len(kept) * (24 + 8 * kept.shape[1])
        count += 1
    assert count == 9


def test_a_twin_that_forgets_its_logits_differs():
    """The comparison sees the logits' term: DER++ is not replay with labels."""
    method = DERpp(alpha=0.0, beta=0.7, memory=MEMORY)
    gaps = [away(t, s.learner) for t, s in
            beside(method, DERppTwin, DECAYED, model="plain", together=False)]  # fmt: skip
    assert min(gaps) > 1e-4


def test_a_distance_over_classes_seen():
    method = DERpp(alpha=0.3, beta=0.7, memory=MEMORY, outputs="seen")
    for one, least, most in ((Seen, 0.0, 1e-10), (DERppTwin, 1e-5, 1.0)):
        pairs = beside(method, one, DECAYED, model="plain", together=False)
        gap = max(away(twin, stage.learner) for twin, stage in pairs)
        assert least <= gap < most


def test_der_is_der_without_labels():
    terms = []
    for _, stage in beside(DERpp(beta=0.0, memory=MEMORY), DERppTwin, DECAYED, model="plain",
                           together=False):  # fmt: skip
        terms += [found for _, found in stage.losses]
    assert all(found["memory"] == 0 for found in terms)
    assert any(found["logits"] > 0 for found in terms)


@pytest.mark.parametrize(
    "values", [{"alpha": -1.0}, {"beta": -0.1}, {"size": -1}, {"memory": 5}, {"outputs": "own"}]
)
def test_bad_values(values):
    with pytest.raises(BadArgument, match=next(iter(values))):
        DERpp(**values)
