"""Spread, bootstrap, variance shares: against scipy and by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from engram import metrics
from tests.refusals import refuses

RUNS = [0.61, 0.75, 0.72, 0.70, 0.90, 0.71, 0.68, 0.74]


def test_mean_and_std() -> None:
    table = np.random.default_rng(0).random((6, 3))
    np.testing.assert_allclose(metrics.mean(table), table.mean(axis=0))
    np.testing.assert_allclose(metrics.std(table), table.std(axis=0, ddof=1))
    np.testing.assert_allclose(metrics.std(table, ddof=0, axis=1), table.std(axis=1))
    assert isinstance(metrics.mean(RUNS), float)


def test_one_run_has_no_spread() -> None:
    assert metrics.mean([0.5]) == 0.5
    assert math.isnan(metrics.std([0.5]))
    assert math.isnan(metrics.std([0.5], ddof=0))
    assert np.isnan(metrics.std(np.zeros((1, 3)))).all()
    assert math.isnan(metrics.mean([]))


@pytest.mark.parametrize("method", ["percentile", "bca"])
@pytest.mark.parametrize("statistic", [np.mean, np.median])
def test_bootstrap_against_scipy(method: str, statistic: object) -> None:
    got = metrics.bootstrap_interval(RUNS, method=method, statistic=statistic)  # type: ignore[arg-type]
    # The same seed draws the same resamples there, so the ends agree exactly.
    wanted = stats.bootstrap(
        (RUNS,), statistic, method=method, n_resamples=10_000, rng=np.random.default_rng(0)
    ).confidence_interval
    assert got.low == pytest.approx(wanted.low, abs=1e-9)
    assert got.high == pytest.approx(wanted.high, abs=1e-9)
    assert got.estimate == pytest.approx(statistic(RUNS))  # type: ignore[operator]


def test_bca_leans_towards_the_long_tail() -> None:
    skewed = [1.0, 1.1, 1.2, 1.0, 1.1, 1.3, 1.2, 5.0]
    plain = metrics.bootstrap_interval(skewed, method="percentile")
    corrected = metrics.bootstrap_interval(skewed)
    assert corrected.high > plain.high
    assert corrected.low > plain.low


def test_bootstrap_is_seeded_and_handles_small_input() -> None:
    assert metrics.bootstrap_interval(RUNS, seed=3) == metrics.bootstrap_interval(RUNS, seed=3)
    assert metrics.bootstrap_interval(RUNS, seed=3) != metrics.bootstrap_interval(RUNS, seed=4)
    one = metrics.bootstrap_interval([0.5])
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert one.estimate == 0.5
    assert metrics.bootstrap_interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)
    narrow = metrics.bootstrap_interval(RUNS, level=0.5)
    wide = metrics.bootstrap_interval(RUNS, level=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high
    for wrong in ([], [[1.0]], [0.1, float("nan")]):
        with refuses("values"):
            metrics.bootstrap_interval(wrong)
    with refuses("method", near="bca"):
        metrics.bootstrap_interval(RUNS, method="bac")


def _grid() -> tuple[np.ndarray, dict[str, list[object]]]:
    cells = list(itertools.product("abc", range(4), range(2)))
    factors: dict[str, list[object]] = dict(
        zip(("method", "order", "seed"), map(list, zip(*cells, strict=True)), strict=True)
    )
    value = np.random.default_rng(5).normal(size=len(cells))
    return value + np.array([{"a": 0, "b": 1, "c": 4}[m] for m, _, _ in cells]), factors


def test_variance_shares_balanced_equals_group_means() -> None:
    value, factors = _grid()
    shares = metrics.variance_shares(value, **factors)
    total = np.sum((value - value.mean()) ** 2)
    for name, levels in factors.items():
        groups = [value[[x == level for x in levels]] for level in sorted(set(levels))]  # type: ignore[type-var]
        wanted = sum(len(g) * (g.mean() - value.mean()) ** 2 for g in groups) / total
        assert shares[name] == pytest.approx(wanted)
    assert list(shares) == ["method", "order", "seed", "residual"]
    assert sum(shares.values()) == pytest.approx(1.0)


def test_variance_shares_names_the_only_cause() -> None:
    _, factors = _grid()
    value = [float(o) for o in factors["order"]]  # type: ignore[arg-type]
    shares = metrics.variance_shares(value, **factors)
    assert shares == pytest.approx({"method": 0, "order": 1, "seed": 0, "residual": 0}, abs=1e-9)


def test_variance_shares_unbalanced_and_degenerate() -> None:
    value, factors = _grid()
    holes = {name: levels[:-5] for name, levels in factors.items()}
    shares = metrics.variance_shares(value[:-5], **holes)
    assert "shared" in shares
    assert sum(shares.values()) == pytest.approx(1.0)
    same = metrics.variance_shares([1, 2, 3], a=[0, 1, 2], b=[0, 1, 2])  # one cause, two names
    assert same == pytest.approx({"a": 0, "b": 0, "residual": 0, "shared": 1}, abs=1e-9)
    assert all(map(math.isnan, metrics.variance_shares([0.1] * 4, a=[0, 0, 1, 1]).values()))
    with pytest.raises(ValueError, match="method: expected 3 levels"):
        metrics.variance_shares([1, 2, 3], method=["a", "b"])
    with pytest.raises(ValueError, match="at least one factor"):
        metrics.variance_shares([1, 2, 3])
