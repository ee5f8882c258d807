"""Location, spread and uncertainty of a metric over runs, and the variance explained by factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.errors import bad, check_choice, check_float, check_int
from engram.metrics.checked_arrays import Floats, Reduced, as_floats, as_plain, mean_or_nan
from engram.metrics.tolerance import stable_mean, stable_variance


def mean(values: Any, *, axis: int = 0) -> Reduced:
    """Mean over runs (by default the first axis); NaN without runs.

    Examples
    --------
    >>> mean([0.5, 0.75])
    0.625
    """
    return as_plain(mean_or_nan(as_floats("values", values, least=1), axis))


def std(values: Any, *, ddof: int = 1, axis: int = 0) -> Reduced:
    """Standard deviation over runs; NaN for fewer than two runs.

    Parameters
    ----------
    ddof
        1 estimates the spread of the population, 0 describes these runs only.

    Examples
    --------
    >>> round(std([1.0, 2.0, 3.0]), 6), round(std([1.0, 2.0, 3.0], ddof=0), 6), std([1.0])
    (1.0, 0.816497, nan)
    """
    check_int("ddof", ddof)
    array = as_floats("values", values, least=1)
    if array.shape[axis] < max(2, ddof + 1):
        return as_plain(np.full(np.delete(np.array(array.shape), axis), np.nan))
    return as_plain(array.std(axis=axis, ddof=ddof))


class Interval(NamedTuple):
    """An estimate and the interval around it."""

    low: float
    high: float
    estimate: float


def _corrected_levels(
    values: Floats, draws: Floats, statistic: Callable[..., Any], level: float
) -> tuple[float, float]:
    """Percentile levels of the BCa interval (bias from the draws, skewness from the jackknife).

    `scipy.stats.bootstrap` agrees, but gives NaN where leaving a run out changes nothing: for the
    median of three equal runs of four.
    """
    from scipy.special import ndtr, ndtri

    estimate = statistic(values, axis=-1)
    # Draws equal to the estimate count half, or coarse data would look biased.
    below = (np.mean(draws < estimate) + np.mean(draws <= estimate)) / 2
    n = len(values)
    left_out = np.array([statistic(np.delete(values, i), axis=-1) for i in range(n)])
    centred = left_out.mean() - left_out
    spread = np.sum(centred**2)
    skew = np.sum(centred**3) / (6 * spread**1.5) if spread > 0 else 0.0
    bias = ndtri(np.clip(below, 0.5 / len(draws), 1 - 0.5 / len(draws)))
    tails = bias + ndtri(np.array([(1 - level) / 2, (1 + level) / 2]))
    corrected = ndtr(bias + tails / (1 - skew * tails))
    return float(corrected[0]), float(corrected[1])


def bootstrap_interval(
    values: Any,
    *,
    statistic: Callable[..., Any] = np.mean,
    level: float = 0.95,
    method: str = "bca",
    resamples: int = 10_000,
    seed: int | np.random.Generator = 0,
) -> Interval:
    """Bootstrap interval of a statistic over runs; its ends are NaN for fewer than two runs.

    Parameters
    ----------
    statistic
        A function that takes `axis`, such as ``numpy.mean`` or ``numpy.median``.
    method
        ``bca`` (corrected for bias and skewness) or ``percentile``.

    Examples
    --------
    >>> low, high, estimate = bootstrap_interval([0.70, 0.72, 0.75, 0.71, 0.74])
    >>> low < estimate < high
    True
    """
    check_choice("method", method, ["bca", "percentile"])
    check_float("level", level, 0.0, 1.0, open_low=True)
    check_int("resamples", resamples, low=1)
    array = as_floats("values", values, least=1)
    if array.ndim != 1 or not array.size or np.any(np.isnan(array)) or level == 1.0:
        raise bad("values", "one axis of at least one number, no NaN, and a level below 1", values)
    estimate = float(statistic(array, axis=-1))
    if len(array) == 1:
        return Interval(np.nan, np.nan, estimate)
    generator = np.random.default_rng(seed)
    rows = generator.integers(len(array), size=(resamples, len(array)))
    draws = np.asarray(statistic(array[rows], axis=-1))
    levels = ((1 - level) / 2, (1 + level) / 2)
    if method == "bca":
        levels = _corrected_levels(array, draws, statistic, level)
    low, high = np.quantile(draws, levels)
    return Interval(float(low), float(high), estimate)


def t_interval(values: Any, *, level: float = 0.95) -> Interval:
    """Student's t interval of the mean over runs; NaN ends for fewer than two runs.

    Of three or five runs a bootstrap has nothing to draw from and its interval is far too narrow;
    this one is as wide as so few runs leave it.

    Examples
    --------
    >>> low, high, estimate = t_interval([0.70, 0.72, 0.74])
    >>> round(low, 4), round(high, 4), round(estimate, 4)
    (0.6703, 0.7697, 0.72)
    """
    check_float("level", level, 0.0, 1.0, open_low=True)
    array = as_floats("values", values, least=1)
    if array.ndim != 1 or not array.size or np.any(np.isnan(array)) or level == 1.0:
        raise bad("values", "one axis of at least one number, no NaN, and a level below 1", values)
    estimate = stable_mean(array)
    if len(array) == 1:
        return Interval(np.nan, np.nan, estimate)
    from scipy.stats import t  # here: it takes a second to import

    reach = float(t.ppf((1 + level) / 2, len(array) - 1))
    reach *= float(np.sqrt(stable_variance(array) / len(array)))
    return Interval(estimate - reach, estimate + reach, estimate)


def _dummy_columns(labels: npt.NDArray[Any]) -> Floats:
    """One column per level of a factor, `[value, level]`."""
    _, code = np.unique(labels, return_inverse=True)
    return np.asarray(np.eye(int(code.max()) + 1)[code.ravel()])


def _residual_variance(values: Floats, tables: list[Floats]) -> float:
    design = np.concatenate([np.ones((len(values), 1)), *tables], axis=1)
    fitted = design @ np.linalg.lstsq(design, values, rcond=None)[0]
    return float(np.sum((values - fitted) ** 2))


def variance_shares(value: Any, /, **factors: Any) -> dict[str, float]:
    """Fraction of the variance explained by each factor alone (eta squared), and the residual.

    Interactions are part of the residual. If the design is unbalanced the factors overlap: a
    factor's share is then what it explains beyond the others, and the entry ``shared`` holds what
    cannot be told apart. The shares sum to 1; all are NaN if the values do not vary.

    Parameters
    ----------
    factors
        For each factor, its level for every value: ``method=[...], order=[...], seed=[...]``.

    Examples
    --------
    >>> shares = variance_shares([1, 2, 3, 4], method=["a", "a", "b", "b"], seed=[0, 1, 0, 1])
    >>> {name: round(share, 6) for name, share in shares.items()}
    {'method': 0.8, 'seed': 0.2, 'residual': 0.0}
    """
    values = as_floats("value", value, least=1).ravel()
    if not factors or values.size < 2 or np.any(np.isnan(values)):
        raise bad("value", "two or more numbers without NaN, and at least one factor", value)
    tables = {}
    for name, labels in factors.items():
        levels = np.asarray(labels).ravel()
        if levels.shape != values.shape or name in ("residual", "shared"):
            raise bad(name, f"{values.size} levels, one per value", labels)
        tables[name] = _dummy_columns(levels)
    total = float(np.sum((values - values.mean()) ** 2))
    if total <= 1e-30 * max(1.0, float(np.sum(values**2))):
        return dict.fromkeys([*factors, "residual"], np.nan)
    rest = _residual_variance(values, list(tables.values()))
    shares = {}
    for name in tables:
        without = _residual_variance(
            values, [table for key, table in tables.items() if key != name]
        )
        shares[name] = max(0.0, without - rest) / total
    shares["residual"] = rest / total
    shared = 1.0 - sum(shares.values())
    return {**shares, "shared": shared} if abs(shared) > 1e-9 else shares
