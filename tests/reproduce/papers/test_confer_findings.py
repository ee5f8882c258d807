"""Findings of ConFER: where their cells stand, what the paper's own numbers say of them, and the
recorded form, which is made of a shipped table.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.reproduce.recorded_confer import (
    FOLDER,
    RecordedCell,
    read_recorded,
    tabulate_recorded,
)
from engram.reproduce import find_table
from engram.reproduce.paper_table import CellEntry
from engram.reproduce.papers.confer_paper import DATA, PAPER, ConFERFindings, list_claims
from engram.reproduce.papers.findings import NOT_RUN, Claim
from engram.reproduce.verdicts import bound_mean

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def claims():
    """All claims, of which nothing has run."""
    nothing = CellEntry(recipes=(), measure=lambda result: np.array([math.nan]))
    return [claim.tried(None) for claim in list_claims(PAPER, lambda cell: nothing)]


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


# -- the recorded form -----------------------------------------------------------------------------
def test_a_recorded_cell_has_its_mean_and_interval():
    values = RecordedCell(0.7, 0.02, place=5).values()
    low, high = bound_mean(values)
    assert (values.mean(), low, high) == pytest.approx((0.7, 0.68, 0.72))
    assert RecordedCell(0.7, math.nan, place=5).values().tolist() == [0.7]


def test_half_widths_of_unrelated_rows_add_in_squares():
    one, two = RecordedCell(0.7, 0.03, 4), RecordedCell(0.6, 0.04, 9)
    sides = [
        (name, lambda result, cell=cell: cell.values()) for name, cell in (("a", one), ("b", two))
    ]
    line = Claim("", "", *sides).tried(None)
    assert line["difference"] == pytest.approx(0.1)
    assert (line["low"], line["high"]) == pytest.approx((0.05, 0.15))


def test_the_shipped_findings_are_those_of_the_shipped_table():
    made = tabulate_recorded(FOLDER / "confer-fer-2013.csv")
    shipped = pd.read_csv(FOLDER / "confer-findings.csv", keep_default_na=False, na_values=[""])
    assert shipped["holds"].tolist() == made["holds"].tolist()
    assert shipped["row"].tolist() == made["row"].tolist()
    for column in ("first_value", "first_std", "low", "high"):
        assert shipped[column].tolist() == pytest.approx(made[column].tolist(), nan_ok=True)
    cells = read_recorded(FOLDER / "confer-fer-2013.csv")[""]
    line = made[(made["first"] == "EWC") & (made["second"] == "NR")].iloc[0]
    own = cells["FER-2013 Task-IL O1 without EWC", "4", "Acc"]
    assert line["first_value"] == pytest.approx(own.mean, abs=1e-4)
    # of three repetitions: half an interval is 4.303 standard errors
    assert line["first_std"] == pytest.approx(own.half / 4.3027 * math.sqrt(3), abs=1e-4)
