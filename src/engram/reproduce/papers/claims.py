"""What a paper finds, as comparisons of two measures that can fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from engram.records import Result
    from engram.reproduce.table import Measure

COLUMNS = ("finding", "row", "first", "first_value", "second", "second_value", "repetitions",
           "paper_first", "paper_second", "holds")  # fmt: skip
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

    Means are those over the repetitions that both have, here the first alone:

    >>> few, all = ("few", constant(0.5, NAN, NAN)), ("all", constant(0.6, 0.1, 0.2))
    >>> found = Claim("few are better", "", few, all).tried(None)
    >>> found["second_value"], found["repetitions"], found["holds"]
    (0.6, 1, 'no')
    """

    finding: str
    row: str
    first: tuple[str, Measure]
    second: tuple[str, Measure]
    paper: tuple[float, float] = (NAN, NAN)
    ties: bool = False
    slack: float = 0.0  # how far the first may stay below

    def tried(self, result: Result) -> dict[str, Any]:
        """The claim with both numbers and whether it holds.

        Where no repetition has both, nothing is compared, and each number is its own mean.
        """
        a, b = np.broadcast_arrays(self.first[1](result), self.second[1](result))
        shared = ~(np.isnan(a) | np.isnan(b))
        count = int(shared.sum())
        one, two = (_mean(values[shared] if count else values) for values in (a, b))
        larger = one + self.slack >= two if self.ties else one + self.slack > two
        return {
            "finding": self.finding, "row": self.row, "first": self.first[0], "first_value": one,
            "second": self.second[0], "second_value": two, "repetitions": count,
            "paper_first": self.paper[0], "paper_second": self.paper[1],
            "holds": "not run" if not count else "yes" if larger else "no",
        }  # fmt: skip


def _mean(values: Any) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else NAN
