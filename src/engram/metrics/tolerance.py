"""Equality up to rounding, for tests, rankings and comparisons.

The mean of .1, .2, .3 and that of .3, .2, .1 differ in the last bit, and so do differences of
fractions and of percents. Which of them is larger must decide nothing.
"""

from __future__ import annotations

import numpy as np

from engram.metrics.checked_arrays import Floats

# Means of thousands of float64 numbers stay far below. Relative, and absolute below 1: a forgetting
# of 0 is a difference of accuracies up to 1, and as far off as these.
ROUNDING = 1e-12


def rounding_slack(*values: Floats) -> Floats:
    """Estimate the rounding error of each of the differences between these arrays.

    Examples
    --------
    >>> rounding_slack(np.array([0.5, 100.0]), np.array([0.0, 50.0])).tolist()
    [1e-12, 1e-10]
    """
    return np.asarray(ROUNDING * np.max(np.abs(np.stack(values)), axis=0, initial=1.0))


def merge_within_slack(values: Floats, slack: Floats) -> Floats:
    """Make values [n] equal that are within their slack of each other.

    Examples
    --------
    >>> values = np.array([0.3, 0.1 + 0.2, 0.4])
    >>> merge_within_slack(values, rounding_slack(values)).tolist()
    [0.3, 0.3, 0.4]
    """
    if not len(values):
        return values
    order = np.argsort(values, kind="stable")
    rising, room = values[order], slack[order]
    apart = np.diff(rising) > np.maximum(room[1:], room[:-1])
    first = np.flatnonzero(np.concatenate([[True], apart]))  # the lowest value of each group
    group = np.concatenate([[0], np.cumsum(apart)])
    result = np.empty_like(values)
    result[order] = rising[first[group]]
    return result


def merge_ties(values: Floats) -> Floats:
    """Make tied values [n] exactly equal, for ranks and winners; NaN is unchanged.

    Examples
    --------
    >>> merge_ties(np.array([0.3, np.nan, 0.1 + 0.2])).tolist()
    [0.3, nan, 0.3]
    """
    result, known = values.copy(), np.isfinite(values)
    result[known] = merge_within_slack(values[known], rounding_slack(values[known]))
    return result


def stable_mean(values: Floats) -> float:
    """Compute the mean, which is exact for equal values.

    Examples
    --------
    >>> stable_mean(np.array([0.1, 0.1, 0.1])), float(np.mean([0.1, 0.1, 0.1]))
    (0.1, 0.10000000000000002)
    """
    return float(values[0]) if np.ptp(values) == 0 else float(values.mean())


def stable_variance(values: Floats) -> float:
    """Compute the sample variance (ddof 1), which is exactly 0 for equal values."""
    return 0.0 if np.ptp(values) == 0 else float(values.var(ddof=1))
