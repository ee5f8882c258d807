"""Ten formulas that papers and libraries all call "forgetting".

Each takes a checked matrix `[..., stage, task]` and a 0-based stage `k >= 1`, and returns the
number its source prints, its sign included. Entries above the diagonal may be NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engram.errors import BadArgument
from engram.metrics._arrays import Floats


def drops_from_best(matrix: Floats, k: int) -> Floats:
    """`max_{j <= l < k} a[l][j] - a[k][j]` for every earlier task `j`."""
    past = matrix[..., :k, :k]  # [..., l, j]
    learnt = np.tril(np.ones((k, k), np.bool_))  # l >= j
    # -inf and not NaN: a NaN below the diagonal (a diverged run) has to stay visible.
    best = np.where(learnt, past, -np.inf).max(axis=-2)
    return np.asarray(best - matrix[..., k, :k])


def drops_from_diagonal(matrix: Floats, k: int) -> Floats:
    """`a[j][j] - a[k][j]` for every earlier task `j`."""
    own = np.diagonal(matrix[..., :k, :k], axis1=-2, axis2=-1)
    return np.asarray(own - matrix[..., k, :k])


def _absent_as_zero(matrix: Floats) -> Floats:
    """NaN above the diagonal becomes 0, as libraries that pad with zeros see it."""
    above = np.triu(np.ones(matrix.shape[-2:], np.bool_), 1)
    return np.where(above & np.isnan(matrix), 0.0, matrix)


def by_max(matrix: Floats, k: int) -> Floats:
    """Mean drop of the earlier tasks from their best since they were learnt."""
    return np.asarray(drops_from_best(matrix, k).mean(axis=-1))


def by_diagonal(matrix: Floats, k: int) -> Floats:
    """Mean drop of the earlier tasks from what they reached when they were learnt."""
    return np.asarray(drops_from_diagonal(matrix, k).mean(axis=-1))


def by_first(matrix: Floats, k: int) -> Floats:
    """The maximum runs over all earlier stages, those before the task was learnt included."""
    past = matrix[..., :k, :k]
    before = np.triu(np.ones((k, k), np.bool_), 1)  # l < j
    missing = np.any(np.isnan(past) & before, axis=(-2, -1))
    healthy = ~np.any(np.isnan(past) & ~before, axis=(-2, -1))
    if np.any(missing & healthy):
        raise BadArgument(
            "matrix: definition 'first' reads accuracies of tasks before they are learnt; expected "
            "the full matrix (result.full_matrix), got NaN above the diagonal"
        )
    return np.asarray((past.max(axis=-2) - matrix[..., k, :k]).mean(axis=-1))


def by_all(matrix: Floats, k: int) -> Floats:
    """Mean drop from the diagonal over the whole lower triangle up to stage `k`."""
    total = sum(drops_from_diagonal(matrix, i).sum(axis=-1) for i in range(1, k + 1))
    return np.asarray(total / (k * (k + 1) / 2))


def by_mean_over_all_tasks(matrix: Floats, k: int) -> Floats:
    """As `diagonal`, divided by the number of tasks, so that the last task counts with its 0."""
    return np.asarray(drops_from_diagonal(matrix, k).sum(axis=-1) / (k + 1))


def by_mammoth(matrix: Floats, k: int) -> Floats:
    """The maximum includes the last row (so never negative) and every earlier one, absent as 0."""
    seen = _absent_as_zero(matrix)[..., : k + 1, :k]
    return np.asarray((seen.max(axis=-2) - seen[..., k, :]).mean(axis=-1))


def by_libcontinual(matrix: Floats, k: int) -> Floats:
    """As `diagonal`, but the newest earlier task is left out of the sum, not of the count."""
    return np.asarray(drops_from_diagonal(matrix, k)[..., : k - 1].sum(axis=-1) / k)


def by_cglb(matrix: Floats, k: int) -> Floats:
    """As `diagonal` with the opposite sign: forgetting is negative."""
    return -by_diagonal(matrix, k)


def by_pyclad(matrix: Floats, k: int) -> Floats:
    """As `first`, since pyCLAD measures concepts to come as well; absent entries count as 0."""
    seen = _absent_as_zero(matrix)[..., : k + 1, :k]
    return np.asarray((seen[..., :k, :].max(axis=-2) - seen[..., k, :]).mean(axis=-1))


DEFINITIONS: dict[str, Callable[[Floats, int], Floats]] = {
    "max": by_max,
    "diagonal": by_diagonal,
    "first": by_first,
    "all": by_all,
    "mean_T": by_mean_over_all_tasks,
    "avalanche": by_diagonal,  # first minus last accuracy of each earlier experience
    "mammoth": by_mammoth,
    "libcontinual": by_libcontinual,
    "cglb": by_cglb,
    "pyclad": by_pyclad,
}
