"""Numbers of own probes on the command line and in reports, without a word of code there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import engram
from engram.cli import app
from engram.report import build, from_directories, write_tables
from tests.forks import command_line
from tests.loose_files import journal_files
from tests.probes.test_probes import train, values

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("probed")
    train(out=path, method=["ER", "Finetune"])
    return path


@pytest.fixture
def cli(monkeypatch):
    """Calls the command line, without a process of its own."""
    monkeypatch.setenv("COLUMNS", "140")

    def call(*words, cwd, code=0):
        monkeypatch.chdir(cwd)
        done = CliRunner().invoke(app, [*map(str, words)])
        assert done.exit_code == code, (done.output, done.exception)
        return done.output

    yield call
    sys.modules.pop("mine", None)


def test_metrics_shows_them_by_stage(folder, cli):
    text = cli("metrics", folder, cwd=folder)
    assert re.search(r"probes\s+probe\s+after 1\s+after 2\s+after 3", text)
    assert re.search(r"entropy/mean ER\s+0\.\d{3} ± 0\.\d{3}", text)
    assert "entropy/of_task (task 2) Finetune" in text
    assert re.search(r"class_distance/known ER\s+2.000 ± 0.000\s+4.000 ± 0.000\s+6.000", text)
    assert "entropy/mean ER,0." in cli("metrics", folder, "--csv", cwd=folder)


def test_the_table_of_a_result(folder):
    table = engram.read(folder).probes()
    one = table[(table["label"] == "ER") & (table["metric"] == "class_distance/auroc")]
    assert one["stage"].tolist() == [0, 1, 2]
    assert one["runs"].tolist() == [3, 3, 0]  # after the last task there is nothing unknown
    own = values(engram.read(folder).select(label="ER")).xs("class_distance/auroc", level="metric")
    assert one["mean"].iloc[1] == pytest.approx(own.xs(1, level="stage").mean())
    assert one["std"].iloc[1] == pytest.approx(own.xs(1, level="stage").std())
    assert len(train(probes=()).probes()) == 0


def test_the_report_shows_them(folder, tmp_path):
    inputs = from_directories(folder)
    page = build(inputs, tmp_path / "report.html").read_text("utf-8")
    assert 'id="probes-section"' in page
    assert "class_distance/auroc" in page
    assert "entropy/of_task (task 1)" in page
    written = write_tables(inputs, tmp_path / "tables")
    assert any(Path(path).name == "probes.csv" for path in written)


def test_a_report_without_probes_has_no_such_section(tmp_path):
    train(out=tmp_path / "runs", probes=(), seeds=1)
    page = build(from_directories(tmp_path / "runs"), tmp_path / "report.html").read_text("utf-8")
    assert 'id="probes-section"' not in page


def test_probes_on_the_command_line(tmp_path, cli):
    (tmp_path / "mine.py").write_text((HERE / "own_probes.py").read_text("utf-8"), "utf-8")
    words = ("run", "--data", "blobs", "--method", "ER", "--set", "epochs=1", "--out", "runs",
             "--device", "cpu")  # fmt: skip
    cli(*words, cwd=tmp_path)
    recipes = [path.name for path in (tmp_path / "runs" / "recipes").iterdir()]
    said = cli(*words, "--probe", "mine:Entropy", "--probe", "mine.py:Silent", cwd=tmp_path)
    assert "already finished: 1 of 1 run" in said
    assert [path.name for path in (tmp_path / "runs" / "recipes").iterdir()] == recipes
    assert "entropy/mean" in cli("metrics", "runs", cwd=tmp_path)
    done = command_line(tmp_path, "resume", "runs", "--trust")  # a new process
    assert done.returncode == 0, done.stderr
    marked = [json.loads(one) for one in journal_files(tmp_path / "runs", "probes").values()]
    assert {len(run["probes"]) for one in marked for run in one["runs"]} == {2}
    said = cli(*words, "--probe", "mine:Entropie", cwd=tmp_path, code=2)
    assert "did you mean 'Entropy'" in said
    said = cli(*words, "--probe", "mine:ClassDistance", cwd=tmp_path, code=2)
    assert "--keep parameters" in said
