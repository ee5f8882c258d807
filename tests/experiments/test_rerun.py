"""Running anew: the old numbers stay on disk, and no longer count anywhere."""

from __future__ import annotations

import numpy as np
import pytest

import engram
from engram.experiments import Callback
from engram.records import RunDirectory
from tests.loose_files import unpack

FEW = {"epochs": 1, "batch_size": 32, "device": "cpu", "together": False}


def stream():
    return engram.class_incremental(engram.load("blobs", classes=4, per_class=20))


class Counting(Callback):
    """Counts runs that were finished before and stages that were trained."""

    def __init__(self):
        self.before = self.stages = 0

    def begin(self, plans, done):
        self.before = done

    def stage(self, plan, stage, rows):
        self.stages += 1


def trained(out, **more):
    callback = Counting()
    return engram.run(stream(), out=out, callback=callback, **{**FEW, **more}), callback


def spoilt(folder):
    """Other numbers for everything recorded so far, as an older program may have written them."""
    from engram.records.table_parts import read_part, write_part

    for path in unpack(folder).glob("results-*.parquet"):
        table = read_part(path)
        index = table.schema.get_field_index("value")
        worse = table.column("value").to_numpy() * 0 - 7.0
        write_part(path, table.set_column(index, table.schema.field(index), [worse]))


def test_again_runs_anew_and_the_old_numbers_do_not_count(tmp_path):
    fresh, _ = trained(tmp_path, seeds=2)
    spoilt(tmp_path)
    assert (engram.read(tmp_path).matrix[:, 1, :] == -7.0).all()
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    result, callback = trained(tmp_path, seeds=2, rerun=True)
    assert (callback.before, callback.stages) == (0, 4)
    np.testing.assert_array_equal(result.matrix, fresh.matrix)
    assert len(result) == 2
    whole = engram.read(tmp_path)
    assert not (whole.frame()["value"] == -7.0).any()
    np.testing.assert_array_equal(whole.matrix, fresh.matrix)
    assert files <= {path.name for path in tmp_path.rglob("*") if path.is_file()}  # nothing deleted
    assert trained(tmp_path, seeds=2)[1].before == 2  # and now it is finished


def test_only_the_runs_that_are_asked_for_are_run_anew(tmp_path):
    trained(tmp_path, seeds=2, method=["Finetune", "ER"])
    _, callback = trained(tmp_path, seeds=[1], method="ER", rerun=True)
    assert callback.stages == 2
    assert len(engram.read(tmp_path)) == 4


def test_an_interrupted_rerun_goes_on_and_mixes_nothing(tmp_path):
    fresh, _ = trained(tmp_path, method="ER")
    spoilt(tmp_path)

    class Dying(Counting):
        def stage(self, plan, stage, rows):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engram.run(stream(), method="ER", out=tmp_path, callback=Dying(), rerun=True, **FEW)
    part = engram.read(tmp_path)
    assert list(part.stages.values()) == [[0]]  # nothing of the old second stage
    assert not (part.frame()["value"] == -7.0).any()
    result, callback = trained(tmp_path, method="ER")
    assert callback.stages == 1  # from the checkpoint of the new run
    np.testing.assert_array_equal(result.matrix, fresh.matrix)


def test_predictions_and_ledger_follow(tmp_path):
    trained(tmp_path, keep="scores")
    result, _ = trained(tmp_path, keep="counts", rerun=True)
    assert len(result.predictions) == 0
    entries = [one for part in result.ledger for one in part["runs"]]
    assert len(entries) == 1
    again, _ = trained(tmp_path, keep="scores", rerun=True)
    assert len(again.predictions) == 2


def test_merged_parts_keep_the_old_numbers_apart(tmp_path):
    fresh, _ = trained(tmp_path)
    spoilt(tmp_path)
    trained(tmp_path, rerun=True)
    folder = RunDirectory(tmp_path)
    assert folder.compact() == 4
    np.testing.assert_array_equal(engram.read(tmp_path).matrix, fresh.matrix)
    assert folder.finished(*fresh.runs[0]) == {0, 1}
    from engram.records.table_parts import read_part

    (kept,) = tmp_path.glob("superseded-*.parquet")
    assert set(read_part(kept).column("value").to_numpy()) == {-7.0}


def test_a_directory_that_is_open_notices(tmp_path):
    result, _ = trained(tmp_path)
    folder = RunDirectory(tmp_path)
    key = result.runs[0]
    assert folder.finished(*key) == {0, 1}
    assert RunDirectory(tmp_path).supersede([key, ("unknown", 0, "")]) == 1
    assert folder.finished(*key) == set()
    assert folder.supersede([key]) == 0  # nothing is recorded any more


def test_studies_and_sweeps_run_anew(tmp_path):
    recipe = engram.Recipe.of({"stream": {"data": "blobs", "data_options": {"classes": 4}},
                               "method": "Finetune", "keep": "counts"})  # fmt: skip
    for _ in range(2):
        callback = Counting()
        study = engram.orders(recipe, out=tmp_path / "o", rerun=True, callback=callback)
        assert (len(study.result), callback.before) == (2, 0)
    for pool in ("serial", "processes"):
        result = engram.sweep([recipe], out=tmp_path / "s", pool=pool, rerun=True, workers=1)
        assert len(result) == 1
    assert len(list((tmp_path / "s").glob("superseded-*.json"))) == 1


def test_a_reproduction_is_run_anew(tmp_path, monkeypatch):
    monkeypatch.delenv("ENGRAM_DATA", raising=False)
    from engram.reproduce import reproduce
    from tests.reproduce.invented_paper import invented_table

    table = invented_table()
    first = reproduce(table, out=tmp_path, device="cpu")
    callback = Counting()
    made = reproduce(table, out=tmp_path, device="cpu", rerun=True, callback=callback)
    assert (callback.before, made.open_runs) == (0, 0)
    assert [line.ours for line in made.lines] == [line.ours for line in first.lines]
