"""Metrics of a `Result`, one value per run: of its matrix, of stored predictions, and against
chance or a reference run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engram.errors import RecordError, bad, check_choice, check_int, unknown
from engram.records import head_views, run_arrays
from engram.records.head_views import FIGURES, SET_SCORES
from engram.records.label_tree import LABEL_VIEWS
from engram.records.prediction_scoring import average_name, learning_name
from engram.records.predictions import Prediction
from engram.records.recompute import find_final_prediction
from engram.records.run_arrays import Floats
from engram.records.scored_items import EvaluationItems

if TYPE_CHECKING:
    from engram.records.result import Result

MATRIX_METRICS = (
    "average_accuracy", "forgetting", "backward_transfer", "learning_accuracy",
    "forward_transfer", "intransigence", "forgetting_bound", "average_incremental_accuracy",
)  # fmt: skip
# of accuracies during training, which ``evaluate_every`` records
ANYTIME_METRICS = (
    "minimum_accuracy", "worst_case_accuracy", "average_anytime_accuracy", "stability_gap",
)  # fmt: skip
HELD_OUT = {"post_valid": "post_valid_score", "valid": "valid_score"}  # kind of rows: metric
CURRENT_TASK = "current_task"  # the task just learnt
ONLY_ACCURACY = (
    "average_accuracy", "average_incremental_accuracy", "learning_accuracy", "forward_transfer",
)  # fmt: skip
LOWER_IS_BETTER = ("forgetting", "intransigence", "forgetting_bound", "stability_gap")


def compute_metric(
    result: Result, name: str | Callable[..., Any], *, stage: int | None, **options: Any
) -> Floats:
    """Compute a matrix metric of every run, [run]; NaN for runs with another figure."""
    from engram import metrics

    if callable(name):
        return _apply_function(result, name, stage, options)
    if name in (*SET_SCORES, *LABEL_VIEWS, *HELD_OUT.values()):
        return _overall_score(result, name, stage)
    if name == CURRENT_TASK:
        return _current_score(result, stage)
    if name in ANYTIME_METRICS:
        return _compute_anytime(result, name, stage)
    if name in PREDICTION_METRICS:
        return compute_prediction_metric(result, name, stage=stage, **options)
    learning = [learning_name(score) for score in SET_SCORES]
    if name not in (*MATRIX_METRICS, *learning):
        raise unknown(
            "metric",
            name,
            (
                *MATRIX_METRICS,
                CURRENT_TASK,
                *ANYTIME_METRICS,
                *PREDICTION_METRICS,
                *SET_SCORES,
                *learning,
                *LABEL_VIEWS,
                *HELD_OUT.values(),
            ),
        )
    function = metrics.learning_accuracy if name in learning else getattr(metrics, name)
    # These use accuracies on tasks before they are learnt.
    ahead = name == "forward_transfer" or options.get("definition") == "first"
    full = ahead or options.get("definition") in READ_AHEAD
    matrix = result.full_matrix if full else result.matrix
    lacking = np.zeros(len(result.runs), np.bool_)  # runs that did not score tasks to come
    values = np.full(len(result.runs), np.nan)
    meant = _select_runs(result, name, ahead)
    unseen = meets_new_classes(result) if name == "forward_transfer" else None
    for tasks in np.unique(result.tasks[result.tasks > 0]):
        rows = (result.tasks == tasks) & meant
        if not rows.any():
            continue
        k = int(tasks) - 1 if stage is None else stage + (int(tasks) if stage < 0 else 0)
        if not 0 <= k < tasks:
            continue  # streams of fewer tasks have no such stage
        local = _fill_options(result, name, rows, int(tasks), options)
        reached = ~np.isnan(matrix[rows, : k + 1, : k + 1].diagonal(axis1=1, axis2=2)).any(axis=1)
        if unseen is not None:  # 0 by construction before the task is learnt, so not a measurement
            reached &= ~unseen[rows, : k + 1].any(axis=1)
        if full:
            read = "pyclad" if options.get("definition") == "pyclad" else name
            known = ~lacks_tasks_to_come(matrix[rows], k, read) | _has_label_sets(result)[rows]
            lacking[np.flatnonzero(rows)[reached & ~known]] = True
            reached &= known
        if reached.any():
            part = matrix[rows, :tasks, :tasks]
            filled = _call_metric(function, part[reached], k, local, reached)
            values[np.flatnonzero(rows)[reached]] = filled
    if name in OF_ALL_STAGES:
        values[skips_stages(result)] = np.nan
    if lacking.any() and np.isnan(values).all():
        what = "definition" if name == "forgetting" else "metric"
        raise bad(what, UNSEEN_NOT_SCORED, options.get("definition", name))
    return values


# metrics that read the accuracies of earlier stages
OF_ALL_STAGES = (
    "forgetting", "backward_transfer", "learning_accuracy", "forward_transfer", "forgetting_bound",
    *(learning_name(score) for score in SET_SCORES),
)  # fmt: skip


def skips_stages(result: Result) -> npt.NDArray[np.bool_]:
    """Mark runs whose method did not train in the first stages, [run], such as Joint(skip=4).

    What they scored there is chance, from which nothing was learnt or forgotten.
    """
    skipping = {name for name, one in result.recipes.items() if leaves_out_stages(one)}
    return np.array([run.recipe in skipping for run in result.runs], np.bool_)


def leaves_out_stages(recipe: Mapping[str, Any]) -> bool:
    """Whether the method of a recipe leaves out the first tasks.

    Examples
    --------
    >>> leaves_out_stages({"method": {"name": "Joint", "skip": 4}}), leaves_out_stages({})
    (True, False)
    """
    method = recipe.get("method")
    return (
        isinstance(method, Mapping)
        and method.get("name") == "Joint"
        and bool(method.get("skip", 0))
    )


def _apply_function(
    result: Result, function: Callable[..., Any], stage: int | None, options: dict[str, Any]
) -> Floats:
    """Apply a function of one run's matrix [stage, task] to every run that reached the stage."""
    values = np.full(len(result.runs), np.nan)
    for number, (matrix, tasks) in enumerate(zip(result.matrix, result.tasks, strict=True)):
        k = int(tasks) - 1 if stage is None else stage + (int(tasks) if stage < 0 else 0)
        if not 0 <= k < tasks:
            continue
        part = matrix[: k + 1, : k + 1].copy()
        if np.isnan(part.diagonal()).any():
            continue  # it diverged, or is not finished
        found = function(part, **options)
        try:
            if np.ndim(found):  # older versions of NumPy make a number of an array of one
                raise TypeError("an array")
            values[number] = float(found)
        except (TypeError, ValueError) as problem:
            expected = "a function of a matrix [stage, task] that returns one number"
            raise bad("metric", expected, found) from problem
    return values


