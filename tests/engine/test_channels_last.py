"""Images with the channels last, the order in which unmapped runs convolve on either device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from engram import methods
from engram.checks.toy_runs import CLOSE, largest_gap, train_runs, train_runs_alone, trees_equal
from engram.data import Data
from engram.engine import factory
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.streams import class_incremental

TRAINING = Training(epochs=1, batch_size=16, optimizer="sgd", lr=0.02)


@dataclass(frozen=True, kw_only=True)
class Ahead(methods.Finetune):
    """The gradient a step ahead: copies of the kernels must follow the weights there."""

    def gradient(self, grad: Any, batch: Any, state: Any) -> Any:
        return grad(batch, at=grad.vector - 0.5 * grad(batch))


LENET = {"name": "lenet", "padding": 2, "hidden": 8}


def run_of(method: Any = None, model: Any = LENET, **training: Any) -> Run:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (80, 3, 16, 16), dtype=np.uint8), np.arange(80) % 4
    data = Data.from_arrays(x[:60], y[:60], test=(x[60:], y[60:]))
    return Run(
        stream=class_incremental(data, classes_per_task=2), method=method or methods.Finetune(),
        model=model, training=replace(TRAINING, **training),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "training", "together", "last"),
    [
        ("lenet", {"batch_size": 128}, None, True),
        ("lenet", {"batch_size": 128, "precision": "bf16"}, None, True),
        ("lenet", {"batch_size": 128, "precision": "float64"}, None, False),
        ("lenet", {"batch_size": 128}, True, False),  # mapped
        (LENET, {}, None, False),  # tiny, so mapped where there are several
        ("mlp", {"batch_size": 256}, None, False),
    ],
    ids=str,
)
def test_where_they_are_asked_for_on_the_cpu(model, training, together, last):
    engine = Engine([run_of(model=model, **training)], device="cpu", together=together)
    assert engine.networks(engine.runs[0]).channels_last is last
    axes = engine.learner(engine.runs[0]).networks.sample_axes
    assert axes == ((1, 2, 0) if last else None)


@pytest.mark.parametrize(
    "method",
    [
        methods.Finetune(), methods.ER(), methods.EWC(), methods.SI(), methods.LwF(),
        methods.AGEM(), methods.ICaRL(), methods.LatentReplay(root="none"), methods.DGR(), Ahead(),
    ],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_nothing_else_changes(method, monkeypatch):
    latent = {"latent": 6} if isinstance(method, methods.LatentReplay) else {}
    augment = () if latent else ("flip", "crop")
    run = run_of(method, LENET | latent, precision="float64", augment=augment)
    found = []
    for last in (False, True):
        monkeypatch.setattr(factory, "_channels_last_pays", lambda *_, last=last: last)
        assert Engine([run], device="cpu").networks(run).channels_last is last
        found.append(train_runs([run]))
    usual, last_ones = found
    for key, one in usual.items():
        assert largest_gap(one.tensors, last_ones[key].tensors) < CLOSE, key


def test_runs_of_other_batch_sizes_do_not_share_it(monkeypatch):
    """A tiny run, whose images lie as they are, beside one that is not tiny."""
    runs = [run_of(batch_size=size) for size in (4, 40)]
    parameters = Engine(runs, device="cpu").parameters(runs[0])
    monkeypatch.setattr(factory, "TINY_STEP", 10 * parameters)
    engine = Engine(runs, device="cpu")
    assert [engine.learner(run).networks.channels_last for run in runs] == [False, True]
    company, alone = train_runs(runs), train_runs_alone(runs)
    assert company.keys() == alone.keys()
    for key, one in alone.items():
        assert trees_equal(company[key].tensors, one.tensors), key
