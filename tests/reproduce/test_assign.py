from __future__ import annotations

import pytest

from engram.errors import BadArgument
from engram.reproduce import find_table
from engram.reproduce.papers.assign import assign
from engram.reproduce.papers.cgl_preset import EMBEDDED, NTU, PAPER, UCLA, grid, recipe

STORED = "ucla.data_options.held=stored"


def test_dots_lead_into_the_options_of_a_data_set():
    preset = assign(PAPER, [STORED])
    assert recipe(preset, UCLA, "REPLAY").stream["data_options"] == {"held": "stored"}
    assert recipe(preset, UCLA, "REPLAY").id != recipe(PAPER, UCLA, "REPLAY").id
    assert recipe(preset, NTU, "REPLAY").id == recipe(PAPER, NTU, "REPLAY").id
    assert PAPER.ucla.data_options == {}
    assert assign(EMBEDDED, ["ucla.data_options.frames=4"]).ucla.data_options == {
        "per_class": 20, "frames": 4,
    }  # fmt: skip


def test_search_of_table_3_keeps_the_options_of_the_data_set():
    for made in grid(assign(PAPER, [STORED]), UCLA, "REPLAY").values():
        assert made.stream["data_options"] == {"held": "stored", "split": "tuning"}


def test_real_rows_follow_the_choice(engram_data):
    made = find_table("cgl/2", assignments=[STORED]).recipes[0]
    data = made.data(str(engram_data))
    assert data.attributes["view"][data.test].unique().tolist() == [3]


def test_options_have_no_fields_of_their_own():
    with pytest.raises(BadArgument, match=r"preset\.ucla\.data_options\.held"):
        assign(PAPER, [STORED, "ucla.data_options.held.x=1"])


def test_a_data_set_can_be_left_out():
    figure = find_table("rwalk/fig4", assignments=["cifar=null"]).figures[0]
    assert {made.stream["data"] for made in figure.recipes} == {"mnist"}
    with pytest.raises(BadArgument, match=r"preset\.cifar: expected null, to leave it out"):
        find_table("rwalk/fig4", assignments=["cifar=none"])
