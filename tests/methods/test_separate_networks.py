"""Separate networks against a loop that trains each task's network by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import engram
from engram.engine.engine import Engine
from engram.engine.evaluation import test_items as items_of
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.methods import SeparateNetworks
from engram.streams import task_incremental
from tests.methods.rehearsal import SGD, TINY, clouds, spied, train
from tests.refusals import refuses

STREAM = task_incremental(clouds(), classes_per_task=2)
LAYERS = ("backbone.lower.0.weight", "backbone.lower.0.bias", "head.weight", "head.bias")


def test_a_loop_over_networks_trains_the_same_weights(monkeypatch):
    seen = spied(monkeypatch, SeparateNetworks)
    run = Run(
        stream=STREAM, method=SeparateNetworks(), model=TINY, training=Training(**SGD, momentum=0.5)
    )
    start = Engine([run], device="cpu").learner(run)
    first = {name: weight.clone() for name, weight in start.params.items()}
    ended = train(SeparateNetworks(), STREAM, momentum=0.5)[-1].learner
    for stage in range(3):
        own = "net" if not stage else f"task{stage}"
        net = [first[f"{own}.{name}"].clone() for name in LAYERS]
        moved = [torch.zeros_like(one) for one in net]
        for batch in seen.of(stage):
            leaves = [one.clone().requires_grad_() for one in net]
            hidden = torch.relu(F.linear(batch.x, *leaves[:2]))
            logits = F.linear(hidden, *leaves[2:]).masked_fill(~STREAM.visible[stage], -torch.inf)
            slopes = torch.autograd.grad(F.cross_entropy(logits, batch.target), leaves)
            moved = [0.5 * old + slope for old, slope in zip(moved, slopes, strict=True)]
            net = [one - SGD["lr"] * step for one, step in zip(net, moved, strict=True)]
        for name, one in zip(LAYERS, net, strict=True):
            assert torch.allclose(ended.params[f"{own}.{name}"], one, rtol=0, atol=1e-9), name
    starts = [first[f"{own}.{LAYERS[0]}"] for own in ("net", "task1", "task2")]
    assert not any(torch.equal(starts[i], starts[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
def test_no_score_of_a_task_ever_changes(together):
    settings = Training(**{**SGD, "optimizer": "adamw", "weight_decay": 0.1})
    runs = [
        Run(stream=STREAM, method=SeparateNetworks(), model=TINY, training=settings, seed=seed)
        for seed in range(2)
    ]
    first: dict[tuple[int, int], np.ndarray] = {}
    for stage in Engine(runs, device="cpu", together=together).stages():
        tasks = items_of(stage.learner.stream)[1][: len(stage.scores)].numpy()
        for task in range(stage.stage + 1):
            own = stage.learner.stream.visible[task].numpy()
            found = stage.scores[tasks == task][:, own]
            assert np.array_equal(found, first.setdefault((stage.run, task), found))
    assert len(first) == 2 * len(STREAM)


def test_the_task_must_be_given():
    with refuses("stream"):
        engram.run(engram.class_incremental(clouds(), classes_per_task=2),
                   method=SeparateNetworks(), model=TINY, device="cpu")  # fmt: skip
