"""Is a difference between methods more than noise? Paired tests, their correction, rankings, and
the comparison of two sets of runs.

Values that are equal up to rounding are ties in all of them. They are scipy's where it has them;
`scipy.stats` takes a second to import, so that happens inside the functions.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from engram.errors import bad, check_choice, check_float, check_int
from engram.metrics.checked_arrays import Floats, as_floats
from engram.metrics.tolerance import (
    merge_within_slack,
    rounding_slack,
    stable_mean,
    stable_variance,
)

_EXACT_FLIPS = 16  # 2 ** 16 sign patterns at most
_EXACT_RANKS = 200  # pairs; beyond, the normal approximation is as good as exact


class PairedTest(NamedTuple):
    """A statistic, its two-sided p value and the number of pairs."""

    statistic: float
    p_value: float
    n: int


def _check_runs(argument: str, values: Any) -> Floats:
    array = as_floats(argument, values, least=1, shape="one value per run")
    if array.ndim != 1 or not array.size or not np.all(np.isfinite(array)):
        raise bad(argument, "one axis of at least one finite number", values)
    return array


def paired_differences(a: Any, b: Any) -> Floats:
    """`a - b`, run by run (same seed, same order), with the numbers checked.

    Differences that rounding alone makes are 0, and those of equal size up to rounding are equal.

    Examples
    --------
    >>> paired_differences([3.0, 2.0], [1.0, 1.0]).tolist()
    [2.0, 1.0]
    >>> paired_differences([0.1 + 0.2, 0.5], [0.3, 0.1]).tolist()
    [0.0, 0.4]
    """
    first, second = _check_runs("a", a), _check_runs("b", b)
    if first.shape != second.shape:
        raise bad("b", f"{len(first)} values, paired with those of a", f"{len(second)} values")
    difference, slack = first - second, rounding_slack(first, second)
    size = np.abs(difference)
    moved = size > slack
    size[moved] = merge_within_slack(size[moved], slack[moved])
    return np.where(moved, np.copysign(size, difference), 0.0)


def sign_flip_test(
    a: Any, b: Any, *, resamples: int = 20_000, seed: int | np.random.Generator = 0
) -> PairedTest:
    """Permutation test of the mean paired difference, by flipping the signs of differences.

    Exact for up to 16 pairs; beyond that `resamples` random sign patterns are drawn.
    (`scipy.stats.permutation_test` gives the same exact values in 14 times the time.)

    Examples
    --------
    >>> sign_flip_test([3, 5, 4], [1, 2, 3])
    PairedTest(statistic=2.0, p_value=0.25, n=3)
    """
    check_int("resamples", resamples, low=1)
    d = paired_differences(a, b)
    n, average = len(d), stable_mean(d)
    least = abs(average) - float(rounding_slack(as_floats("a", a), as_floats("b", b)).max())
    if n <= _EXACT_FLIPS:
        bits = np.arange(2**n)[:, None] >> np.arange(n) & 1  # [pattern, pair]
        means = np.abs((1 - 2 * bits) @ d) / n
        return PairedTest(average, float(np.mean(means >= least)), n)
    generator = np.random.default_rng(seed)
    signs = generator.choice(np.array([-1.0, 1.0]), size=(resamples, n))
    extreme = int(np.sum(np.abs(signs @ d) / n >= least))
    # The observed pattern is one of the possible ones, hence the two added ones.
    return PairedTest(average, (extreme + 1) / (resamples + 1), n)


def paired_t_test(a: Any, b: Any) -> PairedTest:
    """Student's t test of the mean paired difference; NaN for one pair.

    Examples
    --------
    >>> result = paired_t_test([3, 5, 4], [1, 2, 3])
    >>> round(result.statistic, 4), round(result.p_value, 4)
    (3.4641, 0.0742)
    """
    d = paired_differences(a, b)
    n, average = len(d), stable_mean(d)
    if n < 2:
        return PairedTest(math.nan, math.nan, n)
    if stable_variance(d) == 0.0:  # no spread: equal for certain, or different for certain
        sure = PairedTest(math.copysign(math.inf, average), 0.0, n)
        return sure if average else PairedTest(0.0, 1.0, n)
    from scipy.stats import ttest_1samp

    found = ttest_1samp(d, 0.0)
    return PairedTest(float(found.statistic), float(found.pvalue), n)


def wilcoxon_test(a: Any, b: Any) -> PairedTest:
    """Wilcoxon signed-rank test of paired differences; pairs with no difference are dropped.

    Exact for up to 200 pairs that differ, ties included; normal approximation beyond.
    (`scipy.stats.wilcoxon` is exact with ties for up to 13 pairs only.)

    Examples
    --------
    >>> wilcoxon_test([3, 5, 4, 6], [1, 2, 3, 2])
    PairedTest(statistic=0.0, p_value=0.125, n=4)
    """
    from scipy.stats import norm, rankdata

    d = paired_differences(a, b)
    moved = d[d != 0]
    n = len(moved)
    if not n:
        return PairedTest(0.0, 1.0, len(d))
    ranks = rankdata(np.abs(moved))
    up = float(ranks[moved > 0].sum())
    total = float(ranks.sum())
    statistic = min(up, total - up)  # ranks are whole or half numbers: exact
    if n <= _EXACT_RANKS:
        p = 2 * float(_rank_sums(ranks)[: round(2 * statistic) + 1].sum())
    else:
        p = 2 * float(norm.cdf((statistic - total / 2) / math.sqrt(float(np.sum(ranks**2)) / 4)))
    return PairedTest(statistic, min(1.0, p), len(d))


def _rank_sums(ranks: Floats) -> Floats:
    """Chance of every sum of the ranks that point up, each with chance 1/2; entry 2 s is for s.

    Examples
    --------
    >>> _rank_sums(np.array([1.0, 2.5, 2.5])).tolist()
    [0.125, 0.0, 0.125, 0.0, 0.0, 0.25, 0.0, 0.25, 0.0, 0.0, 0.125, 0.0, 0.125]
    """
    doubled = np.round(2 * ranks).astype(np.int64)
    chance = np.zeros(int(doubled.sum()) + 1)
    chance[0] = 1.0
    for step in doubled:
        half = chance / 2
        chance = half.copy()
        chance[step:] += half[:-step]
    return chance


def holm(p_values: Any) -> Floats:
    """Holm-adjusted p values, which bound the probability of any false positive.

    (scipy has no function for it.)

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = _check_probabilities(p_values)
    order = np.argsort(p, kind="stable")
    factors = np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return adjusted


