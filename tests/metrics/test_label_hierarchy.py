"""Metrics of labels that form a tree."""

from __future__ import annotations

import numpy as np
import pytest

from engram import metrics
from engram.errors import BadArgument

# 0 and 4 at the top; 1 and 2 beneath 0, 3 beneath 1
PARENT = [-1, 0, 0, 1, -1]


def sets(*labels: tuple[int, ...]) -> np.ndarray:
    found = np.zeros((len(labels), len(PARENT)))
    for row, one in enumerate(labels):
        found[row, list(one)] = 1
    return found


def by_hand(y: list[set[int]], p: list[set[int]]) -> float:
    lines = {0: {0}, 1: {0, 1}, 2: {0, 2}, 3: {0, 1, 3}, 4: {4}}
    full = [[set().union(*(lines[c] for c in one)) for one in side] for side in (y, p)]
    both = sum(len(a & b) for a, b in zip(*full, strict=True))
    return 2 * both / sum(len(one) for side in full for one in side)


def test_f1_completes_both_sets_by_what_is_above() -> None:
    y, p = [(0, 1, 3), (0, 2), (4,)], [(3,), (1,), ()]
    expected = by_hand([set(one) for one in y], [set(one) for one in p])
    assert metrics.hierarchical_f1(sets(*y), sets(*p), PARENT) == pytest.approx(expected)
    assert metrics.hierarchical_f1(sets(*y), sets(*y), PARENT) == 1.0
    assert metrics.hierarchical_f1(sets((4,)), sets((3,)), PARENT) == 0.0


def test_depth_of_mistakes() -> None:
    depth = metrics.mistake_depth
    assert depth(sets((0, 1, 3)), sets((2,)), PARENT) == 1.0  # both beneath 0
    assert depth(sets((0, 1, 3)), sets((4,)), PARENT) == 0.0  # nothing in common
    assert depth(sets((0, 1)), sets((3,)), PARENT) == 2.0  # refined too far: both beneath 1
    assert depth(sets((0, 1, 3)), sets((2, 4, 1)), PARENT) == 0.5
    assert np.isnan(depth(sets((0, 1, 3)), sets((0, 3)), PARENT))


@pytest.mark.parametrize("parent", [[1, 0, -1, -1, -1], [0, 0, 0, 0, 0], [9, -1, -1, -1, -1]])
def test_what_is_no_tree_is_refused(parent: list[int]) -> None:
    with pytest.raises(BadArgument, match=r"^parent: "):
        metrics.ancestors(parent)
