"""Tables of a Result: metrics, costs, classes, and the text it prints as."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.errors import bad, unknown
from engram.records import arrange
from engram.records.arrange import Floats

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

MATRIX_METRICS = (
    "average_accuracy", "forgetting", "backward_transfer", "learning_accuracy",
    "forward_transfer", "intransigence", "forgetting_bound",
)  # fmt: skip
SUMMARY = ("average_accuracy", "forgetting", "backward_transfer", "learning_accuracy")
_COSTS = {
    "seconds": "sum", "steps": "sum", "parameters": "max", "state_bytes": "max",
    "network_bytes": "max", "buffer_bytes": "max", "optimizer_bytes": "max",
    "memory_items": "max", "memory_bytes": "max", "past_items": "max", "past_bytes": "max",
}  # fmt: skip


def metric_of(result: Result, name: str, *, stage: int | None, **options: Any) -> Floats:
    """A matrix metric of every run, [run]."""
    from engram import metrics

    if name not in MATRIX_METRICS:
        raise unknown("metric", name, MATRIX_METRICS)
    function = getattr(metrics, name)
    # These two read accuracies of tasks before they are learnt.
    ahead = name == "forward_transfer" or options.get("definition") == "first"
    matrix = result.full_matrix if ahead else result.matrix
    values = np.full(len(result.runs), np.nan)
    for tasks in np.unique(result.tasks[result.tasks > 0]):
        rows = result.tasks == tasks
        k = int(tasks) - 1 if stage is None else stage + (int(tasks) if stage < 0 else 0)
        if not 0 <= k < tasks:
            continue  # streams of fewer tasks have no such stage
        local = _local(result, name, rows, int(tasks), options)
        reached = ~np.isnan(matrix[rows, : k + 1, : k + 1].diagonal(axis1=1, axis2=2)).any(axis=1)
        if reached.any():
            part = matrix[rows, :tasks, :tasks]
            filled = _call(function, part[reached], k, local, reached)
            values[np.flatnonzero(rows)[reached]] = filled
    return values


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
        local["chance"] = _chance(result)[rows, :tasks]
    if name == "intransigence":
        reference = local.get("reference")
        if reference is None:
            raise bad("reference", "accuracies per stage, or the Result of joint training", None)
        if hasattr(reference, "matrix"):  # a Result
            own = reference.matrix[reference.tasks == tasks][:, :tasks, :tasks]
            if not len(own):
                raise bad("reference", f"runs over {tasks} tasks", reference)
            local["reference"] = np.diagonal(own, axis1=1, axis2=2).mean(axis=0)
    return local


def _chance(result: Result) -> Floats:
    """[run, task] accuracy of guessing, from the chance rows."""
    frame, arranged = result._frame, result._arranged
    wanted = arrange.own_rows(frame, arranged, "chance", result.heads)
    values = np.full((len(arranged.runs), result.matrix.shape[-1]), np.nan)
    task = frame["task"].to_numpy()[wanted]
    values[arranged.run[wanted], task] = frame["value"].to_numpy()[wanted]
    if np.isnan(values).all():
        raise bad("chance", "accuracies of guessing, since none were recorded", None)
    return values


def summary(result: Result, *, definition: str, stage: int | None) -> pd.DataFrame:
    """Mean and standard deviation of the main metrics, one line per label."""
    import pandas as pd

    options = {"forgetting": {"definition": definition}}
    values = {n: result.metric(n, stage=stage, **options.get(n, {})) for n in SUMMARY}
    labels = np.array(result.run_labels, dtype=object)
    broken = set(result.diverged)
    rows = []
    for label in result.labels:
        mine = labels == label
        row: dict[str, Any] = {"runs": int(mine.sum())}
        row["finished"] = int((~np.isnan(values["average_accuracy"][mine])).sum())
        row["diverged"] = sum(run in broken for run, m in zip(result.runs, mine, strict=True) if m)
        for name, numbers in values.items():
            row[name], row[f"{name}_std"] = _mean_std(numbers[mine])
        rows.append(row)
    return pd.DataFrame(rows, index=pd.Index(result.labels, name="label"))


def _mean_std(values: Floats) -> tuple[float, float]:
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
    """Accuracy of each class of each run; a class in several tasks is pooled by its counts."""
    import pandas as pd

    frame, arranged = result._frame, result._arranged
    wanted = arrange.own_rows(frame, arranged, "class_accuracy", result.heads)
    last = result.tasks - 1 if stage is None else np.where(stage < 0, result.tasks + stage, stage)
    wanted &= frame["stage"].to_numpy() == last[arranged.run]
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
    titles = [f"{name:>18}" for name in SUMMARY]
    lines.append("  " + " ".join([f"{'method':{width}}", f"{'runs':>4}", *titles]))
    for label, row in table.iterrows():
        cells = [f"{_cell(row[name], row[f'{name}_std']):>18}" for name in SUMMARY]
        lines.append("  " + " ".join([f"{label!s:{width}}", f"{int(row['runs']):4d}", *cells]))
    unfinished = int((table["runs"] - table["finished"]).sum())
    if unfinished:
        lines.append(f"  {unfinished} runs without a last stage, {len(result.diverged)} diverged")
    lines += [f"  not read: {problem}" for problem in result.problems]
    return "\n".join(lines)


def _cell(mean: float, std: float) -> str:
    if np.isnan(mean):
        return "-"
    return f"{mean:.3f}" if np.isnan(std) else f"{mean:.3f} ± {std:.3f}"
