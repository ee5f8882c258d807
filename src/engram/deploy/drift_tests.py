"""Tests for drift, of inputs and of novelty, that bound false alarms however often one looks.

A test compares the rows of one period with a reference. Every test is exact or conservative for
samples of any size, and is computed once, when its period is over. Period k of a monitor may use
a share 1 / (k (k + 1)) of the rate, which its tests share by Holm's procedure. The shares of all
periods add up to 1, so the probability of any false alarm, in the whole life of the monitor, is
at most the rate (union bound), even if columns and periods depend on each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from engram import keys
from engram.data.tables.table_rows import is_table, to_frame
from engram.deploy.new_task import Array
from engram.errors import bad

BINS = 10  # deciles of the reference
MOST_COLUMNS = 200  # of an array; above, two numbers of each row stand for it
MOST_CATEGORIES = 20
MISSING, OTHER = -1, -2
FLAG_EDGES = [float(np.nextafter(0.0, -1.0)), 0.0, 1.0]
_EXACT_BELOW = 1_000_000  # pairs of rows, for the exact distribution of KS


class ColumnReference(NamedTuple):
    """One column of a reference: how values become codes, and how often each code occurred.

    `edges` are those of numbers, whose code is the number of edges below; `categories` are those of
    other values, whose code is their place in the list, or `OTHER`.
    """

    name: str
    edges: list[float]
    categories: list[str]
    codes: list[int]
    counts: list[int]

    @property
    def is_ordered(self) -> bool:
        """Whether codes are compared by their order; not for categories, and numbers 0 and 1."""
        return not self.categories and self.edges != FLAG_EDGES

    def encode(self, values: Any) -> Array:
        """Codes of values, [n]; `MISSING` for those that are missing."""
        series = pd.Series(values)
        gone = series.isna().to_numpy()
        if self.categories:
            place = {name: code for code, name in enumerate(self.categories)}
            found = np.array([place.get(str(one), OTHER) for one in series.tolist()], np.int64)
        else:
            numbers = pd.to_numeric(series, errors="coerce").to_numpy(np.float64, na_value=np.nan)
            gone = gone | np.isnan(numbers)
            found = np.searchsorted(self.edges, numbers, side="left").astype(np.int64)
        found[gone] = MISSING
        return found


def describe_columns(x: Any, bins: int = BINS) -> list[ColumnReference]:
    """Describe inputs [n, ...] by bins of each column, as a reference for later ones.

    The columns of a table or a matrix; of anything wider, the mean and the spread of each row.

    Examples
    --------
    >>> table = pd.DataFrame({"size": [1.0, 2.0, 3.0, None], "kind": ["a", "a", "a", "a"]})
    >>> size, kind = describe_columns(table, 2)
    >>> size.codes, size.counts, kind.categories
    ([-1, 1, 2], [1, 2, 1], ['a'])
    """
    found = []
    for name, values in split_columns(x).items():
        series = pd.Series(values).reset_index(drop=True)
        edges, categories = _edges(series, bins), []
        if edges is None:
            # which categories are common is found on other rows than those that count: common ones
            # are more common where they were found
            chosen = keys.bits(keys.fold(0, "reference", len(series)), len(series)).numpy() % 2 == 0
            edges, categories = [], _categories(series[chosen])
            series = series[~chosen]
        one = ColumnReference(name, edges, categories, [], [])
        codes, counts = np.unique(one.encode(series), return_counts=True)
        found.append(one._replace(codes=codes.tolist(), counts=counts.tolist()))
    return found


def split_columns(x: Any) -> dict[str, Any]:
    """Split inputs into named columns; arrays of many axes into mean and spread of each row."""
    if is_table(x):
        frame = to_frame(x)
        return {str(name): frame[name] for name in frame.columns}
    array = np.asarray(x)
    if array.dtype.kind not in "biuf" or array.ndim < 2:
        raise bad("x", "a table, or an array of numbers [rows, ...]", f"dtype {array.dtype}")
    flat = array.reshape(len(array), -1).astype(np.float64)
    if array.ndim == 2 and flat.shape[1] <= MOST_COLUMNS:
        return {f"column {k + 1}": flat[:, k] for k in range(flat.shape[1])}
    return {"mean of a row": flat.mean(1), "spread of a row": flat.std(1)}


def _edges(series: pd.Series, bins: int) -> list[float] | None:
    """Inner quantiles of numbers, each once; None if the values are no numbers."""
    if not pd.api.types.is_numeric_dtype(series.dtype):
        return None
    numbers = series.to_numpy(np.float64, na_value=np.nan)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return []
    inner = np.quantile(numbers, np.arange(1, bins) / bins, method="lower")
    ends = np.nextafter(numbers.min(), -np.inf), numbers.max()  # below and above all
    found: list[float] = np.unique([*ends, *inner]).tolist()
    return FLAG_EDGES if set(numbers.tolist()) == {0.0, 1.0} else found


def _categories(series: pd.Series) -> list[str]:
    common = series.dropna().map(str).value_counts()
    return sorted(common.index[:MOST_CATEGORIES])


class Comparison(NamedTuple):
    """One test: how far two samples are apart, and how likely that is for equal ones."""

    distance: float  # largest difference of the shares below a value, or of a code
    p_value: float


def compare_column(reference: ColumnReference, codes: Array) -> Comparison:
    """Compare the codes of a column with its reference; never too small a p-value.

    Numbers by the Kolmogorov-Smirnov test on their bins, which is conservative for ties; columns
    of categories or of two values by Fisher's exact test of each, by Bonferroni.

    Examples
    --------
    >>> (one,) = describe_columns(np.arange(100.0)[:, None])
    >>> compare_column(one, one.encode(np.arange(100.0))).p_value
    1.0
    >>> compare_column(one, one.encode(np.arange(100.0) + 50)).p_value < 1e-9
    True
    """
    seen, counts = np.asarray(reference.codes), np.asarray(reference.counts)
    if not reference.is_ordered:
        every = np.union1d(seen, codes)
        before = np.array([counts[seen == code].sum() for code in every])
        after = np.array([(codes == code).sum() for code in every])
        return _compare_shares(before, after, max(1, len(reference.categories) + 2))
    return _compare_samples(np.repeat(seen, counts), codes, "two-sided")


def _compare_shares(before: Array, after: Array, tests: int) -> Comparison:
    old, new = int(before.sum()), int(after.sum())
    if not old or not new:
        return Comparison(0.0, 1.0)
    tables = [[[a, old - a], [b, new - b]] for a, b in zip(before.tolist(), after.tolist())]
    least = min(float(stats.fisher_exact(one).pvalue) for one in tables)
    return Comparison(float(np.abs(before / old - after / new).max()), min(1.0, least * tests))


def _compare_samples(before: Array, after: Array, alternative: str) -> Comparison:
    if not len(before) or not len(after):
        return Comparison(0.0, 1.0)
    exact = len(before) * len(after) <= _EXACT_BELOW
    found = stats.ks_2samp(before, after, alternative, "exact" if exact else "asymp")
    return Comparison(float(found.statistic), float(min(1.0, found.pvalue)))


def compare_novelty(p_values: Array, compared: int) -> Comparison:
    """Test whether rows are more novel than the calibration rows of their p-values.

    The p-values tell the ranks of the rows among the calibration rows, so both samples can be
    compared by the one-sided Kolmogorov-Smirnov test: calibration rows are few, and p-values that
    share them are not independent.

    Parameters
    ----------
    p_values
        [n], each the share of ``compared`` calibration rows, the row included, that are as novel.

    Examples
    --------
    >>> even = np.arange(1, 51) / 50
    >>> compare_novelty(even, 49).p_value > 0.9, compare_novelty(even / 4, 49).p_value < 1e-6
    (True, True)
    """
    held = np.arange(1.0, compared + 1)
    as_novel = np.round(np.asarray(p_values) * (compared + 1)) - 1
    return _compare_samples(held, compared - as_novel + 0.5, "greater")


def spend(rate: float, period: int) -> float:
    """The share of the rate that a period, from 1, may use; all together use the rate.

    Examples
    --------
    >>> [round(spend(0.05, k), 5) for k in (1, 2, 52)]
    [0.025, 0.00833, 2e-05]
    """
    return rate / (period * (period + 1))


def plain_reference(columns: Sequence[ColumnReference]) -> list[dict[str, Any]]:
    """The reference as plain values, to be written."""
    return [one._asdict() for one in columns]


def read_reference(plain: Sequence[Mapping[str, Any]]) -> list[ColumnReference]:
    """The reference from plain values."""
    return [ColumnReference(**one) for one in plain]
