"""How figures of all papers look: size, looks of rows, folded tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from engram.report.method_styles import DASHES, PALETTE
from engram.reproduce.papers import rwalk_paper
from engram.reproduce.papers.figure_parts import (
    MOST_COLUMNS,
    PlotGrid,
    assign_looks,
    draw_table,
    draw_task_level,
    fold_table,
)
from engram.reproduce.reproduction import count_columns, render_figure_page

pytest.importorskip("plotly")


def levels(tasks, panels=("without",), methods=("EWC", "ER")):
    rows = [
        {"panel": panel, "method": method, "task": task, "stage": stage, "accuracy": 0.5}
        for panel in panels
        for method in methods
        for task in range(tasks + 1)
        for stage in range(max(task, 1), tasks + 1)
    ]
    return pd.DataFrame(rows)


def plot_heights(figure):
    """In pixels."""
    margin, height = figure.layout.margin, figure.layout.height
    inside = height - margin.t - margin.b
    return {round(inside * (axis.domain[1] - axis.domain[0])) for axis in figure.select_yaxes()}


@pytest.mark.parametrize(("tasks", "columns"), [(4, 3), (5, 3), (7, 4), (10, 4)])
def test_plots_are_as_high_in_one_half_as_in_both(tasks, columns):
    looks = assign_looks(["EWC", "ER"])
    half = draw_task_level(levels(tasks), looks)
    both = draw_task_level(levels(tasks, ("without", "with")), looks)
    assert plot_heights(half) == plot_heights(both)
    assert min(plot_heights(half)) >= 150
    assert count_columns(half) == count_columns(both) == columns <= MOST_COLUMNS
    shown = [note.text for note in both.layout.annotations if note.text]
    assert len(shown) == 2 * (tasks + 1)
    assert "with: mean" in shown


def test_a_page_is_never_wider_than_a_window():
    wide = PlotGrid(columns=range(12)).figure
    assert "min-width: 60em" in render_figure_page(wide, "x")
    assert "min-width: 20em" in render_figure_page(PlotGrid().figure, "x")


def test_a_long_legend_makes_room_for_itself():
    few, many = PlotGrid(), PlotGrid()
    looks = assign_looks([f"a method with a long name {k}" for k in range(20)])
    few.add_line([1], [1], next(iter(looks)), looks)
    for name in looks:
        many.add_line([1], [1], name, looks)
    assert plot_heights(few.figure) == plot_heights(many.figure)
    assert many.figure.layout.margin.b > few.figure.layout.margin.b + 50


def test_rows_of_a_paper_differ_in_colour_or_dash():
    names = [f"row {k}" for k in range(len(PALETTE) * len(DASHES))]
    assert len({(one.color, one.dash) for one in assign_looks(names).values()}) == len(names)
    own = rwalk_paper._looks([])
    rows = [*rwalk_paper.METHODS, "Vanilla-S", "EWC-S", "PI-S"]
    assert len({(own[name].color, own[name].dash) for name in rows}) == len(rows)


def test_what_was_not_run_is_one_line_and_what_is_missing_is_blank():
    table = pd.DataFrame({
        "finding": ["a", "a", "a", "b", "b"], "row": list("vwxyz"),
        "first_value": [0.5, np.nan, np.nan, np.nan, 0.25], "paper_first": [np.nan] * 5,
        "holds": ["yes", "not run", "not run", "not run", "no"],
    })  # fmt: skip
    folded = fold_table(table)
    assert folded["row"].tolist() == ["v", "2 comparisons", "z", "y"]
    assert "paper_first" not in folded
    cells = draw_table(table).data[0].cells.values
    assert not any("nan" in value for column in cells for value in column)
    assert list(cells[list(folded).index("first_value")]) == ["0.5", "", "0.25", ""]


def test_the_plane_has_quadrants_and_distances_to_the_origin():
    points = [("ours", 0.3, -0.2), ("paper", 0.6, 0.4)]
    data = pd.DataFrame([
        {"dataset": "MNIST", "method": "EWC", "source": source, "forgetting": f, "intransigence": i}
        for source, f, i in points
    ])  # fmt: skip
    figure = rwalk_paper.draw_plane(data)
    radii = {shape.x1 for shape in figure.layout.shapes if shape.type == "circle"}
    assert radii == {0.25, 0.5}
    assert {shape.type for shape in figure.layout.shapes} == {"circle", "line"}
    assert sum(shape.type == "line" for shape in figure.layout.shapes) == 2  # both axes
    texts = {note.text for note in figure.layout.annotations}
    assert {"forgets, learns less", "forgets, learns more", "0.25"} <= texts
    assert any("0.361 from the origin" in (trace.hovertemplate or "") for trace in figure.data)
