"""The scripts in `examples`, in small form."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import engram

SCRIPT = Path(__file__).parents[1] / "examples" / "paper.py"


@pytest.fixture(scope="module")
def paper():
    spec = importlib.util.spec_from_file_location("paper_example", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(paper, tmp_path_factory):
    found = tmp_path_factory.mktemp("paper")
    paper.write_paper(found, ("blobs", "digits"), seeds=3, epochs=1, device="cpu")
    return found


def test_paper_is_written_from_arrays(paper, folder):
    results = {name: engram.read(folder / "runs" / name) for name in ("blobs", "digits")}
    assert [len(result) for result in results.values()] == [9, 9]
    table = (folder / "tables" / "all.tex").read_text()
    numbers = dict(
        re.findall(r"\\newcommand\{\\(\w+)\}\{([\d.-]+)\}", (folder / "numbers.tex").read_text())
    )
    assert len(numbers) == 12
    for name, result in results.items():
        for label in result.labels:
            values = 100 * result.select(label=label).metric("average_accuracy")
            assert f"{values.mean():.1f} $\\pm$ {values.std(ddof=1):.1f}" in table
            word = re.sub(r"\W.*", "", label)
            assert numbers[f"{name.title()}{word}accuracy"] == f"{values.mean():.1f}"
        assert (folder / "figures" / f"{name}.html").read_text().count("<html") == 1
        assert (folder / "tables" / name / "summary.tex").is_file()
    assert "digits" in (folder / "report.html").read_text()
    card = (folder / "card.md").read_text()
    assert "blobs" in card
    assert "digits" in card
    assert str(folder) not in card
    rows = [one for one in table.splitlines() if one.endswith(r"\\")]
    assert len({row.count("&") for row in rows[1:]}) == 1, "as many cells in every line"


def test_bold_means_better_than_the_baseline(paper, folder):
    result = engram.read(folder / "runs" / "blobs")
    (label,) = (one for one in result.labels if one.startswith("ER"))
    means = {
        one: np.mean(result.select(label=one).metric("average_accuracy")) for one in result.labels
    }
    assert means[label] > means["Finetune"]
    table = result.compare("average_accuracy").pairs
    expected = bool(table.loc[[(label, "Finetune")], "p_holm"].iloc[0] < 0.05)
    assert paper.is_better(result, label, "average_accuracy") == expected


def test_a_second_call_trains_nothing(paper, folder):
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/results-*")}
    paper.write_paper(folder, ("blobs", "digits"), seeds=3, epochs=1, device="cpu")
    assert {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/results-*")} == before
