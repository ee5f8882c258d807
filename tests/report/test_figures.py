"""Figures: nothing vanishes below something else, and colours suit the page."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from engram.report.figures import HEAT_SCALES, MOST_BOLD, draw_lines, draw_over_stages, draw_points
from engram.report.method_styles import PALETTE, assign_styles

NAMES = ["A", "B", "C", "D"]
LOOKS = assign_styles(NAMES)


def table_of(values, spread=None, names=NAMES):
    rows = [
        {"name": name, "head": "single", "x": k + 1, "value": value, "std": spread}
        for name, own in zip(names, values, strict=False) for k, value in enumerate(own)
    ]  # fmt: skip
    return pd.DataFrame(rows).astype({"std": float})


def test_equal_lines_are_wider_the_lower_they_lie():
    table = table_of([[1.0, 0.5], [1.0, 0.5], [1.0, 0.6], [1.0, 0.5]])
    lines = draw_lines(table, LOOKS, x="stage", y="accuracy").data
    widths = [one.line.width for one in lines]
    assert widths[0] > widths[1] > widths[3] == widths[2]
    assert [one.marker.size - one.line.width for one in lines] == [5] * 4
    points = pd.DataFrame({"name": NAMES, "head": "", "x": [0.2, 0.2, 0.3, 0.2], "y": 1.0})
    sizes = [one.marker.size for one in draw_points(points, LOOKS, x="x", y="y").data]
    assert sizes[0] > sizes[1] > sizes[3] == sizes[2]


def test_heads_do_not_cover_each_other():
    table = table_of([[1.0, 0.5]])
    both = pd.concat([table, table.assign(head="multi")])  # only one of them is shown
    assert {one.line.width for one in draw_lines(both, LOOKS, x="stage", y="y").data} == {2}


def test_error_bars_stand_side_by_side():
    table = table_of([[1.0, 0.5]] * 4, spread=0.1)
    drawn = draw_lines(table, LOOKS, x="stage", y="accuracy").data
    first = [float(one.x[0]) for one in drawn]
    assert min(np.diff(first)) > 0.05
    assert np.mean(first) == pytest.approx(1)
    assert all(list(one.customdata) == [1, 2] for one in drawn)
    assert all("%{customdata" in one.hovertemplate for one in drawn)  # what is read stays true
    without = draw_lines(table_of([[1.0, 0.5]] * 4), LOOKS, x="stage", y="accuracy").data
    assert {float(one.x[0]) for one in without} == {1.0}
    stages = draw_over_stages(table, LOOKS, "accuracy", 2)
    low, high = stages.layout.xaxis.range
    assert low < min(first)
    assert high > 2 + max(first) - 1


def test_many_error_bars_are_faint():
    names = [str(i) for i in range(MOST_BOLD + 1)]
    looks = assign_styles(names)
    for count, faint in ((MOST_BOLD, False), (MOST_BOLD + 1, True)):
        table = table_of([[1.0, 0.5]] * count, spread=0.1, names=names)
        colors = [one.error_y.color for one in draw_lines(table, looks, x="s", y="y").data]
        assert all((color not in PALETTE) == faint for color in colors)


def test_lines_follow_their_axis():
    table = table_of([[0.1, 0.2, 0.3]]).iloc[[2, 0, 1]]  # a run that lacks a stage comes late
    (line,) = draw_lines(table, LOOKS, x="stage", y="accuracy").data
    assert (list(line.x), list(line.y)) == ([1, 2, 3], [0.1, 0.2, 0.3])


def brightness(color):
    parts = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("theme, card", [("light", "#ffffff"), ("dark", "#1b1f23")])
def test_empty_cells_are_near_the_paper_and_numbers_readable(theme, card):
    scale = HEAT_SCALES[theme]
    values = [brightness(color) for _, color in scale.colors]
    from_card = [abs(value - brightness(card)) for value in values]
    assert from_card[0] < 0.15
    assert from_card == sorted(from_card)
    for place in np.linspace(0, 1, 101):
        cell = np.interp(place, [at for at, _ in scale.colors], values)
        text = brightness(scale.text[int(place >= scale.turn)])
        low, high = sorted([cell, text])
        assert (high + 0.05) / (low + 0.05) > 3.7, place
