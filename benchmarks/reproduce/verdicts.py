"""Counts of verdicts in this folder, as Markdown; a page that has them is brought up to date.

    python -m benchmarks.reproduce.verdicts [--write docs/papers.md]

In a page the counts stand between two comments, ``<!-- verdicts -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from engram.errors import bad
from engram.reproduce import count_coverage
from engram.reproduce.coverage import TableCoverage, read_recorded_lines, sum_coverage
from engram.reproduce.papers import PAPER_NAMES
from engram.reproduce.verdicts import DIFFERS

HERE = Path(__file__).parent
BEGIN, END = "<!-- verdicts -->", "<!-- end -->"
NUMBER = re.compile(r"\w+/([A-Z]\.|\d+\.)?\d+")  # of a table: 1, 3.2, C.1
HEAD = ("table", "cells", "agree", "differ", "not comparable", "not run", "with other settings")


def tables(paper: str, folder: Path = HERE) -> list[TableCoverage]:
    """The tables of a paper with something recorded; groups repeat what their tables have."""
    return [one for one in count_coverage(paper, folder) if one.made and NUMBER.fullmatch(one.name)]


def markdown(folder: Path = HERE) -> str:
    """Verdicts by table, and what was known beforehand about the cells that differ."""
    lines = [_row(HEAD), _row(["---"] * len(HEAD))]
    for paper in PAPER_NAMES:
        found = tables(paper, folder)
        lines += [_row(_cells(one)) for one in found]
        if len(found) > 1:
            lines.append(_row(_cells(sum_coverage(found), f"**{paper}**")))
    return "\n".join([*lines, "", _row(("known beforehand of cells that differ", *_shown(folder))),
                      _row(["---"] * (1 + len(_shown(folder)))), *_reasons(folder)])  # fmt: skip


def _cells(one: TableCoverage, name: str = "") -> list[object]:
    return [name or one.name, one.cells, one.agrees, one.differs, one.not_comparable, one.not_run,
            one.changed]  # fmt: skip


def _shown(folder: Path) -> list[str]:
    return [paper for paper in PAPER_NAMES if tables(paper, folder)]


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


def _row(cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"  # type: ignore[call-overload]


def renewed(page: str, folder: Path = HERE) -> str:
    """The text of a page with today's counts."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise bad("page", f"one with {BEGIN} and {END}", "none of them")
    return f"{before}{BEGIN}\n{markdown(folder)}\n{END}{after}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--write", type=Path, metavar="PAGE", help="a page to bring up to date")
    asked = parser.parse_args(arguments)
    print(markdown())
    if asked.write:
        asked.write.write_text(renewed(asked.write.read_text()))


if __name__ == "__main__":
    main()
