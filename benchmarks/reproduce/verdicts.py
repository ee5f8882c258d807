"""Counts of verdicts in this folder, as Markdown; a page that has them is brought up to date.

    python -m benchmarks.reproduce.verdicts [--reasons] [--write docs/papers.md] [--ship]

In a page the counts stand between two comments, ``<!-- verdicts -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from engram.errors import bad
from engram.reproduce import count_coverage, shipped_results
from engram.reproduce.cells import Cell
from engram.reproduce.coverage import (
    TRAINED,
    TableCoverage,
    compare_with_constant,
    count_missing_sets,
    read_recorded_lines,
    sum_coverage,
)
from engram.reproduce.paper_table import (
    DATA_SUBSET,
    FEWER_ORDERS,
    OTHER_DATA,
    WHOLE_TABLE,
    PaperTable,
)
from engram.reproduce.papers import PAPER_NAMES
from engram.reproduce.papers.findings import count_findings
from engram.reproduce.result_tables import is_line_table, read_lines
from engram.reproduce.shipped_results import (
    FINDING_COUNTS,
    FINDINGS,
    LINE_COLUMNS,
    SHIPPED_FOLDER,
)
from engram.reproduce.table_registry import find_table, paper_titles
from engram.reproduce.verdicts import DIFFERS, NOT_RUN, WIDE_INTERVAL, known_reasons

HERE = Path(__file__).parent
# What only the runs of a cell tell.
RUN_REASON = re.compile(
    rf"\d+ of \d+ runs|{WIDE_INTERVAL}|{DATA_SUBSET}|{FEWER_ORDERS}|{OTHER_DATA}"
)
SHIPPED = Path(shipped_results.__file__).with_name(SHIPPED_FOLDER)
BEGIN, END = "<!-- verdicts -->", "<!-- end -->"
NUMBER = re.compile(r"\w+/([A-Z]\.|\d+\.)?\d+")  # of a table: 1, 3.2, C.1
HEAD = ("table", "numbers", "cells", "agree", "differ", "undecided", "not comparable", "not run",
        "with other settings")  # fmt: skip
CLAIMS = ("findings", "claims", "comparisons", "hold", "fail", "undecided", "not run",
          "hold in print")  # fmt: skip
GUESSES = ("trained cells with a number", "cells", "ours within the tolerance",
           "a constant within it", "ours where the constant is not")  # fmt: skip


def tables(paper: str, folder: Path = HERE) -> list[TableCoverage]:
    """The tables of a paper with cells; groups repeat what their tables have."""
    return [
        one for one in count_coverage(paper, folder) if one.cells and NUMBER.fullmatch(one.name)
    ]


def markdown(folder: Path = HERE) -> str:
    """Verdicts by table, what a constant would reach, what lacks a number, and what was known
    beforehand about the cells that differ.
    """
    parts = [_row(HEAD), _line(HEAD)]
    for paper in PAPER_NAMES:
        found = tables(paper, folder)
        made = [one for one in found if one.made]
        rest = sum_coverage([one for one in found if not one.made])
        parts += [_row(_cells(one)) for one in made]
        if made and rest.cells:
            parts.append(_row(_cells(rest, f"{paper}, others")))
        for kind in (TRAINED, "data counts", "constants"):
            own = [one for one in found if one.kind == kind]
            if made and own:
                parts.append(_row(_cells(sum_coverage(own), f"**{paper}**", kind)))
    parts += _totals(folder)
    return "\n".join([
        *parts, "", _row(CLAIMS), _line(CLAIMS), *_claims(folder), "",
        _row(GUESSES), _line(GUESSES), *_guesses(folder), "",
        _row(("without a number", "cells by data set")), _line("ab"), *_missing(folder), "",
        _row(("known beforehand of cells that differ", *_shown(folder))),
        _line(["", *_shown(folder)]), *_reasons(folder),
    ])  # fmt: skip


def _cells(one: TableCoverage, name: str = "", kind: str = "") -> list[object]:
    return [name or one.name, kind or one.kind, one.cells, one.agrees, one.differs, one.undecided,
            one.not_comparable, one.not_run, one.changed]  # fmt: skip


def _totals(folder: Path) -> list[str]:
    """All papers with a number: trained cells, and the others."""
    every = [one for paper in _shown(folder) for one in tables(paper, folder)]
    kinds = {
        "trained": [one for one in every if one.kind == TRAINED],
        "counts and constants": [one for one in every if one.kind != TRAINED],
    }
    return [_row(_cells(sum_coverage(own), "**all**", kind)) for kind, own in kinds.items() if own]


def _claims(folder: Path) -> list[str]:
    """Comparisons of each paper's findings in the recorded results."""
    found = []
    for paper in PAPER_NAMES:
        counts = count_recorded_findings(paper, folder)
        if counts is None:
            continue
        numbers = counts[list(FINDING_COUNTS[1:-1])].sum()
        pairs = [text.split(" of ") for text in counts["printed"] if text]
        held, said = (sum(int(pair[k]) for pair in pairs) for k in (0, 1))
        print_holds = f"{held} of {said}" if said else "-"
        found.append(_row((paper, len(counts), *map(int, numbers), print_holds)))
    return found


