"""What a paper finds, as comparisons of two measures that can fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from engram.records import Result
    from engram.reproduce.table import Measure

COLUMNS = ("finding", "row", "first", "first_value", "second", "second_value", "paper_first",
           "paper_second", "holds")  # fmt: skip
NAN = float("nan")


@dataclass(frozen=True)
class Claim:
    """The first measure is larger than the second, or at least as large (`ties`).

    Examples
    --------
    >>> from engram.reproduce.measures import constant
    >>> one = Claim("more is more", "", ("three", constant(3.0)), ("two", constant(2.0)))
    >>> one.tried(None)["holds"]
    'yes'
    """

    finding: str
    row: str
    first: tuple[str, Measure]
    second: tuple[str, Measure]
    paper: tuple[float, float] = (NAN, NAN)
    ties: bool = False
    slack: float = 0.0  # how far the first may stay below

    def tried(self, result: Result) -> dict[str, Any]:
        """The claim with both numbers, means over repetitions, and whether it holds."""
        a, b = (_mean(measure(result)) for _, measure in (self.first, self.second))
        larger = a + self.slack >= b if self.ties else a + self.slack > b
        return {
            "finding": self.finding, "row": self.row, "first": self.first[0], "first_value": a,
            "second": self.second[0], "second_value": b, "paper_first": self.paper[0],
            "paper_second": self.paper[1],
            "holds": "not run" if np.isnan(a) or np.isnan(b) else "yes" if larger else "no",
        }  # fmt: skip


def _mean(values: Any) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else NAN
