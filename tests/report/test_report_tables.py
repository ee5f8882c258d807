from __future__ import annotations

import csv
import io

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from engram.records import Result
from engram.report import ReportInput, write_tables
from engram.report.report_data import ledger_entries, sum_ledger_entries
from engram.report.table import (
    Column,
    Table,
    escape_csv,
    escape_latex,
    escape_markdown,
    frame_to_csv,
    render_table,
    strip_controls,
)
from tests.refusals import refuses

CONTROLS = {chr(code) for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}
COLUMNS = (Column("name", "Method"), Column("v", "Value", "spread", best="max"))


def table(names, values, **more):
    frame = pd.DataFrame({"name": names, "v": values, "v_std": np.nan, **more})
    return Table("t", "T", COLUMNS, frame)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_csv_gives_every_name_back(names):
    shown = render_table(table(names, [0.25] * len(names)), "csv")
    read = list(csv.reader(io.StringIO(shown, newline="")))
    plain = [strip_controls(name) for name in names]
    if not any("\n" in name for name in plain):
        found = [row[0] for row in read[1:]]
        assert found == [escape_csv(name) for name in names]
        assert [cell.removeprefix("'") for cell in found] == [n.removeprefix("'") for n in plain]


ATTACKS = [
    '=HYPERLINK("http://x.example","paid")',
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    " =1",
    "＝1",
]


def test_no_exported_cell_is_a_formula_or_moves_a_terminal():
    names = [*ATTACKS, "\x1b]0;title\x07ER", "\x1b[2J=1", "a\x9bb", "-0.5"]
    shown = table(names, [0.25] * len(names))
    cells = [row[0] for row in csv.reader(io.StringIO(render_table(shown, "csv")))][1:]
    assert all(cell.startswith("'") for cell in cells[: len(ATTACKS)])
    assert cells[-1] == "-0.5"  # numbers stay numbers
    for form in ("csv", "markdown", "latex"):
        assert not CONTROLS & set(render_table(shown, form))
    frame = frame_to_csv(pd.DataFrame({"=a": [-0.5]}, index=pd.Index(["=b"])), index=True)
    assert frame == ",'=a\n'=b,-0.5\n"


@given(st.text())
def test_latex_leaves_no_bare_special_letter(text):
    done = escape_latex(text)
    for command in ("textbackslash", "textasciitilde", "textasciicircum", "textless", "textgreater",
                    "textbar", "textquotedbl", "ldots"):  # fmt: skip
        done = done.replace("\\" + command + "{}", "")
    for pair in ("\\{", "\\}", "\\$", "\\&", "\\#", "\\%", "\\_", "$-$", "$\\pm$"):
        done = done.replace(pair, "")
    assert not set(done) & set('\\{}$&#%_~^<>|"')


@given(st.text())
def test_markdown_stays_in_its_cell(text):
    done = escape_markdown(text)
    assert "\n" not in done
    assert "<" not in done
    assert "|" not in done.replace("\\|", "")


def test_missing_negative_and_large_numbers():
    shown = render_table(table(["a", "b", "c"], [np.nan, -0.5, 123456.0]), "markdown").splitlines()
    assert shown[2:] == ["| a | – |", "| b | −0.500 |", "| c | **123,456.000** |"]


def test_best_is_sought_per_view_and_not_among_references():
    shown = table(
        ["a", "b", "c", "d", "e"], [0.1, 0.2, 0.9, 0.5, 0.4],
        head=["s", "s", "s", "m", "m"], reads_past=[False, False, True, False, False],
    )  # fmt: skip
    assert shown.best_rows(COLUMNS[1]) == {1, 3}


def test_all_equal_means_no_winner():
    assert table(["a", "b"], [0.5, 0.5]).best_rows(COLUMNS[1]) == set()
    # rounding picks no winner
    assert table(["a", "b"], [0.1 + 0.2, 0.3]).best_rows(COLUMNS[1]) == set()
    assert table(["a", "b", "c"], [0.1 + 0.2, 0.3, 0.1]).best_rows(COLUMNS[1]) == {0, 1}


