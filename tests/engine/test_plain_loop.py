"""The engine equals loops that were written by hand, alone and in lockstep."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import engram
from engram.checks.toy_runs import EXACT, ORDERS, make_streams
from engram.data import Data
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.memory import Memory
from engram.methods import ER, EWC, SI, Finetune
from engram.methods.method import Method
from tests.engine.plain_loop import EWCTwin, ReplayTwin, SITwin, Twin, away, beside

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
    sizes = {len(t.train) % EXACT.batch_size for s in make_streams() for t in s.tasks}
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


def test_crops_change_the_order_in_memory_and_nothing_else():
    """A cropped batch has its channels last, and so has the gradient of a kernel."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(48, 3, 8, 8, generator=generator)
    y = torch.arange(48) % 2
    data = Data.from_arrays(x, y.numpy(), test=(x[:4], y[:4].numpy()))
    stream = engram.class_incremental(data, classes_per_task=2)
    for optimizer in ("sgd", "adam"):
        training = Training(
            batch_size=8, augment=("crop",), precision="float64", optimizer=optimizer
        )
        run = Run(
            stream=stream, method=Finetune(), model={"name": "lenet", "padding": 2, "hidden": 4},
            training=training,
        )  # fmt: skip
        ends = []
        for together in (False, True):
            engine = Engine([run, replace(run, seed=1)], device="cpu", together=together)
            ends.append([s.learner.vector.clone() for s in engine.stages()])
        close = 1e-12 if optimizer == "sgd" else 1e-6
        assert max(float((a - b).abs().max()) for a, b in zip(*ends)) < close
