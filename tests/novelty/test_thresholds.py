"""Thresholds from validation rows, and the false alarms they raise."""

from __future__ import annotations

import numpy as np
import pytest

import engram
from engram import novelty
from engram.errors import RecordError
from engram.records.novelty_records import p_values
from tests.novelty.test_detectors import EVERY
from tests.refusals import refuses

MODEL = {"name": "mlp", "hidden": [8], "head": {"name": "linear", "bias": False}}


def train(*detectors, head="multi", valid=0.25, **changes):
    data = engram.load("blobs", classes=6, per_class=40)
    build = engram.task_incremental if head == "multi" else engram.class_incremental
    settings = {"model": MODEL, "device": "cpu", "batch_size": 8, "epochs": 2, "seeds": 2}
    stream = build(data, classes_per_task=2, valid=valid)
    return engram.run(stream, probes=list(detectors), **{**settings, **changes})


def calibration(result, detector, stage, run=0):
    return result.arrays(detector.name, run, stage=stage)["calibration"]


def test_alarms_come_at_the_stated_rate_on_rows_like_those_of_the_calibration():
    rng = np.random.default_rng(0)
    rates = [(p_values(rng.normal(size=50), rng.normal(size=99)) <= 0.1).mean() for _ in range(400)]
    assert np.mean(rates) == pytest.approx(0.1, abs=0.01)


def test_few_rows_raise_no_alarm():
    assert not (p_values([-9.0], np.arange(5.0)) <= 0.05).any()


@pytest.mark.parametrize("head", ["multi", "single"])
def test_rows_of_the_calibration_are_those_the_network_gets_right(head):
    seen = {}

    class Spy(novelty.Softmax):
        def _of_rows(self, view, x, output, columns, state):
            seen.setdefault("columns", []).append(columns.sum().item())
            return super()._of_rows(view, x, output, columns, state)

    spy = Spy()
    result = train(spy, head=head, seeds=1)
    for stage in range(3):
        found = calibration(result, spy, stage)
        assert found.shape == (16,)  # a quarter of 2 x 32 training rows
        assert found.dtype == np.float32
        assert np.nanmin(found) >= 1 / (2 if head == "multi" else 2 * (stage + 1)) - 1e-6
    assert seen["columns"] == ([2, 2, 2] if head == "multi" else [2, 4, 6])


def test_together_is_alone():
    together, alone = (train(*EVERY, together=t) for t in (True, False))
    for detector in EVERY:
        for stage in range(3):
            for run in range(2):
                one, two = (calibration(r, detector, stage, run) for r in (together, alone))
                assert np.allclose(one, two, atol=2e-5, rtol=1e-4, equal_nan=True), detector


def test_frozen_and_renewed_thresholds():
    softmax = novelty.Softmax()
    result = train(softmax, seeds=1)
    table = result.false_alarms(rate=0.2).set_index(["stage", "task"])
    assert len(table) == 6
    for stage, task in table.index:
        own = result.arrays(softmax.name, stage=stage)["familiarity"][task]
        own = own[result.sets(0, stage).inside[task]]
        for column, k in (("frozen", task), ("renewed", stage)):
            kept = calibration(result, softmax, k)
            kept = kept[~np.isnan(kept)]
            p = [(1 + (kept <= score).sum()) / (len(kept) + 1) for score in own]
            wanted = np.mean(np.array(p) <= 0.2) if len(own) else np.nan
            assert table.loc[(stage, task), column] == pytest.approx(wanted, nan_ok=True)
    diagonal = table[table.index.get_level_values(0) == table.index.get_level_values(1)]
    assert (diagonal["frozen"] == diagonal["renewed"]).all()


@pytest.mark.parametrize("names", [["LwF", "Finetune"], ["Finetune", "LwF"]])
def test_methods_come_as_they_were_asked_for(names):
    result = train(novelty.Softmax(), seeds=1, epochs=1, method=names)
    for table in (result.novelty(), result.false_alarms()):
        assert list(dict.fromkeys(table["label"])) == names


def test_reads_are_counted():
    with_rows = train(novelty.Softmax(), seeds=1)
    stages = with_rows.ledger[0]["stages"]
    assert [stages[str(k)]["probe"] for k in range(3)] == [16, 16, 16]


def test_from_the_command_line(tmp_path):
    from typer.testing import CliRunner

    from engram.cli import app

    train(novelty.Softmax(), seeds=1, out=tmp_path)
    words = ["novelty", str(tmp_path), "--false-alarms", "0.2"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "renewed" in shown.output
    lines = CliRunner().invoke(app, [*words, "--csv", "--stage", "3"]).output.splitlines()
    assert [line.split(",")[2:4] for line in lines[1:]] == [["3", "1"], ["3", "2"], ["3", "3"]]
    assert CliRunner().invoke(app, [*words[:3], "2"]).exit_code == 2


def test_refused():
    result = train(novelty.Softmax(), seeds=1, valid=0.0)
    with pytest.raises(RecordError, match="validation rows"):
        result.false_alarms()
    with refuses("rate"):
        train(novelty.Softmax(), seeds=1).false_alarms(rate=1.5)
