"""Probes whose process dies: what was measured stays, what was kept is found again."""

from __future__ import annotations

import signal

import pandas as pd
import pytest

import engram
from tests.forks import FORKS, die_at_file
from tests.probes.test_probes import train, values

LIMIT = 120.0  # seconds for a child; only a fault takes as long


def die_at(out, number, together):
    """Train with probes, and die when file `number` is written but does not bear its name yet."""
    import torch

    torch.set_num_threads(1)
    die_at_file(number)
    train(out=out, together=together)


@pytest.mark.parametrize("together", [True, False])
def test_a_killed_run_goes_on_with_what_its_probes_kept(tmp_path, together):
    whole = values(train(together=together))
    survivors = 0
    for number in (4, 9, 12, 17, 20):
        out = tmp_path / str(number)
        child = FORKS.Process(target=die_at, args=(str(out), number, together))
        child.start()
        child.join(LIMIT)
        assert child.exitcode == -signal.SIGKILL
        done = any(out.glob("results-*.parquet"))
        before = values(engram.read(out)) if done else whole[:0]
        survivors += len(before) > 0
        found = train(out=out, together=together)
        pd.testing.assert_series_equal(values(found), whole, check_exact=True)
        pd.testing.assert_series_equal(whole.reindex(before.index), before, check_exact=True)
        counted = {run["seed"]: run["stages"] for part in found.ledger for run in part["runs"]}
        assert [stages["2"]["probe"] for stages in counted.values()] == [32] * 3
    assert survivors >= 3


def test_a_run_that_goes_on_inside_a_task_keeps_what_its_probes_kept(tmp_path, monkeypatch):
    from engram.experiments import checkpointing

    class Ended(Exception):
        pass

    steps = []
    usual = checkpointing.StepSaver.save

    def save(self, places, learners, midways):
        usual(self, places, learners, midways)
        steps.append(learners[0].stage)
        if 1 in steps:
            raise Ended

    monkeypatch.setattr(checkpointing.StepSaver, "due", lambda self: True)
    monkeypatch.setattr(checkpointing.StepSaver, "save", save)
    with pytest.raises(Ended):
        train(out=tmp_path, epochs=3)
    monkeypatch.undo()
    assert any((tmp_path / "checkpoint" / "steps").glob("*.safetensors"))
    found, whole = values(train(out=tmp_path, epochs=3)), values(train(epochs=3))
    pd.testing.assert_series_equal(found, whole, check_exact=True)