READ_AHEAD = ("first", "pyclad")  # forgetting from accuracies of tasks before they are learnt
UNSEEN_NOT_SCORED = (
    "one that reads only accuracies of learnt tasks, as these runs recorded. To score tasks to "
    "come as well: evaluate_unseen=True (engram run --evaluate-unseen), for finished runs with "
    "rerun=True (--rerun)"
)


def lacks_tasks_to_come(matrix: Floats, k: int, name: str = "forgetting") -> npt.NDArray[np.bool_]:
    """Mark matrices [run, stage, task] without the accuracies that a metric reads of tasks to come.

    Forward transfer reads those right above the diagonal, forgetting all before stage `k`, and
    pyCLAD's those of its task as well.

    Examples
    --------
    >>> gap = np.nan
    >>> matrix = np.array([[[0.9, 0.6, gap], [0.8, 0.9, gap], [0.8, 0.8, 0.9]]])
    >>> lacks_tasks_to_come(matrix, 2), lacks_tasks_to_come(matrix, 2, "forward_transfer")
    (array([False]), array([ True]))
    """
    if name == "forward_transfer":
        read = np.eye(k + 1, k=1, dtype=np.bool_)
    else:
        read = np.triu(np.ones((k + 1, k + 1), np.bool_), 1)
        read[:, k] = False
    if name == "pyclad":
        read[:k, k] = True
    return np.asarray((np.isnan(matrix[:, : k + 1, : k + 1]) & read).any(axis=(1, 2)))