def benjamini_hochberg(p_values: Any) -> Floats:
    """Benjamini-Hochberg adjusted p values, which bound the false discovery rate.

    Examples
    --------
    >>> benjamini_hochberg([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.04, 0.04]
    """
    from scipy.stats import false_discovery_control

    return as_floats("p_values", false_discovery_control(_check_probabilities(p_values)))


def _check_probabilities(p_values: Any) -> Floats:
    p = _check_runs("p_values", p_values)
    if np.any(p < 0) or np.any(p > 1):
        raise bad("p_values", "numbers in [0, 1]", p_values)
    return p


class Ranking(NamedTuple):
    """Friedman test and Nemenyi's critical difference; rank 1 is best."""

    average_ranks: Floats  # [method]
    statistic: float
    p_value: float
    critical_difference: float
    cliques: tuple[tuple[int, ...], ...]  # methods that cannot be told apart, best first


def rank_methods(scores: Any, *, alpha: float = 0.05, higher_is_better: bool = True) -> Ranking:
    """Rank methods over blocks (seeds, orders, data sets) and test which ones differ.

    Parameters
    ----------
    scores
        `[block, method]`, at least two of each (`scipy.stats.friedmanchisquare` wants three).

    Examples
    --------
    >>> ranking = rank_methods([[0.9, 0.8, 0.1], [0.8, 0.9, 0.2], [0.9, 0.7, 0.3], [0.7, 0.6, 0.5]])
    >>> ranking.average_ranks.tolist(), round(ranking.critical_difference, 3), ranking.cliques
    ([1.25, 1.75, 3.0], 1.657, ((0, 1), (1, 2)))
    """
    from scipy.stats import chi2, rankdata, studentized_range

    check_float("alpha", alpha, 0.0, 1.0, open_low=True)
    table = as_floats("scores", scores, least=2, shape="[block, method]")
    if table.ndim != 2 or min(table.shape) < 2 or not np.all(np.isfinite(table)):
        expected = "[block, method], two or more of each, all finite"
        raise bad("scores", expected, f"shape {table.shape}")
    n, k = table.shape
    table = np.stack([merge_within_slack(row, rounding_slack(row)) for row in table])
    ranks = rankdata(-table if higher_is_better else table, axis=1)
    average = ranks.mean(axis=0)
    # Written with the variance of the ranks at hand, so that ties are accounted for.
    spread = float(np.sum((ranks - (k + 1) / 2) ** 2)) / (n * (k - 1))
    statistic = n * float(np.sum((average - (k + 1) / 2) ** 2)) / spread if spread > 0 else 0.0
    p = float(chi2.sf(statistic, k - 1))
    quantile = float(studentized_range.ppf(1 - alpha, k, np.inf)) / math.sqrt(2)
    critical = quantile * math.sqrt(k * (k + 1) / (6 * n))
    return Ranking(average, statistic, p, critical, _cliques(average, critical))


