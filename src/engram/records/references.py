"""What some metrics compare a run with: chance, and a reference trained on all tasks at once."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engram.errors import bad
from engram.records import arrange
from engram.records.arrange import Floats

if TYPE_CHECKING:
    from engram.records.result import Result

NO_FORWARD_TRANSFER = (
    "forward_transfer: not defined where a task has new classes and all classes seen compete "
    "(single head): no class that was never seen can be the answer. The multi-head view has it."
)


def recorded_chance(result: Result) -> Floats:
    """[run, task] accuracy of guessing from the chance rows, NaN where none were recorded."""
    frame, arranged = result._frame, result._arranged
    wanted = arrange.own_rows(frame, arranged, "chance", result.heads)
    values = np.full((len(arranged.runs), result.matrix.shape[-1]), np.nan)
    # Where every run diverged in its first task, chance was recorded and no accuracy was.
    wanted &= frame["task"].to_numpy() < values.shape[1]
    task = frame["task"].to_numpy()[wanted]
    values[arranged.run[wanted], task] = frame["value"].to_numpy()[wanted]
    return values


def chance(result: Result) -> Floats:
    """[run, task] accuracy of guessing; refused where none was recorded."""
    values = recorded_chance(result)
    if np.isnan(values).all():
        raise bad("chance", "accuracies of guessing, since none were recorded", None)
    return values


def meets_new_classes(result: Result) -> npt.NDArray[np.bool_]:
    """[run, task] whether a task is the first to show a class, in the single-head view.

    Chance there is one over the number of open classes: it falls where classes open.
    """
    values = recorded_chance(result)
    fallen = np.zeros(values.shape, np.bool_)
    fallen[:, 1:] = values[:, 1:] < values[:, :-1]  # False for NaN
    single = np.array([head == "single" for head in result.heads], np.bool_)
    return fallen & single[:, None]


def paired_by_seed(seeds: Floats, reference_seeds: Floats, reference: Floats) -> Floats:
    """[run, stage] the reference run [r, stage] of each run's seed; their mean if seeds differ.

    Examples
    --------
    >>> reference = np.array([[0.9], [0.7]])
    >>> paired_by_seed(np.array([1, 0]), np.array([0, 1]), reference).tolist()
    [[0.7], [0.9]]
    >>> paired_by_seed(np.array([5]), np.array([0, 1]), reference).tolist()
    [[0.8]]
    """
    if not set(seeds.tolist()) <= set(reference_seeds.tolist()):
        return np.tile(reference.mean(axis=0), (len(seeds), 1))
    return np.stack([reference[reference_seeds == seed].mean(axis=0) for seed in seeds])


def joint_accuracies(result: Result, reference: Result, rows: npt.NDArray[np.bool_]) -> Floats:
    """[run, stage] accuracy of the reference on the newest task, for the chosen runs of a result.

    Run by run: same seed, same order. Where the seeds differ, the mean over the reference's, which
    a warning says.
    """
    tasks = int(result.tasks[rows][0])
    fits = reference.tasks == tasks
    if not fits.any():
        raise bad("reference", f"runs over {tasks} tasks", reference)
    own = np.diagonal(reference.matrix[fits][:, :tasks, :tasks], axis1=1, axis2=2)
    mine = [run for run, chosen in zip(result.runs, rows, strict=True) if chosen]
    theirs = [run for run, chosen in zip(reference.runs, fits, strict=True) if chosen]
    found = np.empty((len(mine), tasks))
    for recipe, order in dict.fromkeys((run.recipe, run.order) for run in mine):
        here = np.array([run.recipe == recipe and run.order == order for run in mine])
        there = np.array([run.order == order for run in theirs])
        if not there.any():
            raise bad("reference", f"runs of the order {order!r}", reference)
        seeds = np.array([run.seed for run in mine])[here]
        known = np.array([run.seed for run in theirs])[there]
        if missing := sorted({*seeds.tolist()} - {*known.tolist()}):
            warnings.warn(
                f"intransigence: the reference has no runs of seeds {missing}: the mean over its "
                f"seeds {sorted({*known.tolist()})} is taken",
                stacklevel=5,
            )
        found[here] = paired_by_seed(seeds, known, own[there])
    return found