def _has_label_sets(result: Result) -> npt.NDArray[np.bool_]:
    """Mark runs with label sets, which have no scores of tasks to come, [run]."""
    return np.array([figure != FIGURES[0] for figure in result.figures], np.bool_)


def _select_runs(result: Result, name: str, ahead: bool) -> Any:
    """Mark the runs that a metric applies to, [run]; raises if there are none."""
    figures = np.array(result.figures, dtype=object)
    if name not in MATRIX_METRICS:
        return figures == name.removeprefix("learning_")
    if name not in ONLY_ACCURACY and not ahead:
        return np.ones(len(figures), np.bool_)
    meant = figures == FIGURES[0]
    if len(figures) and not meant.any():
        if ahead:
            expected = "one that uses no task before it is learnt: its labels are not open yet"
            raise bad(*(("definition", expected, "first") if name == "forgetting" else
                        ("metric", expected, name)))  # fmt: skip
        instead = (average_name, learning_name)[name == "learning_accuracy"](result.figures[0])
        raise bad("metric", f"{instead}, because the runs have label sets", name)
    return meant


def _overall_score(result: Result, name: str, stage: int | None) -> Floats:
    """Collect a score over all rows of the tasks so far, [run]; label sets count rows once."""
    frame, arranged = result._frame, result._arranged
    last = result.tasks - 1
    if stage is not None:
        last = np.where(stage < 0, result.tasks + stage, stage)
    if name in HELD_OUT.values():  # recorded in the stream's own head view only
        wanted = run_arrays.end_of_stage_rows(frame, name)
    else:
        wanted = run_arrays.own_rows(frame, arranged, name, result.heads)
    wanted &= (frame["task"].to_numpy() == -1) & (frame["stage"].to_numpy() == last[arranged.run])
    values = np.full(len(arranged.runs), np.nan)
    values[arranged.run[wanted]] = frame["value"].to_numpy()[wanted]
    return values


def _current_score(result: Result, stage: int | None) -> Floats:
    """Collect the score of a stage's task right after the stage, [run]."""
    last = result.tasks - 1 if stage is None else np.where(stage < 0, result.tasks + stage, stage)
    inside = (last >= 0) & (last < result.tasks)
    place = np.where(inside, last, 0)
    found = result.matrix[np.arange(len(place)), place, place] if result.matrix.size else np.nan
    return np.asarray(np.where(inside, found, np.nan))


def has_traces(result: Result) -> bool:
    """Whether scores of tasks were recorded during training."""
    return any(len(points) for points in _traced_points(result))


def _traced_points(result: Result) -> list[npt.NDArray[np.int64]]:
    """List the rows of the long table with scores during training, by run."""
    frame, arranged = result._frame, result._arranged
    metric, head = frame["metric"].cat, frame["head"].cat
    within = (frame["step"].to_numpy() >= 0) & (frame["task"].to_numpy() >= 0)
    rows = np.flatnonzero(within)
    names = np.asarray(metric.categories, dtype=object)[metric.codes.to_numpy()[rows]]
    heads = np.asarray(head.categories, dtype=object)[head.codes.to_numpy()[rows]]
    run = arranged.run[rows]
    own = names == np.asarray(result.figures, dtype=object)[run]
    own &= heads == np.asarray(result.heads, dtype=object)[run]
    rows, run = rows[own], run[own]
    order = np.argsort(run, kind="stable")
    ends = np.searchsorted(run[order], np.arange(len(result.runs) + 1))
    return [rows[order[ends[k] : ends[k + 1]]] for k in range(len(result.runs))]


