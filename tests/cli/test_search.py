from __future__ import annotations

import json

import engram as library
from tests.cli.conftest import SMALL

ASK = ("search", *SMALL, "-m", "EWC", "-s", "valid=0.25", "-s", "iterations=2", "-s", "hidden=[8]",
       "--device", "cpu", "--trials", 3, "--tasks", 2, "-o", "found")  # fmt: skip
VARY = ("--set-range", "strength=1..1e4:log")


def test_a_search_is_shown_kept_and_resumed(engram, tmp_path):
    first = engram(*ASK, *VARY)
    assert "3 trials of strength=1..10000:log" in first.output
    assert "validation rows of the first 2 tasks" in first.output
    assert "engram run found/chosen.yaml" in first.output
    chosen = library.Recipe.read(tmp_path / "found" / "chosen.yaml")
    (file,) = (tmp_path / "found" / "searches").glob("*.json")
    assert json.loads(file.read_text())["chosen"] == {"strength": chosen.method.strength}
    results = sorted(one.name for one in (tmp_path / "found").glob("results-*"))
    assert "chosen: strength=" in engram("resume", "found").output
    assert sorted(one.name for one in (tmp_path / "found").glob("results-*")) == results
    assert "no result here is on test rows" in engram("metrics", "found").output
    # the whole stream, too, with what was found
    again = engram(*ASK, *VARY, "--run")
    assert f"EWC strength={chosen.method.strength:g}" in again.output
    whole = library.read(tmp_path / "found" / "chosen")
    assert whole.runs[0].recipe == chosen.id


def test_selecting_on_test_rows_takes_a_word_and_is_marked(engram, tmp_path):
    refused = engram("search", *SMALL, "-m", "EWC", *VARY, code=2)
    assert "--set valid=0.1" in refused.output
    assert "--select-on test" in refused.output
    marked = engram(*ASK, *VARY, "--select-on", "test")
    assert "TEST ROWS" in marked.output
    chosen = library.Recipe.read(tmp_path / "found" / "chosen.yaml")
    assert chosen.label.endswith("chosen on test rows")
    page = engram("report", "found", "-o", "page.html")
    assert page.exit_code == 0
    assert "TEST ROWS" in (tmp_path / "page.html").read_text()


def test_bad_ranges_are_refused(engram, tmp_path):
    assert "at least one range" in engram(*ASK, code=2).output
    assert "key=RANGE" in engram(*ASK, "--set-range", "lr", code=2).output
    assert "did you mean 'strength'" in engram(*ASK, "-r", "strenght=1..2", code=2).output
    assert "a RECIPE.yaml" in engram("search", *VARY, code=2).output
    assert not (tmp_path / "found").exists()
