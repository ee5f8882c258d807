"""Metrics of a Result, one value for each of its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engram.errors import bad, unknown
from engram.records import arrange, references
from engram.records.arrange import Floats
from engram.records.judging import average_name, learning_name
from engram.records.label_tree import LABEL_VIEWS
from engram.records.prediction_metrics import PREDICTED, of_predictions
from engram.records.views import FIGURES, SET_SCORES

if TYPE_CHECKING:
    from engram.records.result import Result

MATRIX_METRICS = (
    "average_accuracy", "forgetting", "backward_transfer", "learning_accuracy",
    "forward_transfer", "intransigence", "forgetting_bound",
)  # fmt: skip
HELD_OUT = {"post_valid": "post_valid_score", "valid": "valid_score"}  # by kind of rows
CURRENT = "current_task"  # the task just learnt
ONLY_ACCURACY = ("average_accuracy", "learning_accuracy", "forward_transfer")


def metric_of(result: Result, name: str, *, stage: int | None, **options: Any) -> Floats:
    """A matrix metric of every run, [run]; NaN for runs whose figure it is not about."""
    from engram import metrics

    if name in (*SET_SCORES, *LABEL_VIEWS, *HELD_OUT.values()):
        return _overall(result, name, stage)
    if name == CURRENT:
        return _current(result, stage)
    if name in PREDICTED:
        return of_predictions(result, name, stage=stage, **options)
    learning = [learning_name(score) for score in SET_SCORES]
    if name not in (*MATRIX_METRICS, *learning):
        raise unknown("metric", name, (*MATRIX_METRICS, CURRENT, *PREDICTED, *SET_SCORES, *learning,
                                         *LABEL_VIEWS, *HELD_OUT.values()))  # fmt: skip
    function = metrics.learning_accuracy if name in learning else getattr(metrics, name)
    # These read accuracies of tasks before they are learnt; pyCLAD's does where there are any.
    ahead = name == "forward_transfer" or options.get("definition") == "first"
    full = ahead or options.get("definition") == "pyclad"
    matrix = result.full_matrix if full else result.matrix
    values = np.full(len(result.runs), np.nan)
    meant = _meant(result, name, ahead)
    unseen = references.meets_new_classes(result) if name == "forward_transfer" else None
    for tasks in np.unique(result.tasks[result.tasks > 0]):
        rows = (result.tasks == tasks) & meant
        if not rows.any():
            continue
        k = int(tasks) - 1 if stage is None else stage + (int(tasks) if stage < 0 else 0)
        if not 0 <= k < tasks:
            continue  # streams of fewer tasks have no such stage
        local = _local(result, name, rows, int(tasks), options)
        reached = ~np.isnan(matrix[rows, : k + 1, : k + 1].diagonal(axis1=1, axis2=2)).any(axis=1)
        if unseen is not None:  # 0 before it is learnt, by construction: no number at all
            reached &= ~unseen[rows, : k + 1].any(axis=1)
        if reached.any():
            part = matrix[rows, :tasks, :tasks]
            filled = _call(function, part[reached], k, local, reached)
            values[np.flatnonzero(rows)[reached]] = filled
    return values


def _meant(result: Result, name: str, ahead: bool) -> Any:
    """[run] the runs that a metric is about; refused where it is about none of them."""
    figures = np.array(result.figures, dtype=object)
    if name not in MATRIX_METRICS:
        return figures == name.removeprefix("learning_")
    if name not in ONLY_ACCURACY and not ahead:
        return np.ones(len(figures), np.bool_)
    meant = figures == FIGURES[0]
    if len(figures) and not meant.any():
        if ahead:
            expected = "one that reads no task before it is learnt: its labels are not open yet"
            raise bad(*(("definition", expected, "first") if name == "forgetting" else
                        ("metric", expected, name)))  # fmt: skip
        instead = (average_name, learning_name)[name == "learning_accuracy"](result.figures[0])
        raise bad("metric", f"{instead}, because the runs are judged by sets of labels", name)
    return meant


def _overall(result: Result, name: str, stage: int | None) -> Floats:
    """[run] a score over all rows of the tasks so far; of label sets, each row counted once."""
    frame, arranged = result._frame, result._arranged
    last = result.tasks - 1
    if stage is not None:
        last = np.where(stage < 0, result.tasks + stage, stage)
    if name in HELD_OUT.values():  # in the stream's own head view alone
        wanted = arrange.ends(frame, name)
    else:
        wanted = arrange.own_rows(frame, arranged, name, result.heads)
    wanted &= (frame["task"].to_numpy() == -1) & (frame["stage"].to_numpy() == last[arranged.run])
    values = np.full(len(arranged.runs), np.nan)
    values[arranged.run[wanted]] = frame["value"].to_numpy()[wanted]
    return values


def _current(result: Result, stage: int | None) -> Floats:
    """[run] how well the task of a stage is known right after it."""
    last = result.tasks - 1 if stage is None else np.where(stage < 0, result.tasks + stage, stage)
    inside = (last >= 0) & (last < result.tasks)
    place = np.where(inside, last, 0)
    found = result.matrix[np.arange(len(place)), place, place] if result.matrix.size else np.nan
    return np.asarray(np.where(inside, found, np.nan))


def recorded_views(result: Result) -> list[str]:
    """The views of label sets that the records hold."""
    known = set(result._frame["metric"].cat.categories)
    return [name for name in LABEL_VIEWS if name in known]


def _call(function: Any, matrix: Floats, k: int, options: dict[str, Any], rows: Any) -> Any:
    per_run = {
        key: value[rows] if isinstance(value, np.ndarray) and value.ndim == 2 else value
        for key, value in options.items()
    }
    return function(matrix, stage=k, **per_run)


def _local(
    result: Result, name: str, rows: Any, tasks: int, options: dict[str, Any]
) -> dict[str, Any]:
    """The options of a metric, with what can be taken from the records filled in."""
    local = dict(options)
    if name == "forward_transfer" and "chance" not in local:
        local["chance"] = references.chance(result)[rows, :tasks]
    if name == "intransigence":
        reference = local.get("reference")
        if reference is None:
            raise bad("reference", "accuracies per stage, or the Result of joint training", None)
        if hasattr(reference, "matrix"):  # a Result
            local["reference"] = references.joint_accuracies(result, reference, rows)
    return local
