"""Two sets of runs, one verdict in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from engram.errors import bad, number
from engram.metrics._arrays import Floats
from engram.metrics.significance import _runs, paired_differences
from engram.metrics.ties import centre, levelled, slack_of, variance


@dataclass(frozen=True)
class Comparison:
    """Difference of means (first minus second), its t interval, and whether it exceeds noise."""

    difference: float
    low: float
    high: float
    p_value: float
    n: tuple[int, int]
    paired: bool
    level: float
    names: tuple[str, str]

    @property
    def smaller_than_noise(self) -> bool:
        """True if the interval holds 0, or if a single run leaves the noise unknown."""
        return not (self.low > 0 or self.high < 0)

    @property
    def words(self) -> str:
        """The verdict as a sentence.

        Examples
        --------
        >>> compare([.80, .82, .81], [.80, .81, .83], names=("EWC", "SI")).words
        'EWC and SI cannot be told apart: the difference -0.0033 is smaller than the noise \
(95% interval -0.0413 to 0.0346, 3 paired runs)'
        """
        first, second = self.names
        count = f"{self.n[0]} paired runs" if self.paired else f"{self.n[0]} and {self.n[1]} runs"
        if math.isnan(self.low):
            return (
                f"{first} minus {second} is {self.difference:.4f}, but with fewer than two runs "
                "the noise is unknown"
            )
        span = f"{self.level:.0%} interval {self.low:.4f} to {self.high:.4f}, {count}"
        if self.low == self.high == 0:
            return f"{first} and {second} are equal in every run ({count})"
        if self.smaller_than_noise:
            return (
                f"{first} and {second} cannot be told apart: the difference {self.difference:.4f} "
                f"is smaller than the noise ({span})"
            )
        side = "higher" if self.difference > 0 else "lower"
        return f"{first} is {side} than {second} by {abs(self.difference):.4f} ({span})"

    def __str__(self) -> str:
        return self.words


def _spread(a: Floats, b: Floats, paired: bool) -> tuple[float, float]:
    """Standard error of the difference of means and its degrees of freedom (Welch if unpaired).

    `scipy.stats.ttest_ind` warns of equal runs, and takes rounding for their spread.
    """
    if paired:
        d = paired_differences(a, b)
        return math.sqrt(variance(d) / len(d)), len(d) - 1.0
    va, vb = variance(a) / len(a), variance(b) / len(b)
    if va + vb == 0:
        return 0.0, 1.0
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return math.sqrt(va + vb), freedom


def _difference(a: Floats, b: Floats, paired: bool) -> float:
    """Of the means; 0 where rounding alone makes it."""
    if paired:
        return centre(paired_differences(a, b))
    one, two = centre(a), centre(b)
    return one - two if abs(one - two) > slack_of(np.array([one, two])).max() else 0.0


def _levelled_together(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    both = np.concatenate([a, b])
    both = levelled(both, slack_of(both))
    return both[: len(a)], both[len(a) :]


def compare(
    a: Any,
    b: Any,
    *,
    paired: bool = True,
    level: float = 0.95,
    names: tuple[str, str] = ("a", "b"),
) -> Comparison:
    """Compare a metric over the runs of two methods.

    Parameters
    ----------
    paired
        Run i of `a` and run i of `b` share seed and order. Otherwise Welch's t interval is used.

    Examples
    --------
    >>> verdict = compare([.90, .92, .91], [.80, .81, .83])
    >>> verdict.smaller_than_noise, round(verdict.difference, 6)
    (False, 0.096667)
    >>> print(compare([.9], [.8]))
    a minus b is 0.1000, but with fewer than two runs the noise is unknown
    """
    number("level", level, 0.0, 1.0, open_low=True)
    if level == 1.0:
        raise bad("level", "a number below 1", level)
    first, second = _levelled_together(_runs("a", a), _runs("b", b))
    difference = _difference(first, second, paired)
    low = high = p = math.nan
    if min(len(first), len(second)) > 1:
        from scipy.stats import t  # here: it takes a second to import

        error, freedom = _spread(first, second, paired)
        reach = float(t.ppf((1 + level) / 2, freedom)) * error
        low, high = difference - reach, difference + reach
        p = float(2 * t.sf(abs(difference) / error, freedom)) if error else float(difference == 0)
    size = (len(first), len(second))
    return Comparison(difference, low, high, p, size, paired, level, names)