def _cliques(average: Floats, critical: float) -> tuple[tuple[int, ...], ...]:
    """Largest groups of neighbouring ranks that span no more than the critical difference."""
    order = np.argsort(average, kind="stable")
    found: list[tuple[int, ...]] = []
    last_end = 0
    for start in range(len(order)):
        close = average[order] <= average[order[start]] + critical
        end = int(np.sum(close))
        if end - start > 1 and end > last_end:
            found.append(tuple(int(i) for i in order[start:end]))
            last_end = end
    return tuple(found)


def all_pairs(scores: Any, *, test: str = "wilcoxon") -> dict[tuple[int, int], float]:
    """Holm-adjusted p values of every pair of methods, from `[block, method]` scores.

    Parameters
    ----------
    test
        ``wilcoxon``, ``t`` or ``permutation``.

    Examples
    --------
    >>> p = all_pairs([[0.9, 0.8], [0.8, 0.7], [0.9, 0.7], [0.7, 0.6], [0.6, 0.2], [0.9, 0.4]])
    >>> p[0, 1]
    0.03125
    """
    tests = {"wilcoxon": wilcoxon_test, "t": paired_t_test, "permutation": sign_flip_test}
    check_choice("test", test, tests)
    table = as_floats("scores", scores, least=2, shape="[block, method]")
    pairs = list(itertools.combinations(range(table.shape[1]), 2))
    if not pairs:
        raise bad("scores", "[block, method] with two or more methods", f"shape {table.shape}")
    raw = [tests[test](table[:, i], table[:, j]).p_value for i, j in pairs]
    return dict(zip(pairs, holm(raw).tolist(), strict=True))


# -- comparing two sets of runs --------------------------------------------------------------------


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


def _standard_error(a: Floats, b: Floats, paired: bool) -> tuple[float, float]:
    """Standard error of the difference of means and its degrees of freedom (Welch if unpaired).

    `scipy.stats.ttest_ind` warns of equal runs, and takes rounding for their spread.
    """
    if paired:
        d = paired_differences(a, b)
        return math.sqrt(stable_variance(d) / len(d)), len(d) - 1.0
    va, vb = stable_variance(a) / len(a), stable_variance(b) / len(b)
    if va + vb == 0:
        return 0.0, 1.0
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return math.sqrt(va + vb), freedom


def _mean_difference(a: Floats, b: Floats, paired: bool) -> float:
    """Of the means; 0 where rounding alone makes it."""
    if paired:
        return stable_mean(paired_differences(a, b))
    one, two = stable_mean(a), stable_mean(b)
    return one - two if abs(one - two) > rounding_slack(np.array([one, two])).max() else 0.0


def _merge_ties_together(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    both = np.concatenate([a, b])
    both = merge_within_slack(both, rounding_slack(both))
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
    >>> verdict = compare([0.90, 0.92, 0.91], [0.80, 0.81, 0.83])
    >>> verdict.smaller_than_noise, round(verdict.difference, 6)
    (False, 0.096667)
    >>> print(compare([0.9], [0.8]))
    a minus b is 0.1000, but with fewer than two runs the noise is unknown
    """
    check_float("level", level, 0.0, 1.0, open_low=True)
    if level == 1.0:
        raise bad("level", "a number below 1", level)
    first, second = _merge_ties_together(_check_runs("a", a), _check_runs("b", b))
    difference = _mean_difference(first, second, paired)
    low = high = p = math.nan
    if min(len(first), len(second)) > 1:
        from scipy.stats import t  # here: it takes a second to import

        error, freedom = _standard_error(first, second, paired)
        reach = float(t.ppf((1 + level) / 2, freedom)) * error
        low, high = difference - reach, difference + reach
        p = float(2 * t.sf(abs(difference) / error, freedom)) if error else float(difference == 0)
    size = (len(first), len(second))
    return Comparison(difference, low, high, p, size, paired, level, names)