def _compute_anytime(result: Result, name: str, stage: int | None) -> Floats:
    """Compute a metric of the scores during training and at the end of each stage, [run]."""
    from engram import metrics

    traced = _traced_points(result)
    if len(traced) and not any(map(len, traced)):
        expected = (
            "one of accuracies after each task, as these runs recorded. Accuracies during training "
            "need evaluate_every=STEPS (engram run --set evaluate_every=STEPS)"
        )
        raise bad("metric", expected, name)
    function = getattr(metrics, name)
    columns = [result._frame[one].to_numpy() for one in ("stage", "step", "task", "value")]
    steps = _steps_of_stages(result)
    values = np.full(len(result.runs), np.nan)
    for number, rows in enumerate(traced):
        tasks = int(result.tasks[number])
        k = tasks - 1 if stage is None else stage + (tasks if stage < 0 else 0)
        ends = result.matrix[number, : k + 1, : k + 1] if 0 <= k < tasks else np.empty((0, 0))
        if not len(rows) or not ends.size or np.isnan(ends.diagonal()).any():
            continue  # not evaluated during training, diverged, or without that stage
        at, step, task, value = (one[rows] for one in columns)
        within = run_arrays.ScoresWithin(at, step, task, value)
        values[number] = function(*run_arrays.build_trace(within, ends, steps[number]))
    values[skips_stages(result)] = np.nan
    return values


def _steps_of_stages(result: Result) -> Floats:
    """Collect the number of training steps of every stage, [run, stage]; inf if unknown."""
    frame, arranged = result._frame, result._arranged
    wanted = run_arrays.end_of_stage_rows(frame, "steps")
    stage = frame["stage"].to_numpy()[wanted]
    wide = int(max(result.matrix.shape[1], stage.max(initial=0) + 1))
    values = np.full((len(result.runs), wide), np.inf)
    values[arranged.run[wanted], stage] = frame["value"].to_numpy()[wanted]
    return values


def recorded_views(result: Result) -> list[str]:
    """Return the scores by level of label trees that were recorded."""
    known = set(result._frame["metric"].cat.categories)
    return [name for name in LABEL_VIEWS if name in known]


def _call_metric(function: Any, matrix: Floats, k: int, options: dict[str, Any], rows: Any) -> Any:
    per_run = {
        key: value[rows] if isinstance(value, np.ndarray) and value.ndim == 2 else value
        for key, value in options.items()
    }
    return function(matrix, stage=k, **per_run)


