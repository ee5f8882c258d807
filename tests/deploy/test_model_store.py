"""Versions of a learner: what the gate lets pass, the way back, and what stays on disk."""

from __future__ import annotations

import shutil
import threading

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from benchmarks.deploy import gate
from engram import Gate, Learner, ModelStore
from engram.cli import app
from engram.deploy.gate import Check, column_distances, distance_chance, fall_bound, share_bounds
from engram.errors import BadArgument, EngramError
from engram.io import write_json
from engram.records.locks import Claims

MODEL = {"name": "mlp", "hidden": [16]}
CLASSES, ROWS = 4, 100


def week(seed=0, classes=range(CLASSES), rows=ROWS):
    """Rows of some classes, clouds apart from each other."""
    rng = np.random.default_rng(seed)
    y = np.repeat(list(classes), rows)
    return np.float32(4 * np.eye(8)[y] + rng.normal(size=(len(y), 8))), y


@pytest.fixture(scope="module")
def begun():
    """A learner of four classes with fifty calibration rows of each."""
    return Learner(
        "ER", MODEL, memory=100, calibration=50, epochs=8, batch_size=32, lr=0.02, device="cpu"
    ).learn(*week())


@pytest.fixture(scope="module")
def made(begun, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store") / "store"
    ModelStore.create(folder, begun, keep=2)
    return folder


@pytest.fixture
def store(made, tmp_path):
    return ModelStore(shutil.copytree(made, tmp_path / "store"), device="cpu")


def failed(version):
    return {one.rule for one in version.checks if not one.passed}


# -- the gate --------------------------------------------------------------------------------------
def shuffled(x, y, rng):
    return {"x": x, "y": rng.permutation(y)}


def mislabelled(x, y, rng):
    return {"x": x, "y": np.where(y == 2, 1, y)}


def mislabelled_as_new(x, y, rng):
    return {"x": x, "y": np.where(y == 2, 7, y)}


def scaled(x, y, rng):
    return {"x": np.where(np.arange(8) < 3, 40 * x, x), "y": y}


def repeated(x, y, rng):
    return {"x": np.concatenate([x, x[:120]]), "y": np.concatenate([y, y[:120]])}


def without_rows(x, y, rng):
    return {"x": x, "y": y, "classes": [0, 1, 2, 3, 9]}


def delivered_twice(x, y, rng):
    return dict(zip("xy", week(), strict=True))


def of_a_few_rows(x, y, rng):
    return {"x": x, "y": np.where(np.arange(len(y)) < 5, 8, y)}


def new_shuffled(x, y, rng):
    x, y = week(3, range(4, 6))
    return {"x": x, "y": rng.permutation(y)}


BAD = {
    shuffled: "labels", mislabelled: "labels", mislabelled_as_new: "kept rows", scaled: "inputs",
    repeated: "repeats", without_rows: "classes", delivered_twice: "repeats",
    of_a_few_rows: "classes", new_shuffled: "new classes",
}  # fmt: skip


@pytest.mark.parametrize("change", BAD, ids=lambda one: one.__name__)
def test_bad_weeks_are_refused_and_kept_aside(change, store):
    x, y = week(1)
    given = change(x, y, np.random.default_rng(5))
    served = store.learner
    version = store.learn(**given)
    assert BAD[change] in failed(version)
    assert not version.accepted
    assert version.state == "refused"
    assert version.reason.startswith(tuple(f"{rule}: " for rule in failed(version)))
    assert (store.learner, store.current.number) == (served, 1)
    rows, labels = store.refused_rows(2)
    assert np.array_equal(rows.numpy(), given["x"].astype(np.float32))
    assert labels.tolist() == list(given["y"])


def test_good_weeks_are_served(store):
    tests, truth = week(9)
    for number, (seed, classes) in enumerate([(1, range(4)), (2, range(4)), (3, range(6))], 2):
        version = store.learn(*week(seed, classes), note=f"week {seed}", notes={"job": seed})
        assert version.accepted, version.reason
        assert (version.number, version.parent, version.state) == (number, number - 1, "current")
        assert version.metrics["kept"]["fall_at_most"] <= 0.05
        assert store.learner.score(tests, truth) > 0.9
    assert store.learner.notes["job"] == 3
    assert set(version.metrics["classes"]) == {"0", "1", "2", "3", "4", "5"}
    assert version.metrics["classes"]["4"]["before"] == 0.0
    again = ModelStore(store.folder, device="cpu")
    assert (again.learner.predict(tests) == store.learner.predict(tests)).all()
    assert again.versions().equals(store.versions())
    assert store.versions().state.tolist() == ["pruned", "pruned", "kept", "current"]
    assert [one["version"] for one in store.history] == [1, 2, 3, 4]
    assert len(set(store.versions().fingerprint)) == 4


def test_weeks_of_the_benchmark(monkeypatch):
    monkeypatch.setattr(gate, "WEEKS", 1)
    lines = pd.DataFrame(gate.one_seed(2))
    assert lines.kind[lines.accepted].tolist() == ["good"]
    found = gate.summary(lines)
    assert (found.largest_fall <= 0.05).all()
    assert found.weeks.tolist() == [1] * 6


def test_too_few_kept_rows_are_said(begun, tmp_path):
    strict = ModelStore.create(tmp_path / "store", begun, gate=Gate(margin=0.01))
    version = strict.learn(*week(1))
    assert failed(version) == {"kept rows"}
    assert version.reason.endswith("too few for this margin")


def test_rows_of_few_values_may_repeat(tmp_path):
    """Tables of categories have equal rows by nature."""
    x, y = week(rows=50)
    x, options = np.float32(x > 2), {"calibration": 20, "epochs": 1, "device": "cpu"}
    store = ModelStore.create(tmp_path / "s", Learner("ER", MODEL, **options).learn(x, y))
    found = {one.rule: one for one in store.learn(x, y).checks}
    assert found["repeats"].passed
    assert "of the rows kept are equal to others" in found["repeats"].text


def test_what_a_gate_needs(begun, tmp_path):
    bare = Learner("Finetune", MODEL, epochs=1, device="cpu").learn(*week())
    with pytest.raises(EngramError, match=r"needs calibration rows: Learner\(calibration=50\)"):
        ModelStore.create(tmp_path / "a", bare)
    store = ModelStore.create(tmp_path / "a", bare, gate=None)
    assert store.learn(*week(1)).accepted
    with pytest.raises(EngramError, match="needs calibration rows"):
        store.gate = Gate()
    with pytest.raises(BadArgument, match="margin"):
        Gate(margin=-1.0)
    with pytest.raises(BadArgument, match="did you mean 'margin'"):
        Gate(margn=0.1)
    with pytest.raises(BadArgument, match="a new or an empty folder"):
        ModelStore.create(tmp_path / "a", begun)
    with pytest.raises(BadArgument, match=r"a folder that ModelStore\.create made"):
        ModelStore(tmp_path)


def test_bounds_hold():
    """Of falls as large as the margin, at most a share `level` pass; by exact probabilities."""
    rng = np.random.default_rng(0)
    for lost, won in ((0.05, 0.0), (0.15, 0.1)):
        passed = 0
        for _ in range(400):
            draw = rng.random(300)
            before, after = draw >= won, draw < 1 - lost
            passed += fall_bound(before, after, 0.05) <= 0.05
        assert passed <= 400 * 0.05
    assert share_bounds(0, 10, 0.05)[0] == 0.0
    assert share_bounds(10, 10, 0.05) == (pytest.approx(0.05**0.1), 1.0)


def test_distances_are_those_of_scipy():
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, (30, 6)).astype(float), rng.normal(2, 1, (40, 6))
    expected = [ks_2samp(a[:, f], b[:, f]).statistic for f in range(6)]
    assert np.allclose(column_distances(a, b), expected)
    for size in (10, 37, 200):
        a, b = rng.normal(size=size), rng.normal(0.3, 1, size)
        found = ks_2samp(a, b, method="exact")
        assert np.isclose(distance_chance(found.statistic, size), found.pvalue, rtol=1e-9)


