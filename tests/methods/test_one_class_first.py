"""A first task of one class: nothing to learn from, nothing that may break, and then 1 / k."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engram.checks import toy_runs
from engram.checks.toy_runs import EXACT, MODELS
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.methods import DGR, EWC, LGR, SI, Finetune, LatentReplay, OnlineEWC
from engram.streams import class_incremental

STREAM = class_incremental(toy_runs.make_clouds((20,) * 5), classes_per_task=1)


def run_of(method, **changes) -> Run:
    training = replace(EXACT, optimizer="adam", lr=0.01, epochs=8, **changes)
    return Run(stream=STREAM, method=method, model=MODELS["normed"], training=training)


@pytest.mark.parametrize("method", [EWC(), OnlineEWC(), SI()], ids=lambda m: type(m).__name__)
def test_no_loss_no_gradient_no_importance(method):
    run = run_of(method)
    fresh = Engine([run], device="cpu").learner(run)
    first = next(iter(Engine([run], device="cpu").stages()))
    assert all(terms["task"] == 0 for _, terms in first.losses)
    assert torch.equal(first.learner.vector, fresh.vector)
    assert (first.learner.state["importance"] == 0).all()
    assert toy_runs.accuracies(toy_runs.copy_stage(first)) == [1.0]


@pytest.mark.parametrize(
    "method",
    [Finetune(), EWC(), SI(), DGR(), LGR(root="none"), LatentReplay(root="none")],
    ids=lambda m: type(m).__name__,
)
def test_all_numbers_are_numbers(method):
    for after in toy_runs.train_runs([run_of(toy_runs.shrink_settings(method))]).values():
        assert after.diverged < 0
        assert toy_runs.all_finite((after.tensors, torch.as_tensor(after.scores)))


@pytest.mark.parametrize("method", [Finetune(), EWC(strength=0.1), SI(strength=0.1)], ids=str)
def test_the_lower_bound_is_one_of_k(method):
    for (_, stage), after in toy_runs.train_runs([run_of(method)]).items():
        found = toy_runs.accuracies(after)
        assert sum(found) / len(found) == pytest.approx(1 / (stage + 1), abs=0.02)
