"""What counts as divergence, and what does not: alone, in lockstep, and after a resume."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import engram
from engram.engine import checkpoints as checkpoint
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.experiments import Callback
from engram.methods import ER, EWC, Finetune, LwF
from engram.methods.method import Method
from engram.per_run import PerRun

TOGETHER = pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])


def stream():
    return engram.class_incremental(engram.load("blobs"), classes_per_task=2)


class Counting(Callback):
    """Counts runs that were finished before and stages that were trained."""

    def __init__(self):
        self.before = self.stages = 0

    def begin(self, plans, done):
        self.before = done

    def stage(self, plan, stage, rows):
        self.stages += 1


def run(method, **options):
    options = {"seeds": 2, "epochs": 3, "device": "cpu"} | options
    return engram.run(stream(), method=method, **options)


@TOGETHER
@pytest.mark.parametrize("method", [Finetune(), ER()], ids=["Finetune", "ER"])
def test_a_loss_beyond_all_measure_is_divergence(method, together):
    result = run(method, lr=1e10, together=together)
    frame = result.frame()
    losses = frame.loc[frame["metric"] == "loss/task", "value"]
    assert np.isfinite(losses).all()  # nothing overflowed
    assert losses.max() > 1e20
    assert len(result.diverged) == len(result) == 2
    assert np.isnan(result.metric("average_accuracy")).all()
    assert np.isnan(result.metric("forgetting")).all()


@TOGETHER
@pytest.mark.parametrize("strength", [1e6, 1e12])
def test_a_large_penalty_is_sound(strength, together):
    result = run(EWC(strength=strength), lr=0.01, together=together)
    frame = result.frame()
    largest = frame.loc[frame["metric"] == "loss/penalty", "value"].max()
    assert largest > (1e7 if strength == 1e12 else 1)
    assert not result.diverged
    assert np.isfinite(result.metric("average_accuracy")).all()


@TOGETHER
@pytest.mark.parametrize("seeds", [2, 40])
def test_a_diverged_run_is_finished(seeds, together, tmp_path):
    """It is not tried again, unless that is asked for, and whoever asks for it is told."""
    if seeds > 2 and not together:
        pytest.skip("large groups train together")
    few = {"seeds": seeds, "together": together, "lr": 1e10, "epochs": 1, "out": tmp_path}
    first = run(Finetune(), **few)
    assert len(first.diverged) == seeds
    trained = Counting()
    with pytest.warns(UserWarning, match=f"{seeds} runs diverged before.*--rerun"):
        again = run(Finetune(), callback=trained, **few)
    assert (trained.before, trained.stages) == (seeds, 0)
    assert again.diverged == first.diverged
    trained = Counting()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(Finetune(), callback=trained, rerun=True, **few)
    assert (trained.before, trained.stages) == (0, sum(at + 1 for at in first.diverged.values()))


@dataclass(frozen=True, kw_only=True)
class Loud(Method):
    """Counts in very small units, as a sum over all pixels does."""

    factor: PerRun = 1e12

    def loss(self, net, batch, state):
        return {"task": self.factor * net.task(batch)}


@TOGETHER
def test_a_loss_in_small_units_is_sound(together):
    result = run(Loud(), together=together)
    frame = result.frame()
    assert frame.loc[frame["metric"] == "loss/task", "value"].min() > 1e9
    assert not result.diverged


def test_a_strong_term_that_begins_later_is_sound():
    assert not run(LwF(strength=1e11)).diverged


@dataclass(frozen=True, kw_only=True)
class Thrown(Method):
    """Throws the weights away as soon as the first task is learnt."""

    by: PerRun = 1e12

    def finish(self, learner, task):
        learner.vector = learner.vector * self.by


@TOGETHER
def test_the_measure_is_that_of_the_first_stage(together):
    """A stage that begins beyond all measure is no measure of itself."""
    result = run(Thrown(), together=together)
    assert set(result.diverged.values()) == {1}


def stages(method, *, seeds=(0, 1), together=True, **options):
    training = Training(epochs=3, **options)
    runs = [
        Run(stream=stream(), method=method, model="mlp", training=training, seed=seed)
        for seed in seeds
    ]
    return list(Engine(runs, device="cpu", together=together).stages())


def test_the_measure_survives_a_checkpoint(tmp_path):
    one = stages(Finetune(), seeds=[0])[0].learner
    assert set(one.units) == {"task"}
    checkpoint.save_checkpoint(one, tmp_path)
    fresh = stages(Finetune(), seeds=[0])[0].learner
    fresh.units = {}
    checkpoint.load_checkpoint(fresh, tmp_path, range(one.stage + 1))
    assert fresh.units == one.units


@dataclass(frozen=True, kw_only=True)
class Answer(Method):
    """Multiplies its scores, or replaces some from the second task on."""

    factor: PerRun = 1.0
    instead: PerRun = 0.0
    column: int = -1  # none
    late: bool = True

    def start(self, learner, task):
        now = torch.tensor(float(learner.stage > 0 or not self.late))
        learner.state = {"now": now.to(learner.device)}

    def answer(self, net, x, state, stage):
        output = net(x)
        scores = output.logits * self.factor
        chosen = torch.arange(scores.shape[-1], device=scores.device) == self.column
        broken = torch.where(chosen, self.instead, scores)
        return output._replace(logits=torch.where(state["now"] > 0, broken, scores))


@TOGETHER
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_scores_that_are_no_numbers_are_divergence(value, together):
    result = run(Answer(instead=value, column=1), together=together)
    assert set(result.diverged.values()) == {1}
    assert np.isnan(result.metric("average_accuracy")).all()


def test_scores_that_are_no_numbers_leave_no_curve():
    result = run(Answer(instead=float("nan"), column=1), evaluate_every=1, together=False)
    curve = result.frame().query("metric == 'accuracy' and step >= 0")
    assert set(curve["stage"]) == {0}


def test_a_class_that_is_ruled_out_is_sound():
    result = run(Answer(instead=float("-inf"), column=1))
    assert not result.diverged
    classes = result.class_accuracy()
    assert (result.full_matrix[:, -1, 0] <= 0.5).all(), classes


def test_scores_of_classes_that_are_not_open_do_not_matter():
    last = len(engram.load("blobs").classes) - 1
    result = run(Answer(instead=float("nan"), column=last, late=False))
    assert set(result.diverged.values()) == {len(stream()) - 1}  # where the class is opened


@TOGETHER
@pytest.mark.parametrize("factor", [1e-20, 1e6, 1e20])
def test_the_scale_of_scores_does_not_matter(factor, together, tmp_path):
    plain = run(Answer(), together=together)
    scaled = run(Answer(factor=factor), together=together, out=tmp_path)
    np.testing.assert_array_equal(scaled.full_matrix, plain.full_matrix)
    assert plain.metric("average_accuracy").min() > 0.15
    again = engram.read(tmp_path).recompute()
    np.testing.assert_array_equal(again.full_matrix, plain.full_matrix)
    assert np.isfinite(scaled.calibration()).all()