# -- the way back ----------------------------------------------------------------------------------
def test_roll_back_and_accept_by_hand(store):
    tests, _ = week(9)
    before = store.learner.predict_proba(tests)
    assert store.learn(*week(1)).accepted
    assert store.rollback(1).state == "current"
    assert (store.learner.predict_proba(tests) == before).all()
    x, y = week(2)
    refused = store.learn(x, np.where(y == 2, 7, y))
    assert refused.parent == 1
    assert store.accept(refused.number).state == "current"
    assert 7 in store.learner.classes_
    with pytest.raises(BadArgument, match="a refused version"):
        store.accept(2)
    other = store.learn(x, np.where(y == 1, 7, y))
    store.rollback(2)
    with pytest.raises(BadArgument, match="began from the current version 2"):
        store.accept(other.number)
    with pytest.raises(BadArgument, match="an accepted version"):
        store.rollback(other.number)
    assert [one["why"] for one in store.history] == [
        "created", "learnt", "rolled back", "accepted by hand", "rolled back"
    ]  # fmt: skip


def test_storage_is_bounded(store):
    store.pin(1, "first")
    x, y = week(1)
    for seed in range(4):
        store.learn(*week(seed + 1), check=False)
        store.learn(x, np.roll(y, 50 + seed))
    kept = sorted(int(path.stem) for path in store.folder.glob("versions/*.engram"))
    assert kept == [1, 6, 8]  # refused before training: no model
    assert len(list(store.folder.glob("aside/*"))) == 2
    states = store.versions().state.tolist()
    assert states == ["kept", "pruned", "refused", "pruned", "refused", "kept", "refused",
                      "current", "refused"]  # fmt: skip
    assert store.versions().name[0] == "first"
    with pytest.raises(BadArgument, match=r"one with a model, \[1, 6, 8\]"):
        store.rollback(2)
    store.pin(1, "")
    assert not (store.folder / "versions/000001.engram").exists()


