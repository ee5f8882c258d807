"""Arrays that probes store: with the runs, in memory or on disk, whoever wrote them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import engram
from engram.errors import BadArgument
from engram.records import combine


@dataclass(frozen=True)
class Margin(engram.Probe):
    """How far the best class is ahead, of every test item."""

    scale: float = 1.0

    def after_stage(self, view):
        best = view.scores.masked_fill(~view.open[:, None], -torch.inf).topk(2).values
        margin = self.scale * (best[..., 0] - best[..., 1])
        view.store("margin", margin.float())
        view.store("known", view.seen)
        return {"mean": margin.mean(1)}


@dataclass(frozen=True)
class Quiet(engram.Probe):
    """Stores, and measures nothing."""

    def after_stage(self, view):
        view.store("stage", np.full((len(view), 1), view.stage, np.uint8))
        return {}


def train(out=None, **changes):
    data = engram.load("blobs", classes=6, per_class=20)
    stream = engram.class_incremental(data, classes_per_task=2)
    settings = {
        "method": "Finetune", "model": {"name": "mlp", "hidden": [8]}, "device": "cpu",
        "seeds": 2, "batch_size": 8, "probes": [Margin()], "out": out,
    }  # fmt: skip
    return engram.run(stream, **{**settings, **changes})


def same(first, second, probe="margin"):
    for number in range(len(first)):
        for stage in range(3):
            one, two = (r.arrays(probe, number, stage=stage) for r in (first, second))
            assert one.keys() == two.keys()
            assert all(np.array_equal(one[name], two[name]) for name in one)
            assert all(one[name].dtype == two[name].dtype for name in one)


def test_in_memory_on_disk_saved_and_combined(tmp_path):
    memory, disk = train(), train(tmp_path / "out")
    found = memory.arrays("margin", 1)
    assert found["margin"].dtype == np.float32
    assert found["margin"].shape == found["known"].shape == (len(memory.items(memory.runs[0][0])),)
    assert found["known"].all()
    assert found["margin"].mean() == pytest.approx(_mean(memory, 1), rel=1e-5)
    same(memory, disk)
    same(memory, engram.read(tmp_path / "out"))
    memory.save(tmp_path / "saved")
    same(memory, engram.read(tmp_path / "saved"))
    same(memory, combine([memory.select(seed=0), memory.select(seed=1)]))


def _mean(result, seed):
    frame = result.frame()
    rows = (frame["metric"] == "margin/mean") & (frame["seed"] == seed) & (frame["stage"] == 2)
    return float(frame.loc[rows, "value"].iloc[0])


def test_added_later_the_arrays_are_those_of_the_training(tmp_path):
    train(tmp_path / "out", probes=[])
    same(train(tmp_path / "out", probes=[Margin(), Quiet()]), train())
    found = engram.read(tmp_path / "out").arrays("quiet", stage=1)
    assert found["stage"].tolist() == [1]


def test_run_anew_the_newest_arrays_count(tmp_path):
    train(tmp_path / "out", lr=0.1)
    other = train(tmp_path / "out", rerun=True, probes=[Margin(), Margin(scale=2.0)])
    doubled = other.arrays("margin scale=2")["margin"]
    assert np.array_equal(2 * other.arrays("margin")["margin"], doubled)


def test_what_is_not_there_is_said(tmp_path):
    result = train(seeds=1)
    with pytest.raises(BadArgument, match="margin"):
        result.arrays("margins")
    with pytest.raises(BadArgument, match="0, 1, 2"):
        result.arrays("margin", stage=7)

    @dataclass(frozen=True)
    class Wrong(engram.Probe):
        def after_stage(self, view):
            view.store("x", torch.zeros(5))
            return {}

    with pytest.raises(BadArgument, match=r"\[2, \.\.\.\]"):
        train(probes=[Wrong()])
