"""First-session adaptation against a hand-written loop and plain nearest means."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from engram.engine.engine import Engine
from engram.methods import APER
from engram.models.forward_pass import Output
from tests.engine.plain_loop import Twin, away, beside
from tests.engine.test_plain_loop import DECAYED
from tests.methods.fixed_features import FROZEN, stages
from tests.plain.closed_forms import nearest_mean
from tests.refusals import refuses


@dataclass
class APERTwin(Twin):
    """Trains the first task; keeps the network it began with, and every row's features."""

    features: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begun = copy.deepcopy(self.net).eval()

    def run(self, stage: int) -> None:
        if stage == 0:
            super().run(0)
        self.net.eval()
        rows = self.stream.tasks[stage].train
        self.features.append(self.of(rows))
        self.labels.append(self.y(rows))

    @torch.no_grad()
    def of(self, rows: Tensor) -> Tensor:
        found = []
        for net in (self.begun, self.net):
            h = net.trunk(self.x(rows).flatten(1))
            found.append(torch.relu(h if net.norm is None else net.norm(h)))
        return torch.cat(found, 1)


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["plain", "normed"])
def test_scores_are_those_of_both_networks(model, together):
    method, count = APER(), 0
    for twin, stage in beside(method, APERTwin, DECAYED, model=model, together=together):
        learner = stage.learner
        assert away(twin, learner) < 1e-10
        rows = learner.stream.tasks[0].test
        wanted = nearest_mean(torch.cat(twin.features), torch.cat(twin.labels), twin.of(rows))
        net, x = learner.net(), learner.feed(rows)
        found = method.answer(net, x, learner.state, torch.tensor(-1))
        assert isinstance(found, Output)
        assert (found.features - twin.of(rows)).abs().max() < 1e-10
        assert (found.logits[:, : wanted.shape[1]] - wanted + 1).abs().max() < 1e-9
        count += 1
    assert count == 9


def test_a_frozen_backbone_is_refused(monkeypatch):
    started = []
    monkeypatch.setattr(Engine, "_own_scores", lambda *_: started.append(1) or iter(()))
    with refuses("model"):
        list(stages(APER(), together=False, model=FROZEN))
    assert not started


def test_bad_values():
    with refuses("distance"):
        APER(distance="manhattan")
