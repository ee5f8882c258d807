"""Findings of ConFER: where their cells stand, and what the paper's own numbers say of them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from engram.reproduce import find_table
from engram.reproduce.papers.confer_paper import (
    DATA,
    PAPER,
    ConFERFindings,
    bound_plain_training,
)
from engram.reproduce.papers.findings import NOT_RUN, Moments

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def claims():
    """All claims, of which nothing has run."""
    cells = ConFERFindings(
        "confer", PAPER, DATA["findings"], {}, recorded=lambda cell: give_nothing
    )
    return [claim.tried(None) for claim in [*cells.claims, *bound_plain_training(cells)]]


def give_nothing(result):
    return Moments()


def test_cells_are_found_by_their_keys():
    finder = ConFERFindings("confer", PAPER, (), {})
    place = {"setting": "Class-IL", "order": "O1", "augmentation": "without", "metric": "Acc",
             "method": "LR", "stage": "last"}  # fmt: skip
    (cell,) = finder.find_cells("any", {**place, "dataset": "FER-2013"})
    assert (cell.table, cell["stage"], cell.value) == ("31", "7", 0.34)
    (cell,) = finder.find_cells("any", {**place, "dataset": "AffectNet"})
    assert (cell.table, cell["stage"], cell["augmentation"]) == ("13", "8", "original")
    row = finder.find_cells("any", {**place, "dataset": "CK+", "stage": "3"})
    assert [(one.table, one.value) for one in row] == [("5", 0.82)]


def test_claims_are_about_all_sets(claims):
    assert {one["holds"] for one in claims} == {NOT_RUN}
    for name in PAPER.parts.values():
        own = {one["finding"] for one in claims if one["row"].startswith(f"{name} ")}
        told = {one["finding"] for one in DATA["findings"]} - own
        assert not {one for one in told if "larger than the memory" not in one}
    places = {one["row"] for one in claims}
    assert "AffectNet Class-IL O1 original Acc at the end" in places


def test_print_does_not_bear_out_all_that_its_text_says(claims):
    table = pd.DataFrame(claims)
    said = table.groupby("finding")["printed_holds"].value_counts().unstack(fill_value=0)
    assert said.loc["Class-IL: plain training predicts the newest class alone", "yes"] == 6
    assert said.loc["Task-IL: rows end in the printed order", "yes"] == 6
    held = f"{said['yes'].sum():.0f} of {len(table)} comparisons hold in its own tables"
    assert held in " ".join((ROOT / "docs/protocols/confer.md").read_text().split())
    copies = table[table["finding"].str.contains("copies") & table["row"].str.contains("FER")]
    assert copies["printed_holds"].tolist() == ["no"] * 4
    regularised = table[table["finding"] == "Task-IL: EWC and LwF end above replay"]
    fer = regularised[regularised["row"].str.contains("FER")]
    assert fer["printed_holds"].tolist() == ["yes"] * 8


def test_drawn_faces_stand_for_one_set():
    (figure,) = find_table("confer/findings", embedded=True).figures
    assert len(figure.recipes) == 43
    assert {one.stream["data"] for one in figure.recipes} == {"faces"}
    assert {names["dataset"] for names in figure.rows} == {"FER-2013"}
