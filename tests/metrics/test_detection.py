"""Novelty metrics: goldens, scikit-learn, brute force over thresholds, the limit of the sweep."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from engram import metrics
from tests.refusals import refuses

IN, OUT = (0.9, 0.8, 0.4), (0.7, 0.3)


def test_tm14() -> None:
    assert metrics.auroc(IN, OUT) == pytest.approx(0.833333, abs=1e-5)
    assert metrics.aupr_in(IN, OUT) == pytest.approx(0.916667, abs=1e-5)
    assert metrics.aupr_in(IN, OUT, definition="balanced") == pytest.approx(0.888889, abs=1e-5)
    assert metrics.aupr_in(IN, OUT, definition="odin_sweep") == pytest.approx(0.857143, abs=1e-5)
    assert metrics.detection_error(IN, OUT) == pytest.approx(0.166667, abs=1e-5)


def test_tm15_ties_single_elements_and_constants() -> None:
    assert metrics.auroc([0.5, 0.9], [0.5, 0.1]) == 0.875
    assert metrics.detection_error([0.5, 0.9], [0.5, 0.1]) == 0.25
    assert metrics.auroc([0.6, 0.2], [0.6, 0.2]) == 0.5
    assert metrics.detection_error([0.6, 0.2], [0.6, 0.2]) == 0.5
    assert metrics.auroc([1.0], [0.0]) == 1.0
    for metric in (metrics.auroc, metrics.aupr_in, metrics.detection_error):
        assert metric([0.3], [0.3, 0.3, 0.3]) == pytest.approx(
            0.25 if metric is metrics.aupr_in else 0.5
        )
    assert metrics.aupr_in([0.3], [0.3, 0.3], definition="odin_sweep") == 0.5
    assert metrics.fpr_at_tpr([0.3], [0.3]) == 1.0


def test_tm16_pair_layout() -> None:
    inside = [(0.9, 0.6), (0.95, 0.7)]
    outside = [[(0.5, 0.65), (0.2,)], [(0.8, 0.75), (0.6,)]]
    scores = metrics.pair_scores(inside, outside)
    np.testing.assert_allclose(scores.pairs, [[0.75, 1.0], [0.5, 1.0]], atol=1e-5)
    assert scores.recent == pytest.approx(0.75, abs=1e-5)
    assert scores.previous == pytest.approx(0.875, abs=1e-5)
    assert scores.mean == pytest.approx(0.8125, abs=1e-5)
    assert scores.combined == pytest.approx(0.770833, abs=1e-5)
    pooled = metrics.pair_scores(inside, outside, out_pool="pooled")
    assert pooled.pairs.shape == (2, 1)
    assert pooled.previous == pytest.approx(0.833333, abs=1e-5)
    assert pooled.combined == scores.combined


def test_pair_layout_first_stage_shared_head_and_other_metric() -> None:
    first = metrics.pair_scores(
        [(0.9, 0.6)], [[(0.5, 0.65), (0.2,)]], metric=metrics.detection_error
    )
    assert math.isnan(first.previous)
    assert first.mean == first.recent == pytest.approx((0.25 + 0.0) / 2)
    shared = [(0.8, 0.75), (0.6,)]
    both = metrics.pair_scores([(0.9, 0.6), (0.95, 0.7)], [shared, shared])
    assert both.combined == metrics.auroc((0.9, 0.6, 0.95, 0.7), (0.8, 0.75, 0.6))
    empty = metrics.pair_scores([(), (0.95, 0.7)], [shared, shared])
    assert math.isnan(empty.previous)
    assert empty.mean == empty.recent
    with pytest.raises(ValueError, match="outside: expected 2 lists"):
        metrics.pair_scores([(0.9,), (0.8,)], [shared])


def test_mean_over_tasks_skips_empty_sets() -> None:
    assert metrics.mean_over_tasks([(0.9, 0.8), (0.7,), (0.5,)], [(0.5, 0.85), (), (0.5,)]) == 0.625
    assert math.isnan(metrics.mean_over_tasks([(0.9,)], [()]))
    with refuses("negatives"):
        metrics.mean_over_tasks([(0.9,)], [])


def test_fpr_asks_for_whole_samples() -> None:
    inside = np.arange(20) / 20  # 95% of 20 is 19: the lowest may be lost, and only it
    assert metrics.fpr_at_tpr(inside, [0.01, 0.06]) == 0.5
    assert metrics.fpr_at_tpr(inside, [0.01, 0.06], tpr=0.96) == 1.0
    with refuses("tpr"):
        metrics.fpr_at_tpr(inside, [0.1], tpr=1.5)


def test_empty_sets_and_nan() -> None:
    for metric in (metrics.auroc, metrics.aupr_in, metrics.detection_error, metrics.fpr_at_tpr):
        assert math.isnan(metric([], [0.1]))
        assert math.isnan(metric([0.1], []))
        with pytest.raises(ValueError, match="outside: expected scores without NaN"):
            metric([0.1], [float("nan")])
    assert metrics.auroc([math.inf], [-math.inf, 0.0]) == 1.0


_scores = st.lists(st.integers(-3, 3).map(lambda v: v / 4), min_size=1, max_size=12)


@given(_scores, _scores)
def test_against_scikit_learn(inside: list[float], outside: list[float]) -> None:
    truth = [1] * len(inside) + [0] * len(outside)
    assert metrics.auroc(inside, outside) == pytest.approx(roc_auc_score(truth, inside + outside))
    reference = average_precision_score(truth, inside + outside)
    assert metrics.aupr_in(inside, outside) == pytest.approx(reference)
    weights = [1 / len(inside)] * len(inside) + [1 / len(outside)] * len(outside)
    balanced = average_precision_score(truth, inside + outside, sample_weight=weights)
    assert metrics.aupr_in(inside, outside, definition="balanced") == pytest.approx(balanced)


@given(_scores, _scores)
def test_against_pairs_and_thresholds(inside: list[float], outside: list[float]) -> None:
    a, b = np.array(inside), np.array(outside)
    wins = np.mean([(x > z) + 0.5 * (x == z) for x in a for z in b])
    assert metrics.auroc(a, b) == pytest.approx(wins)
    cuts = [*np.unique(np.concatenate([a, b])), np.inf]
    errors = [(np.mean(a < t) + np.mean(b >= t)) / 2 for t in cuts]
    assert metrics.detection_error(a, b) == pytest.approx(min(errors))
    for tpr in (0.5, 0.95, 1.0):
        best = max(t for t in cuts if np.mean(a >= t) >= tpr - 1e-12)
        assert metrics.fpr_at_tpr(a, b, tpr=tpr) == pytest.approx(np.mean(b >= best))


@given(_scores, _scores)
def test_odin_sweep_is_the_limit_of_a_fine_grid(inside: list[float], outside: list[float]) -> None:
    a, b = np.array(inside), np.array(outside)
    low, high = min(*inside, *outside), max(*inside, *outside)
    assume(high > low)
    area, last, precision = 0.0, 1.0, 1.0
    for cut in np.arange(low, high, 1 / 16) + 1e-9 * (np.arange(low, high, 1 / 16) > low):
        recall, false = np.mean(a >= cut), np.mean(b >= cut)
        precision = recall / (recall + false)
        area += (last - recall) * precision
        last = recall
    area += last * precision
    assert metrics.aupr_in(a, b, definition="odin_sweep") == pytest.approx(area)


@given(_scores, _scores)
def test_symmetry_and_range(inside: list[float], outside: list[float]) -> None:
    assert metrics.auroc(inside, outside) + metrics.auroc(outside, inside) == pytest.approx(1.0)
    error = metrics.detection_error(inside, outside)
    assert 0 <= error <= 0.5
    assert (error == 0) == (min(inside) > max(outside))
    shifted = metrics.auroc([math.exp(s) for s in inside], [math.exp(s) for s in outside])
    assert shifted == metrics.auroc(inside, outside)
