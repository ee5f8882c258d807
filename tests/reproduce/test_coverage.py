from __future__ import annotations

from pathlib import Path

from engram.reproduce import count_coverage
from engram.reproduce.coverage import read_recorded_lines, sum_coverage

HEAD = "paper,table,cell,stage,metric,paper_value,ours,difference,low,high,verdict,reason,settings"


def line(cell, verdict, settings="", table="5", stage=""):
    return f"cgl,{table},{cell},{stage},x,1,1,0,,,{verdict},,{settings}"


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
