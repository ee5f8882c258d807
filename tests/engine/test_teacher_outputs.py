"""Where all steps of a task see the same batch, older networks answer it once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engram import methods
from engram.checks import toy_runs
from engram.engine.engine import Engine
from engram.engine.trainers.lockstep import LockstepTrainer
from engram.learner.networks import Net
from engram.methods import Join

WHOLE = replace(toy_runs.EXACT, batch_size=0, epochs=5)
TASKS = 3


def ends(method, monkeypatch, *, keeps=True, training=WHOLE):
    """Weights and losses after every stage, and how often older networks were asked."""
    asked, original = [], Net._evaluate
    monkeypatch.setattr(LockstepTrainer, "caches_teachers", keeps)
    monkeypatch.setattr(Net, "_evaluate", lambda *args: (asked.append(1), original(*args))[1])
    runs = toy_runs.make_runs(
        toy_runs.shrink_settings(method), toy_runs.make_streams()[:2], training=training
    )
    found = [
        (one.learner.vector.clone(), one.losses)
        for one in Engine(runs, device="cpu", together=True).stages()
    ]
    monkeypatch.setattr(Net, "_evaluate", original)
    return found, len(asked)


@pytest.mark.parametrize(
    ("method", "once"),
    [
        (methods.LwF(), True),
        (methods.ICaRL(), True),  # whose memory is part of the batch
        (Join(methods.LwF(), methods.EWC()), True),
        (Join(methods.LwF(), methods.SI()), False),  # which changes its state with every step
    ],
    ids=str,
)
def test_the_same_numbers_with_fewer_passes(method, once, monkeypatch):
    each, often = ends(method, monkeypatch, keeps=False)
    kept, seldom = ends(method, monkeypatch)
    assert often == (TASKS - 1) * WHOLE.epochs
    assert seldom == (TASKS - 1 if once else often)
    for (one, log), (two, other) in zip(each, kept, strict=True):
        assert torch.equal(one, two)
        assert log == other


def test_batches_that_change_are_answered_anew(monkeypatch):
    small = replace(WHOLE, batch_size=8, epochs=1)
    assert ends(methods.LwF(), monkeypatch, training=small)[1] > TASKS
