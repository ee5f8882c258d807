"""The engine equals loops that were written by hand, alone and in lockstep."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engram.checks.toys import EXACT, ORDERS, streams
from engram.engine.training import Training
from engram.memory import Memory
from engram.methods import ER, EWC, SI, Finetune
from engram.methods.base import Method
from tests.engine.twin import EWCTwin, ReplayTwin, SITwin, Twin, away, beside

DECAYED = replace(EXACT, weight_decay=0.01, momentum=0.9)
ADAM = replace(EXACT, optimizer="adam", lr=0.01, weight_decay=0.01)
ADAMW = replace(ADAM, optimizer="adamw")


def worst(method: Method, kind: type[Twin], training: Training, **how: object) -> float:
    gaps = [away(t, s.learner) for t, s in beside(method, kind, training, **how)]  # type: ignore[arg-type]
    assert len(gaps) == len(ORDERS) * 3
    return max(gaps)


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["plain", "normed"])
class TestFinetune:
    def test_sgd_with_momentum_and_decay(self, model, together):
        assert worst(Finetune(), Twin, DECAYED, model=model, together=together) < 1e-10

    @pytest.mark.parametrize("training", [ADAM, ADAMW], ids=["adam", "adamw"])
    def test_adam(self, model, together, training):
        assert worst(Finetune(), Twin, training, model=model, together=together) < 1e-8


def test_the_last_batches_are_unequal():
    sizes = {len(t.train) % EXACT.batch_size for s in streams() for t in s.tasks}
    assert len(sizes) > 3


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["plain", "normed"])
def test_replay(model, together):
    gaps = []
    for twin, stage in beside(ER(memory=Memory(total=12)), ReplayTwin, DECAYED, model=model,
                              together=together):  # fmt: skip
        gaps.append(away(twin, stage.learner))
        twin.past.append(stage.learner.exemplars.rows)  # which rows are kept is not the question
    assert max(gaps) < 1e-10


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["plain", "normed"])
def test_ewc(model, together):
    method = EWC(strength=EWCTwin.strength)
    assert worst(method, EWCTwin, EXACT, model=model, together=together) < 1e-10


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["plain", "normed"])
def test_si(model, together):
    method = SI(strength=SITwin.strength, xi=SITwin.xi)
    assert worst(method, SITwin, EXACT, model=model, together=together) < 1e-10


def test_a_twin_can_differ():
    """The comparison is not blind: without decay the twin ends elsewhere."""
    pairs = beside(Finetune(), Twin, DECAYED, model="plain", together=False)
    gaps = []
    for twin, stage in pairs:
        gaps.append(away(twin, stage.learner))
        twin.training = EXACT
    assert gaps[0] < 1e-10 < 1e-4 < max(gaps)
    assert all(torch.isfinite(torch.tensor(gaps)))
