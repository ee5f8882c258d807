"""The engine equals loops that were written by hand, alone and in lockstep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from engram.checks.toys import EXACT, MODELS, ORDERS, streams
from engram.engine.run import Engine, Stage
from engram.engine.run_spec import Run
from engram.engine.training import Training
from engram.learner.learner import Learner
from engram.memory import Memory
from engram.methods import ER, EWC, SI, Finetune
from engram.methods.base import Method
from tests.engine.twin import EWCTwin, Plain, ReplayTwin, SITwin, Twin

DECAYED = replace(EXACT, weight_decay=0.01, momentum=0.9)
ADAM = replace(EXACT, optimizer="adam", lr=0.01, weight_decay=0.01)
ADAMW = replace(ADAM, optimizer="adamw")


def away(twin: Twin, learner: Learner) -> float:
    """Largest difference between a twin and a learner, statistics included."""
    gaps = [float((a.detach() - b).abs().max()) for a, b in twin.net.pairs(learner.params)]
    if twin.net.norm is not None:
        for mine, theirs in (("running_mean", "mean"), ("running_var", "var")):
            other = learner.buffers[f"net.backbone.norm.{theirs}"]
            gaps.append(float((getattr(twin.net.norm, mine) - other).abs().max()))
    return max(gaps)


def beside(
    method: Method, kind: type[Twin], training: Training, *, model: str, together: bool
) -> Iterator[tuple[Twin, Stage]]:
    """Each stage of three runs, with the twin that has been trained as far."""
    runs = [
        Run(stream=stream, method=method, model=MODELS[model], training=training, seed=seed)
        for seed, stream in enumerate(streams())
    ]
    engine = Engine(runs, device="cpu", together=together)
    twins = [
        kind(run.stream, training, run.seed, Plain(engine.learner(run), model == "normed"))
        for run in runs
    ]
    for stage in engine.stages():
        twins[stage.run].run(stage.stage)
        yield twins[stage.run], stage


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
