"""Order sensitivity."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engram.metrics import order_disparity
from tests.refusals import refuses


def test_tm6_and_tm7_columns_are_units() -> None:
    # T-M7 is printed with one row per task; the function takes one column per task.
    by_task = np.array([[0.9, 0.2, 0.5], [0.8, 0.6, 0.7], [0.4, 0.9, 0.1]])
    opd, aopd, mopd = order_disparity(by_task.T)
    np.testing.assert_allclose(opd, [0.7, 0.2, 0.8], atol=1e-5)
    assert aopd == pytest.approx(0.566667, abs=1e-5)
    assert mopd == pytest.approx(0.8, abs=1e-5)
    # T-M6: performance recorded by position is brought to fixed classes before it is compared.
    tasks, order = {1: (0, 1), 2: (2, 3), 3: (4, 5)}, (3, 1, 2)
    classes = list(itertools.chain.from_iterable(tasks[t] for t in order))
    assert classes == [4, 5, 0, 1, 2, 3]
    by_position = np.array([np.arange(6.0), np.array(classes, float)])  # class c performs c
    by_class = np.stack([by_position[0], by_position[1][np.argsort(classes)]])
    np.testing.assert_array_equal(order_disparity(by_class).opd, np.zeros(6))


def test_tm8_classes_can_swing_while_the_task_stands_still() -> None:
    classes = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.4]])  # [order, class]
    task = classes.mean(axis=1, keepdims=True)
    assert order_disparity(task).aopd == pytest.approx(0.0)
    opd, aopd, mopd = order_disparity(classes)
    np.testing.assert_allclose(opd, [1, 1])
    assert (aopd, mopd) == (1.0, 1.0)


def test_repetitions_are_leading_axes() -> None:
    runs = np.random.default_rng(1).random((5, 4, 3))
    together = order_disparity(runs)
    for i, run in enumerate(runs):
        alone = order_disparity(run)
        np.testing.assert_array_equal(together.opd[i], alone.opd)
        assert (together.aopd[i], together.mopd[i]) == (alone.aopd, alone.mopd)


def test_complaints() -> None:
    with refuses("performance"):
        order_disparity([0.1, 0.2])
    with pytest.raises(ValueError, match="at least one order"):
        order_disparity(np.zeros((0, 3)))


_tables = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 6), st.integers(1, 4)), elements=st.floats(0, 1)
)


@given(_tables, st.randoms(use_true_random=False))
def test_order_of_orders_does_not_matter(table: np.ndarray, random: object) -> None:
    rows = list(range(len(table)))
    random.shuffle(rows)  # type: ignore[attr-defined]
    one, other = order_disparity(table), order_disparity(table[rows])
    np.testing.assert_array_equal(one.opd, other.opd)
    assert one[1:] == other[1:]


@given(_tables, st.integers(1, 6))
def test_more_orders_never_lower_the_disparity(table: np.ndarray, kept: int) -> None:
    assert np.all(order_disparity(table).opd >= order_disparity(table[:kept]).opd)
