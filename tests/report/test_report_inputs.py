"""What a report reads from run directories, and what it does without for that."""

from __future__ import annotations

import subprocess
import sys

import pandas as pd
import pytest

from engram import report
from engram.errors import RecordError
from engram.records import Rows, RunDirectory
from engram.report import build, from_directories
from engram.report.report_inputs import REPRODUCTION_COLUMNS, REPRODUCTION_FILE, read_reproduction

HEADER = ",".join(REPRODUCTION_COLUMNS)
LINE = 'rwalk,1,"EWC, MNIST",,A,0.558,,,0.5612,0.0032,,,agrees,,'


def trained(path):
    rows = Rows(recipe="0a1b2c3d4e5f", label="ER", seed=0)
    rows.add("accuracy", 0.9, stage=0, task=0, head="single")
    RunDirectory(path).append(rows)
    return path


def compared(path, *lines):
    path.mkdir(exist_ok=True)
    (path / REPRODUCTION_FILE).write_text("\n".join([HEADER, *lines]) + "\n", "utf-8")
    return path


def test_the_file_is_the_one_that_reproductions_write():
    from engram.reproduce import reproduction, result_tables

    assert REPRODUCTION_FILE == reproduction.REPRODUCTION_FILE
    assert result_tables.COLUMNS == REPRODUCTION_COLUMNS


def test_a_reproduction_is_shown_beside_the_results(tmp_path):
    folder = compared(trained(tmp_path / "run"), LINE)
    inputs = from_directories(folder)
    (table,) = inputs.reproductions
    assert tuple(table.columns) == REPRODUCTION_COLUMNS
    row = table.iloc[0]
    assert (row["table"], row["cell"], row["ours"], row["reason"]) == (
        "1",
        "EWC, MNIST",
        0.5612,
        "",
    )
    assert pd.isna(row["low"])
    page = build(inputs, tmp_path / "r.html").read_text("utf-8")
    assert "rwalk, table 1" in page
    assert "EWC, MNIST" in page
    assert inputs.problems == []


def test_settings_are_shown_where_there_are_any(tmp_path):
    folder = trained(tmp_path / "run")
    for settings, seen in (("mnist.epochs=1", True), ("", False)):
        (folder / REPRODUCTION_FILE).write_text(f"{HEADER}\n{LINE}{settings}\n", "utf-8")
        page = build(from_directories(folder), tmp_path / "r.html").read_text("utf-8")
        assert ("mnist.epochs=1" in page) is seen
        assert (">Settings<" in page) is seen


def test_stages_are_shown_where_lines_differ_in_nothing_else(tmp_path):
    folder = trained(tmp_path / "run")
    for stages, seen in ((("1", "2"), True), (("5",), False)):
        lines = [LINE.replace(",,A", f",{stage},A") for stage in stages]
        text = "\n".join([HEADER, *lines])
        (folder / REPRODUCTION_FILE).write_text(f"{text}\n", "utf-8")
        page = build(from_directories(folder), tmp_path / "r.html").read_text("utf-8")
        assert (">Stage<" in page) is seen


def test_every_paper_table_is_a_table_of_its_own(tmp_path):
    folder = compared(trained(tmp_path / "a"), LINE, "rwalk,3,EWC,,F,1,,,1,0,,,agrees,,", LINE)
    other = compared(trained(tmp_path / "b"), "cgl,2,ER,,AA,90.5,,,,,,,not run,no data,")
    tables = from_directories(folder, other).reproductions
    assert [(t["paper"][0], t["table"][0], len(t)) for t in tables] == [
        ("rwalk", "1", 2),
        ("rwalk", "3", 1),
        ("cgl", "2", 1),
    ]


def test_a_table_without_training_needs_no_results(tmp_path):
    from engram.reproduce import reproduce

    (tmp_path / "alone").mkdir()
    reproduce("rwalk/4", out=tmp_path / "alone")
    inputs = from_directories(tmp_path / "alone")
    assert len(inputs.frame) == 0
    assert len(inputs.reproductions[0]) == 16
    assert "rwalk, table 4" in build(inputs, tmp_path / "r.html").read_text("utf-8")
    both = from_directories(tmp_path / "alone", trained(tmp_path / "run"))
    assert both.frame["label"].tolist() == ["ER"]
    assert len(both.reproductions) == 1


def test_a_directory_with_neither_is_refused(tmp_path):
    with pytest.raises(RecordError, match="not a run directory"):
        from_directories(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "expected the columns paper, table"),
        (b"paper,ours\nrwalk,0.5\n", "got paper, ours"),
        (f"{HEADER}\n{LINE[:30]}".encode(), "row 1 has 7 of 15 values"),
        (f'{HEADER}\nrwalk,1,"EWC'.encode(), "not a valid CSV file"),
        (f"{HEADER}\n{LINE.replace('0.558', 'high')}\n".encode(), "column printed: .*'high'"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
    ],
    ids=["empty", "columns", "cut", "quote", "number", "binary"],
)
def test_a_broken_reproduction_is_a_problem(tmp_path, content, reason):
    folder = trained(tmp_path / "run")
    (folder / REPRODUCTION_FILE).write_bytes(content)
    with pytest.raises(RecordError, match=reason):
        read_reproduction(folder / REPRODUCTION_FILE)
    inputs = from_directories(folder)
    assert inputs.reproductions == []
    assert inputs.frame["label"].tolist() == ["ER"]
    (problem,) = inputs.problems
    assert problem.startswith(str(folder / REPRODUCTION_FILE))
    assert REPRODUCTION_FILE in build(inputs, tmp_path / "r.html").read_text("utf-8")


def python(code, folder):
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120
    )


WITHOUT = """
import sys
for name in ("plotly", "jinja2"):
    sys.modules[name] = None
from pathlib import Path
from typer.testing import CliRunner
from engram.report import Finding, diagnose, from_directories
from engram.cli import app
from engram.reproduce import find_table

def call(*args):
    done = CliRunner().invoke(app, list(args))
    assert done.exit_code == 0, (done.output, done.exception)

call("run", "--data", "blobs", "-s", "classes_per_task=5", "-s", "epochs=1", "-o", "out")
Path("paper").mkdir()
call("reproduce", "rwalk/4", "-o", "paper")
assert find_table("cgl/fig3").name == "cgl/fig3"  # that it is drawn later needs nothing yet
inputs = from_directories("out", "paper")
assert all(isinstance(one, Finding) for one in diagnose(inputs.frame)), inputs
assert len(inputs.reproductions) == 1
try:
    from engram.report import build
except ImportError as problem:
    print("REFUSED", problem)
"""


def test_training_and_reproducing_need_neither_plotly_nor_jinja2(tmp_path):
    done = python(WITHOUT, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "REFUSED" in done.stdout  # the block works: a page does need them


def test_plotly_is_loaded_with_the_first_page_only(tmp_path):
    show = "print([name in sys.modules for name in ('plotly', 'jinja2')])"
    code = f"import sys\nimport engram.report as r\ndir(r)\nr.diagnose\n{show}\nr.build\n{show}"
    assert python(code, tmp_path).stdout.split("\n")[:2] == ["[False, False]", "[True, True]"]


def test_every_public_name_is_there():
    assert all(callable(getattr(report, name)) for name in report.__all__)
    assert set(report.__all__) <= set(dir(report))
    with pytest.raises(AttributeError, match="no attribute 'bild'"):
        report.bild  # noqa: B018
