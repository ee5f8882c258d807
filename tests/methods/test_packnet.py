"""PackNet against a plain loop, and tasks that are not forgotten."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import engram
from engram.engine.engine import Engine
from engram.engine.evaluation import test_items as items_of
from engram.engine.portable_state import export_state
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.methods.packnet import PackNet
from engram.streams import task_incremental
from tests.methods.rehearsal import SGD, TINY, Normed, clouds, train
from tests.refusals import refuses

STREAM = task_incremental(clouds(), classes_per_task=2)
EXACT = {**SGD, "batch_size": 0, "momentum": 0.0}  # one step an epoch, whatever the order of rows


def test_a_plain_loop_packs_the_same_weights():
    stages = train(PackNet(share=0.5, retrain=3), STREAM, **EXACT)
    run = Run(stream=STREAM, method=PackNet(), model=TINY, training=Training(**EXACT))
    start = Engine([run], device="cpu").learner(run)
    weights = {name: one.clone() for name, one in start.params.items()}
    owner = {name: torch.zeros_like(one, dtype=torch.long) for name, one in weights.items()}
    data, inner = STREAM.data, "net.backbone.lower.0.weight"
    for stage, task in enumerate(STREAM.tasks):
        x, y = data.x[task.train].double(), STREAM.targets[task.train][:, 0]
        columns = STREAM.visible[stage]
        free = {name: stage == 0 or name.startswith("net.head") for name in weights}
        moves = {name: torch.full_like(one, float(free[name])) for name, one in weights.items()}
        owner[inner] = owner[inner].clamp(max=stage)
        moves[inner] = (owner[inner] == stage).double()
        for steps in (2, 3):
            for _ in range(steps):
                leaves = {name: one.clone().requires_grad_() for name, one in weights.items()}
                hidden = torch.relu(F.linear(x, leaves[inner], leaves["net.backbone.lower.0.bias"]))
                scores = F.linear(hidden, leaves["net.head.weight"], leaves["net.head.bias"])
                scores = scores.masked_fill(~columns, -torch.inf)
                slopes = torch.autograd.grad(F.cross_entropy(scores, y), list(leaves.values()))
                for (name, one), slope in zip(weights.items(), slopes, strict=True):
                    weights[name] = one - 0.05 * moves[name] * slope
            if steps == 2:
                own = (owner[inner] == stage).nonzero()
                sizes = weights[inner][tuple(own.T)].abs()
                gone = tuple(own[sizes.argsort()[: len(own) // 2]].T)
                weights[inner][gone], owner[inner][gone] = 0.0, stage + 1
                moves[inner][gone] = 0.0
    last = stages[-1].learner
    for name, one in last.params.items():
        assert torch.allclose(one, weights[name], atol=1e-12), name
    assert torch.equal(last.layout(last.state["owner"])[inner], owner[inner])


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", [TINY, Normed], ids=["plain", "normed"])
def test_no_score_of_a_task_ever_changes(together, model):
    """Not by a bit, in other orders of tasks beside it, with normalisation and dropout."""
    others = task_incremental(clouds(), order=[5, 1, 3, 0, 4, 2], classes_per_task=2)
    runs = [
        Run(stream=stream, method=PackNet(share=share), model=model, training=Training(**SGD))
        for stream, share in ((STREAM, 0.5), (others, 0.5), (STREAM, 0.75))
    ]
    first: dict[tuple[int, int], np.ndarray] = {}
    for stage in Engine(runs, device="cpu", together=together).stages():
        tasks = items_of(stage.learner.stream)[1][: len(stage.scores)].numpy()
        for task in range(stage.stage + 1):
            own = stage.learner.stream.visible[task].numpy()
            found = stage.scores[tasks == task][:, own]
            kept = first.setdefault((stage.run, task), found)
            assert np.array_equal(found, kept)
    assert len(first) == 9


def test_scores_hold_with_the_task_given_only(tmp_path):
    """Records have the multi-head view alone, and refuse the other one by name."""
    out = tmp_path / "run"
    engram.run(STREAM, method=PackNet(), model=TINY, epochs=1, device="cpu", out=out)
    result = engram.read(out)
    assert set(result.frame()["head"]) <= {"", "multi"}
    assert (result.metric("forgetting") == 0).all()
    kept = result.predictions.get(*result.runs[0], 2)
    with refuses("head"):
        kept.predicted(result.items(result.runs[0].recipe, result.runs[0].order), head="single")


def test_refused_where_the_task_is_not_given_or_novelty_is_asked_for():
    single = engram.class_incremental(clouds(), classes_per_task=2)
    with refuses("stream"):
        engram.run(single, method=PackNet(), model=TINY, device="cpu")
    with refuses("stream"):
        engram.run(STREAM, method=PackNet(), model=TINY, detectors=["Energy"], device="cpu")


def test_a_deployed_model_is_told_the_task():
    stages = train(PackNet(share=0.5), STREAM, model=TINY)
    run = Run(stream=STREAM, method=PackNet(share=0.5), model=TINY, training=Training(**SGD))
    made = {"method": {"name": "PackNet", "share": 0.5}, "model": TINY, "training": dict(SGD)}
    learner = engram.Learner.from_portable(
        export_state(stages[-1].learner, run), made, device="cpu"
    )
    for task, one in enumerate(STREAM.tasks):
        x = STREAM.data.x[one.test]
        scores = learner.snapshot.scores(x, task)
        rows = items_of(STREAM)[1] == task
        own = STREAM.visible[task]
        wanted = torch.as_tensor(stages[-1].scores)[rows][:, own]
        assert torch.allclose(scores[:, own], wanted, atol=1e-6)
        assert np.isfinite(learner.novelty(x, detector="Energy", task=task)).all()
    with refuses("task"):
        learner.predict(x)
    with refuses("task"):
        learner.features(x)
