"""Tables of a Result: metrics, costs, classes, and the text it prints as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.errors import bad, unknown
from engram.records import arrange, references
from engram.records.arrange import Floats
from engram.records.judging import average_name, learning_name
from engram.records.label_tree import LABEL_VIEWS
from engram.records.searched import searched_in_words
from engram.records.views import FIGURES, SET_SCORES

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

MATRIX_METRICS = (
    "average_accuracy", "forgetting", "backward_transfer", "learning_accuracy",
    "forward_transfer", "intransigence", "forgetting_bound",
)  # fmt: skip
HELD_OUT = {"post_valid": "post_valid_score", "valid": "valid_score"}  # by kind of rows
CURRENT = "current_task"  # the task just learnt
ONLY_ACCURACY = ("average_accuracy", "learning_accuracy", "forward_transfer")
_COSTS = {
    "seconds": "sum", "steps": "sum", "parameters": "max", "state_bytes": "max",
    "network_bytes": "max", "buffer_bytes": "max", "optimizer_bytes": "max",
    "memory_items": "max", "memory_bytes": "max",
    "generator_bytes": "max", "latent_bytes": "max", "past_items": "max", "past_bytes": "max",
}  # fmt: skip


def metric_of(result: Result, name: str, *, stage: int | None, **options: Any) -> Floats:
    """A matrix metric of every run, [run]; NaN for runs whose figure it is not about."""
    from engram import metrics

    if name in (*SET_SCORES, *LABEL_VIEWS, *HELD_OUT.values()):
        return _overall(result, name, stage)
    if name == CURRENT:
        return _current(result, stage)
    learning = [learning_name(score) for score in SET_SCORES]
    if name not in (*MATRIX_METRICS, *learning):
        raise unknown("metric", name, (*MATRIX_METRICS, CURRENT, *SET_SCORES, *learning,
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


def summary(result: Result, *, definition: str, stage: int | None) -> pd.DataFrame:
    """Mean and standard deviation of the main metrics, one line per label."""
    import pandas as pd

    options = {"forgetting": {"definition": definition}}
    names = summary_names(result)
    values = {n: result.metric(n, stage=stage, **options.get(n, {})) for n in names}
    main = main_values(result, values)
    labels = np.array(result.run_labels, dtype=object)
    broken = set(result.diverged)
    rows = []
    for label in result.labels:
        mine = labels == label
        row: dict[str, Any] = {"runs": int(mine.sum())}
        row["finished"] = int((~np.isnan(main[mine])).sum())
        row["diverged"] = sum(run in broken for run, m in zip(result.runs, mine, strict=True) if m)
        for name, numbers in values.items():
            row[name], row[f"{name}_std"] = mean_std(numbers[mine])
        rows.append(row)
    return pd.DataFrame(rows, index=pd.Index(result.labels, name="label"))


def summary_names(result: Result) -> list[str]:
    """The metrics that sum up runs, by the figures that they are judged by.

    Examples
    --------
    >>> import engram
    >>> result = engram.run(engram.load("blobs"), epochs=1)
    >>> summary_names(result)
    ['average_accuracy', 'forgetting', 'backward_transfer', 'learning_accuracy']
    """
    figures = [name for name in FIGURES if name in result.figures] or [FIGURES[0]]
    first, last = map(average_name, figures), map(learning_name, figures)
    now = [CURRENT] if any(name in SET_SCORES for name in figures) else []
    return [*first, *now, "forgetting", "backward_transfer", *last]


def plain_names(result: Result) -> list[str]:
    """Every metric that needs no choice of a definition, by the figures of the runs."""
    figures = [name for name in FIGURES if name in result.figures] or [FIGURES[0]]
    first = [average_name(name) for name in figures]
    if any(name in SET_SCORES for name in figures):  # all scores of sets over all rows are there
        first += [name for name in reversed(SET_SCORES) if name not in first]
        first += [CURRENT, *recorded_views(result)]
    last = ["forward_transfer"] if FIGURES[0] in figures else []
    known = result._frame["metric"].cat.categories
    last += [name for name in HELD_OUT.values() if name in known]
    return [*first, *map(learning_name, figures), "backward_transfer", *last]


def main_values(result: Result, values: Mapping[str, Floats]) -> Floats:
    """[run] of some metrics [run] each, the one that sums up the run."""
    pairs = enumerate(map(average_name, result.figures))
    return np.array([values[name][number] for number, name in pairs])


def mean_std(values: Floats) -> tuple[float, float]:
    """Over the runs that have the number; one run says nothing about spread."""
    from engram import metrics

    known = values[~np.isnan(values)]
    return float(metrics.mean(known)), float(metrics.std(known))


def cost(result: Result) -> pd.DataFrame:
    """Time, steps, and all that a run holds by kind, mean over runs, one line per label."""
    import pandas as pd

    frame, arranged = result._frame, result._arranged
    columns = {
        name: arrange.per_run(frame, arranged, name, how)
        for name, how in _COSTS.items()
        if arrange.ends(frame, name).any()
    }
    table = pd.DataFrame({"label": result.run_labels, **columns})
    return table.groupby("label", sort=False).mean()


def class_accuracy(result: Result, *, stage: int | None) -> pd.DataFrame:
    """Accuracy of each class of each run; a class in several tasks is pooled by its counts.

    Of label sets the rows over all tasks count, where a row of the data counts once.
    """
    import pandas as pd

    frame, arranged = result._frame, result._arranged
    wanted = arrange.own_rows(frame, arranged, "class_accuracy", result.heads)
    last = result.tasks - 1 if stage is None else np.where(stage < 0, result.tasks + stage, stage)
    wanted &= frame["stage"].to_numpy() == last[arranged.run]
    over_all = frame["task"].to_numpy() == -1
    pooled = np.zeros(len(arranged.runs), np.bool_)
    pooled[arranged.run[wanted & over_all]] = True
    wanted &= over_all | ~pooled[arranged.run]
    rows = frame.loc[wanted, ["task", "cls", "value"]].assign(run=arranged.run[wanted])
    counted = arrange.ends(frame, "class_count")
    counts = frame.loc[counted, ["task", "cls", "value"]].assign(run=arranged.run[counted])
    joined = rows.merge(counts, on=["run", "task", "cls"], how="left", suffixes=("", "_count"))
    weight = joined["value_count"].fillna(1.0)
    joined = joined.assign(weight=weight, part=joined["value"] * weight)
    sums = joined.groupby(["run", "cls"])[["part", "weight"]].sum()
    table = (sums["part"] / sums["weight"]).unstack("cls")
    table = table.reindex(range(len(result.runs)))
    names = ["recipe", "seed", "order"]
    table.index = pd.MultiIndex.from_tuples([tuple(r) for r in result.runs], names=names)
    return table


def class_names(result: Result) -> dict[int, str]:
    """The name of each class id, where the records have it and it is the same for all recipes."""
    found: dict[int, set[str]] = {}
    for run in {run.recipe: run for run in result.runs}.values():
        if (items := result.items(run.recipe, run.order)) is not None:
            for number, name in zip(items.classes.tolist(), items.names, strict=True):
                found.setdefault(number, set()).add(name)
    names = {number: next(iter(told)) for number, told in found.items() if len(told) == 1}
    often = Counter(names.values())
    return {n: text if often[text] == 1 else f"{text} ({n})" for n, text in names.items()}


def describe(result: Result) -> str:
    """Text of a Result: size, one line per label, and what went wrong."""
    if not result.runs:
        return "Result(no runs)"
    heads = "/".join(dict.fromkeys(h for h in result.heads if h)) or "no"
    sizes = "/".join(str(t) for t in dict.fromkeys(result.tasks.tolist()))
    lines = [f"Result: {len(result.runs)} runs, {sizes} tasks, {heads} head view"]
    table = result.summary()
    width = max(len("method"), *(len(label) for label in table.index))
    names = summary_names(result)
    titles = [f"{name:>18}" for name in names]
    lines.append("  " + " ".join([f"{'method':{width}}", f"{'runs':>4}", *titles]))
    for label, row in table.iterrows():
        cells = [f"{_cell(row[name], row[f'{name}_std']):>{max(18, len(name))}}" for name in names]
        lines.append("  " + " ".join([f"{label!s:{width}}", f"{int(row['runs']):4d}", *cells]))
    unfinished = int((table["runs"] - table["finished"]).sum())
    if unfinished:
        lines.append(f"  {unfinished} runs without a last stage, {len(result.diverged)} diverged")
    used = {run.recipe for run in result.runs}
    lines += [
        f"  {words}"
        for words in searched_in_words({k: v for k, v in result.recipes.items() if k in used})
    ]
    lines += [f"  not read: {problem}" for problem in result.problems]
    return "\n".join(lines)


def _cell(mean: float, std: float) -> str:
    if np.isnan(mean):
        return "-"
    return f"{mean:.3f}" if np.isnan(std) else f"{mean:.3f} ± {std:.3f}"
