"""`engram.verify` finds what was changed in a run directory, and nothing in one that was not."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import engram
from benchmarks.tampering import TAMPERINGS, Copy, leave, read_files, train_clean, write_files
from engram.errors import RecordError
from engram.records import RunDirectory
from engram.records.journal import list_journals
from engram.records.run_environment import environment

WAYS = [way for ways in TAMPERINGS.values() for way in ways]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Two methods, two seeds of the first, written by two calls."""
    out = tmp_path_factory.mktemp("trained") / "out"
    stream = engram.class_incremental(engram.load("blobs"), classes_per_task=5)
    few = {"epochs": 1, "device": "cpu", "together": False, "out": out}
    engram.run(stream, method="ER", seeds=2, **few)
    engram.run(stream, method="EWC", **few)
    return out


@pytest.fixture
def copy(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def checks_of(found: engram.experiments.verification.Verification) -> set[str]:
    return {one.check for one in found.findings}


def test_nothing_is_wrong_with_what_was_recorded(trained):
    found = engram.verify(trained)
    assert found.ok
    assert bool(found)
    assert str(found).count("\n") == len(found.notes)
    done = found.checked
    assert done["runs"] == done["models"] == done["scores predicted again"] == 3
    assert done["recipes"] == done["data fingerprints"] == done["items"] == 2
    assert done["numbers from predictions"] > 100
    assert done["checksums"] > 10


@pytest.mark.parametrize("anew", ["own", "all"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_tampering_is_found(way, anew, copy):
    did = way(Copy(copy, random.Random(7), anew))
    assert not engram.verify(copy).ok, did


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory) -> dict[str, Path]:
    return train_clean(tmp_path_factory.mktemp("clean"))


def test_no_false_alarm(unchanged, tmp_path):
    for one in leave(unchanged, 2 * len(unchanged), 3, tmp_path):
        assert not one["found"], one


def test_values_are_held_against_predictions_by_whoever_forges_all_checksums(copy):
    """What `engram metrics` shows as it stands."""
    before = engram.read(copy).frame()["value"].sum()
    forge = next(way for way in WAYS if way.__name__ == "forge_values")
    forge(Copy(copy, random.Random(1), "all"))
    result = engram.read(copy)
    assert result.problems == ()
    assert result.frame()["value"].sum() != before
    found = engram.verify(copy)
    assert checks_of(found) == {"values"}
    assert "predictions give other numbers: accuracy" in found.findings[0].what


@pytest.mark.parametrize("index", [True, False])
def test_the_last_part_is_whole_once_its_results_are_there(copy, index):
    journal = list_journals(copy)[-1]
    files = read_files(journal)
    del files[[name for name in files if name.startswith("ledger")][-1]]
    write_files(journal, files, "own")
    if not index:
        (copy / ".index").unlink()
    assert "checksums" in checks_of(engram.verify(copy))


def test_other_labels_are_no_findings(tmp_path):
    """Those that tables make shorter, and one that was given to finished runs."""
    stream = engram.class_incremental(engram.load("blobs"), classes_per_task=5)
    methods = ["EWC", engram.methods.ER(memory=engram.Memory(per_class=2))]
    given = {"epochs": 1, "out": tmp_path, "device": "cpu"}
    result = engram.run(stream, method=methods, **given)
    assert result.labels == ["EWC", "ER"]
    assert engram.verify(tmp_path).ok
    assert engram.run(stream, method=methods[1], label="Replay", **given).labels == ["Replay"]
    assert engram.verify(tmp_path).ok


def test_without_the_data_what_depends_on_it_is_named(tmp_path):
    data = engram.load("blobs")
    own = engram.Data.from_arrays(data.x.numpy(), data.y[:, 0].numpy())
    stream = engram.class_incremental(own, classes_per_task=5)
    engram.run(stream, method="ER", epochs=1, out=tmp_path, device="cpu")
    found = engram.verify(tmp_path)
    assert found.ok
    assert any("arrays in memory" in note for note in found.notes)
    assert not found.checked.get("scores predicted again")
    found = engram.verify(tmp_path, data=own)
    assert found.ok
    assert found.checked["scores predicted again"] == 1
    assert "data" in checks_of(engram.verify(tmp_path, data=engram.load("blobs", seed=1)))


def test_code_is_run_only_if_trusted(tmp_path, monkeypatch):
    text = "import engram\nclass Plain(engram.Method):\n    def loss(self, net, batch, state):\n"
    text += "        return {'task': net.task(batch)}\n"
    (tmp_path / "plain.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    recipe = engram.Recipe.of({
        "stream": {"data": "blobs", "classes_per_task": 5}, "method": "plain.py:Plain",
        "training": {"epochs": 1},
    })  # fmt: skip
    engram.sweep([recipe], out=tmp_path / "out", device="cpu")
    found = engram.verify(tmp_path / "out")
    assert found.ok
    assert any("trust" in note for note in found.notes)
    found = engram.verify(tmp_path / "out", trust=True)
    assert found.ok, str(found)
    assert found.checked["scores predicted again"] == 1


def test_a_model_is_handed_out_for_its_own_run_only(copy):
    models = sorted(copy.glob("checkpoint/*/model.engram"))
    shutil.copyfile(models[0], models[1])
    result = engram.read(copy)
    (run,) = (r for r in result.runs if models[1].parent.name.startswith(f"{r.recipe}-{r.seed}-"))
    label = result.run_labels[result.runs.index(run)]
    with pytest.raises(RecordError, match="holds the model of another run"):
        result.model(label, run.seed)
    with pytest.raises(RecordError, match="holds the model of another run"):
        result.save(copy / "saved")


def test_a_directory_without_a_file_of_results_is_no_success(copy):
    """A journal that the index knows and that is gone."""
    list_journals(copy)[0].unlink()
    assert any("is missing" in str(one) for one in engram.read(copy).problems)
    assert any("is missing" in str(one) for one in RunDirectory(copy).problems)


def test_checksums_stand_before_the_files_of_a_part(trained):
    names = list(read_files(list_journals(trained)[0]))
    assert names[0].startswith("checksums")
    assert names[-1].startswith("results")


def test_parts_without_checksums_are_named_not_condemned(copy):
    """Journals of earlier versions."""
    for journal in list_journals(copy):
        files = {k: v for k, v in read_files(journal).items() if not k.startswith("checksums")}
        write_files(journal, files, "own")
    found = engram.verify(copy)
    assert found.ok
    assert any("noted none" in note for note in found.notes)


def test_the_environment_names_the_library_and_its_commit():
    made = environment("cpu")["engram"]
    assert made["version"] == engram.__version__
    root = Path(engram.__file__).parents[2]
    if (root / ".git").exists():
        told = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert made["git"]["commit"] == told.stdout.strip()


def test_a_package_inside_a_foreign_repository_is_not_that_repository(tmp_path):
    """An environment in a project's folder: git finds the project's commit there."""
    package = Path(engram.__file__).parent
    inside = tmp_path / "venv" / "engram"
    shutil.copytree(package, inside, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    code = "from engram.records.run_environment import environment; import json; "
    code += "print(json.dumps(environment('cpu')['engram']))"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "venv", capture_output=True, text=True,
        check=True, env={"PYTHONPATH": str(tmp_path / "venv"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert json.loads(told.stdout)["git"] is None
