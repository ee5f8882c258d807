"""Tables of a Result: metrics, costs, classes, and the text it prints as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.records import arrange
from engram.records.arrange import Floats
from engram.records.judging import average_name, learning_name
from engram.records.metric_values import (
    CURRENT,
    HELD_OUT,
    recorded_views,
)
from engram.records.searched import searched_in_words
from engram.records.views import FIGURES, SET_SCORES
from engram.spelling import plural

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

_COSTS = {
    "seconds": "sum", "steps": "sum", "parameters": "max", "state_bytes": "max",
    "network_bytes": "max", "buffer_bytes": "max", "optimizer_bytes": "max",
    "memory_items": "max", "memory_bytes": "max",
    "generator_bytes": "max", "latent_bytes": "max", "past_items": "max", "past_bytes": "max",
}  # fmt: skip


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
    wanted &= frame["value"].notna().to_numpy()  # a label that no test row has
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


def headline(result: Result) -> str:
    """How many runs, of how many tasks, seen under which head."""
    heads = "/".join(dict.fromkeys(h for h in result.heads if h)) or "no"
    sizes = "/".join(str(t) for t in dict.fromkeys(result.tasks.tolist()))
    tasks = f"{sizes} task{'' if sizes == '1' else 's'}"
    return f"Result: {plural(len(result.runs), 'run')}, {tasks}, {heads} head view"


def describe(result: Result) -> str:
    """Text of a Result: size, one line per label, and what went wrong."""
    if not result.runs:
        return "Result(no runs)"
    lines = [headline(result)]
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
        lines.append(
            f"  {plural(unfinished, 'run')} without a last stage, {len(result.diverged)} diverged"
        )
    used = {run.recipe for run in result.runs}
    lines += [
        f"  {words}"
        for words in searched_in_words({k: v for k, v in result.recipes.items() if k in used})
    ]
    lines += [f"  could not read: {problem}" for problem in result.problems]
    return "\n".join(lines)


def _cell(mean: float, std: float) -> str:
    if np.isnan(mean):
        return "-"
    return f"{mean:.3f}" if np.isnan(std) else f"{mean:.3f} ± {std:.3f}"
