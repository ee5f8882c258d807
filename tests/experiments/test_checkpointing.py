"""What is written of runs between tasks, and what is left of them at the end."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from safetensors import safe_open

import engram
from engram.checks import toy_runs
from engram.experiments import Callback, checkpointing
from engram.methods import ER, EWC, DERpp

FEW = {"device": "cpu", "epochs": 1, "batch_size": 8, "lr": 0.01}


class Ended(Exception):
    """Stands for a process that dies after a stage."""


class Ending(Callback):
    def __init__(self, stage):
        self.at = stage

    def stage(self, plan, stage, rows):
        if stage == self.at:
            raise Ended


def run(out, method="ER", **more):
    return engram.run(toy_runs.make_streams()[1], method=method, out=out, **{**FEW, **more})


def ended(out, stage, **more):
    with pytest.raises(Ended):
        run(out, callback=Ending(stage), **more)


def names(path):
    with safe_open(path, framework="pt") as handle:
        return set(handle.keys())


def states(out):
    return sorted(path.name for path in out.glob("checkpoint/*/stage-*"))


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("keep", ["counts", "labels", "scores", "parameters"])
def test_a_finished_run_leaves_its_model(keep, together, tmp_path):
    result = run(tmp_path, DERpp(), keep=keep, seeds=2, together=together)
    left = sorted(tmp_path.glob("checkpoint/*/*"))
    if keep == "counts":
        assert left == []
        assert not list(tmp_path.glob("checkpoint/*"))
        return
    assert [path.name for path in left] == ["model.engram"] * 2
    found = names(left[0])
    assert {"net.head.weight", "exemplars/rows", "values/logits", "rows/x", "rows/y"} <= found
    assert not any(name.startswith(("opt", "free", "vector")) for name in found)
    whole = run(tmp_path / "whole", DERpp(), keep="parameters", seeds=2, together=together)
    for path, (recipe, seed, order) in zip(left, result.runs, strict=True):
        kept = whole.predictions.get(recipe, seed, order, 2)
        with safe_open(path, framework="np") as handle:
            facts = json.loads(handle.metadata()["facts"])
            assert (facts["seed"], facts["stage"]) == (seed, 2)
            size = sum(
                handle.get_tensor(n).size for n in found if n.startswith("net.") and "norm" not in n
            )
            assert size == kept.parameters.size
            weights = [handle.get_tensor(n).ravel() for n in found if n.startswith("net.")]
            assert np.isin(np.concatenate(weights), kept.parameters).all()
            inputs = handle.get_tensor("rows/x")[handle.get_tensor("exemplars/rows")]
            assert np.array_equal(inputs, toy_runs.make_streams()[1].data.x[kept.exemplars[0]])


@pytest.mark.parametrize("seeds", [1, 6])
@pytest.mark.parametrize("reset", [True, False])
def test_what_the_next_task_makes_anew_is_not_written(reset, seeds, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointing, "MOST_SEPARATE_FILES", 5)  # a group of six shares a file
    more = {"optim_reset": reset, "seeds": seeds, "together": seeds > 1, "method": EWC(strength=1)}
    whole = run(tmp_path / "whole", **more)
    out = tmp_path / "cut"
    ended(out, 0, **more)
    folder = "checkpoint/groups/*" if seeds > 1 else "checkpoint/*/stage-*"
    (path,) = out.glob(folder)
    parts = {name.removeprefix(f"{name.split('/')[0]}/") if seeds > 1 else name
             for name in names(path)}  # fmt: skip
    assert "vector" in parts
    assert any(name.startswith("state/") for name in parts)
    assert "free" not in parts
    assert any(name.startswith("opt/") for name in parts) != reset
    again = run(out, **more)
    assert np.array_equal(again.matrix, whole.matrix, equal_nan=True)
    for moment in whole.predictions:
        one, two = (each.predictions.get(*moment) for each in (whole, again))
        assert one.scores.tobytes() == two.scores.tobytes()


def test_large_states_of_short_stages_are_not_written(tmp_path, monkeypatch):
    """The same numbers come out where a stage must be repeated for want of its state."""
    whole = run(tmp_path / "whole", ER())
    monkeypatch.setattr(checkpointing, "ALWAYS_WRITTEN_BYTES", 0)
    monkeypatch.setattr(checkpointing, "WRITTEN_BYTES_PER_SECOND", 1.0)  # a slow disk
    ended(tmp_path / "cut", 1, method=ER())
    assert states(tmp_path / "cut") == []
    again = run(tmp_path / "cut", ER())
    assert np.array_equal(again.matrix, whole.matrix, equal_nan=True)
    monkeypatch.setattr(
        checkpointing, "WRITTEN_BYTES_PER_SECOND", 1e12
    )  # a fast disk: written after every stage
    ended(tmp_path / "fast", 1, method=ER())
    assert states(tmp_path / "fast") == ["stage-0000.safetensors", "stage-0001.safetensors"]


def test_after_the_interval_a_state_is_written_however_large(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointing, "ALWAYS_WRITTEN_BYTES", 0)
    monkeypatch.setattr(checkpointing, "MOST_WRITING_SHARE", 0.0)
    monkeypatch.setattr("engram.experiments.checkpointing.StepSaver.due", lambda self: True)
    ended(tmp_path, 0, method=ER())
    assert states(tmp_path) == ["stage-0000.safetensors"]


def test_a_diverged_run_leaves_nothing(tmp_path):
    result = run(tmp_path, "Finetune", lr=1e10)
    assert result.diverged
    assert not list(tmp_path.glob("checkpoint/*/*"))


class CountingSyncs(Callback):
    """Notes the syncs so far after every stage."""

    def __init__(self, monkeypatch):
        self.syncs, self.after, usual = 0, [], os.fsync

        def fsync(handle):
            self.syncs += 1
            usual(handle)

        monkeypatch.setattr(os, "fsync", fsync)

    def stage(self, plan, stage, rows):
        self.after.append(self.syncs)


def five_tasks(out, callback):
    stream = engram.class_incremental(engram.load("blobs", classes=10), classes_per_task=2)
    engram.run(stream, method="ER", out=out, device="cpu", batch_size=16, callback=callback)


def test_a_stage_is_synced_once(tmp_path, monkeypatch):
    counting = CountingSyncs(monkeypatch)
    five_tasks(tmp_path, counting)
    syncs = np.diff(counting.after).tolist()
    assert syncs[:3] == [1, 1, 1]
    assert syncs[3] <= 5  # the model of the finished run, and the names of its folders
    assert counting.syncs <= 16


def test_the_last_synced_checkpoint_is_kept_until_another_is(tmp_path, monkeypatch):
    seen = []

    class Looking(Callback):
        def stage(self, plan, stage, rows):
            seen.append([int(name[6:10]) for name in states(tmp_path)])
            monkeypatch.setattr(checkpointing, "SYNC_SECONDS", 0.0 if stage == 2 else 1e9)

    monkeypatch.setattr(checkpointing, "SYNC_SECONDS", 0.0)
    five_tasks(tmp_path, Looking())
    assert seen == [[0], [0, 1], [0, 1, 2], [2, 3], []]
