from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import AccessError
from engram.methods.er_infinite import ERInfinite
from engram.methods.finetune import Finetune
from engram.methods.joint import Joint
from engram.streams import class_incremental, task_incremental
from tests.methods.rehearsal import (
    SGD,
    TINY,
    Normed,
    accuracy,
    clouds,
    final,
    lockstep_gap,
    spied,
    train,
)

STREAM = class_incremental(clouds())


def test_every_row_of_every_task_so_far_once_per_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spied(monkeypatch, Joint)
    stages = train(Joint(), STREAM, epochs=1)
    for stage in range(3):
        rows = sum(len(task.train) for task in STREAM.tasks[: stage + 1])
        found = torch.cat([batch.x for batch in seen.of(stage)])
        assert len(found) == rows == len(found.unique(dim=0))
    assert stages[-1].learner.ledger.count(2, "past") == sum(len(t.train) for t in STREAM.tasks[:2])


def test_joint_learns_what_finetuning_forgets() -> None:
    options = {"epochs": 20, "optimizer": "adam", "lr": 0.02, "precision": "float32"}
    assert accuracy(train(Joint(), STREAM, **options)[-1]) > 0.85
    assert accuracy(train(Finetune(), STREAM, **options)[-1]) < 0.5


def test_continue_carries_weights_on_and_scratch_does_not() -> None:
    short = {"epochs": 1, "batch_size": 0, "lr": 1e-6}
    for model in (TINY, Normed):
        fresh = Engine([Run(stream=STREAM, method=Joint(), model=model,
                            training=Training(**{**SGD, **short}))], device="cpu")  # fmt: skip
        initial = fresh.learner(fresh.runs[0])
        scratch = train(Joint(init="scratch"), STREAM, model=model, **short)[-1].learner
        assert (scratch.vector - initial.vector).abs().max() < 1e-4
        long = train(Joint(init="scratch"), STREAM, model=model)[-1].learner
        assert (long.vector - initial.vector).abs().max() > 0.01
        kept = long.state["initial"]
        assert torch.equal(kept["vector"], initial.vector)
        assert all(torch.equal(kept["buffers"][k], v) for k, v in initial.buffers.items())
        skipped = train(Joint(init="scratch", skip=2), STREAM, model=model)[-1].learner
        assert torch.equal(skipped.vector, long.vector)  # the last task is the same without others
    assert train(Joint(), STREAM)[-1].learner.state == {}
    assert not torch.equal(final(Joint(), STREAM), final(Joint(init="scratch"), STREAM))


def test_scratch_renews_the_optimiser() -> None:
    for reset in (True, False):
        options = {"optim_reset": reset, "epochs": 1, "batch_size": 0}
        assert train(Joint(init="scratch"), STREAM, **options)[-1].learner.opt["t"] == 1
    assert train(Joint(), STREAM, **options)[-1].learner.opt["t"] == 3


def test_scratch_equals_a_run_that_starts_with_all_tasks() -> None:
    """With full batches the last stage is one ordinary training on all rows."""
    tasks = STREAM.tasks
    merged = replace(tasks[0], new=STREAM.order, visible=(),
                     train=torch.cat([tasks[2].train, tasks[0].train, tasks[1].train]))  # fmt: skip
    single = replace(STREAM, tasks=(merged,))
    assert single.order == STREAM.order
    got = final(Joint(init="scratch"), STREAM, batch_size=0)
    expected = final(Finetune(), single, batch_size=0)
    assert (got - expected).abs().max() < 1e-12


def test_lockstep() -> None:
    assert lockstep_gap(Joint(init="scratch")) < 1e-10


def test_rows_go_through_their_own_head() -> None:
    stream = task_incremental(clouds())
    options = {"epochs": 20, "optimizer": "adam", "lr": 0.02, "precision": "float32"}
    assert accuracy(train(Joint(), stream, **options)[-1]) > 0.95
    assert lockstep_gap(Joint(), scenario=task_incremental) < 1e-10


def test_infinite_memory_sees_what_joint_sees() -> None:
    assert torch.equal(final(ERInfinite(), STREAM), final(Joint(), STREAM))
    paired = train(ERInfinite(mix="paired"), STREAM)[-1].learner
    assert len(paired.exemplars) == sum(len(task.train) for task in STREAM.tasks)
    assert lockstep_gap(ERInfinite(mix="paired", reduce="sum")) < 1e-10


def test_only_declared_methods_may_read_the_past() -> None:
    class Sly(Joint):
        reads = "own"

    with pytest.raises(AccessError, match="past"):
        train(Sly(), STREAM)
