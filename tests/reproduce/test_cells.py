from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.errors import BadArgument
from engram.reproduce import choose_cells, read_cells
from engram.reproduce.cells import Cell, parse_expression

CELLS = read_cells("rwalk", "1")


def methods(expression):
    return [c["method"] for c in choose_cells(CELLS, expression)]


def test_filters_are_joined_by_and_and_alternatives_by_or():
    chosen = choose_cells(CELLS, "dataset=MNIST, method=Vanilla|PI , metric=F")
    assert [(c["dataset"], c["method"], c["metric"]) for c in chosen] == [
        ("MNIST", "Vanilla", "F"), ("MNIST", "PI", "F"),
        ("MNIST", "Vanilla", "F"), ("MNIST", "PI", "F"),
    ]  # fmt: skip


def test_stars_and_case():
    assert set(methods("method=*-s")) == {"Vanilla-S", "EWC-S", "PI-S"}


def test_a_value_may_hold_equals_signs_and_quoted_commas():
    assert len(choose_cells(CELLS, "params=lambda=75000")) == 9
    assert parse_expression('params="a=1,b=2",method=X') == {
        "params": ("a=1,b=2",),
        "method": ("X",),
    }


def test_brackets_stand_for_themselves():
    odd = [Cell("p", "1", {"method": "A[5]"}, 1.0), Cell("p", "1", {"method": "A5"}, 1.0)]
    assert [c["method"] for c in choose_cells(odd, "method=A[5]")] == ["A[5]"]


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("metod=EWC", "did you mean 'method'"),
        ("method=EWK", "did you mean 'EWC'"),
        ("dataset=MNIST,method=vanila", "did you mean 'Vanilla'"),
        ("method", "key=value"),
        ("=EWC", "key=value"),
        ("method=", "at least one value"),
        ("method=EWC|", "at least one value"),
        ("method=EWC,", "key=value"),
        ("method=EWC,,metric=F", "key=value"),
        ("method=EWC,method=PI", "each key once"),
        ("setting=multi-head,method=iCaRL", "some cell"),
        ("order=1", "unknown name 'order'"),
    ],
)
def test_complaints(expression, complaint):
    with pytest.raises(BadArgument, match=complaint):
        choose_cells(CELLS, expression)


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused(text):
    try:
        found = parse_expression(text)
    except BadArgument:
        return
    assert all(key and values and all(values) for key, values in found.items())


def test_cells_are_the_reference_rows():
    one = CELLS[0]
    assert (one.value, one["stage"], one.percent, one["nothing"]) == (90.3, "5", True, "")
    assert not CELLS[1].percent
    assert any(c.doubt for c in read_cells("rwalk", "3"))
    assert all(c.percent for c in read_cells("cgl", "2"))
    assert not any(c.percent for table in "1345" for c in read_cells("cgl", table))
    assert read_cells("cgl", "2")[0]["stage"] == ""
