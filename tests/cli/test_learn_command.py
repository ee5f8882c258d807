"""``engram learn``, week after week, and ``engram predict`` of what comes next."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from engram import Learner
from engram.cli import app
from engram.deploy import ModelStore
from engram.records.locks import Claims
from tests.deploy.conftest import MODEL


def week(kinds, hues=("red", "blue"), number=1, rows=40):
    rng = np.random.default_rng(number)
    kind = np.repeat(kinds, rows)
    place = np.repeat([ord(one[0]) - ord("a") for one in kinds], rows)
    return pd.DataFrame({
        "size": rng.normal(size=len(kind)) + 6 * place, "hue": np.resize(hues, len(kind)),
        "kind": kind,
    })  # fmt: skip


def start(**options):
    learner = Learner("ER", MODEL, epochs=20, lr=0.02, device="cpu", **options)
    return learner.learn(week(["ant", "bee"]), label="kind", standardize=True)


def run(*words):
    return CliRunner().invoke(app, [str(one) for one in words])


@pytest.fixture
def model(tmp_path):
    return start().save(tmp_path / "model.engram")


@pytest.mark.filterwarnings("always::engram.data.tables.table_schema.TableWarning")
def test_a_week_is_learnt_and_the_next_one_predicted(model, tmp_path):
    second = week(["cat"], ("red", "green"), 2).assign(id=range(40))
    second.to_csv(tmp_path / "week2.csv", index=False)
    told = run("learn", model, "--data", tmp_path / "week2.csv", "--label", "kind")
    assert told.exit_code == 0, told.output
    words = " ".join(told.stderr.split())
    assert "'green' in 'hue' (20 of 40 rows)" in words
    assert "left out: 'id'" in words
    assert "40 rows learnt as task 2" in told.stderr
    assert "new classes: cat" in told.stderr
    assert "rows of earlier tasks (in the memory): 1.000 -> " in told.stderr
    told = run("predict", model, "--data", tmp_path / "week2.csv")
    assert "warning: values that are no category" in told.stderr
    assert "left out: 'id'" in told.stderr
    third = week(["ant", "cat"], number=3)
    third.to_parquet(tmp_path / "week3.parquet")
    told = run("predict", model, "--data", tmp_path / "week3.parquet")
    lines = [one.split(",") for one in told.stdout.splitlines()]
    assert lines[0] == ["input", "label", "truth", "probability"]
    assert [one[1] for one in lines[1:]] == Learner.load(model).predict(third).tolist()
    assert "on 80 labelled rows" in told.stderr
    third.drop(columns="kind").to_csv(tmp_path / "bare.csv", index=False)
    before = model.read_bytes()
    told = run("learn", model, "--data", tmp_path / "bare.csv")
    assert (told.exit_code, model.read_bytes()) == (2, before)
    told = run("learn", model, "-d", tmp_path / "week3.parquet", "-o", tmp_path / "new.engram")
    assert (told.exit_code, model.read_bytes()) == (0, before)
    assert "no new classes" in told.stderr
    assert Learner.load(tmp_path / "new.engram").tasks == 3


def test_other_data_and_what_is_refused(model, tmp_path):
    np.savez(tmp_path / "more.npz", x=np.ones((8, 3), np.float32), y=np.repeat(["ant", "cat"], 4))
    assert run("learn", model, "--data", tmp_path / "more.npz").exit_code == 2  # without columns
    plain = Learner("ER", MODEL, epochs=1, device="cpu", calibration=2)
    plain.learn(np.eye(4, 3).repeat(4, 0), np.repeat(["ant", "bee"], 8))
    path = plain.save(tmp_path / "plain.engram")
    told = run("learn", path, "--data", tmp_path / "more.npz")
    assert "rows of earlier tasks (held out for alarms)" in told.stderr
    assert Learner.load(path).classes_.tolist() == ["ant", "bee", "cat"]
    week(["cat"]).to_csv(tmp_path / "w.csv", index=False)
    asked = ["learn", model, "--data", tmp_path / "w.csv"]
    for more in (["--note", "x"], ["--no-gate"], ["--set", "missing=mean"], ["--label", "knd"]):
        assert run(*asked, *more).exit_code == 2
    assert run("learn", tmp_path / "no.engram", *asked[2:]).exit_code == 2
    folder = model.with_name(model.name + ".queue")
    folder.mkdir()
    served = Claims(folder)
    assert served.take("serve")
    assert "no service has in hand" in run(*asked).stderr
    served.close()
    assert run(*asked).exit_code == 0


def test_a_store_learns_behind_its_gate(tmp_path):
    store = ModelStore.create(tmp_path / "shop", start(calibration=40))
    week(["ant", "bee"], number=2, rows=120).to_csv(tmp_path / "good.csv", index=False)
    bad = week(["ant", "bee"], number=3, rows=120)
    bad["kind"] = bad["kind"].to_numpy()[::-1]
    bad.to_csv(tmp_path / "bad.csv", index=False)
    told = run("learn", store.folder, "--data", tmp_path / "bad.csv", "--note", "week 3")
    assert told.exit_code == 1
    assert "refused" in told.stderr
    assert ModelStore(store.folder).current.number == 1
    told = run("learn", store.folder, "--data", tmp_path / "bad.csv", "--no-gate")
    assert told.exit_code == 0
    assert ModelStore(store.folder).current.number == 3
    assert run("learn", store.folder, "-d", tmp_path / "bad.csv", "-o", "x").exit_code == 2
    told = run("predict", store.folder, "--data", tmp_path / "good.csv")
    wanted = ModelStore(store.folder).learner.predict(week(["ant", "bee"], number=2, rows=120))
    assert [one.split(",")[1] for one in told.stdout.splitlines()[1:]] == wanted.tolist()