def _fill_options(
    result: Result, name: str, rows: Any, tasks: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Fill in the options of a metric that can be taken from the records."""
    local = dict(options)
    if name == "forward_transfer" and "chance" not in local:
        local["chance"] = chance_accuracies(result)[rows, :tasks]
    if name == "intransigence":
        reference = local.get("reference")
        if reference is None:
            raise bad("reference", "accuracies per stage, or the Result of joint training", None)
        if hasattr(reference, "matrix"):  # a Result
            local["reference"] = joint_accuracies(result, reference, rows)
    return local


# Metrics of stored predictions, over the test rows of all tasks so far.


F1, TOP_K = "f1_score", "top_k_accuracy"
PREDICTION_METRICS = (F1, TOP_K)


def compute_prediction_metric(
    result: Result, name: str, *, stage: int | None, **options: Any
) -> Floats:
    """Compute one of `PREDICTION_METRICS`, [run]; NaN for runs without that stage."""
    compute, option = (_f1, "average") if name == F1 else (_top_k, "k")
    for given in options:
        check_choice(f"option of {name}", given, [option])
    values = np.full(len(result.runs), np.nan)
    for number, head in enumerate(result.heads):
        found = find_final_prediction(result, number, stage)
        if found is None:
            continue
        k, items, kept = found
        if items.multilabel:
            expected = "hierarchical_f1 or another set score, because rows have label sets"
            raise bad("metric", expected, name)
        values[number] = compute(kept, items, k, head, **options)
    return values


def _f1(
    kept: Prediction, items: EvaluationItems, stage: int, head: str, *, average: str = "macro"
) -> float:
    from engram import metrics

    seen = items.counted(stage)
    predicted = kept.predicted(items, head=head)[seen]
    return float(metrics.f1_score(items.targets[seen, 0], predicted, average=average))


def _top_k(kept: Prediction, items: EvaluationItems, stage: int, head: str, *, k: int = 5) -> float:
    """Compute top-k accuracy; NaN if at most k classes compete, as every answer would count."""
    from engram import metrics

    check_int("k", k, low=1)
    if kept.scores is None:
        run = (kept.key.recipe, kept.key.seed, kept.key.order)
        raise RecordError(f'{run}: only labels were kept; {TOP_K} needs keep="scores"')
    seen = items.counted(stage)
    among = head_views.open_columns(items, stage=stage, head=head)[seen]
    if not len(among) or among.sum(axis=1).min() <= k:
        return float("nan")
    scores = np.where(among, np.fmax(kept.full()[seen], np.finfo(np.float64).min), -np.inf)
    # stored scores are rounded, so take the highest from the stored prediction
    scores[np.arange(len(scores)), kept.predicted(items, head=head)[seen]] = np.inf
    return float(metrics.top_k_accuracy(scores, items.targets[seen, 0], k=k))


# Chance and joint training, to which some metrics compare a run.


NO_FORWARD_TRANSFER = (
    "forward_transfer: not defined where a task has new classes and all classes seen compete "
    "(single head): no class that was never seen can be the answer. The multi-head view has it."
)


def recorded_chance(result: Result) -> Floats:
    """Collect the accuracy of guessing from the chance rows, [run, task]; NaN without rows."""
    frame, arranged = result._frame, result._arranged
    wanted = run_arrays.own_rows(frame, arranged, "chance", result.heads)
    values = np.full((len(arranged.runs), result.matrix.shape[-1]), np.nan)
    # If every run diverged in its first task, chance was recorded but no accuracy.
    wanted &= frame["task"].to_numpy() < values.shape[1]
    task = frame["task"].to_numpy()[wanted]
    values[arranged.run[wanted], task] = frame["value"].to_numpy()[wanted]
    return values


def chance_accuracies(result: Result) -> Floats:
    """Collect the accuracy of guessing, [run, task]; raises if none was recorded."""
    values = recorded_chance(result)
    if np.isnan(values).all():
        raise bad("chance", "accuracies of guessing, since none were recorded", None)
    return values


def meets_new_classes(result: Result) -> npt.NDArray[np.bool_]:
    """Mark the tasks that introduce a class, in the single-head view, [run, task].

    Chance is one over the number of open classes there, so it falls where classes open.
    """
    values = recorded_chance(result)
    fallen = np.zeros(values.shape, np.bool_)
    fallen[:, 1:] = values[:, 1:] < values[:, :-1]  # False for NaN
    single = np.array([head == "single" for head in result.heads], np.bool_)
    return fallen & single[:, None]


def pair_by_seed(seeds: Floats, reference_seeds: Floats, reference: Floats) -> Floats:
    """Pair each run with the reference run of its seed, [run, stage]; their mean if seeds differ.

    Examples
    --------
    >>> reference = np.array([[0.9], [0.7]])
    >>> pair_by_seed(np.array([1, 0]), np.array([0, 1]), reference).tolist()
    [[0.7], [0.9]]
    >>> pair_by_seed(np.array([5]), np.array([0, 1]), reference).tolist()
    [[0.8]]
    """
    if not set(seeds.tolist()) <= set(reference_seeds.tolist()):
        return np.tile(reference.mean(axis=0), (len(seeds), 1))
    return np.stack([reference[reference_seeds == seed].mean(axis=0) for seed in seeds])


def joint_accuracies(result: Result, reference: Result, rows: npt.NDArray[np.bool_]) -> Floats:
    """Compute the reference's accuracy on the newest task for some runs, [run, stage].

    Runs are paired by seed and order. If the seeds differ, the mean over the reference's runs is
    taken, with a warning.
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
        found[here] = pair_by_seed(seeds, known, own[there])
    return found
