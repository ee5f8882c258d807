"""Findings of a paper from its recorded tables in this folder, so that both rest on the same runs.

    python -m benchmarks.reproduce.recorded_findings cnd [--save cnd-findings.csv]

For papers whose cells are one run each: a mean over several has lost the values by which a finding
is judged. Findings over numbers that no table has, such as those of figures, were recorded by
``engram reproduce PAPER/findings`` from the runs themselves; lines of theirs in the file stay.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pandas as pd

from engram.errors import bad
from engram.reproduce.cells import Cell
from engram.reproduce.coverage import read_recorded_lines
from engram.reproduce.measures import constant
from engram.reproduce.paper_table import CellEntry
from engram.reproduce.papers.findings import FINDING_COLUMNS, CellFindings, count_findings

HERE = Path(__file__).parent


def recorded_entries(paper: str, folder: Path = HERE) -> Callable[[Cell], CellEntry]:
    """The maker of entries whose numbers are those of the recorded tables."""
    lines = read_recorded_lines(paper, folder)
    if lines["low"].astype(bool).any():
        raise bad("paper", "one whose cells are one run each", paper)
    keys = zip(lines["table"], lines["cell"], lines["stage"], lines["metric"], strict=True)
    ours = dict(zip(keys, pd.to_numeric(lines["ours"]), strict=True))

    def entry(cell: Cell) -> CellEntry:
        value = ours.get((cell.table, cell.name, cell["stage"], cell["metric"]))
        if value is None or pd.isna(value):
            return CellEntry(missing="it is not recorded")
        return CellEntry(measure=constant(float(value)))

    return entry


def recorded_findings(paper: str, folder: Path = HERE) -> pd.DataFrame:
    """Every finding over cells of a paper, tried on its recorded tables."""
    module = import_module(f"engram.reproduce.papers.{paper}_paper")
    made = dict.fromkeys(module.TABLES.tables, recorded_entries(paper, folder))
    cells = CellFindings(paper, module.PAPER, module.DATA["findings"], made)
    lines = [claim.tried(None) for claim in cells.claims]
    return pd.DataFrame(lines, columns=list(FINDING_COLUMNS)).round(4)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paper")
    parser.add_argument("--save", metavar="FILE", help="write the comparisons into this folder")
    given = parser.parse_args(arguments)
    found = recorded_findings(given.paper)
    print(count_findings(found).to_string(index=False))
    if given.save:
        file = HERE / given.save
        if file.is_file():
            known = pd.read_csv(file)
            others = known[~known["finding"].isin(found["finding"])]
            found = pd.concat([found, others], ignore_index=True)
        found.to_csv(file, index=False)


if __name__ == "__main__":
    main()
