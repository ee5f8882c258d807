"""Tests over paired runs, corrections, rankings, verdicts: against scipy and by enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from engram import metrics
from tests.refusals import refuses

A = np.array([0.71, 0.74, 0.69, 0.80, 0.77, 0.73, 0.79])
B = np.array([0.70, 0.70, 0.70, 0.74, 0.71, 0.72, 0.70])


def test_t_test_against_scipy() -> None:
    wanted = stats.ttest_rel(A, B)
    got = metrics.paired_t_test(A, B)
    assert got.statistic == pytest.approx(wanted.statistic)
    assert got.p_value == pytest.approx(wanted.pvalue)
    assert metrics.paired_t_test([1, 2], [1, 2]).p_value == 1.0
    assert metrics.paired_t_test([2, 3], [1, 2]) == (math.inf, 0.0, 2)
    assert math.isnan(metrics.paired_t_test([1], [2]).p_value)


@pytest.mark.parametrize("n", [5, 12, 16, 17, 40, 50, 120, 300])
def test_wilcoxon_against_scipy(n: int) -> None:
    rng = np.random.default_rng(n)
    a, b = rng.normal(0.4, 1, n), rng.normal(size=n)
    exact = n <= 200
    wanted = stats.wilcoxon(a, b, method="exact" if exact else "approx", correction=False)
    got = metrics.wilcoxon_test(a, b)
    assert got.statistic == pytest.approx(wanted.statistic)
    assert got.p_value == pytest.approx(wanted.pvalue)


def test_wilcoxon_with_ties_and_zeros_by_enumeration() -> None:
    a, b = [1, 2, 3, 5, 4, 0], [0, 1, 5, 2, 4, 0]  # differences 1 1 -2 3 0 0: ranks 1.5 1.5 3 4
    ranks = [1.5, 1.5, 3, 4]
    sums = [
        sum(r for r, up in zip(ranks, s, strict=True) if up)
        for s in itertools.product([0, 1], repeat=4)
    ]
    got = metrics.wilcoxon_test(a, b)
    assert got.statistic == 3.0
    assert got.p_value == pytest.approx(2 * np.mean([s <= 3 for s in sums]))
    assert metrics.wilcoxon_test([1, 2], [1, 2]) == (0.0, 1.0, 2)


def test_sign_flips_by_enumeration_and_scipy() -> None:
    d = A - B
    flips = [abs(np.dot(s, d)) for s in itertools.product([-1, 1], repeat=len(d))]
    wanted = np.mean([f >= abs(d.sum()) - 1e-12 for f in flips])
    assert metrics.sign_flip_test(A, B).p_value == pytest.approx(wanted)
    reference = stats.permutation_test(
        (A, B), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf
    )
    assert metrics.sign_flip_test(A, B).p_value == pytest.approx(reference.pvalue)
    assert metrics.sign_flip_test([1], [0]).p_value == 1.0
    assert metrics.sign_flip_test([0.1, 0.2], [0.1, 0.2]).p_value == 1.0


def test_sign_flips_with_many_runs_are_seeded_and_near_the_t_test() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(0.3, 1, 60), rng.normal(size=60)
    got = metrics.sign_flip_test(a, b, seed=1)
    assert got == metrics.sign_flip_test(a, b, seed=1)
    assert got.p_value == pytest.approx(metrics.paired_t_test(a, b).p_value, abs=0.02)
    assert metrics.sign_flip_test(a + 9, b, resamples=99).p_value == 0.01  # never 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_corrections(p: list[float]) -> None:
    adjusted = metrics.holm(p)
    for i, value in enumerate(p):
        # Holm by its definition: the largest (n - rank) p over all p values not above this one.
        order = sorted(range(len(p)), key=lambda j: (p[j], j))
        upto = order[: order.index(i) + 1]
        wanted = min(1.0, max((len(p) - r) * p[j] for r, j in enumerate(upto)))
        assert adjusted[i] == pytest.approx(wanted)
        assert adjusted[i] >= value
    reference = stats.false_discovery_control(p)
    np.testing.assert_allclose(metrics.benjamini_hochberg(p), reference)
    assert np.all(metrics.benjamini_hochberg(p) <= adjusted + 1e-12)


def test_friedman_against_scipy() -> None:
    rng = np.random.default_rng(0)
    table = np.round(rng.random((9, 4)) + [0, 0.2, 0.5, 0.1], 1)  # rounding makes ties
    wanted = stats.friedmanchisquare(*table.T)
    got = metrics.rank_methods(table)
    assert got.statistic == pytest.approx(wanted.statistic)
    assert got.p_value == pytest.approx(wanted.pvalue)
    ranks = np.array([stats.rankdata(-row) for row in table])
    np.testing.assert_allclose(got.average_ranks, ranks.mean(axis=0))
    turned = metrics.rank_methods(-table, higher_is_better=False)
    np.testing.assert_allclose(turned.average_ranks, got.average_ranks)
    flat = metrics.rank_methods(np.zeros((3, 3)))
    assert (flat.statistic, flat.p_value, flat.cliques) == (0.0, 1.0, ((0, 1, 2),))


@pytest.mark.parametrize(("k", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_nemenyi_constants(k: int, q: float) -> None:
    # Table of critical values for the two-tailed Nemenyi test at 5% (Demsar 2006).
    n = 7
    got = metrics.rank_methods(np.random.default_rng(k).random((n, k))).critical_difference
    assert got / math.sqrt(k * (k + 1) / (6 * n)) == pytest.approx(q, abs=1e-3)


def test_cliques() -> None:
    order = np.array([2, 0, 1, 3])  # method 2 always best, then 0, 1, 3
    table = np.zeros((30, 4))
    table[:, order] = [4.0, 3.0, 2.0, 1.0]
    assert metrics.rank_methods(table).cliques == ()  # 30 agreeing blocks tell all apart
    assert metrics.rank_methods(table[:8]).cliques == ((2, 0), (0, 1), (1, 3))
    assert metrics.rank_methods(table[:2]).cliques == ((2, 0, 1, 3),)


def test_all_pairs_is_holm_of_single_tests() -> None:
    table = np.random.default_rng(8).random((8, 3)) + [0, 0.4, 0.9]
    for name, test in {
        "wilcoxon": metrics.wilcoxon_test,
        "t": metrics.paired_t_test,
        "permutation": metrics.sign_flip_test,
    }.items():
        raw = [test(table[:, i], table[:, j]).p_value for i, j in ((0, 1), (0, 2), (1, 2))]
        got = metrics.all_pairs(table, test=name)
        np.testing.assert_allclose(list(got.values()), metrics.holm(raw))
        assert list(got) == [(0, 1), (0, 2), (1, 2)]


def test_compare_paired_matches_scipy_interval() -> None:
    verdict = metrics.compare(A, B)
    wanted = stats.ttest_rel(A, B)
    interval = wanted.confidence_interval(0.95)
    assert (verdict.low, verdict.high) == pytest.approx((interval.low, interval.high))
    assert verdict.p_value == pytest.approx(wanted.pvalue)
    assert not verdict.smaller_than_noise
    assert verdict.words.startswith("a is higher than b by 0.03")
    assert "lower" in metrics.compare(B, A).words


def test_compare_unpaired_is_welch() -> None:
    verdict = metrics.compare(A, B[:5], paired=False, level=0.9)
    wanted = stats.ttest_ind(A, B[:5], equal_var=False)
    interval = wanted.confidence_interval(0.9)
    assert (verdict.low, verdict.high) == pytest.approx((interval.low, interval.high))
    assert verdict.p_value == pytest.approx(wanted.pvalue)
    assert "7 and 5 runs" in verdict.words


def test_compare_says_when_noise_is_larger() -> None:
    noisy = metrics.compare([0.5, 0.7, 0.6], [0.6, 0.5, 0.65], names=("EWC", "SI"))
    assert noisy.smaller_than_noise
    assert "EWC and SI cannot be told apart" in str(noisy)
    assert "smaller than the noise" in str(noisy)
    one = metrics.compare([0.9], [0.1])
    assert one.smaller_than_noise
    assert "noise is unknown" in one.words
    same = metrics.compare(A, A)
    assert same.words == "a and b are equal in every run (7 paired runs)"
    assert same.p_value == 1.0
    constant = metrics.compare(A + 0.1, A)
    assert not constant.smaller_than_noise
    assert constant.p_value == 0.0


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8))
def test_verdict_and_p_value_agree(runs: list[tuple[float, float]]) -> None:
    a, b = map(list, zip(*runs, strict=True))
    verdict, mirrored = metrics.compare(a, b), metrics.compare(b, a)
    if abs(verdict.p_value - 0.05) > 1e-6:
        assert verdict.smaller_than_noise == (verdict.p_value > 0.05)
    assert verdict.difference == pytest.approx(-mirrored.difference)
    assert verdict.smaller_than_noise == mirrored.smaller_than_noise


# -- rounding decides nothing ----------------------------------------------------------------------
FINAL = [[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]]  # final rows whose means differ in the last bit
SCORES = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=2, max_size=40, unique=False
).map(lambda runs: np.array(runs, np.float64) / 1000)
TESTS = {
    "wilcoxon": metrics.wilcoxon_test,
    "t": metrics.paired_t_test,
    "flips": lambda a, b: metrics.sign_flip_test(a, b, resamples=99),
    "compare": metrics.compare,
    "compare unpaired": lambda a, b: metrics.compare(a, b, paired=False),
    "rank": lambda a, b: metrics.rank_methods(np.stack([a, b], 1)),
}


def p_values(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    return {name: test(a, b).p_value for name, test in TESTS.items()}


def test_rounding_decides_nothing() -> None:
    one, two = (
        np.array([float(metrics.average_accuracy([[0.5], [0.5, 0.5], row]))] * 6) for row in FINAL
    )
    assert one[0] != two[0]
    assert set(p_values(one, two).values()) == {1.0}
    assert metrics.compare(one, two).words == "a and b are equal in every run (6 paired runs)"
    assert metrics.paired_differences(one, two).tolist() == [0.0] * 6
    assert metrics.paired_t_test(one, two).statistic == 0.0
    assert metrics.rank_methods(np.stack([one, two], 1)).average_ranks.tolist() == [1.5, 1.5]
    # forgetting of nothing, computed in two ways
    assert set(p_values(np.full(6, (0.1 + 0.2) - 0.3), np.zeros(6)).values()) == {1.0}
    # a difference that is the same in every run, up to rounding, is no noise
    for shifted in (one + 0.1, np.where(np.arange(6) % 2, one, two) + 0.1):
        assert metrics.paired_t_test(shifted, two).p_value == 0.0
        assert metrics.compare(shifted, two).p_value == 0.0


@given(SCORES)
def test_percents_and_fractions_decide_alike(runs: np.ndarray) -> None:
    small, large = p_values(*runs.T), p_values(*(100 * runs).T)
    exact = ("wilcoxon", "flips", "rank")
    assert [small[k] for k in exact] == [large[k] for k in exact]
    assert small == pytest.approx(large, rel=1e-6, abs=1e-12)


@given(SCORES, st.integers(0, 2**32 - 1))
def test_the_last_bit_decides_nothing(runs: np.ndarray, seed: int) -> None:
    side = np.random.default_rng(seed).choice([-np.inf, np.inf], size=runs.shape)
    clean, noisy = p_values(*runs.T), p_values(*np.nextafter(runs, side).T)
    exact = ("wilcoxon", "flips", "rank")
    assert [clean[k] for k in exact] == [noisy[k] for k in exact]
    assert clean == pytest.approx(noisy, rel=1e-6, abs=1e-12)


@given(st.lists(st.lists(st.integers(0, 100), min_size=4, max_size=4), min_size=2, max_size=12),
       st.permutations(range(4)))  # fmt: skip
def test_the_order_of_tasks_decides_nothing(rows: list[list[int]], order: list[int]) -> None:
    final = np.array(rows) / 100  # [run, task] the last row of each run's matrix
    means = [part.mean(axis=1) for part in (final, final[:, order])]
    assert set(p_values(*means).values()) == {1.0}
    other = final[:, ::-1].mean(axis=1) + 0.01 * np.arange(len(rows))
    first, second = (p_values(mean, other) for mean in means)
    assert first == pytest.approx(second, rel=1e-6, abs=1e-12)


@given(SCORES)
def test_wilcoxon_is_exact_where_scipy_is(runs: np.ndarray) -> None:
    d = metrics.paired_differences(*runs.T)
    sizes = np.abs(d)
    got = metrics.wilcoxon_test(*runs.T)
    if len(set(sizes.tolist())) == len(d) and sizes.all():  # scipy is exact without ties
        wanted = stats.wilcoxon(d, method="exact")
        assert (got.statistic, got.p_value) == pytest.approx((wanted.statistic, wanted.pvalue))
    elif (sizes > 0).sum() > 1 and len(d) <= 8:  # it permutes where there are some
        wanted = stats.wilcoxon(d[d != 0], method=stats.PermutationMethod())
        assert (got.statistic, got.p_value) == pytest.approx((wanted.statistic, wanted.pvalue))


def test_complaints() -> None:
    with pytest.raises(ValueError, match="b: expected 7 values, paired"):
        metrics.compare(A, B[:3])
    with pytest.raises(ValueError, match="a: expected one axis"):
        metrics.sign_flip_test([float("nan")], [1])
    with refuses("p_values"):
        metrics.holm([0.5, 1.5])
    with refuses("scores"):
        metrics.rank_methods([[1.0, 2.0]])
    with refuses("test", near="wilcoxon"):
        metrics.all_pairs([[1.0, 2.0]], test="wilcox")
    with refuses("level"):
        metrics.compare(A, B, level=1.0)
