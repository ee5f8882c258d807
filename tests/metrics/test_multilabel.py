"""Multi-label metrics: goldens, set-based brute force, properties."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import jaccard_score, recall_score

from engram import metrics
from tests.refusals import refuses


def hot(sets: Iterable[Iterable[int]], classes: int = 6) -> np.ndarray:
    return np.array([[c in labels for c in range(classes)] for labels in sets], dtype=float)


Y9 = hot([{0, 3}, {0, 3}, {2}, {1}])
P9 = hot([{0, 3}, {0}, {0, 1, 2}, set()])


def test_tm9() -> None:
    assert metrics.exact_match(Y9, P9) == pytest.approx(0.25, abs=1e-5)
    assert metrics.jaccard(Y9, P9) == pytest.approx(0.458333, abs=1e-5)
    assert metrics.precision_weighted_jaccard(Y9, P9) == pytest.approx(0.402778, abs=1e-5)
    assert metrics.micro_recall(Y9, P9) == pytest.approx(0.666667, abs=1e-5)


def test_tm10() -> None:
    y = hot([{0, 3}])
    assert metrics.precision_weighted_jaccard(y, hot([{0, 3, 5}])) == pytest.approx(
        0.444444, abs=1e-5
    )
    assert metrics.precision_weighted_jaccard(y, hot([{0, 5}])) == pytest.approx(0.166667, abs=1e-5)


@pytest.mark.parametrize("within", [[0, 1], {0, 1}, np.array([1, 1, 0, 0, 0, 0], bool)])
@pytest.mark.parametrize(
    "metric", [metrics.jaccard, metrics.precision_weighted_jaccard, metrics.exact_match]
)
def test_tm11_superclasses(metric, within) -> None:  # type: ignore[no-untyped-def]
    assert metric(Y9, P9, within=within) == pytest.approx(0.666667, abs=1e-5)
    # Counted, the third sample has no true superclass and two predicted ones: 0. So 2 / 4.
    assert metric(Y9, P9, within=within, empty="count") == pytest.approx(0.5)
    # Without a prediction it agrees with the truth: 3 / 4.
    silent = P9.copy()
    silent[2] = 0
    assert metric(Y9, silent, within=within, empty="count") == pytest.approx(0.75)


def test_tm12_subclass_precision() -> None:
    y = hot([{0, 3}, {0, 3}, {1, 2}, {1, 4}])
    p = hot([{0, 3}, {0, 3, 5}, {1}, {2, 5}])
    assert metrics.subclass_precision(y, p, [2, 3, 4, 5]) == pytest.approx(0.625, abs=1e-5)
    # Only samples 0 and 1 have label 3: precision among {3, 5} is 1 and .5.
    assert metrics.subclass_precision(y, p, [3, 5], samples="has_label") == pytest.approx(0.75)
    assert metrics.subclass_precision(y, p, [3, 5]) == pytest.approx((1 + 0.5 + 1 + 0) / 4)


@pytest.mark.parametrize(("subclasses", "share"), [(5, 0.20), (8, 0.125)])
def test_tm13_ground_truth_confusion(subclasses: int, share: float) -> None:
    y = hot([{0, 1 + s} for s in range(subclasses) for _ in range(3)], subclasses + 1)
    table = metrics.confusion(y, y)
    np.testing.assert_allclose(table[0], [1, *[share] * subclasses], atol=1e-5)
    np.testing.assert_allclose(table[1:, 0], 1.0)
    np.testing.assert_allclose(table[1:, 1:], np.eye(subclasses))


def test_tm17_overlapping_tasks() -> None:
    names = {"A": 0, "a": 1, "o": 2, "b": 3}
    y = hot([{0, 1}, {0, 1}, {0, 3}, {2}], 4)  # test images a, a, b, o with all their labels
    p = hot([{0}, {0}, {0}, {2}], 4)
    scores = metrics.stage_scores(y, p, [[names["A"]], [names["a"], names["o"]]])
    np.testing.assert_allclose(scores.tasks, [0.666667, 0.666667], atol=1e-5)
    assert scores.overall == pytest.approx(0.75, abs=1e-5)
    seen = y * [1, 1, 1, 0]
    table = metrics.confusion(seen, p, order=[0, 1, 2])
    np.testing.assert_allclose(table, [[1, 0, 0], [1, 0, 0], [0, 0, 1]])
    first = metrics.stage_scores(y, p, [[names["A"]]])
    assert first.overall == first.tasks[0]


def test_confusion_order_and_absent_rows() -> None:
    table = metrics.confusion(Y9, P9)
    assert np.isnan(table[4:]).all()
    np.testing.assert_allclose(table[0], [1, 0, 0, 0.5, 0, 0])
    np.testing.assert_allclose(metrics.confusion(Y9, P9, order=[3, 0]), [[0.5, 1], [0.5, 1]])


def test_threshold_at_equality() -> None:
    scores = torch.tensor([[0.5, 0.6, 0.4]])
    assert metrics.threshold(scores, at=0.5).tolist() == [[False, True, False]]
    assert metrics.threshold(scores, at=0.5, inclusive=True).tolist() == [[True, True, False]]


def test_runs_are_leading_axes() -> None:
    rng = np.random.default_rng(3)
    p = rng.integers(0, 2, (2, 3, 4, 6))
    for metric in (
        metrics.exact_match,
        metrics.jaccard,
        metrics.precision_weighted_jaccard,
        metrics.micro_recall,
    ):
        together = metric(Y9, p)
        assert together.shape == (2, 3)
        for i in np.ndindex(2, 3):
            assert together[i] == pytest.approx(metric(Y9, p[i]))
    assert metrics.subclass_precision(Y9, p, [2, 3]).shape == (2, 3)


def test_complaints() -> None:
    with pytest.raises(ValueError, match="y: expected at least one true label"):
        metrics.jaccard(np.zeros((1, 3)), np.ones((1, 3)))
    with pytest.raises(ValueError, match="p: expected only 0 and 1"):
        metrics.jaccard(Y9, P9 * 0.7)
    with pytest.raises(ValueError, match="p: expected samples and classes"):
        metrics.jaccard(Y9, P9[:2])
    with pytest.raises(ValueError, match="within: expected class numbers from 0 to 5"):
        metrics.jaccard(Y9, P9, within=[6])
    with refuses("empty", near="skip"):
        metrics.jaccard(Y9, P9, empty="skipp")
    assert np.isnan(metrics.jaccard(Y9, P9, within=[5]))


_pairs = st.tuples(st.integers(1, 6), st.integers(1, 5)).flatmap(
    lambda s: st.tuples(hnp.arrays(np.bool_, s), hnp.arrays(np.bool_, s), st.integers(0, s[1] - 1))
)


def _labelled(y: np.ndarray, column: int) -> np.ndarray:
    y = y.copy()
    y[~y.any(axis=1), column] = True
    return y


@given(_pairs)
def test_against_sets(drawn: tuple[np.ndarray, np.ndarray, int]) -> None:
    y, p, column = drawn
    y = _labelled(y, column)
    js, pw, match = [], [], []
    for row, guess in zip(y, p, strict=True):
        true, said = set(np.flatnonzero(row)), set(np.flatnonzero(guess))
        js.append(len(true & said) / len(true | said))
        pw.append(js[-1] * (len(true & said) / len(said) if said else 0.0))
        match.append(float(true == said))
    assert metrics.jaccard(y, p) == pytest.approx(np.mean(js))
    assert metrics.precision_weighted_jaccard(y, p) == pytest.approx(np.mean(pw))
    assert metrics.exact_match(y, p) == pytest.approx(np.mean(match))
    if y.shape[1] > 1:
        reference = jaccard_score(y, p, average="samples", zero_division=0)
        assert metrics.jaccard(y, p) == pytest.approx(reference)
        assert metrics.micro_recall(y, p) == pytest.approx(recall_score(y, p, average="micro"))


@given(_pairs)
def test_ordering_of_metrics(drawn: tuple[np.ndarray, np.ndarray, int]) -> None:
    y, p, column = drawn
    y = _labelled(y, column)
    match, pw, js = (
        metric(y, p)
        for metric in (metrics.exact_match, metrics.precision_weighted_jaccard, metrics.jaccard)
    )
    assert match - 1e-12 <= pw <= js + 1e-12 <= 1 + 2e-12
    inside = p & y
    assert metrics.precision_weighted_jaccard(y, inside) == pytest.approx(
        metrics.jaccard(y, inside)
    )
    assert metrics.precision_weighted_jaccard(y, y) == 1.0


@given(_pairs)
def test_confusion_against_loops(drawn: tuple[np.ndarray, np.ndarray, int]) -> None:
    y, p, _ = drawn
    table = metrics.confusion(y, p)
    for a in range(y.shape[1]):
        for b in range(y.shape[1]):
            rows = [i for i in range(len(y)) if y[i, a]]
            wanted = np.mean([p[i, b] for i in rows]) if rows else np.nan
            np.testing.assert_allclose(table[a, b], wanted)
