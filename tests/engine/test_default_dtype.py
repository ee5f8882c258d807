"""What a method computes in its verbs has the precision of the weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import engram
from engram.engine.engine import Engine
from engram.engine.run_definition import Run

STREAM = engram.class_incremental(engram.load("blobs"))


@dataclass(frozen=True)
class Halves(engram.Method):
    """Multiplies masks and makes tensors in every verb, and notes what comes of it."""

    seen: dict[str, set[Any]] = field(default_factory=dict, compare=False)
    breaks: bool = False

    def _note(self, verb, mask):
        made = [0.5 * mask, mask / 3, torch.zeros(2)]
        self.seen.setdefault(verb, set()).update(one.dtype for one in made)

    def start(self, learner, task):
        self._note("start", learner.seen)

    def finish(self, learner, task):
        self._note("finish", learner.seen)

    def loss(self, net, batch, state):
        self._note("loss", batch.open)
        if self.breaks:
            raise ArithmeticError("broken")
        return {"task": net.task(batch)}

    def gradient(self, grad, batch, state):
        self._note("gradient", batch.open)
        return grad(batch)

    def step(self, update, state):
        self._note("step", update.before > 0)
        return state


def run_engine(method, precision, together, **options):
    training = engram.Training(epochs=1, precision=precision)
    runs = [Run(stream=STREAM, method=method, seed=seed, training=training) for seed in range(2)]
    engine = Engine(runs, device="cpu", together=together)
    for _ in engine.stages(**options):
        assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("precision", ["float32", "float64", "bf16"])
def test_a_float_times_a_mask_has_the_precision_of_the_weights(precision, together):
    method, during = Halves(), set()

    def progress(places, stage):
        return lambda done, total: during.add(torch.get_default_dtype())

    run_engine(method, precision, together, progress=progress)
    wanted = torch.float64 if precision == "float64" else torch.float32
    verbs = ("start", "gradient", "loss", "step", "finish")
    assert method.seen == {verb: {wanted} for verb in verbs}
    assert during == {torch.float32}  # the caller's code


def test_runs_that_all_diverged_have_no_precision():
    """Their `finish` is not called; the rest of the stage goes on."""
    training = engram.Training(epochs=2, lr=1e30, optimizer="sgd", precision="float64")
    (*_, last) = Engine(
        [Run(stream=STREAM, method=Halves(), training=training)], device="cpu"
    ).stages()
    assert last.diverged


def test_the_process_keeps_its_default():
    with pytest.raises(ArithmeticError):
        run_engine(Halves(breaks=True), "float64", False)
    assert torch.get_default_dtype() == torch.float32


def test_a_default_of_the_process_does_not_reach_a_run():
    method = Halves()
    runs = [Run(stream=STREAM, method=method, training=engram.Training(epochs=1))]
    torch.set_default_dtype(torch.float64)
    try:
        for _ in Engine(runs, device="cpu").stages():
            assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert method.seen["loss"] == {torch.float32}
