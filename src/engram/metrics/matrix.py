"""Metrics of the accuracy matrix a[stage][task], with the ten formulas that papers and libraries
call forgetting.

Every function takes `[..., stage, task]` (leading axes are runs), reduces the last two axes and
reads the last stage unless `stage` (0-based, negative counts from the end) says otherwise. NaN
above the diagonal is the normal state of a matrix: those tasks were not learnt yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from engram.errors import BadArgument, bad, check_choice
from engram.metrics.checked_arrays import (
    Floats,
    Reduced,
    as_floats,
    as_plain,
    check_same_shape,
    mean_or_nan,
)

# -- definitions of forgetting ---------------------------------------------------------------------
# Ten formulas that papers and libraries call "forgetting". Each takes a checked matrix
# `[..., stage, task]` and a 0-based stage `k >= 1`, and returns the number that its source prints,
# including the sign. Entries above the diagonal may be NaN.


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


def _fill_absent(matrix: Floats) -> Floats:
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
    seen = _fill_absent(matrix)[..., : k + 1, :k]
    return np.asarray((seen.max(axis=-2) - seen[..., k, :]).mean(axis=-1))


def by_libcontinual(matrix: Floats, k: int) -> Floats:
    """As `diagonal`, but the newest earlier task is left out of the sum, not of the count."""
    return np.asarray(drops_from_diagonal(matrix, k)[..., : k - 1].sum(axis=-1) / k)


def by_cglb(matrix: Floats, k: int) -> Floats:
    """As `diagonal` with the opposite sign: forgetting is negative."""
    return -by_diagonal(matrix, k)


def by_pyclad(matrix: Floats, k: int) -> Floats:
    """As `first`, with the newest task, whose past is before it was learnt; absent counts as 0.

    As its ``ForgettingMeasure`` since it exists, up to commit bbcbb43 of August 2026.
    """
    seen = _fill_absent(matrix)[..., : k + 1, : k + 1]
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

FORGETTING_DEFINITIONS: tuple[str, ...] = tuple(DEFINITIONS)


def _pad_triangle(matrix: Any) -> Any:
    """Rows of growing length, the way accuracies are written down, become one square array."""
    if not isinstance(matrix, (list, tuple)) or not matrix:
        return matrix
    rows = [row for row in matrix if isinstance(row, (list, tuple))]
    if len(rows) != len(matrix) or any(isinstance(x, (list, tuple)) for row in rows for x in row):
        return matrix
    width = max(map(len, rows))
    if [len(row) for row in rows] != list(range(1, width + 1)):
        return matrix
    return [[*row, *[np.nan] * (width - len(row))] for row in rows]


def _check_matrix(matrix: Any, stage: int | None) -> tuple[Floats, int]:
    array = as_floats(
        "matrix", _pad_triangle(matrix), least=2, shape="[..., stage, task] accuracies"
    )
    stages, tasks = array.shape[-2:]
    if not 1 <= stages <= tasks:
        raise bad("matrix", "[..., stage, task] with 1 <= stages <= tasks", f"shape {array.shape}")
    if stage is None:
        return array, stages - 1
    if isinstance(stage, bool) or not isinstance(stage, (int, np.integer)):
        raise bad("stage", "a whole number", stage)
    if not -stages <= stage < stages:
        raise bad("stage", f"a whole number from {-stages} to {stages - 1}", stage)
    return array, int(stage) % stages


def _nan_like(array: Floats) -> Reduced:
    return as_plain(np.full(array.shape[:-2], np.nan))


def average_accuracy(matrix: Any, *, stage: int | None = None, counts: Any = None) -> Reduced:
    """Mean accuracy over the tasks seen so far, `A_k`.

    Parameters
    ----------
    counts
        Test samples per task `[..., task]`. With them the accuracy is pooled over samples, not
        averaged over tasks.

    Examples
    --------
    >>> round(average_accuracy([[0.9], [0.95, 0.8], [0.7, 0.5, 0.96]]), 6)
    0.72
    >>> round(average_accuracy([[0.9, float("nan")], [9 / 10, 1 / 90]], counts=[10, 90]), 6)
    0.1
    """
    array, k = _check_matrix(matrix, stage)
    row = array[..., k, : k + 1]
    if counts is None:
        return as_plain(row.mean(axis=-1))
    weights = as_floats("counts", counts, least=1, shape="samples per task")
    if weights.shape[-1] != array.shape[-1] or np.any(weights < 0) or np.any(np.isnan(weights)):
        raise bad("counts", f"{array.shape[-1]} numbers of at least 0, one per task", counts)
    weights = weights[..., : k + 1]
    total = weights.sum(axis=-1)
    pooled = (row * weights).sum(axis=-1)
    return as_plain(np.where(total > 0, pooled / np.where(total > 0, total, 1.0), np.nan))


def average_incremental_accuracy(matrix: Any, *, stage: int | None = None) -> Reduced:
    """Mean over the stages so far of the average accuracy after each, `A_1` to `A_k` (iCaRL).

    The headline of papers on class-incremental learning.

    Examples
    --------
    >>> round(average_incremental_accuracy([[0.9], [0.95, 0.8], [0.7, 0.5, 0.96]]), 6)
    0.831667
    """
    array, k = _check_matrix(matrix, stage)
    averages = [array[..., i, : i + 1].mean(axis=-1) for i in range(k + 1)]
    return as_plain(np.mean(averages, axis=0))


def forgetting(matrix: Any, *, definition: str = "max", stage: int | None = None) -> Reduced:
    """Mean forgetting of the earlier tasks; NaN after the first stage, which has none.

    Parameters
    ----------
    definition
        ``max`` best accuracy since the task was learnt minus now (RWalk); ``diagonal`` accuracy
        when learnt minus now (ConFER's CF); ``first`` best accuracy of any earlier stage minus now
        (RWalk eq. 3 to the letter, needs the full matrix); ``all`` mean over the whole triangle
        (Diaz-Rodriguez, minus their BWT); ``mean_T`` as diagonal, but divided by all tasks. The
        names of libraries give the number which that library prints: ``avalanche``, ``mammoth``,
        ``libcontinual``, ``cglb`` (negative when things are forgotten), ``pyclad`` (as
        ``first``, over the newest task too; entries that are not there count as 0).

    Examples
    --------
    >>> a = [[0.9], [0.95, 0.8], [0.7, 0.5, 0.96]]
    >>> round(forgetting(a), 6), round(forgetting(a, definition="diagonal"), 6)
    (0.275, 0.25)
    >>> round(forgetting(a, stage=1), 6), forgetting(a, stage=0)
    (-0.05, nan)
    """
    check_choice("definition", definition, DEFINITIONS)
    array, k = _check_matrix(matrix, stage)
    return as_plain(DEFINITIONS[definition](array, k)) if k else _nan_like(array)


def per_task_forgetting(
    matrix: Any, *, definition: str = "max", stage: int | None = None
) -> Floats:
    """Forgetting `f_j` of each task, `[..., task]`; NaN for tasks not older than the stage.

    Examples
    --------
    >>> per_task_forgetting([[0.9], [0.95, 0.8], [0.7, 0.5, 0.96]]).round(6).tolist()
    [0.25, 0.3, nan]
    """
    check_choice("definition", definition, ["max", "diagonal"])
    array, k = _check_matrix(matrix, stage)
    result = np.full((*array.shape[:-2], array.shape[-1]), np.nan)
    if k:
        drops = drops_from_best if definition == "max" else drops_from_diagonal
        result[..., :k] = drops(array, k)
    return result


def backward_transfer(
    matrix: Any, *, definition: str = "last", stage: int | None = None
) -> Reduced:
    """Mean change in accuracy of earlier tasks since they were learnt; negative is forgetting.

    Parameters
    ----------
    definition
        ``last`` compares the current row with the diagonal (GEM); ``all`` averages over every row
        up to the stage (Diaz-Rodriguez).

    Examples
    --------
    >>> a = [[0.9], [0.95, 0.8], [0.7, 0.5, 0.96]]
    >>> round(backward_transfer(a), 6), round(backward_transfer(a, definition="all"), 6)
    (-0.25, -0.15)
    """
    check_choice("definition", definition, ["last", "all"])
    array, k = _check_matrix(matrix, stage)
    if not k:
        return _nan_like(array)
    return as_plain(-DEFINITIONS["diagonal" if definition == "last" else "all"](array, k))


def forward_transfer(full_matrix: Any, chance: Any, *, stage: int | None = None) -> Reduced:
    """Mean accuracy on each next task just before it is learnt, above `chance` (GEM).

    It says something only where the classes of the next task may be the answer before it: known
    classes, or an output for each task. Where unseen classes are closed it is minus chance.

    Parameters
    ----------
    full_matrix
        Accuracies with the entries right above the diagonal filled in.
    chance
        Accuracy of an untrained network: one number, or one per task `[..., task]`.

    Examples
    --------
    >>> round(forward_transfer([[0.9, 0.6, 0.5], [0.8, 0.9, 0.7], [0.8, 0.8, 0.9]], 0.5), 6)
    0.15
    """
    array, k = _check_matrix(full_matrix, stage)
    base = as_floats("chance", chance)
    if base.ndim and base.shape[-1] != array.shape[-1]:
        raise bad("chance", f"one number or {array.shape[-1]}, one per task", chance)
    if not k:
        return _nan_like(array)
    before = np.diagonal(array, 1, axis1=-2, axis2=-1)[..., :k]  # a[j - 1][j], j = 1..k
    own = np.diagonal(array, axis1=-2, axis2=-1)[..., :k]
    if np.any(np.isnan(before) & ~np.isnan(own)):
        raise bad("full_matrix", "accuracies right above the diagonal", "NaN there")
    return as_plain((before - (base[..., 1 : k + 1] if base.ndim else base)).mean(axis=-1))


def learning_accuracy(matrix: Any, *, stage: int | None = None) -> Reduced:
    """Mean accuracy of each task right after it was learnt (the diagonal).

    Examples
    --------
    >>> round(learning_accuracy([[0.9], [0.95, 0.8], [0.7, 0.5, 0.96]]), 6)
    0.886667
    """
    array, k = _check_matrix(matrix, stage)
    return as_plain(np.diagonal(array, axis1=-2, axis2=-1)[..., : k + 1].mean(axis=-1))


def intransigence(matrix: Any, reference: Any, *, stage: int | None = None) -> Reduced:
    """How far the newest task falls short of a jointly trained reference; negative is a gain.

    Parameters
    ----------
    reference
        `[..., k]`: accuracy on task k of a model trained on all data of tasks 1..k, one per stage.

    Examples
    --------
    >>> round(intransigence([[0.9], [0.7, 0.96]], [0.95, 0.97]), 6)
    0.01
    """
    array, k = _check_matrix(matrix, stage)
    joint = as_floats("reference", reference, least=1, shape="one accuracy per stage")
    if joint.shape[-1] not in array.shape[-2:]:
        raise bad("reference", f"{array.shape[-2]} accuracies, one per stage", reference)
    check_same_shape("matrix without its last axis", array[..., 0, 0], "reference", joint[..., 0])
    return as_plain(joint[..., k] - array[..., k, k])


def forgetting_bound(matrix: Any, *, line: bool = False, stage: int | None = None) -> Reduced:
    """Largest forgetting (definition ``max``) that the average accuracy allows (CGL theorem 1).

    Parameters
    ----------
    line
        The line drawn in the paper's figures, which puts the newest task at accuracy 1.

    Examples
    --------
    >>> a = [[0.9], [0.95, 0.8], [0.7, 0.5, 0.96]]
    >>> round(forgetting_bound(a), 6), round(forgetting_bound(a, line=True), 6)
    (0.4, 0.42)
    """
    array, k = _check_matrix(matrix, stage)
    known = array[~np.isnan(array)]
    if np.any(known < 0) or np.any(known > 1):
        raise bad("matrix", "accuracies in [0, 1] (fractions, not percent)", float(known.max()))
    if not k:
        return _nan_like(array)
    newest = 1.0 if line else array[..., k, k]
    average = mean_or_nan(array[..., k, : k + 1])
    return as_plain(1.0 - (k + 1) / k * average + newest / k)


def curve(metric: Callable[..., Reduced], matrix: Any, **options: Any) -> Floats:
    """The value of a matrix metric after every stage, `[..., stage]`.

    Examples
    --------
    >>> curve(average_accuracy, [[0.9], [0.95, 0.8], [0.7, 0.5, 0.96]]).round(6).tolist()
    [0.9, 0.875, 0.72]
    """
    array, last = _check_matrix(matrix, None)
    values = [metric(array, stage=k, **options) for k in range(last + 1)]
    return np.moveaxis(np.asarray(values, dtype=np.float64), 0, -1)
