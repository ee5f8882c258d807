"""SupSup against a plain loop; random weights that never move, tasks that are not forgotten."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import engram
from engram.engine.engine import Engine
from engram.engine.evaluation import test_items as items_of
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.methods import SupSup
from engram.methods.supsup import choose_largest
from engram.streams import task_incremental
from tests.methods.rehearsal import SGD, TINY, Normed, clouds, train
from tests.refusals import refuses

STREAM = task_incremental(clouds(), classes_per_task=2)
EXACT = {**SGD, "batch_size": 0, "momentum": 0.0, "epochs": 4, "lr": 1.0}


def draw(stage, place, *shape):
    drawn = engram.keys.uniform(engram.keys.fold(0, "scores", stage, place), *shape)
    return ((2 * drawn - 1) / math.sqrt(shape[1])).double()


def largest(scores, count):
    """The places of the largest |scores| of a row."""
    order = scores.abs().argsort(descending=True)
    return torch.zeros_like(scores).index_fill(0, order[:count], 1.0)


def test_a_plain_loop_learns_the_same_masks():
    last = train(SupSup(share=0.3), STREAM, **EXACT)[-1].learner
    run = Run(stream=STREAM, method=SupSup(), model=TINY, training=Training(**EXACT))
    start = Engine([run], device="cpu").learner(run).params
    inner = start.backbone.lower["0.weight"].sign() * math.sqrt(2 / 5)
    head = start.head.weight.sign() * math.sqrt(2 / 10)
    names = [f"net.{one}.weight" for one in ("backbone.lower.0", "head")]
    moved = 0
    for stage, task in enumerate(STREAM.tasks):
        x, y = STREAM.data.x[task.train].double(), STREAM.targets[task.train][:, 0]
        own = slice(2 * stage, 2 * stage + 2)
        scores = [draw(stage, 0, 10, 5), draw(stage, 1, 6, 10)]
        first = scores[0]
        for step in range(5):
            masks = [
                largest(scores[0].flatten(), 15).view(10, 5),
                torch.stack([largest(row, 3) for row in scores[1]]),
            ]
            if step == 4:
                break
            used = [one.clone().requires_grad_() for one in masks]
            hidden = torch.relu(F.linear(x, inner * used[0]))
            cost = F.cross_entropy(F.linear(hidden, head[own] * used[1][own]), y - 2 * stage)
            slopes = torch.autograd.grad(cost, used)
            scores = [one - s * one.sign() for one, s in zip(scores, slopes, strict=True)]
        moved += int((masks[0] != largest(first.flatten(), 15).view(10, 5)).sum())
        kept = [last.state["masks"][name][stage] for name in names]
        assert torch.equal(kept[0].double(), masks[0])
        assert torch.equal(kept[1][own].double(), masks[1][own])
    assert moved > 0
    assert torch.allclose(last.params["net.backbone.lower.0.weight"], inner)
    assert torch.allclose(last.params["net.head.weight"], head)
    assert float(last.params["net.head.bias"].abs().max()) == 0.0


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", [TINY, Normed], ids=["plain", "normed"])
def test_no_score_of_a_task_ever_changes(together, model):
    """Not by a bit, in other orders of tasks beside it, with normalisation and dropout."""
    others = task_incremental(clouds(), order=[5, 1, 3, 0, 4, 2], classes_per_task=2)
    runs = [
        Run(stream=stream, method=SupSup(), model=model, training=Training(**SGD))
        for stream in (STREAM, others)
    ]
    first: dict[tuple[int, int], np.ndarray] = {}
    for stage in Engine(runs, device="cpu", together=together).stages():
        tasks = items_of(stage.learner.stream)[1][: len(stage.scores)].numpy()
        for task in range(stage.stage + 1):
            own = stage.learner.stream.visible[task].numpy()
            found = stage.scores[tasks == task][:, own]
            kept = first.setdefault((stage.run, task), found)
            assert np.array_equal(found, kept)
    assert len(first) == 6


def test_statistics_follow_the_masked_pass():
    """They go on from task to task, with masks that do not move."""
    settings = {"lr": 1e-30, "epochs": 3, "batch_size": 0}
    learner = train(SupSup(), STREAM, model=Normed, **settings)[-1].learner
    mean, layer = torch.zeros(8).double(), "net.backbone.first.weight"
    for task, mask in zip(STREAM.tasks, learner.state["masks"][layer], strict=True):
        x = STREAM.data.x[task.train].double()
        for _ in range(3):
            mean = 0.9 * mean + 0.1 * F.linear(x, learner.params[layer] * mask).mean(0)
    assert torch.allclose(learner.buffers["net.backbone.norm.mean"], mean, rtol=0, atol=1e-12)


def test_masks_hold_a_share():
    sizes = torch.rand(6, 4, 5, generator=torch.Generator().manual_seed(0))
    assert int(choose_largest(sizes, 0.25).sum()) == 30
    assert choose_largest(sizes, 0.25, by_row=True).flatten(1).sum(1).tolist() == [5] * 6
    assert int(choose_largest(sizes, 1e-6).sum()) == 1
    assert bool(choose_largest(sizes, 1.0).all())


def test_bad_use():
    with refuses("share"):
        SupSup(share=1.5)
    with refuses("stream"):
        engram.run(engram.class_incremental(clouds(), classes_per_task=2), method=SupSup(),
                   model=TINY, device="cpu")  # fmt: skip