def test_differences(store):
    store.learn(*week(3, range(5)), check=False)
    found = store.diff(1, 2)
    assert found.classes.index.tolist() == [0, 1, 2, 3, 4]
    assert np.isnan(found.classes.before[4])
    assert found.classes.after[4] > 0.9
    assert (found.predictions.before != found.predictions.after).all()
    assert (found.predictions.label == 4).sum() >= 45
    assert found.settings == {}
    assert found.nbytes.after["calibration"] > found.nbytes.before["calibration"]
    assert "version 1 -> version 2" in str(found)


# -- several processes -----------------------------------------------------------------------------
def test_readers_follow_and_one_writes(store):
    reader = ModelStore(store.folder, device="cpu")
    assert reader.current.number == 1
    store.learn(*week(1))
    assert reader.current.number == 2
    assert reader.learner.tasks == 2
    other = Claims(store.folder)
    assert other.take("writer")
    with pytest.raises(EngramError, match="another process is writing"):
        store.rollback(1)
    ModelStore(store.folder, device="cpu").learner.predict(week()[0])
    other.close()
    store.rollback(1)
    assert reader.learner.tasks == 1


def test_others_predict_while_it_learns(store):
    tests, _ = week(9)
    before, found = store.learner.predict(tests), []

    def ask(steps, of):
        other = threading.Thread(target=lambda: found.append(store.learner.predict(tests)))
        other.start()
        other.join(60)

    assert store.learn(*week(1), progress=ask).accepted
    assert found
    assert all((one == before).all() for one in found)


def test_a_creation_that_was_killed_is_done_again(begun, tmp_path):
    folder = tmp_path / "store"
    ModelStore.create(folder, begun)
    (folder / "store.json").unlink()
    (folder / "versions/.000001.json.tmp-0-0-0").write_text("half")
    assert ModelStore.create(folder, begun).current.number == 1
    (folder / "store.json").unlink()
    (folder / "mine.txt").write_text("")
    with pytest.raises(BadArgument, match="a new or an empty folder"):
        ModelStore.create(folder, begun)


def test_a_learning_that_was_decided_is_published(store):
    """The record is the decision: a writer may die before the pointer."""
    pointer = (store.folder / "store.json").read_bytes()
    store.learn(*week(1))
    (store.folder / "store.json").write_bytes(pointer)
    (store.folder / "versions/000007.engram").write_bytes(b"half")
    (store.folder / "aside/000007.safetensors").write_bytes(b"half")
    again = ModelStore(store.folder, device="cpu")
    assert again.current.number == 2
    assert {path.stem for path in store.folder.glob("*/*.*")} == {"000001", "000002"}


def test_errors_leave_no_version(store):
    with pytest.raises(BadArgument, match="rows of shape"):
        store.learn(np.zeros((3, 5)), [0, 1, 2])
    write_json(store.folder / "store.json", {"format": "other"})
    with pytest.raises(EngramError, match="of another version"):
        ModelStore(store.folder)
    assert sorted(path.name for path in store.folder.glob("versions/*")) == [
        "000001.engram", "000001.json"
    ]  # fmt: skip


def test_a_check_says_what_decided(store):
    version = store.version(1)
    assert version.checks == ()
    x, y = week(1)
    found = store.learn(x, np.roll(y, 50)).checks
    assert [one.rule for one in found] == ["classes", "repeats", "labels", "inputs"]
    assert all(isinstance(one, Check) and one.text for one in found)


# -- the command line ------------------------------------------------------------------------------
def test_commands(begun, tmp_path):
    def shell(*words, code=0):
        told = CliRunner().invoke(app, [*map(str, words)])
        assert told.exit_code == code, told.output
        return told.output

    model, folder = begun.save(tmp_path / "m.engram"), tmp_path / "shop"
    assert "version 1 (current)" in shell("store", model, folder, "--set", "margin=0.1")
    store = ModelStore(folder, device="cpu")
    assert store.gate == Gate(margin=0.1)
    store.learn(*week(1), note="second week")
    assert "second week" in shell("versions", folder)
    lines = shell("versions", folder, "--csv").splitlines()
    assert lines[0].startswith("number,parent,state,how,time,rows,classes,before,after")
    assert "version 1 -> version 2" in shell("versions", folder, "--diff", 1, 2)
    assert "version 1 (current)" in shell("rollback", folder, 1)
    assert store.current.number == 1
    for wrong in (["--no-gate", "--set", "margin=0.1"], ["--set", "margn=0.1"]):
        told = CliRunner().invoke(app, ["store", str(model), str(tmp_path / "c"), *wrong])
        assert told.exit_code == 2
    assert not (tmp_path / "c").exists()
