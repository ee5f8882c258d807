"""Findings of RWalk tried on the tables of this folder, for which nothing is trained.

    python -m benchmarks.reproduce.table_findings [--save rwalk-findings.csv]

The recorded mean of a cell stands for its runs. Where both cells have an interval, that of their
difference is the root of the sum of squares (as of rows with seeds of their own), and what lies
across the boundary is undecided; else the means decide. ``engram reproduce rwalk/findings``
compares seed by seed, which is narrower, and has the claims about figures 4 and 5 as well.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from engram.reproduce.cells import Cell
from engram.reproduce.coverage import read_recorded_lines
from engram.reproduce.paper_table import CellEntry
from engram.reproduce.papers.findings import (
    FINDING_COLUMNS,
    NO,
    UNDECIDED,
    YES,
    CellFindings,
    Claim,
    count_findings,
)
from engram.reproduce.papers.rwalk_paper import (
    DATA,
    PAPER,
    claim_distances,
    claim_insensitivity,
)

HERE = Path(__file__).parent
SETTINGS = "means of rwalk-1.csv, rwalk-2.csv, rwalk-3.csv"
NAN = float("nan")
RUNS_UNKNOWN = {"first_std": NAN, "second_std": NAN, "repetitions": NAN}  # to means


@dataclass(frozen=True)
class RecordedMean:
    """The mean of a cell as a measure, and half of its interval."""

    mean: float = NAN
    reach: float = NAN

    def __call__(self, result: Any) -> np.ndarray[Any, Any]:
        return np.array([self.mean])


def try_on_tables(folder: Path = HERE) -> pd.DataFrame:
    """The findings over cells of tables 1 to 3, with the recorded means."""
    lines = read_recorded_lines("rwalk", folder)
    numbers = lines[["ours", "low", "high"]].apply(pd.to_numeric)
    keys = lines[["table", "cell", "stage", "metric"]].astype(str).itertuples(index=False)
    means = {
        tuple(key): RecordedMean(own.ours, (own.high - own.low) / 2)
        for key, own in zip(keys, numbers.itertuples(), strict=True)
    }

    def entry(cell: Cell) -> CellEntry:
        key = (cell.table, cell.name, cell["stage"], cell["metric"])
        return CellEntry(measure=means.get(key, RecordedMean()))

    cells = CellFindings("rwalk", PAPER, DATA["findings"], dict.fromkeys(("1", "2", "3"), entry))
    claims = [*cells.claims, *claim_distances(cells), *claim_insensitivity(cells)]
    rows = list(_try_claims([one for one in claims if isinstance(one, Claim)]))
    return pd.DataFrame(rows, columns=[*FINDING_COLUMNS, "settings"])


def _try_claims(claims: list[Claim]) -> Iterator[dict[str, Any]]:
    for claim in claims:
        found = claim.tried(None) | RUNS_UNKNOWN | {"settings": SETTINGS}
        reach = math.hypot(*(getattr(one[1], "reach", NAN) for one in (claim.first, claim.second)))
        if not math.isnan(reach):
            low, high = found["difference"] - reach, found["difference"] + reach
            ahead, behind = (low, -high) if claim.relation == "above" else (-high, low)
            holds = YES if ahead > 0 else NO if behind > 0 else UNDECIDED
            found |= {"low": low, "high": high, "holds": holds}
        yield found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--save", type=Path, help="a CSV file")
    asked = parser.parse_args(arguments)
    table = try_on_tables()
    print(count_findings(table).to_string(index=False))
    if asked.save:
        table.to_csv(asked.save, index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
