from __future__ import annotations

from pathlib import Path

import pytest

from engram.reproduce import count_coverage
from engram.reproduce.coverage import (
    all_cells,
    compare_with_constant,
    count_missing_sets,
    read_recorded_lines,
    sum_coverage,
)
from engram.reproduce.papers import PAPER_NAMES
from engram.reproduce.result_tables import COLUMNS
from engram.reproduce.table_registry import find_table, paper_cells, untrained_tables

HEAD = ",".join(COLUMNS)


def line(cell, verdict, settings="", table="5", stage=""):
    return f"cgl,{table},{cell},{stage},x,1,,,1,0,,,{verdict},,{settings}"


def write(path: Path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([HEAD, *lines]) + "\n")


def counts(folder, **options):
    one = {t.name: t for t in count_coverage("cgl", folder, **options)}["cgl/5"]
    return (
        one.cells,
        one.made,
        one.agrees,
        one.differs,
        one.not_comparable,
        one.not_run,
        one.changed,
    )


def test_the_presets_line_counts(tmp_path):
    """Of several lines of a cell that of the preset, else the last; what was not run counts not."""
    write(tmp_path / "cgl-5" / "reproduction.csv",
          line("a", "agrees"), line("a", "differs", "lr=1"), line("b", "differs", "lr=1"),
          line("b", "agrees", "lr=2"), line("c", "not run"), line("d", "differs", stage="1"),
          line("d", "not comparable", stage="2"), line("e", "agrees", table="2"))  # fmt: skip
    assert counts(tmp_path) == (29, 4, 2, 1, 1, 25, 1)
    assert counts(tmp_path / "cgl-5") == (29, 4, 2, 1, 1, 25, 1)  # one directory by itself
    assert counts(tmp_path, end="-embedded") == (29, 0, 0, 0, 0, 29, 0)
    assert sum_coverage(count_coverage("cgl", tmp_path)).made == 5


def test_fewer_seeds_are_no_other_setting(tmp_path):
    write(tmp_path / "cgl-5.csv", line("a", "agrees", "seeds=3"), line("a", "differs", "lr=1"),
          line("b", "agrees", "seeds=2; lr=1"), line("c", "differs", "seeds=3"),
          line("c", "agrees"))  # fmt: skip
    assert counts(tmp_path) == (29, 3, 3, 0, 0, 26, 1)


def test_saved_tables_count_and_others_do_not(tmp_path):
    write(tmp_path / "cgl-5.csv", line("a", "agrees"))
    (tmp_path / "cgl-4.csv").write_text("width,depth\n1,2\n")
    write(tmp_path / "else.csv", line("b", "agrees"))
    assert counts(tmp_path)[1:3] == (1, 1)
    assert len(read_recorded_lines("cgl", tmp_path)) == 1


def test_figures_are_drawn_or_not(tmp_path):
    """In a run directory of their own or of others, for one data set or several, or saved."""
    assert not any(one.drawn for one in count_coverage("cgl", tmp_path))
    for place in ("cgl-fig7/figures/fig7.csv", "cgl-fig5/figures/fig5-ucla.csv", "cgl-fig1.csv"):
        write(tmp_path / place)
    write(tmp_path / "cgl-2" / "figures" / "fig3.txt")
    assert [one.name for one in count_coverage("cgl", tmp_path) if one.drawn] == [
        "cgl/fig1", "cgl/fig5", "cgl/fig7",
    ]  # fmt: skip
    assert [one.name for one in count_coverage("cgl", tmp_path / "cgl-fig7") if one.drawn] == [
        "cgl/fig7"
    ]


@pytest.mark.parametrize("paper", PAPER_NAMES)
def test_a_table_is_trained_or_not(paper):
    """What a paper says of its tables is what their entries do."""
    tables = {cell.table for cell in all_cells(paper)}
    for table in sorted(tables)[:6]:
        entry = find_table(f"{paper}/{table}").entry
        found = [entry(cell) for cell in paper_cells(paper, table)]
        trained = any(one.recipes or one.missing for one in found)
        counted = any(one.counted for one in found)
        kind = "" if trained else "data counts" if counted else "constants"
        assert untrained_tables(paper).get(table, "") == kind


def test_undecided_is_a_count_of_its_own(tmp_path):
    write(tmp_path / "cgl-5.csv", line("a", "undecided"), line("b", "agrees"))
    one = {t.name: t for t in count_coverage("cgl", tmp_path)}["cgl/5"]
    assert (one.made, one.agrees, one.undecided) == (2, 1, 1)
    assert one.kind == "constants"
    assert sum_coverage([one, one]).undecided == 2


def test_every_cell_without_a_number_is_counted(tmp_path):
    assert sum(count_missing_sets("confer", tmp_path).values()) == 6656
    assert sum(count_missing_sets("iirc", tmp_path).values()) == 382
    cell = paper_cells("rwalk", "1")[0]
    text = f"rwalk,1,{cell.name},{cell['stage']},{cell['metric']},1,,,1,0,,,agrees,,"
    write(tmp_path / "rwalk-1.csv", text)
    before, after = (count_missing_sets("rwalk", place) for place in ("nowhere", tmp_path))
    assert before.pop(cell["dataset"]) == after.pop(cell["dataset"]) + 1
    assert before == after


def test_a_constant_sees_the_answers(tmp_path):
    """Three printed forgettings within .03 of one another, and one far away."""
    chosen = [c for c in paper_cells("rwalk", "1") if c["metric"] == "F"]
    near = next(
        group for middle in chosen
        if len(group := [c for c in chosen if abs(c.value - middle.value) <= 0.03]) >= 3
    )[:3]  # fmt: skip
    far = next(c for c in chosen if all(abs(c.value - one.value) > 0.2 for one in near))
    ours = [near[0].value, near[1].value + 0.5, near[2].value, far.value + 0.01]
    rows = [
        f"rwalk,1,{c.name},{c['stage']},F,{c.value},,,{value},0,,,agrees,,"
        for c, value in zip((*near, far), ours, strict=True)
    ]
    write(tmp_path / "rwalk-1.csv", *rows)
    found = compare_with_constant("rwalk", tmp_path)
    assert (found.cells, found.near, found.constant, found.both) == (4, 3, 3, 2)
    assert found.near_elsewhere == 1.0
