"""The scripts in `examples`, in small form."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import engram
from engram.report.monitor_page import find_problems

ROOT = Path(__file__).parents[1]


def load_example(name):
    spec = importlib.util.spec_from_file_location(f"{name}_example", ROOT / f"examples/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def paper():
    return load_example("paper")


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


# Twelve weeks: a new class, a drift, a bad week, a roll-back.


@pytest.fixture(scope="module")
def weeks(tmp_path_factory):
    script = load_example("twelve_weeks")
    store = script.begin(tmp_path_factory.mktemp("weeks") / "fruit")
    return script, store, {week: script.pass_week(store, week) for week in range(1, 13)}


def test_twelve_weeks_are_learnt_but_for_the_shuffled_one(weeks):
    script, store, found = weeks
    assert [week for week, one in found.items() if not one.accepted] == [script.SHUFFLED]
    assert found[script.SHUFFLED].reason.startswith("labels: ")
    low = {week: one.accuracy for week, one in found.items() if one.accuracy < 0.93}
    assert set(low) == {script.PLUMS, script.MISTAKEN + 1}
    assert low[script.PLUMS] < 0.78, "every plum was called something else"
    assert found[script.PLUMS + 1].accuracy > 0.93, "plums are learnt"
    assert found[12].accuracy > 0.95
    before, after = found[script.MISTAKEN].learnt, store.version(found[11].learnt)
    assert found[11].asked == before
    assert after.parent == store.version(before).parent, "begun from the version before the mistake"
    assert store.current.number == found[12].learnt
    for name in ("apple", "lemon", "pear", "plum"):
        rows, y = script.make_week(13)
        assert store.learner.score(rows[y == name], y[y == name]) > 0.9


def test_the_monitor_tells_of_what_happened(weeks):
    script, store, found = weeks
    monitor = store.monitor
    weekly = monitor.accuracy("period")["accuracy"]
    assert weekly.tolist() == pytest.approx([one.accuracy for one in found.values()])
    drift = monitor.drift()
    named = drift[drift["drift"]].groupby("period")["what"].agg(set)
    assert set(named.index) == {script.PLUMS, script.NEW_SCALE}
    assert named[script.NEW_SCALE] - {"novelty"} == {"weight"}
    assert found[script.PLUMS].alarms > 0.15
    usual = [found[week].alarms for week in (1, 2, 3, 10, 11, 12)]
    assert np.mean(usual) < 0.08
    problems = " ".join(find_problems(monitor))
    assert "Period 11: accuracy" in problems
    assert monitor.forgetting()["forgotten"].max() < 0.1
    assert monitor.accuracy("class").loc["lemon", "accuracy"] < 0.97


def test_the_guide_quotes_the_script():
    script = (ROOT / "examples" / "twelve_weeks.py").read_text()
    guide = (ROOT / "docs" / "guide" / "week-by-week.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        assert block in script
