"""A learner whose number of tasks is not known makes networks of further tasks as they come."""

from __future__ import annotations

import numpy as np
import torch

from engram.deploy import Learner
from tests.deploy.test_deployed_learner import FAST, MODEL, engine_run, same, taught
from tests.methods.columns import Columns


def test_columns_come_with_their_tasks_as_the_engine_knows_them_in_advance(six, tmp_path):
    learner = taught(Learner(Columns(), MODEL, capacity=6, **FAST), six, [0, 1])
    assert [name for name in learner._portable.tensors if name.startswith("column2")] == []
    learner.save(tmp_path / "model.engram")
    again = Learner.load(tmp_path / "model.engram", device="cpu", method=Columns())
    assert same(learner, again)
    assert same(taught(learner, six, [2]), taught(again, six, [2]))
    last = engine_run(six[3], Columns()).learner
    for name, value in last.params.items():
        assert torch.equal(again._portable.tensors[name], value), name


def test_answers_are_predicted_exported_and_seen_by_detectors(six, tmp_path):
    learner = taught(Learner(Columns(), MODEL, capacity=6, **FAST), six, [0, 1])
    x = six[2]
    found = learner.predict_proba(x)
    parts = learner.snapshot.net()
    ready = learner.snapshot.prepare(x)
    logits = (parts(ready).logits + parts.column1(ready).logits)[:, learner.snapshot.columns]
    assert np.allclose(found, logits.softmax(-1).numpy(), atol=1e-6)
    assert learner.features(x).shape[1] == 2 * parts(ready).features.shape[1]
    shown = learner.snapshot.seen
    energy = torch.logsumexp(
        parts(ready).logits + parts.column1(ready).logits.masked_fill(~shown, -torch.inf), -1
    )
    assert np.allclose(-learner.novelty(x), energy.numpy(), rtol=1e-4)
    program = torch.export.load(learner.export(tmp_path / "model.pt2")).module()
    assert np.allclose(program(torch.as_tensor(x)).numpy(), found, atol=1e-6)