def test_written_tables(tmp_path, frame_of, recipes_of):
    frame = frame_of(orders=("0-1-2-3-4", "4-3-2-1-0"))
    paths = write_tables(ReportInput(frame, recipes_of(frame)), tmp_path / "tables")
    # summary, final accuracy, intervals, differences, doctor, orders, costs, classes
    assert len(paths) == 3 * 8
    summary = pd.read_csv(tmp_path / "tables" / "summary.csv")
    assert set(summary["Method"]) == {"Finetune", "EWC strength=5000", "ER", "Joint"}
    assert summary["Runs"].eq(6).all()
    assert (tmp_path / "tables" / "summary.tex").read_text().count(r"\\") == 1 + len(summary)


def test_intervals_and_differences_are_written(tmp_path, frame_of, recipes_of):
    frame = frame_of(orders=("0-1-2-3-4", "4-3-2-1-0"))
    result = Result(frame, recipes=recipes_of(frame)).view(head="single").compare()
    write_tables(ReportInput(frame, recipes_of(frame)), tmp_path)
    means = pd.read_csv(tmp_path / "intervals.csv").query("View == 'single'").set_index("Method")
    np.testing.assert_allclose(means["Low"][result.methods.index], result.methods["low"])
    pairs = pd.read_csv(tmp_path / "differences.csv").query("View == 'single'")
    pairs = pairs.set_index(["Method", "Against"]).loc[result.pairs.index]
    np.testing.assert_allclose(pairs["p (Holm)"], result.pairs["p_holm"])
    assert ((pairs["p (Holm)"] < 0.05) == (pairs["Significant"] == "yes")).all()
    assert r"\textless{}0.001" in (tmp_path / "differences.tex").read_text()


def test_one_seed_has_no_intervals(tmp_path, frame_of, recipes_of):
    frame = frame_of(seeds=1)
    names = {p.name for p in write_tables(ReportInput(frame, recipes_of(frame)), tmp_path)}
    assert "summary.csv" in names
    assert not {"intervals.csv", "differences.csv"} & names


