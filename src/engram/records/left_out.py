"""Runs that enter no mean, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engram.spelling import plural

if TYPE_CHECKING:
    from engram.records.result import Result


def left_out_in_words(result: Result, stage: int | None = None) -> list[str]:
    """One line for each label some of whose runs have no numbers after a stage (default: last).

    Examples
    --------
    >>> from engram.records import Result, Rows
    >>> rows = Rows(recipe="r", label="ER", seed=0)
    >>> rows.add_array("accuracy", [[.9, .5], [.7, .8]], head="single", stage=[[0], [1]],
    ...                task=[0, 1])
    >>> more = Rows(recipe="r", label="ER", seed=1)
    >>> more.add_array("accuracy", [.9, .5], head="single", stage=0, task=[0, 1])
    >>> rows.extend(more)
    >>> left_out_in_words(Result(rows.frame()))
    ['ER: 1 of 2 runs is left out of every mean: 1 not finished']
    """
    last = result.tasks - 1 if stage is None else np.minimum(result.tasks - 1, stage)
    rows = zip(result.matrix, last, strict=True)
    known = np.array([0 <= k < len(m) and bool(np.isfinite(m[k]).any()) for m, k in rows])
    lost = np.array([run in result.diverged for run in result.runs], dtype=bool)
    labels, found = np.array(result.run_labels, dtype=object), []
    for label in result.labels:
        own = labels == label
        diverged, short = int((own & ~known & lost).sum()), int((own & ~known & ~lost).sum())
        parts = [f"{diverged} diverged"] * bool(diverged) + [f"{short} not finished"] * bool(short)
        if parts:
            verb = "is" if diverged + short == 1 else "are"
            count = f"{diverged + short} of {plural(int(own.sum()), 'run')}"
            found.append(f"{label}: {count} {verb} left out of every mean: {', '.join(parts)}")
    return found


def runs_with(result: Result, stage: int | None = None) -> list[int]:
    """Places of the runs that have come to a stage (default: the last of their stream)."""
    last = result.tasks - 1 if stage is None else np.full(len(result), stage)
    return [i for i, run in enumerate(result.runs) if int(last[i]) in result.stages[run]]
