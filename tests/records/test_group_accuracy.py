"""Accuracy of groups, from records alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import engram
from engram.experiments import Callback
from engram.records import read
from engram.records.scored_items import EvaluationItems, read_items, write_items
from engram.records.summary import describe_excluded_runs, runs_at_stage
from tests.refusals import refuses


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 4
    x = torch.randn(120, 6, generator=generator) + 1.5 * torch.eye(6)[y]
    gender, view = torch.arange(120) // 4 % 2, torch.arange(120) // 40 + 3
    return engram.Data.from_arrays(
        x, y, attributes={"gender": gender, "view": view},
        attribute_names={"gender": ("female", "male", "unsure")},
    )  # fmt: skip


@pytest.fixture(scope="module")
def directory(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("groups") / "run"
    stream = engram.class_incremental(data)
    engram.run(stream, method="ER", epochs=3, seeds=2, out=out)
    return out


def test_groups_from_records_alone(data, directory):
    result = read(directory)
    table = result.group_accuracy(by="gender")
    assert table.shape == (2, 2)  # nobody is unsure
    assert list(table.columns) == ["female", "male"]
    rows = data.test
    for run, line in zip(result.runs, table.to_numpy(), strict=True):
        items = result.items(run.recipe, run.order)
        said = result.predictions.get(*run, 1).predicted(items, head="single")
        right = torch.from_numpy(items.classes[said]) == data.labels[torch.from_numpy(items.rows)]
        gender = data.attributes["gender"][torch.from_numpy(items.rows)]
        assert line.tolist() == [float(right[gender == g].double().mean()) for g in (0, 1)]
        # groups together are the whole
        share = [(data.attributes["gender"][rows] == g).double().mean().item() for g in (0, 1)]
        assert np.dot(line, share) == pytest.approx(float(right.double().mean()))


def test_stages_and_values_without_names(directory):
    result = read(directory)
    assert list(result.group_accuracy(by="view").columns) == ["3", "4", "5"]
    first = result.group_accuracy(by="gender", stage=0)
    assert first.equals(result.group_accuracy(by="gender", stage=-2))
    whole = result.matrix[:, 0, 0]
    assert ((first.min(axis=1) <= whole) & (whole <= first.max(axis=1))).all()


def test_runs_without_the_last_stage_have_no_numbers(data, tmp_path):
    class Stopping(Callback):
        left = 3

        def stage(self, plan, stage, rows):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    stream, how = engram.class_incremental(data), {"together": False, "device": "cpu"}
    with pytest.raises(KeyboardInterrupt):
        engram.run(stream, method="ER", seeds=2, out=tmp_path, callback=Stopping(), **how)
    result = read(tmp_path)
    assert [len(result.stages[run]) for run in result.runs] == [2, 1]
    assert np.isfinite(result.group_accuracy(by="gender").to_numpy()).tolist() == [
        [True] * 2,
        [False] * 2,
    ]
    assert np.isfinite(result.calibration()).tolist() == [True, False]
    assert np.isfinite(result.calibration(stage=0)).all()
    assert runs_at_stage(result) == [0]
    assert describe_excluded_runs(result) == [
        "ER: 1 of 2 runs is left out of every mean: 1 not finished"
    ]
    with pytest.raises(engram.BadArgument, match="stage: expected a number from 0 to 1, got 7"):
        result.confusion(0, stage=7)


def test_groups_may_be_the_tasks(data, tmp_path):
    order = ["male", "female"]
    stream = engram.domain_incremental(data, by="gender", order=order)
    result = engram.run(stream, method=["Finetune", "ER"], epochs=3, seeds=2, out=tmp_path)
    assert {run.order for run in result.runs} == {"1-0"}
    for stage in (0, 1):  # told by the records of the rows as by those of the tasks
        groups = read(tmp_path).group_accuracy(by="gender", stage=stage)[order]
        assert groups.to_numpy() == pytest.approx(result.matrix[:, stage], nan_ok=True)


def test_by_must_be_an_attribute(directory):
    with refuses("by", near="gender"):
        read(directory).group_accuracy(by="gendre")
    plain = engram.run(engram.load("blobs"), epochs=1)
    with pytest.raises(ValueError, match="but none was recorded"):
        plain.group_accuracy(by="gender")


def test_counts_alone_are_not_enough(data, tmp_path):
    result = engram.run(engram.class_incremental(data), epochs=1, keep="counts", out=tmp_path / "a")
    with pytest.raises(engram.errors.RecordError, match="no predictions"):
        result.group_accuracy(by="gender")


def test_the_command_line_shows_groups(directory):
    from typer.testing import CliRunner

    from engram.cli import app

    shown = CliRunner().invoke(app, ["metrics", str(directory), "--by", "gender"])
    assert shown.exit_code == 0
    assert "accuracy by gender" in shown.output
    assert "female" in shown.output


def test_items_without_attributes(tmp_path):
    items = EvaluationItems(
        rows=[0], task=[0], targets=[0], opening=[0], visible=[[1]], classes=[0]
    )
    file = write_items(tmp_path / "items.safetensors", items, recipe="r", order="")
    assert read_items(file).attributes == {}
    with pytest.raises(ValueError, match="attributes"):
        EvaluationItems(rows=[0], task=[0], targets=[0], opening=[0], visible=[[1]], classes=[0],
              attributes={"view": [1, 2]})  # fmt: skip
