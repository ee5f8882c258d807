"""The findings of a paper from the table of its cells that the project ships.

    python -m benchmarks.reproduce.recorded_confer confer-fer-2013.csv confer-findings.csv

A table has the mean of every cell and the interval of that mean, but not the single repetitions.
Two rows count as unrelated: the half widths of their intervals add in squares. With the run
directory at hand, ``engram reproduce confer/findings`` compares repetition by repetition instead,
which decides more. Rows of other settings are compared among themselves.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats

from engram.reproduce.papers import confer_paper
from engram.reproduce.papers.findings import FINDING_COLUMNS, NOT_RUN

FOLDER = Path(__file__).parent
POINTS = 4096  # values that stand for a cell; as many cells can be unrelated to each other
Key = tuple[str, str, str]  # name, stage and metric of a cell


@dataclass(frozen=True)
class RecordedCell:
    """Mean and half width of the interval of a cell; `place` is its own among all cells."""

    mean: float
    half: float
    place: int

    def values(self) -> Any:
        """Values with this mean and interval, unrelated to those of every other place."""
        if math.isnan(self.half):
            return np.array([self.mean])
        wave = np.cos(np.pi * (np.arange(POINTS) + 0.5) * (self.place + 1) / POINTS)
        spread = self.half * math.sqrt(POINTS) / scipy.stats.t.ppf(0.975, POINTS - 1)
        return self.mean + spread * wave / wave.std(ddof=1)


def read_recorded(file: Path) -> dict[str, dict[Key, RecordedCell]]:
    """The cells of a shipped table by their settings, the preset's own first."""
    table = pd.read_csv(file, dtype={"stage": str}).dropna(subset=["ours"])
    found: dict[str, dict[Key, RecordedCell]] = {"": {}}
    for place, row in enumerate(table.fillna({"settings": ""}).to_dict("records")):
        half = (row["high"] - row["low"]) / 2
        cell = RecordedCell(row["ours"], half, place)
        found.setdefault(row["settings"], {})[row["cell"], row["stage"], row["metric"]] = cell
    return found


def list_claims(preset: Any, cells: Mapping[Key, RecordedCell]) -> list[Any]:
    """The claims of the paper, measured by recorded cells."""
    make = confer_paper.make_entries(preset)

    def entry(cell: Any) -> Any:
        known = cells.get((cell.name, cell["stage"], cell["metric"]))
        values = np.array([math.nan]) if known is None else known.values()
        return replace(make(cell), measure=lambda result: values)

    return confer_paper.list_claims(preset, entry)


def tabulate_recorded(file: Path) -> pd.DataFrame:
    """One line per claim that the table has something about."""
    preset = confer_paper.PAPER
    lines: dict[int, dict[str, Any]] = {}
    for settings, cells in read_recorded(file).items():
        for number, claim in enumerate(list_claims(preset, cells)):
            line = claim.tried(None)
            if line["holds"] != NOT_RUN and number not in lines:
                lines[number] = {**line, "settings": settings}
    table = pd.DataFrame([lines[n] for n in sorted(lines)], columns=[*FINDING_COLUMNS, "settings"])
    count = preset.seeds
    whole = table["repetitions"] > 1
    scale = math.sqrt(count / POINTS) * (
        scipy.stats.t.ppf(0.975, POINTS - 1) / scipy.stats.t.ppf(0.975, count - 1)
    )
    table.loc[whole, "repetitions"] = count
    for column in ("first_std", "second_std"):  # of the repetitions, from the intervals
        table.loc[whole, column] *= scale
    return table.round(4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("table", type=Path)
    parser.add_argument("save", type=Path)
    asked = parser.parse_args()
    table = tabulate_recorded(asked.table)
    table.to_csv(asked.save, index=False)
    print(table.groupby("finding", sort=False)["holds"].value_counts().unstack(fill_value=0))


if __name__ == "__main__":
    main()
