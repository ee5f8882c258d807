"""Metrics of labels that form a tree: multi-hot arrays `[sample, class]` and each class's parent.

`parent` holds for each class the number of the class right above it, -1 at the top.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engram.errors import bad
from engram.metrics.checked_arrays import Bools, Floats, as_multi_hot


def ancestors(parent: Any) -> Bools:
    """[C, C] whether the class of a column is the class of a row or one of its ancestors.

    Examples
    --------
    >>> ancestors([-1, 0, 1]).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    above = np.asarray(parent)
    if above.ndim != 1 or above.dtype.kind not in "iu":
        raise bad("parent", "a class number for each class, -1 at the top", parent)
    if len(above) and not (above.min() >= -1 and above.max() < len(above)):
        raise bad("parent", f"numbers from -1 to {len(above) - 1}", above.tolist())
    found = np.eye(len(above), dtype=np.bool_)
    now = above.copy()
    for _ in range(len(above) + 1):
        inside = np.flatnonzero(now >= 0)
        if not len(inside):
            return found
        found[inside, now[inside]] = True
        now[inside] = above[now[inside]]
    raise bad("parent", "a tree, in which no class is above itself", above.tolist())


def _complete_both(y: Any, p: Any, parent: Any) -> tuple[Bools, Bools, Bools]:
    truth, predicted, lines = as_multi_hot("y", y), as_multi_hot("p", p), ancestors(parent)
    if truth.ndim != 2 or truth.shape != predicted.shape:
        raise bad("p", f"an array [sample, class] as y, {truth.shape}", predicted.shape)
    if truth.shape[1] != len(lines):
        raise bad("parent", f"an entry for each of {truth.shape[1]} classes", len(lines))
    return truth, predicted, lines


def _add_ancestors(labels: Bools, lines: Bools) -> Bools:
    """Labels [sample, class] with all that is above them.

    In 32-bit floats, which are exact here and, unlike whole numbers, multiplied fast.
    """
    found: Bools = (labels.astype(np.float32) @ lines.astype(np.float32)) > 0
    return found


def hierarchical_f1(y: Any, p: Any, parent: Any) -> float:
    """F1 over all labels of all samples, with the ancestors of both label sets added.

    A wrong class beneath the right superclass is half right, one from another branch is not
    (Kiritchenko et al. 2006). NaN where there is no label at all.

    Examples
    --------
    >>> parent = [-1, 0, 0, -1]  # two subclasses of the first class, and one class without
    >>> hierarchical_f1([[1, 1, 0, 0]], [[0, 0, 1, 0]], parent)
    0.5
    """
    truth, predicted, lines = _complete_both(y, p, parent)
    full = [_add_ancestors(part, lines) for part in (truth, predicted)]
    total = full[0].sum() + full[1].sum()
    return float(2 * (full[0] & full[1]).sum() / total) if total else float("nan")


def mistake_depth(y: Any, p: Any, parent: Any) -> float:
    """Mean depth of the lowest common ancestor of a wrong label and the true class.

    The higher, the nearer mistakes are to the truth: 0 means that they have nothing in common, 1
    that both are beneath the same class of the top. NaN where nothing wrong is predicted.

    Examples
    --------
    >>> mistake_depth([[1, 1, 0, 0]] * 2, [[1, 0, 1, 0], [1, 0, 0, 1]], [-1, 0, 0, -1])
    0.5
    """
    truth, predicted, lines = _complete_both(y, p, parent)
    depth = lines.sum(axis=1)  # of a class of the top: 1
    full = _add_ancestors(truth, lines)  # [n, C] all that a sample is
    sample, wrong = np.nonzero(predicted & ~full)
    if not len(sample):
        return float("nan")
    shared = lines[wrong] & full[sample]  # [mistakes, C] above both
    found: Floats = np.where(shared, depth, 0).max(axis=1)
    return float(found.mean())
