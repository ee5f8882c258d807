"""Lockstep or one run after another, chosen by the time of some steps."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import engram
from engram.engine import grouping as grouping_module
from engram.engine.engine import Engine
from engram.engine.grouping import RunGrouping
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.methods import ER, Finetune, LatentReplay

LONG = {"epochs": 2, "batch_size": 16, "model": {"name": "mlp", "hidden": [8]}, "device": "cpu"}


def stream():
    return engram.class_incremental(engram.load("blobs"), classes_per_task=2)


def grouping(*, epochs=2, seeds=2, method=None, **options):
    training, tasks = Training(epochs=epochs, batch_size=16), stream()
    runs = [
        Run(stream=tasks, method=method or Finetune(), training=training, seed=seed)
        for seed in range(seeds)
    ]
    return RunGrouping(runs, device="cpu", **options)


@pytest.fixture
def seconds(monkeypatch):
    """Measure, but report these seconds for a step alone and in lockstep; lists what was asked."""
    told, asked = {False: 1.0, True: 1.0}, []
    usual = RunGrouping._seconds_of_step

    def tell(self, group, mapped, *times):
        assert usual(self, group, mapped, *times) > 0
        asked.append((len(group), mapped))
        return told[mapped]

    monkeypatch.setattr(RunGrouping, "_seconds_of_step", tell)
    monkeypatch.setattr(grouping_module, "LEAST_STEPS", 10)
    return told, asked


@pytest.mark.parametrize(("ratio", "tiny", "expected"), [
    (0.8, False, True), (0.9, False, False), (1.1, True, True), (1.3, True, False),
])  # fmt: skip
def test_the_rule_holds_unless_the_other_way_is_clearly_faster(
    seconds, monkeypatch, ratio, tiny, expected
):
    seconds[0][True] = ratio
    monkeypatch.setattr(RunGrouping, "_tiny", lambda self, group: tiny)
    made = grouping()
    (found,) = made.measure_modes()
    assert (found.places, found.mapped, found.ratio) == ([0, 1], expected, ratio)
    assert made.maps([0, 1]) is expected
    assert made.lockstep([0, 1]) is expected


@pytest.mark.parametrize("options", [
    {"seeds": 1}, {"together": True}, {"together": False}, {"plan_for": "cuda"},
], ids=str)  # fmt: skip
def test_what_is_decided_is_not_measured(seconds, options):
    assert grouping(**options).measure_modes() == []


def test_short_runs_and_runs_with_pretraining_are_not_measured(seconds, monkeypatch):
    shapes = engram.class_incremental(engram.load("shapes", per_class=12))
    run = Run(
        stream=shapes, method=LatentReplay(root="heldout"), model="cnn",
        training=Training(epochs=60, batch_size=2),
    )  # fmt: skip
    assert RunGrouping([run, run], device="cpu").measure_modes() == []
    assert len(grouping().measure_modes()) == 1
    monkeypatch.setattr(grouping_module, "LEAST_STEPS", 10**6)
    assert grouping().measure_modes() == []


@pytest.mark.parametrize("mapped", [True, False])
def test_measuring_moves_no_number(seconds, mapped):
    seconds[0][mapped] = 0.1
    told = {"method": ER(memory=engram.Memory(total=20)), "seeds": 3, **LONG}
    expected = engram.run(stream(), together=mapped, **told)
    found = engram.run(stream(), **told)
    assert seconds[1] == [(1, False), (3, True)]
    assert np.array_equal(found.matrix, expected.matrix, equal_nan=True)
    for key in expected.predictions:
        ours, theirs = found.predictions.get(*key), expected.predictions.get(*key)
        assert (ours.scores == theirs.scores).all()


def interrupted(self, *_args, **_options):
    """Instead of `Engine.stages`: before the first stage is done."""
    raise KeyboardInterrupt
    yield


def test_the_choice_is_recorded_and_kept(seconds, tmp_path, monkeypatch):
    told, asked = seconds
    told[True] = 0.5
    result = engram.run(stream(), seeds=2, **LONG)
    (modes,) = [one["modes"] for one in result.environment]
    assert [(one["mapped"], one["lockstep_over_alone"]) for one in modes] == [(True, 0.5)]
    assert len(modes[0]["runs"]) == 2
    # whoever continues an interrupted run trains in the same way, without measuring
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "stages", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engram.run(stream(), out=tmp_path, seeds=2, **LONG)
    told[True], before = 2.0, len(asked)
    again = engram.run(stream(), out=tmp_path, seeds=2, **LONG)
    assert len(asked) == before
    last = [one["modes"][0] for one in again.environment if one.get("modes")]
    assert [one["mapped"] for one in last] == [True] * len(last)
    assert last
    assert json.dumps(last)  # not a number is None
    assert np.array_equal(again.matrix, result.matrix, equal_nan=True)


def test_a_rerun_measures_anew(seconds, tmp_path):
    engram.run(stream(), out=tmp_path, seeds=2, **LONG)
    before = len(seconds[1])
    engram.run(stream(), out=tmp_path, seeds=2, rerun=True, **LONG)
    assert len(seconds[1]) == 2 * before


def test_what_is_known_is_not_measured(seconds):
    engine = Engine(grouping().runs, device="cpu")
    (found,) = engine.measure_modes({0: False})
    assert not found.mapped
    assert math.isnan(found.ratio)
    assert seconds[1] == []
    assert not engine.maps([0, 1])