def count_recorded_findings(paper: str, folder: Path) -> pd.DataFrame | None:
    """How many comparisons of each finding of a paper hold as recorded; None without a file."""
    file = folder / f"{paper}-{FINDINGS}.csv"
    if not file.is_file():
        return None
    table = pd.read_csv(file, dtype=str, keep_default_na=False)
    if "printed_holds" not in table:  # recorded before the paper's numbers were held to it
        table = table.assign(printed_holds="")
    return count_findings(table)[list(FINDING_COUNTS)]


def _shown(folder: Path) -> list[str]:
    return [paper for paper in PAPER_NAMES if any(one.made for one in tables(paper, folder))]


def _guesses(folder: Path) -> list[str]:
    found = {paper: compare_with_constant(paper, folder) for paper in _shown(folder)}
    return [
        _row((paper, one.cells, one.near, one.constant, f"{100 * one.near_elsewhere:.0f} %"))
        for paper, one in found.items()
        if one.cells
    ]


def _missing(folder: Path) -> list[str]:
    found = {paper: count_missing_sets(paper, folder) for paper in _shown(folder)}
    return [
        _row((paper, ", ".join(f"{name} {count:,}" for name, count in one.items())))
        for paper, one in found.items()
        if one
    ]


def _reasons(folder: Path) -> list[str]:
    counts: dict[str, dict[str, int]] = {}
    for paper in _shown(folder):
        lines = read_recorded_lines(paper, folder)
        for reason in lines[lines["verdict"] == DIFFERS]["reason"]:
            for one in str(reason).split("; "):
                own = counts.setdefault(one or "nothing", {})
                own[paper] = own.get(paper, 0) + 1
    order = sorted(counts, key=lambda one: -sum(counts[one].values()))
    papers = _shown(folder)
    return [_row([one, *(counts[one].get(paper, 0) for paper in papers)]) for one in order]


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _line(names: Sequence[str]) -> str:
    return _row(["---"] * len(names))


def renewed(page: str, folder: Path = HERE) -> str:
    """The text of a page with today's counts."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise bad("page", f"one with {BEGIN} and {END}", "none of them")
    return f"{before}{BEGIN}\n{markdown(folder)}\n{END}{after}"


def shipped(folder: Path = HERE) -> dict[str, str]:
    """The results that the package has of its own: name of a file to its text."""
    found: dict[str, str] = {}
    for paper in PAPER_NAMES:
        lines = read_recorded_lines(paper, folder)
        if len(lines):
            lines = lines.assign(ours=[f"{float(value):.4g}" for value in lines["ours"]])
            order = {name: place for place, name in enumerate(paper_titles(paper))}
            lines = lines.sort_values("table", key=lambda text: text.map(order), kind="stable")
            found[f"{paper}.csv"] = lines[list(LINE_COLUMNS)].to_csv(index=False)
        counts = count_recorded_findings(paper, folder)
        if counts is not None:
            found[f"{paper}-{FINDINGS}.csv"] = counts.to_csv(index=False)
    return found


def renewed_reasons(lines: pd.DataFrame) -> pd.DataFrame:
    """Recorded lines with today's reasons of the cells, and what is known of their runs as it was.

    Numbers and verdicts stay.
    """
    entries: dict[str, dict[tuple[str, ...], tuple[str, ...]]] = {}
    found = []
    for line in lines.to_dict("records"):
        name = f"{line['paper']}/{line['table']}"
        if name not in entries:
            table = find_table(name)
            entries[name] = {
                (cell.name, cell["stage"], cell["metric"]): _today(table, cell)
                for cell in table.cells
            }
        known = entries[name].get((line["cell"], line["stage"], line["metric"]))
        if known is None or line["verdict"] == NOT_RUN:
            found.append(line["reason"])
            continue
        own = [one for one in line["reason"].split("; ") if RUN_REASON.fullmatch(one)]
        reasons = [*known, *own]
        if line["verdict"] == DIFFERS and not reasons:
            reasons = [WHOLE_TABLE if find_table(name).general_reasons else "unexplained"]
        found.append("; ".join(dict.fromkeys(reasons)))
    return lines.assign(reason=found)


def _today(table: PaperTable, cell: Cell) -> tuple[str, ...]:
    entry = table.entry(cell)
    return tuple(
        one for one in known_reasons(cell, entry) if one not in (*table.general_reasons, OTHER_DATA)
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--write", type=Path, metavar="PAGE", help="a page to bring up to date")
    parser.add_argument("--ship", action="store_true", help="write the results of the package")
    parser.add_argument("--reasons", action="store_true", help="bring reasons of lines up to date")
    asked = parser.parse_args(arguments)
    if asked.reasons:
        for file in sorted(HERE.glob("*.csv")):
            lines = read_lines(file) if is_line_table(file) else None
            if lines is not None:
                file.write_text(renewed_reasons(lines).to_csv(index=False))
    print(markdown())
    if asked.ship:
        for old in SHIPPED.glob("*.csv"):
            old.unlink()
        for name, text in shipped().items():
            (SHIPPED / name).write_text(text)
    if asked.write:
        asked.write.write_text(renewed(asked.write.read_text()))


if __name__ == "__main__":
    main()
