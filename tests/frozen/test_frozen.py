"""Numbers, ids and files that no change of the code may move; the table is in `cases`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch

from tests.frozen.__main__ import IDS, NUMBERS, PUBLIC, compare
from tests.frozen.cases import FINISHED, RESUMED, STEADY, numbers_of
from tests.frozen.digests import GRAPHS, RTOL, differences, exact, robust
from tests.frozen.ids import ids
from tests.frozen.public_names import broken_promises, list_public_names

KEPT = json.loads(NUMBERS.read_text("utf-8"))
ONCE = ("matrix", "results", "losses", "scores", "single", "multi", "state", "places")


@pytest.mark.parametrize("name", STEADY)
def test_numbers(name):
    found = robust(numbers_of(name))
    rtol = GRAPHS if name.startswith("TWP") else RTOL
    assert differences(found, KEPT[name], rtol) == []


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_leaves_what_an_uninterrupted_one_does(name):
    parts = {part for part in KEPT[name] if part.partition("/")[0] in ONCE}
    assert len(parts) > 4
    assert differences(*({part: KEPT[one][part] for part in parts}
                         for one in (name, f"{name}, resumed"))) == []  # fmt: skip


def test_no_case_is_kept_that_is_not_run():
    assert list(KEPT) == STEADY


def test_ids():
    kept = json.loads(IDS.read_text("utf-8"))
    found = ids()
    assert {name: found.get(name) for name in {*kept, *found}} == kept


def test_public_names_and_signatures():
    """A change here breaks what users wrote: it wants a line in the changelog, and mostly an old
    name that goes on working (engram.renamed). Then: python -m tests.frozen --write names."""
    assert broken_promises(PUBLIC.read_text("utf-8"), list_public_names()) == []


@pytest.mark.parametrize(
    ("was", "now", "broken"),
    [
        ("blurry(data: Data, ", "blurry(rows: Data, ", True),  # renamed
        ("mix: float = 0.1", "mix: float = 0.2", True),  # another default
        ("mix: float = 0.1", "mix: float | None = 0.1", False),
        ("engram card DIRECTORIES --out/-o", "engram card DIRECTORIES", True),
        ("engram card DIRECTORIES --out/-o", "engram card DIRECTORIES --pdf --out/-o", False),
        ("blurry(data: Data, *, ", "blurry(data: Data, *, soft: bool = False, ", False),
        ("blurry(data: Data, *, ", "blurry(data: Data, *, soft: bool, ", True),  # and no default
        ("class AccessError(EngramError)\n", "", True),
        ("checkpoint of a run: engram-learner-2", "checkpoint of a run: engram-learner-3", True),
    ],
)
def test_what_breaks_a_promise(was, now, broken):
    kept = PUBLIC.read_text("utf-8")
    assert was in kept
    assert bool(broken_promises(kept, kept.replace(was, now))) == broken


def test_the_command_line_reads_the_finished_directory(tmp_path):
    shutil.copytree(FINISHED, tmp_path / "finished")

    def engram(*words):
        command = [sys.executable, "-m", "engram", *words]
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return found.stdout

    engram("report", "finished", "-o", "report.html")
    assert "</html>" in (tmp_path / "report.html").read_text("utf-8")
    assert "EWC" in engram("metrics", "finished")
    before = sorted((tmp_path / "finished").glob("results-*"))
    engram("resume", "finished")
    assert sorted((tmp_path / "finished").glob("results-*")) == before


def test_numbers_tell_small_changes_apart():
    one = {"state/0": torch.linspace(0, 1, 50), "state/1": 1e-6 * torch.ones(3)}
    other = {**one, "state/1": one["state/1"] * torch.tensor([1.0, 1.0, 1.0001])}
    assert differences(robust(one), robust(one)) == []
    assert differences(robust(one), robust(other)) == ["state"]
    assert compare({"case": exact(one)}, {"case": exact(other)}) == 1
