"""How runs are executed, which is no part of the experiment: determinism, checkpoints."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

import engram
from engram.checks import toy_runs
from engram.engine.backend import CUBLAS_WORKSPACE_VARIABLE, deterministic_algorithms
from engram.errors import BadArgument
from engram.experiments.checkpointing import StepSaver
from engram.methods import ER
from engram.methods.method import Method
from tests.refusals import refuses


class Crash(Exception):
    pass


def switches():
    cudnn = torch.backends.cudnn
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "search": cudnn.benchmark, "cudnn": cudnn.deterministic,
        "workspace": os.environ.get(CUBLAS_WORKSPACE_VARIABLE),
    }  # fmt: skip


@dataclass(frozen=True)
class Watching(Method):
    """Notes the switches of torch at every step."""

    fails: bool = False
    seen: list = field(default_factory=list, compare=False)

    def loss(self, net, batch, state):
        self.seen.append(switches())
        if self.fails:
            raise Crash
        return {"task": net.task(batch)}


@pytest.mark.parametrize("together", [False, True])
def test_switches_are_set_while_runs_train(together):
    before, method = switches(), Watching()
    engram.run(
        toy_runs.make_streams()[0], method=method, seeds=2, together=together, device="cpu",
        deterministic=True,
    )  # fmt: skip
    assert method.seen
    for seen in method.seen:
        assert (seen["algorithms"], seen["warns"], seen["search"]) == (True, False, False)
        assert seen["cudnn"]
    assert switches() == before


def test_switches_are_restored_after_an_error():
    before, method = switches(), Watching(fails=True)
    with pytest.raises(Crash):
        engram.run(toy_runs.make_streams()[0], method=method, device="cpu", deterministic=True)
    assert method.seen[0]["algorithms"]
    assert switches() == before


def test_nothing_is_touched_without_it():
    method = Watching()
    engram.run(toy_runs.make_streams()[0], method=method, device="cpu")
    assert not any(seen["algorithms"] or seen["cudnn"] for seen in method.seen)


def test_what_was_set_before_stays(monkeypatch):
    monkeypatch.setenv(CUBLAS_WORKSPACE_VARIABLE, ":16:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        before = switches()
        with deterministic_algorithms(True, torch.device("cuda")):
            assert os.environ[CUBLAS_WORKSPACE_VARIABLE] == ":16:8"
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert switches() == before
    finally:
        torch.use_deterministic_algorithms(False)


def test_cublas_gets_a_workspace_for_the_length_of_the_runs(monkeypatch):
    monkeypatch.delenv(CUBLAS_WORKSPACE_VARIABLE, raising=False)
    with deterministic_algorithms(True, torch.device("cuda")):
        assert os.environ[CUBLAS_WORKSPACE_VARIABLE] == ":4096:8"
    assert CUBLAS_WORKSPACE_VARIABLE not in os.environ


def test_it_is_no_part_of_the_experiment(tmp_path):
    stream = toy_runs.make_streams()[0]
    first = engram.run(stream, method="ER", device="cpu", out=tmp_path, deterministic=True)
    method = Watching()
    again = engram.run(
        stream, method=["ER", method], device="cpu", out=tmp_path, checkpoint_every=1
    )
    assert np.array_equal(first.matrix[0], again.matrix[0], equal_nan=True)
    assert first.frame()["recipe"].iloc[0] == again.frame()["recipe"].iloc[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("model", ["mlp", "resnet32"])
def test_an_interrupted_run_goes_on_bit_for_bit_on_cuda(model, together, tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(160, 3, 16, 16, generator=generator), torch.arange(160) % 4
    data = engram.Data.from_arrays(x, y.numpy(), test=(x[:20], y[:20].numpy()), name="squares")
    stream = engram.class_incremental(data, classes_per_task=2)

    def train(out):
        return engram.run(
            stream, method=ER(), model=model, seeds=2, together=together, device="cuda",
            deterministic=True, checkpoint_every=0, epochs=6, batch_size=16, out=tmp_path / out,
        )  # fmt: skip

    whole, original, saves = train("whole"), StepSaver.save, []

    def save(self, *args):
        original(self, *args)
        saves.append(args)
        if len(saves) == 2:
            raise Crash

    monkeypatch.setattr(StepSaver, "save", save)
    with pytest.raises(Crash):
        train("cut")
    monkeypatch.setattr(StepSaver, "save", original)
    again = train("cut")
    for moment in whole.predictions:
        one, two = (result.predictions.get(*moment) for result in (whole, again))
        assert np.array_equal(one.scores, two.scores)


@pytest.mark.parametrize(("given", "seconds"), [("90s", 90.0), ("1h30m", 5400.0), (7, 7.0)])
def test_the_interval_of_checkpoints_can_be_set(given, seconds, tmp_path, monkeypatch):
    found, original = [], StepSaver.__init__

    def watched(self, folder, plans, every, *rest):
        found.append(every)
        original(self, folder, plans, every, *rest)

    monkeypatch.setattr(StepSaver, "__init__", watched)
    stream = toy_runs.make_streams()[0]
    engram.run(stream, method="ER", device="cpu", out=tmp_path / "a", checkpoint_every=given)
    engram.run(stream, method="ER", device="cpu", out=tmp_path / "b")
    assert found == [seconds, 300.0]


@pytest.mark.parametrize("wrong", ["soon", "-5", "5 parsecs", None, True, float("nan")])
def test_an_interval_that_is_none_is_refused_before_anything_is_written(wrong, tmp_path):
    with pytest.raises(BadArgument, match="checkpoint_every: expected a duration such as 90s"):
        engram.run(
            toy_runs.make_streams()[0], method="ER", device="cpu", out=tmp_path / "a",
            checkpoint_every=wrong,
        )  # fmt: skip
    assert not (tmp_path / "a").exists()


def test_processes_are_told(tmp_path):
    recipe = {"stream": {"data": "blobs"}, "method": "ER", "training": {"epochs": 1}}
    with refuses("checkpoint_every"):
        engram.sweep([recipe], pool="processes", out=tmp_path / "a", checkpoint_every="soon")
    found = engram.sweep(
        [recipe], pool="processes", out=tmp_path / "b", workers=1, device="cpu",
        deterministic=True, checkpoint_every="90s",
    )  # fmt: skip
    assert len(found) == 1
