"""Single-label metrics against scikit-learn and loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from engram import metrics
from tests.refusals import refuses


def test_tm1_macro_and_micro_task_accuracy() -> None:
    y = [0] * 30 + [1] * 10
    p = [0] * 15 + [1] * 25
    np.testing.assert_allclose(metrics.class_accuracy(y, p), [0.5, 1.0])
    assert metrics.task_accuracy(y, p, average="macro") == pytest.approx(0.75, abs=1e-5)
    assert metrics.task_accuracy(y, p) == pytest.approx(0.625, abs=1e-5)


_samples = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30)


@given(_samples)
def test_against_scikit_learn(samples: list[tuple[int, int]]) -> None:
    y, p = (list(part) for part in zip(*samples, strict=True))
    assert metrics.accuracy(y, p) == pytest.approx(sk.accuracy_score(y, p))
    used = range(5)  # fixed labels: scikit-learn warns about tables of one class
    table = sk.confusion_matrix(y, p, labels=used)
    np.testing.assert_array_equal(metrics.confusion_matrix(y, p, classes=used), table)
    present = sorted({*y, *p})
    np.testing.assert_array_equal(metrics.confusion_matrix(y, p), table[np.ix_(present, present)])
    rows = sorted(set(y))
    recall = sk.recall_score(y, p, labels=rows, average=None, zero_division=0)
    np.testing.assert_allclose(metrics.class_accuracy(y, p), recall)
    assert metrics.task_accuracy(y, p, average="macro") == pytest.approx(np.mean(recall))


def test_confusion_order_and_normalisation() -> None:
    y, p = [3, 3, 1], [3, 1, 1]
    np.testing.assert_array_equal(metrics.confusion_matrix(y, p, classes=[3, 1]), [[1, 1], [0, 1]])
    table = metrics.confusion_matrix(y, p, classes=[3, 1, 0], normalize=True)
    np.testing.assert_array_equal(table[:2], [[0.5, 0.5, 0], [0, 1, 0]])
    assert np.isnan(table[2]).all()
    with refuses("classes"):
        metrics.confusion_matrix(y, p, classes=[3])
    with refuses("classes"):
        metrics.confusion_matrix(y, p, classes=[3, 1, 1])


def test_runs_are_leading_axes() -> None:
    rng = np.random.default_rng(0)
    y, p = rng.integers(0, 3, 20), rng.integers(0, 3, (4, 20))
    np.testing.assert_allclose(metrics.accuracy(y, p), [metrics.accuracy(y, q) for q in p])
    each = metrics.class_accuracy(y, torch.tensor(p), classes=[0, 1, 2, 9])
    np.testing.assert_allclose(
        each, [metrics.class_accuracy(y, q, classes=[0, 1, 2, 9]) for q in p]
    )
    macro = metrics.task_accuracy(y, p, average="macro", classes=[0, 1, 2, 9])
    np.testing.assert_allclose(macro, np.nanmean(each, axis=1))


def test_no_samples_and_complaints() -> None:
    assert np.isnan(metrics.accuracy([], []))
    assert np.isnan(metrics.task_accuracy([1], [1], average="macro", classes=[2]))
    with pytest.raises(ValueError, match="p: expected 2 predictions"):
        metrics.accuracy([0, 1], [0])
    with pytest.raises(ValueError, match="argmax"):
        metrics.accuracy([0, 1], [0.2, 0.7])
    with pytest.raises(ValueError, match="y: expected class ids, so at least 1 axes"):
        metrics.accuracy(3, [1])


def test_calibration_against_a_loop() -> None:
    rng = np.random.default_rng(4)
    scores = rng.dirichlet([0.6] * 4, 200)
    y = rng.integers(0, 4, 200)
    for bins in (1, 7, 15):
        wanted = 0.0
        for i in range(bins):
            top = scores.max(axis=1)
            inside = (top > i / bins) & (top <= (i + 1) / bins)
            if inside.any():
                gap = top[inside].mean() - (scores.argmax(axis=1) == y)[inside].mean()
                wanted += inside.mean() * abs(gap)
        assert metrics.expected_calibration_error(scores, y, bins) == pytest.approx(wanted)


def test_calibration_extremes() -> None:
    sure = np.eye(3)
    assert metrics.expected_calibration_error(sure, [0, 1, 2]) == 0.0
    assert metrics.expected_calibration_error(sure, [1, 2, 0]) == 1.0
    with pytest.raises(ValueError, match="softmax"):
        metrics.expected_calibration_error([[3.0, -1.0]], [0])
    with refuses("bins"):
        metrics.expected_calibration_error(sure, [0, 1, 2], bins=0)
    with pytest.raises(ValueError, match="one class for each row"):
        metrics.expected_calibration_error(sure, [0, 1])


def test_a_confidence_on_an_edge_belongs_to_the_bin_below() -> None:
    # The first is right (gap .5 - 1), the second wrong (gap .75 - 0). In bins of their own the gaps
    # count .5 and .75; in one common bin they would nearly cancel.
    scores = [[0.5, 0.5], [0.75, 0.25]]
    assert metrics.expected_calibration_error(scores, [0, 1], bins=2) == pytest.approx(0.625)


@given(_samples)
def test_f1_against_scikit_learn(samples: list[tuple[int, int]]) -> None:
    y, p = (list(part) for part in zip(*samples, strict=True))
    for average in ("macro", "weighted"):
        wanted = sk.f1_score(y, p, average=average, zero_division=0)
        assert metrics.f1_score(y, p, average=average) == pytest.approx(wanted)
    found = metrics.precision_recall_f1(y, p)
    wanted = sk.precision_recall_fscore_support(y, p, zero_division=np.nan)
    for ours, theirs in zip(found[:2], wanted[:2], strict=True):
        np.testing.assert_allclose(ours, theirs)


def test_f1_of_several_runs_and_of_classes_that_do_not_occur() -> None:
    y, p = [[0, 0, 1, 1], [0, 0, 1, 1]], [[0, 0, 1, 1], [1, 1, 0, 0]]
    assert metrics.f1_score(y, p).tolist() == [1.0, 0.0]
    assert np.isnan(metrics.precision_recall_f1([0], [0], classes=[7]).f1).all()
    assert metrics.f1_score([0, 1], [0, 0], classes=[0, 7]) == pytest.approx(2 / 3)  # 7 is nowhere
    with refuses("average"):
        metrics.f1_score([0], [0], average="micro")


def test_top_k_against_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    scores, y = rng.normal(size=(200, 6)), rng.integers(0, 6, 200)
    for k in range(1, 6):
        wanted = sk.top_k_accuracy_score(y, scores, k=k, labels=range(6))
        assert metrics.top_k_accuracy(scores, y, k=k) == pytest.approx(wanted)
    several = metrics.top_k_accuracy(np.stack([scores, -scores]), np.stack([y, y]), k=2)
    assert several[1] == metrics.top_k_accuracy(-scores, y, k=2)


def test_of_equal_scores_the_lower_column_comes_first() -> None:
    tied = [[1.0, 1.0, 1.0]] * 3
    assert metrics.top_k_accuracy(tied, [0, 1, 2], k=1) == pytest.approx(1 / 3)
    assert metrics.top_k_accuracy(tied, [0, 1, 2], k=2) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="k: expected a whole number of at most 2, got 3"):
        metrics.top_k_accuracy(tied, [0, 1, 2], k=3)
    with pytest.raises(ValueError, match="y: expected column numbers from 0 to 2"):
        metrics.top_k_accuracy(tied, [0, 1, 3], k=1)
    with pytest.raises(ValueError, match="one class for each row"):
        metrics.top_k_accuracy(tied, [0, 1], k=1)
