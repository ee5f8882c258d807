"""Metrics of accuracies measured during training, which show what is forgotten and regained between
two ends of a task: the stability gap.

Every function takes `trace` [..., point, task], the accuracy on each task at successive points of
training, and `stages` [point], the task that was trained at each point; the last point of a stage
is its end. NaN for tasks that were not learnt yet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engram.errors import bad
from engram.metrics.checked_arrays import Floats, Reduced, as_floats, as_plain, as_whole_numbers


def _check_trace(
    trace: Any, stages: Any, stage: int | None
) -> tuple[Floats, npt.NDArray[np.int64], int]:
    """Return the points up to the end of a stage, the stage of each, and the stage."""
    array = as_floats("trace", trace, least=2, shape="[..., point, task] accuracies")
    at = as_whole_numbers("stages", stages)
    if at.shape != array.shape[-2:-1]:
        raise bad("stages", f"{array.shape[-2]} numbers, one per point", f"shape {at.shape}")
    if not len(at) or (np.diff(at) < 0).any() or set(at.tolist()) != set(range(int(at[-1]) + 1)):
        raise bad("stages", "0, 1, 2, ... in this order, each at least once", at.tolist())
    if int(at[-1]) >= array.shape[-1]:
        raise bad("trace", f"at least {int(at[-1]) + 1} tasks", f"shape {array.shape}")
    last = int(at[-1])
    if stage is not None:
        if isinstance(stage, bool) or not isinstance(stage, (int, np.integer)):
            raise bad("stage", "a whole number", stage)
        if not -last - 1 <= stage <= last:
            raise bad("stage", f"a whole number from {-last - 1} to {last}", stage)
        last = int(stage) % (last + 1)
    upto = at <= last
    return array[..., upto, :], at[upto], last


def _lowest(array: Floats, at: npt.NDArray[np.int64], last: int) -> list[Floats]:
    """Lowest accuracy of each earlier task since the task after it began."""
    return [array[..., at > task, task].min(axis=-1) for task in range(last)]


def minimum_accuracy(trace: Any, stages: Any, *, stage: int | None = None) -> Reduced:
    """Mean over the earlier tasks of the lowest accuracy since they were learnt (min-ACC).

    NaN in the first stage, which has no earlier task. De Lange et al. 2023 (ICLR).

    Examples
    --------
    >>> gap = float("nan")
    >>> trace = [[0.9, gap], [0.3, 0.6], [0.7, 0.8]]  # in the second task .3, then .7 at its end
    >>> minimum_accuracy(trace, [0, 1, 1])
    0.3
    """
    array, at, last = _check_trace(trace, stages, stage)
    if not last:
        return as_plain(np.full(array.shape[:-2], np.nan))
    return as_plain(np.mean(_lowest(array, at, last), axis=0))


def worst_case_accuracy(trace: Any, stages: Any, *, stage: int | None = None) -> Reduced:
    """Mean of the newest task's accuracy and the lowest ones of the earlier tasks (WC-ACC).

    It never exceeds the average accuracy. De Lange et al. 2023 (ICLR).

    Examples
    --------
    >>> gap = float("nan")
    >>> worst_case_accuracy([[0.9, gap], [0.3, 0.6], [0.7, 0.8]], [0, 1, 1])
    0.55
    """
    array, at, last = _check_trace(trace, stages, stage)
    every = [*_lowest(array, at, last), array[..., -1, last]]
    return as_plain(np.mean(every, axis=0))


def average_anytime_accuracy(trace: Any, stages: Any, *, stage: int | None = None) -> Reduced:
    """Mean over all points of the mean accuracy on the tasks met so far: area under that curve.

    Caccia et al. 2022 (ICLR). Points should be evenly spaced, as ``evaluate_every`` makes them.

    Examples
    --------
    >>> gap = float("nan")
    >>> round(
    ...     average_anytime_accuracy([[0.9, gap], [0.3, 0.6], [0.7, 0.8]], [0, 1, 1]), 6
    ... )  # (.9 + .45 + .75) / 3
    0.7
    """
    array, at, _ = _check_trace(trace, stages, stage)
    means = [array[..., point, : k + 1].mean(axis=-1) for point, k in enumerate(at)]
    return as_plain(np.mean(means, axis=0))


def stability_gap(trace: Any, stages: Any, *, stage: int | None = None) -> Reduced:
    """Mean accuracy that earlier tasks lose within a task and regain by its end.

    For every task after the first and every task before it: the accuracy at the end of the stage
    minus the lowest one within it. Accuracies at the ends of tasks alone do not show it. NaN in the
    first stage.

    Examples
    --------
    >>> gap = float("nan")
    >>> round(stability_gap([[0.9, gap], [0.3, 0.6], [0.7, 0.8]], [0, 1, 1]), 6)
    0.4
    """
    array, at, last = _check_trace(trace, stages, stage)
    if not last:
        return as_plain(np.full(array.shape[:-2], np.nan))
    regained = []
    for k in range(1, last + 1):
        within = array[..., at == k, :k]
        regained.append(within[..., -1, :] - within.min(axis=-2))
    return as_plain(np.mean(np.concatenate(regained, axis=-1), axis=-1))
