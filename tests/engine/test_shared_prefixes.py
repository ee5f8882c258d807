"""Sharing what equal beginnings have in common changes no number."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import engram
from engram.engine.engine import Engine, SharedPrefixes
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.streams import reorder

ORDERS = list(itertools.permutations(range(3)))


def runs(method: engram.Method) -> list[Run]:
    data = engram.load("blobs", classes=6, per_class=30)
    stream = engram.class_incremental(data, classes_per_task=2)
    training = Training(epochs=2, batch_size=16, precision="float64", optimizer="sgd", lr=0.05)
    model = {"name": "mlp", "hidden": (8,)}
    return [
        Run(
            stream=reorder(stream, task_order=order),
            method=method,
            model=model,
            training=training,
            seed=seed,
        )
        for order in ORDERS
        for seed in (0, 1)
    ]


def outcomes(method: engram.Method, together: bool) -> dict[tuple[int, int], tuple[object, object]]:
    engine = Engine(runs(method), device="cpu", together=together)
    return {(s.run, s.stage): (s.scores, s.learner.vector.clone()) for s in engine.stages()}


@pytest.mark.parametrize(
    "method", [engram.methods.EWC(strength=1.0), engram.methods.ER(memory=engram.Memory(total=12))]
)
def test_shared_equals_separate(method: engram.Method, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = outcomes(method, together=True)
    monkeypatch.setattr(
        SharedPrefixes, "leaders", lambda self, places, runs, stage: {p: [] for p in places}
    )
    separate = outcomes(method, together=True)
    assert shared.keys() == separate.keys()
    assert len(shared) == len(ORDERS) * 2 * 3
    for key, (scores, vector) in shared.items():
        np.testing.assert_allclose(scores, separate[key][0], atol=1e-10)
        assert torch.allclose(vector, separate[key][1], atol=1e-10), key


def test_number_of_distinct_beginnings() -> None:
    made = runs(engram.methods.Finetune())
    prefixes = SharedPrefixes()
    count = [len(prefixes.leaders(range(len(made)), made, stage)) for stage in range(3)]
    assert count == [3 * 2, 6 * 2, 6 * 2]


def test_other_methods_and_seeds_are_not_shared() -> None:
    made = runs(engram.methods.Finetune())[:1] + runs(engram.methods.EWC())[:2]
    assert len(SharedPrefixes().leaders(range(3), made, 0)) == 3