def test_of_many_methods_the_most_accurate_are_compared(tmp_path, frame_of, recipes_of):
    frame = frame_of([f"method {n}" for n in range(20)], points=0)
    write_tables(ReportInput(frame, recipes_of(frame)), tmp_path)
    assert "The 12 methods of highest mean" in (tmp_path / "differences.tex").read_text()
    shown = pd.read_csv(tmp_path / "differences.csv")
    assert shown.groupby("View").size().eq(12 * 11 // 2).all()


def test_streams_are_told_apart_by_what_differs(tmp_path, frame_of, recipes_of):
    frame = frame_of(points=0)
    recipes = recipes_of(frame)
    for place, one in enumerate(recipes.values()):
        own = {"blur": 0.1} if place else {}
        one["stream"] = {"kind": "class_incremental", "data": "digits", "order": [3, 1], **own}
    write_tables(ReportInput(frame, recipes), tmp_path)
    shown = pd.read_csv(tmp_path / "summary.csv")["Stream"]
    assert set(shown) == {"digits", "digits, blur 0.1"}
    assert (shown == "digits").sum() < len(shown) / 2


def test_unknown_format(frame_of, tmp_path):
    with refuses("formats", near="latex"):
        write_tables(ReportInput(frame_of()), tmp_path, formats=["latec"])


def test_ledger_is_summed_over_stages_and_runs_once():
    recipe = "0a1b2c3d4e5f"
    ledger = {
        "p1": {f"{recipe}-0-": {"0": {"train": 10}}},
        "p2": {f"{recipe}-0-": {"0": {"train": 10}, "1": {"train": 20}}},  # written again, grown
        "p3": {"recipe": recipe, "seed": 1, "stages": {"0": {"train": 5}}, "reads": "own"},
    }
    assert sum_ledger_entries(ledger, {recipe: "ER"}) == [
        ("ER", "train", "35", 35.0), ("ER", "reads", "own", None),
    ]  # fmt: skip
    assert {entry.recipe for entry in ledger_entries(ledger, [recipe])} == {recipe}
    both = [{"recipe": one, "reads": "own", "train": 1} for one in (recipe, "1a1b2c3d4e5f")]
    rows = sum_ledger_entries({"runs": both}, {recipe: "ER", "1a1b2c3d4e5f": "SI"})
    assert [row[:2] for row in rows] == [
        ("ER", "train"), ("ER", "reads"), ("SI", "train"), ("SI", "reads"),
    ]  # fmt: skip
    assert sum_ledger_entries({"who": {"knows": 3}}, {}) == [("", "who / knows", "3", 3.0)]


def two_streams(frame_of, recipes_of, folder="/disk/me/secret/"):
    """The same methods on two data sets, one of them a file."""
    parts, recipes = [], {}
    for number, data in enumerate(("digits", f"{folder}birds.npz")):
        frame = frame_of(points=0, tasks=3)
        frame["recipe"] = [f"{one[1:]}{'ab'[number]}" for one in frame["recipe"]]
        frame["value"] = frame["value"] * (1 - number / 4)
        own = recipes_of(frame)
        for content in own.values():
            content["stream"] = {**content["stream"], "data": data}
            content["identity"] = {"data": "6bdb39fbdfbe"}
        parts.append(frame)
        recipes |= own
    return ReportInput(pd.concat(parts, ignore_index=True), recipes)


def test_every_table_has_the_streams_apart(tmp_path, frame_of, recipes_of):
    inputs = two_streams(frame_of, recipes_of)
    write_tables(inputs, tmp_path / "both", formats=["csv"])
    for stream, own in inputs.split_by_stream().items():
        write_tables(own, tmp_path / "one", formats=["csv"])
        for path in sorted((tmp_path / "one").iterdir()):
            alone = pd.read_csv(path)
            both = pd.read_csv(tmp_path / "both" / path.name)
            here = both[both.pop("Stream") == stream].reset_index(drop=True)
            pd.testing.assert_frame_equal(here[alone.columns], alone, check_dtype=False)


def test_methods_are_ranked_over_streams(tmp_path, frame_of, recipes_of):
    inputs = two_streams(frame_of, recipes_of)
    write_tables(inputs, tmp_path, formats=["csv"])
    found = pd.read_csv(tmp_path / "ranks.csv").query("View == 'single'").set_index("Method")
    summary = pd.read_csv(tmp_path / "summary.csv").query("View == 'single' and Rank != 'ref.'")
    wide = summary.pivot_table(index="Method", columns="Stream", values="Average accuracy")
    pd.testing.assert_frame_equal(found.loc[wide.index, wide.columns], wide, check_names=False)
    assert "Joint" not in found.index  # it trains on past data
    assert found["Mean rank"].is_monotonic_increasing


def test_no_path_or_hash_reaches_a_table(tmp_path, frame_of, recipes_of):
    inputs = two_streams(frame_of, recipes_of)
    write_tables(inputs, tmp_path)
    text = "".join(path.read_text(encoding="utf-8") for path in tmp_path.iterdir())
    assert "birds.npz" in text
    assert "secret" not in text
    assert not any(mark in text for mark in ("6bdb39", *inputs.recipes))


def test_tables_in_one_view_with_chosen_columns_and_decimals(tmp_path, frame_of, recipes_of):
    frame = frame_of(points=0)
    inputs = ReportInput(frame, recipes_of(frame))
    chosen = inputs.present(
        head="multi", columns=["forgetting", "average_accuracy"], decimals=1
    )  # fmt: skip
    write_tables(chosen, tmp_path, formats=["markdown", "csv"])
    titles = (tmp_path / "summary.md").read_text().splitlines()[0]
    assert titles == "| Rank | Method | Forgetting | Average accuracy |"
    assert "0.9 ± 0.0" in (tmp_path / "summary.md").read_text()
    assert len(pd.read_csv(tmp_path / "summary.csv")) == 4
    with refuses("columns", near="forgetting"):
        write_tables(inputs.present(columns=["forgeting"]), tmp_path)
    with refuses("head"):
        inputs.present(head="both")
