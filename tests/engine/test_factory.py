"""Learners of several seeds share their skeletons, and have their own weights."""

from __future__ import annotations

import pytest
import torch

import engram
from engram.engine.factory import LearnerFactory
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.methods import DGR, Finetune


@pytest.mark.parametrize(("model", "method"), [
    ("resnet32", Finetune()), ("mlp", DGR()), ("cnn", Finetune()),
    ({"name": "cnn", "freeze": True}, Finetune()),
], ids=["batch norm", "generator", "convolutions", "frozen"])  # fmt: skip
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_another_seed_has_the_weights_that_it_has_alone(model, method, precision):
    stream = engram.class_incremental(engram.load("shapes", per_class=12), classes_per_task=5)
    runs = [
        Run(stream=stream, method=method, model=model, seed=seed,
            training=Training(batch_size=4, precision=precision))
        for seed in (0, 1)
    ]  # fmt: skip
    factory = LearnerFactory(torch.device("cpu"))
    first, second = (factory.learner(run) for run in runs)
    alone = LearnerFactory(torch.device("cpu")).learner(runs[1])
    assert torch.equal(second.vector, alone.vector)
    assert second.vector.dtype == alone.vector.dtype
    assert second.networks.start == alone.networks.start
    assert second.buffers.keys() == alone.buffers.keys()
    for name, value in alone.buffers.items():
        assert torch.equal(second.buffers[name], value)
        assert second.buffers[name].dtype == value.dtype
    rows = torch.arange(4)
    assert torch.equal(second.feed(rows), alone.feed(rows))
    assert not torch.equal(first.vector, second.vector)
