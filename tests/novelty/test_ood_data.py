"""The outside set: what may be one, who reads it, and that it changes no run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import engram
from engram.cli import app
from engram.errors import BadArgument
from engram.probes.ood_data import OODData
from tests.refusals import refuses


@dataclass(frozen=True)
class Looks(engram.Probe):
    """The sum of the outside rows."""

    needs: ClassVar[tuple[str, ...]] = ("networks",)
    part: str = "valid"

    @property
    def outside(self):
        return True

    def after_stage(self, view):
        return {"sum": sum(x.flatten(1).sum(1) for x in view.outside(self.part, 7))}


def blobs(seed=0, per_class=10, **options):
    return engram.load("blobs", classes=6, per_class=per_class, seed=seed, **options)


def train(**changes):
    stream = engram.task_incremental(blobs(), classes_per_task=2)
    settings = {"model": {"name": "mlp", "hidden": [4]}, "epochs": 1, "device": "cpu"}
    return engram.run(stream, **{**settings, **changes})


def test_rows_are_read_and_counted():
    probes = [Looks(), Looks(part="train")]
    result = train(probes=probes, outside=blobs(1), seeds=2)
    data = blobs(1)
    values = result.probes()
    for probe, rows in zip(probes, (6, 42), strict=True):
        read = OODData(data).rows(probe.part)
        assert len(read) == rows
        wanted = data.x[read].sum().item()
        found = values[values["metric"] == f"{probe.name}/sum"]["mean"]
        assert len(found) == 3
        assert np.allclose(found, wanted, rtol=1e-4)
    assert [result.ledger[0]["stages"][str(k)]["outside"] for k in range(3)] == [48] * 3
    assert not set(OODData(data).rows("train").tolist()) & set(data.test.tolist())


def test_a_limit_takes_equal_shares_of_classes():
    data = blobs(1)
    few = OODData(data, limit=8)
    assert len(few.rows("train")) == 8
    whole = OODData(data).rows("train")
    assert set(few.rows("train").tolist()) < set(whole.tolist())
    counts = torch.bincount(data.y[few.rows("train"), 0])
    assert counts.max() - counts.min() <= 1
    assert torch.equal(few.rows("valid"), OODData(data).rows("valid"))  # it has fewer anyway
    with refuses("outside.limit"):
        train(outside={"data": "blobs", "limit": -1})


def test_inputs_are_seen_as_the_streams_are():
    x = torch.randint(0, 255, (80, 1, 4, 4), dtype=torch.uint8)
    own, other = (
        engram.Data.from_arrays(part, [0, 1, 2, 3] * 10, mean=mean, std=mean)
        for part, mean in ((x[:40], (0.5,)), (x[40:], (0.1,)))
    )
    stream = engram.task_incremental(own, classes_per_task=2)
    result = engram.run(stream, probes=[Looks()], outside=other, epochs=1, device="cpu")
    rows = OODData(other).rows("valid")
    wanted = ((other.x[rows] / 255 - 0.5) / 0.5).sum().item()
    assert np.allclose(result.probes()["mean"], wanted, rtol=1e-4)


def test_it_changes_no_run(tmp_path):
    without, beside = train(), train(outside=blobs(1))
    assert without.runs == beside.runs
    assert np.array_equal(without.matrix, beside.matrix, equal_nan=True)
    train(out=tmp_path, keep="parameters")
    asked = {"probes": [Looks()], "out": tmp_path, "keep": "parameters"}
    one = train(**asked, outside=blobs(1))
    assert one.runs == without.runs
    two = train(**asked, outside=blobs(2))  # another set is another measurement, and no training
    sums = [r.probes()["mean"].iloc[0] for r in (one, two)]
    assert sums[0] != sums[1]


def test_a_recipe_and_back(tmp_path):
    plain = {
        "stream": {"data": "blobs", "kind": "task_incremental"}, "method": "Finetune",
        "outside": {"data": "blobs", "data_options": {"seed": 1}},
    }  # fmt: skip
    recipe = engram.Recipe.of(plain)
    bare = engram.Recipe.of({k: v for k, v in plain.items() if k != "outside"})
    assert recipe.id == bare.id
    again = engram.Recipe.read(recipe.write(tmp_path / "one.yaml"))
    assert again.plain() == recipe.plain()
    assert again.outside == plain["outside"]
    assert engram.Recipe.of({**plain, "outside": "digits"}).outside == {"data": "digits"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (7, "outside: expected data, or the name"),
        ({"data": "blobs", "option": 1}, "unknown name 'option'"),
        ("blops", "did you mean 'blobs'"),
        ("digits", "shape"),
        ("blobs", "another data set than the stream's own"),
    ],
)
def test_refused_before_training(given, said, monkeypatch):
    monkeypatch.setattr("engram.engine.engine.Engine.stages", None)
    stream = engram.task_incremental(engram.load("blobs"), classes_per_task=2)
    with pytest.raises(BadArgument, match=said):
        engram.run(stream, outside=given)


def test_part_of_the_streams_own_data_is_refused():
    data = blobs()
    with pytest.raises(BadArgument, match="own"):
        train(outside=engram.Data.from_arrays(data.x[:20], [0, 1] * 10))
    with pytest.raises(BadArgument, match="own"):
        train(outside=blobs(mean=[1.0] * 16, std=[2.0] * 16))


def test_too_few_rows_are_refused():
    with pytest.raises(BadArgument, match="5 training rows"):
        train(outside=blobs(1, per_class=5))


def test_a_probe_that_reads_it_needs_one():
    with pytest.raises(BadArgument, match=r"outside: expected an outside data set.*'looks'"):
        train(probes=[Looks()])


def test_from_the_command_line(tmp_path):
    words = ["run", "--data", "blobs", "--out", str(tmp_path), "--set", "epochs=1"]
    same = CliRunner().invoke(app, [*words, "--ood", "blobs"])
    assert same.exit_code == 2
    assert "own" in same.output
    done = CliRunner().invoke(
        app, [*words, "--set", "outside={data: blobs, data_options: {seed: 1}}"]
    )
    assert done.exit_code == 0, done.output
    (content,) = engram.read(tmp_path).recipes.values()
    assert content["outside"] == {"data": "blobs", "data_options": {"seed": 1}}
