"""What a run leaves: a model that answers as the run did, and goes on."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import engram
from engram import methods
from engram.cli import app
from engram.data.tables.table_schema import TableWarning
from engram.deploy.program_export import Program
from tests.deploy.conftest import FAST, MODEL
from tests.refusals import refuses


@pytest.fixture(scope="module")
def runs(six, tmp_path_factory):
    """Two methods in memory and in a directory."""
    out = tmp_path_factory.mktemp("runs")
    options = {"method": ["EWC", methods.ER()], "model": MODEL, "together": False, **FAST}
    inside = engram.run(six[3], **options)
    engram.run(six[3], out=out, detectors=["Mahalanobis"], **options)
    return inside, out


def test_the_model_of_a_run_says_what_the_run_said(runs, six, tmp_path):
    x, y, test, stream = six
    inside, out = runs
    rows = stream.data.test.numpy() - len(x)
    inside.save(tmp_path / "copy")
    for result in (inside, engram.read(tmp_path / "copy"), engram.read(out)):
        learner = result.model("ER")
        accuracy = np.nanmean(result.select(label="ER").matrix[0, -1])
        assert learner.score(test[rows], y[rows]) == pytest.approx(accuracy)
    assert (
        inside.model("EWC").predict_proba(test) == result.model("EWC").predict_proba(test)
    ).all()
    assert np.median(learner.novelty(test + 20)) > np.median(learner.novelty(test))


def test_it_goes_on_as_the_run_would_have(runs, six, tmp_path):
    x, y, test, stream = six
    whole = engram.run(stream, method="EWC", model=MODEL, **FAST).model()
    part = engram.run(stream[:2], method="EWC", model=MODEL, **FAST).model()
    rows = stream.tasks[2].train.numpy()
    part.learn(x[rows], y[rows])
    assert part._portable.columns == 8  # 4, doubled
    for name, value in whole._portable.tensors.items():
        if name.startswith(("net.", "state/")) and value.ndim == 2:
            grown = part._portable.tensors[name][: len(value)]
            assert torch.allclose(grown, value, atol=1e-4), name
    assert (part.predict(test) == whole.predict(test)).all()
    learner = engram.read(runs[1]).model("ER")
    assert learner.learn(x + 9, np.full(len(x), 77)).predict(test + 9).tolist().count(77) > 0


def test_large_moments_stay_behind_and_it_says_so_when_it_goes_on(six, tmp_path, monkeypatch):
    x, y, test, stream = six
    kept = {**FAST, "epochs": 1, "optim_reset": False}
    for most in (1 << 20, 0):
        monkeypatch.setattr("engram.experiments.model_file.MOST_BYTES", most)
        engram.run(stream[:2], method="Finetune", model=MODEL, out=tmp_path / str(most), **kept)
    whole, light = (engram.read(tmp_path / str(most)).model() for most in (1 << 20, 0))
    moments = {name for name in whole._portable.tensors if name.startswith("opt/")}
    assert moments == whole._portable.tensors.keys() - light._portable.tensors.keys() != set()
    assert (whole.predict_proba(test) == light.predict_proba(test)).all()
    rows = stream.tasks[2].train.numpy()
    with pytest.warns(UserWarning, match="state is reset: moments of the optimiser take 0 MiB"):
        light.learn(x[rows], y[rows])
    assert not light._portable.facts["optimizer_left_out"]  # from now on it has its own


def test_models_that_are_not_there(six, runs, tmp_path):
    inside, out = runs
    with pytest.raises(engram.BadArgument, match="label: expected one of ER, EWC"):
        inside.model()
    with refuses("label", near="EWC"):
        inside.model("EWK")
    with pytest.raises(engram.BadArgument, match="seed: expected one of 0"):
        inside.model("ER", seed=4)
    bare = engram.run(six[3], method="ER", model=MODEL, keep="counts", **FAST)
    with pytest.raises(engram.RecordError, match="keep='scores'"):
        bare.model()
    path = next(out.glob("checkpoint/*/model.engram"))
    broken = tmp_path / "broken.engram"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    broken.write_bytes(content)
    with pytest.raises(engram.RecordError, match="checksum mismatch"):
        engram.Learner.load(broken)


def test_own_networks_must_be_given(six, tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.ReLU())
    engram.run(six[3], method="ER", model=net, out=tmp_path, **FAST)
    with pytest.raises(engram.BadArgument, match="which the file cannot hold"):
        engram.read(tmp_path).model()
    assert engram.read(tmp_path).model(model=net).predict(six[2]).shape == (72,)


def test_code_that_a_file_names_runs_only_when_trusted(six, tmp_path):
    (tmp_path / "nets_of_a_test.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(torch.nn.Linear(8, 5), torch.nn.ReLU())\n"
    )
    name = f"{tmp_path / 'nets_of_a_test.py'}:Net"
    learner = engram.Learner("ER", name, **FAST).learn(six[0], six[1])
    path = learner.save(tmp_path / "model.engram")
    with pytest.raises(engram.EngramError, match="trust=True"):
        engram.Learner.load(path)
    for given in ({"trust": True}, {"model": name}):
        again = engram.Learner.load(path, device="cpu", **given)
        assert (again.predict(six[2]) == learner.predict(six[2])).all()


def test_tasks_with_heads_of_their_own(six):
    x, y, test, stream = six
    apart = engram.task_incremental(stream.data, classes_per_task=2)
    learner = engram.run(apart, method="Finetune", model=MODEL, **FAST).model()
    with pytest.raises(engram.BadArgument, match="task: expected the task of the rows"):
        learner.predict(test)
    assert set(learner.predict(test, task=1)) <= {2, 3}
    learner.learn(x + 9, y + 10)
    assert set(learner.predict(test + 9, task=3)) <= set(range(10, 16))


def test_tables_by_the_names_of_their_columns(six, tmp_path):
    x, y, _, _ = six
    names = [f"f{i}" for i in range(8)]
    table = pd.DataFrame(x, columns=names).assign(colour=np.where(y % 2, "red", "blue"), label=y)
    data = engram.Data.from_frame(table, label="label")
    engram.run(data, method="Joint", model=MODEL, out=tmp_path / "runs", **FAST)
    learner = engram.read(tmp_path / "runs").model()
    right = learner.predict(data.x.numpy())
    other = table[["colour", *reversed(names)]].assign(unknown="?")
    with pytest.warns(TableWarning, match="left out: 'unknown'"):
        assert (learner.predict(other) == right).all()
    other.to_csv(tmp_path / "new.csv", index=False)
    asked = ["predict", str(tmp_path / "runs"), "--data", str(tmp_path / "new.csv")]
    told = CliRunner().invoke(app, asked)
    assert [line.split(",")[1] for line in told.stdout.splitlines()[1:]] == right.astype(
        str
    ).tolist()
    with pytest.raises(engram.BadArgument, match="'colour' among them"):
        learner.predict(table[names])


def test_scales_and_gaps_are_those_of_training(six, tmp_path):
    x, y, test, _ = six
    wild = x * 1000 + 7
    wild[::9, 2] = np.nan
    data = engram.Data.from_arrays(wild, y, test=(test * 1000 + 7, y), standardize=True, fill=True)
    stream = engram.class_incremental(data, classes_per_task=3)
    learner = engram.run(stream, method="ER", model=MODEL, **FAST).model()
    seen = stream.data.x[: len(x)].numpy()
    assert (learner.predict_proba(wild) == learner.predict_proba(seen)).all()
    program = Program(learner.snapshot)
    assert np.allclose(program(torch.tensor(wild)), learner.predict_proba(wild), atol=1e-5)
    assert learner.learn(wild[:12] * 2, np.full(12, 9)).tasks == 3


def test_exported_programs_answer_alike(six, tmp_path, monkeypatch):
    x, y, test, _ = six
    learner = engram.Learner("ICaRL", MODEL, **FAST).learn(x[:36], y[:36])
    path = learner.export(tmp_path / "net.pt2")
    facts = {"engram.json": ""}
    program = torch.export.load(path, extra_files=facts).module()
    assert np.allclose(program(torch.tensor(test[:5])), learner.predict_proba(test[:5]), atol=1e-6)
    assert json.loads(facts["engram.json"])["classes"] == [0, 1, 2]
    with pytest.raises(engram.BadArgument, match=r"\.pt2 \(torch\) or \.onnx"):
        learner.export(tmp_path / "net.bin")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    with pytest.raises(engram.BadArgument, match=r"pip install 'engram-cl\[onnx\]'"):
        learner.export(tmp_path / "net.onnx")


def test_predictions_from_the_command_line(runs, six, tmp_path):
    inside, out = runs
    test = six[2]
    np.save(tmp_path / "new.npy", test)
    shell = CliRunner()
    asked = ["predict", str(out), "--data", str(tmp_path / "new.npy")]
    told = shell.invoke(app, [*asked, "--label", "ER", "--novelty", "--proba", "-o",
                              str(tmp_path / "said.csv")])  # fmt: skip
    assert told.exit_code == 0, told.output
    lines = (tmp_path / "said.csv").read_text().splitlines()
    assert lines[0].startswith("input,label,probability,p(0)")
    labels = [line.split(",")[1] for line in lines[1:]]
    assert labels == inside.model("ER").predict(test).astype(str).tolist()
    assert shell.invoke(app, asked).exit_code == 2  # two methods are there
    (tmp_path / "new.csv").write_text("a,b\n1,x\n")
    wrong = shell.invoke(app, [*asked[:3], str(tmp_path / "new.csv"), "--label", "ER"])
    assert wrong.exit_code == 2
    assert "--drop b" in wrong.output


def test_images_that_cannot_be_read_are_named_and_the_others_predicted(tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (8, 1, 6, 6), dtype=np.uint8)
    model = engram.Learner("Finetune", MODEL, device="cpu").learn(x, [0, 1] * 4)
    saved = str(model.save(tmp_path / "m.engram"))
    with pytest.raises(engram.BadArgument, match=r"\(one input: x\[None\]\)"):
        model.predict(x[0])
    new = tmp_path / "new"
    new.mkdir()
    for i in (0, 1):  # the second one has colours, which a model of grey images does not see
        Image.fromarray(x[i, 0]).convert(("L", "RGB")[i]).save(new / f"{i}.png")
    (new / "0b.png").write_bytes(b"no picture")
    shell = CliRunner()
    told = shell.invoke(app, ["predict", saved, "--data", str(new)])
    assert told.exit_code == 1
    lines = [line.split(",")[:2] for line in told.stdout.splitlines()[1:]]
    assert lines == [[f"{i}.png", str(label)] for i, label in enumerate(model.predict(x[:2]))]
    assert "0b.png: expected a readable image" in told.stderr
    assert "1 image has no prediction, 2 do" in told.stderr
    alone = shell.invoke(app, ["predict", saved, "--data", str(new / "0b.png")])
    assert alone.exit_code == 2
    assert alone.stdout == ""


def test_heads_by_task_are_counted_from_one_on_the_command_line(tmp_path):
    stream = engram.task_incremental(engram.load("blobs"), classes_per_task=5)
    engram.run(stream, model=MODEL, out=tmp_path, together=False, **FAST)
    asked = ["predict", str(tmp_path), "--data", "blobs"]
    shell = CliRunner()
    assert "--task: expected the task of the inputs, 1 to 2" in shell.invoke(app, asked).stderr
    assert "a task from 1 to 2, got 3" in shell.invoke(app, [*asked, "--task", "3"]).stderr
    told = shell.invoke(app, [*asked, "--task", "2"])
    assert "on 100 labelled rows of the classes of task 2" in told.stderr, told.output
    assert float(told.stderr.split()[1]) > 0.8  # of rows that this head can get right
