"""Tables of a `Result` and its printed text: metrics, costs, classes, probes, and remarks on
trials of a search and on excluded runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.errors import plural
from engram.records import run_arrays
from engram.records.head_views import FIGURES, SET_SCORES
from engram.records.long_table import TEXT_COLUMNS
from engram.records.prediction_scoring import average_name, learning_name
from engram.records.run_arrays import Floats
from engram.records.run_metrics import (
    ANYTIME_METRICS,
    CURRENT_TASK,
    HELD_OUT,
    has_traces,
    recorded_views,
)

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

INCREMENTAL = "average_incremental_accuracy"
_COSTS = {
    "seconds": "sum", "steps": "sum", "parameters": "max", "state_bytes": "max",
    "network_bytes": "max", "buffer_bytes": "max", "optimizer_bytes": "max",
    "memory_items": "max", "memory_bytes": "max",
    "generator_bytes": "max", "latent_bytes": "max", "past_items": "max", "past_bytes": "max",
}  # fmt: skip


def summary(result: Result, *, definition: str, stage: int | None) -> pd.DataFrame:
    """Implement `Result.summary`."""
    import pandas as pd

    options = {"forgetting": {"definition": definition}}
    names = summary_names(result)
    values = {n: result.metric(n, stage=stage, **options.get(n, {})) for n in names}
    main = choose_main_values(result, values)
    groups = list(result.by_label.values())
    lost = mark_diverged(result)
    columns: dict[str, Any] = {
        "runs": [len(mine) for mine in groups],
        "finished": [int((~np.isnan(main[mine])).sum()) for mine in groups],
        "diverged": [int(lost[mine].sum()) for mine in groups],
    }
    for name, numbers in values.items():
        found = summarise_groups(numbers, groups)
        columns |= {name: found.mean, f"{name}_std": found.std}
    table = pd.DataFrame(columns, index=pd.Index(result.labels, name="label"))
    return result.name_streams(table)


def summary_names(result: Result) -> list[str]:
    """Return the metrics that sum up runs, given the figures of the runs.

    Examples
    --------
    >>> import engram
    >>> result = engram.run(engram.load("blobs"), epochs=1)
    >>> summary_names(result)
    ['average_accuracy', 'average_incremental_accuracy', 'forgetting', 'backward_transfer',
     'learning_accuracy']
    """
    figures = [name for name in FIGURES if name in result.figures] or [FIGURES[0]]
    first, last = map(average_name, figures), map(learning_name, figures)
    now = [CURRENT_TASK] if any(name in SET_SCORES for name in figures) else []
    rising = [INCREMENTAL] if FIGURES[0] in figures else []
    return [*first, *rising, *now, "forgetting", "backward_transfer", *last]


def plain_metric_names(result: Result) -> list[str]:
    """Return every metric without options to choose, given the figures of the runs."""
    figures = [name for name in FIGURES if name in result.figures] or [FIGURES[0]]
    first = [average_name(name) for name in figures]
    first += [INCREMENTAL] if FIGURES[0] in figures else []
    if any(name in SET_SCORES for name in figures):  # all set scores are recorded
        first += [name for name in reversed(SET_SCORES) if name not in first]
        first += [CURRENT_TASK, *recorded_views(result)]
    last = ["forward_transfer"] if FIGURES[0] in figures else []
    last += ANYTIME_METRICS if has_traces(result) else ()
    known = result._frame["metric"].cat.categories
    last += [name for name in HELD_OUT.values() if name in known]
    return [*first, *map(learning_name, figures), "backward_transfer", *last]


def choose_main_values(result: Result, values: Mapping[str, Floats]) -> Floats:
    """Choose for each run the metric that sums it up, among metrics [run]; [run]."""
    pairs = enumerate(map(average_name, result.figures))
    return np.array([values[name][number] for number, name in pairs])


class GroupSummary(NamedTuple):
    """Mean, standard deviation and number of the values of each group, [group]."""

    mean: Floats
    std: Floats
    runs: npt.NDArray[np.int64]


def summarise_groups(values: Floats, groups: Sequence[npt.NDArray[np.int64]]) -> GroupSummary:
    """Summarise the values [run] of groups of runs; NaN does not count.

    Groups of equal size are reduced together: there may be a hundred thousand of them.

    Examples
    --------
    >>> numbers = np.array([0.5, 0.7, np.nan, 0.2])
    >>> found = summarise_groups(numbers, [np.array([0, 1]), np.array([2, 3])])
    >>> found.mean.tolist(), found.std.round(3).tolist(), found.runs.tolist()
    ([0.6, 0.2], [0.141, nan], [2, 1])
    """
    from engram import metrics

    known = [values[mine][~np.isnan(values[mine])] for mine in groups]
    runs = np.array([len(one) for one in known], np.int64)
    mean, std = np.full((2, len(groups)), np.nan)
    found = GroupSummary(mean, std, runs)
    for size in np.unique(runs[runs > 0]):
        chosen = np.flatnonzero(runs == size)
        block = np.stack([known[place] for place in chosen])
        found.mean[chosen] = metrics.mean(block, axis=1)
        found.std[chosen] = metrics.std(block, axis=1)
    return found


def mark_diverged(result: Result) -> npt.NDArray[np.bool_]:
    """Mark the runs that diverged, [run]."""
    return np.array([run in result.diverged for run in result.runs], np.bool_)


def cost_table(result: Result) -> pd.DataFrame:
    """Tabulate time, steps and memory by kind: mean over runs, one line per label."""
    import pandas as pd

    frame, arranged = result._frame, result._arranged
    columns = {
        name: run_arrays.reduce_stages(frame, arranged, name, how)
        for name, how in _COSTS.items()
        if run_arrays.end_of_stage_rows(frame, name).any()
    }
    table = pd.DataFrame({"label": result.run_labels, **columns})
    return result.name_streams(table.groupby("label", sort=False).mean())


def class_accuracy(result: Result, *, stage: int | None) -> pd.DataFrame:
    """Compute the accuracy of each class of each run, pooled over tasks by counts.

    For label sets, the rows over all tasks are taken, where a row of the data counts once.
    """
    import pandas as pd

    frame, arranged = result._frame, result._arranged
    wanted = run_arrays.own_rows(frame, arranged, "class_accuracy", result.heads)
    last = result.tasks - 1 if stage is None else np.where(stage < 0, result.tasks + stage, stage)
    wanted &= frame["stage"].to_numpy() == last[arranged.run]
    over_all = frame["task"].to_numpy() == -1
    pooled = np.zeros(len(arranged.runs), np.bool_)
    pooled[arranged.run[wanted & over_all]] = True
    wanted &= over_all | ~pooled[arranged.run]
    wanted &= frame["value"].notna().to_numpy()  # NaN for a label that no test row has
    rows = frame.loc[wanted, ["task", "cls", "value"]].assign(run=arranged.run[wanted])
    counted = run_arrays.end_of_stage_rows(frame, "class_count")
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
    """Return the name of each class id that has the same name in all recipes."""
    found: dict[int, set[str]] = {}
    # recipes on one stream have the same items: thousands of files need not be read
    streams = {
        (json.dumps(stream, default=str) if stream else run.recipe, run.order): run
        for run in {run.recipe: run for run in result.runs}.values()
        for stream in [result.recipes.get(run.recipe, {}).get("stream")]
    }
    for run in streams.values():
        if (items := result.items(run.recipe, run.order)) is not None:
            for number, name in zip(items.classes.tolist(), items.names, strict=True):
                found.setdefault(number, set()).add(name)
    names = {number: next(iter(told)) for number, told in found.items() if len(told) == 1}
    often = Counter(names.values())
    return {n: text if often[text] == 1 else f"{text} ({n})" for n, text in names.items()}


def headline(result: Result) -> str:
    """Describe the number of runs and tasks and the head view."""
    heads = "/".join(dict.fromkeys(h for h in result.heads if h)) or "no"
    sizes = "/".join(str(t) for t in dict.fromkeys(result.tasks.tolist()))
    tasks = f"{sizes} task{'' if sizes == '1' else 's'}"
    return f"Result: {plural(len(result.runs), 'run')}, {tasks}, {heads} head view"


def describe_result(result: Result) -> str:
    """Describe a result: size, one line per label, and problems."""
    if not result.runs:
        return "Result(no runs)"
    lines = [headline(result)]
    table = result.summary()
    names = summary_names(result)
    several = len(result.streams) > 1
    for stream in result.streams:
        own = table.loc[stream] if several else table
        lines += [f"  {stream}"] * several
        width = max(len("method"), *(len(str(label)) for label in own.index))
        titles = [f"{name:>18}" for name in names]
        lines.append("  " + " ".join([f"{'method':{width}}", f"{'runs':>4}", *titles]))
        for label, row in own.iterrows():
            cells = [
                f"{_format_cell(row[name], row[f'{name}_std']):>{max(18, len(name))}}"
                for name in names
            ]
            lines.append("  " + " ".join([f"{label!s:{width}}", f"{int(row['runs']):4d}", *cells]))
    unfinished = int((table["runs"] - table["finished"]).sum())
    if unfinished:
        lines.append(
            f"  {plural(unfinished, 'run')} without a last stage, {len(result.diverged)} diverged"
        )
    used = {run.recipe for run in result.runs}
    lines += [
        f"  {words}"
        for words in describe_search({k: v for k, v in result.recipes.items() if k in used})
    ]
    lines += [f"  could not read: {problem}" for problem in result.problems]
    return "\n".join(lines)


def _format_cell(mean: float, std: float) -> str:
    if np.isnan(mean):
        return "-"
    return f"{mean:.3f}" if np.isnan(std) else f"{mean:.3f} ± {std:.3f}"


# Remarks on trials of a search, shown with their numbers.


def search_facts(recipe: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the kind of rows that score a trial of a search, and its tasks; None for others.

    Examples
    --------
    >>> search_facts({"stream": {"kind": "joint", "search": {"tasks": 3, "on": "valid"}}})
    ('valid', 3)
    """
    stream = recipe.get("stream")
    found = stream.get("search") if isinstance(stream, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    return str(found.get("on", "valid")), int(found.get("tasks", 0))


def describe_search(recipes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Describe the rows behind the numbers of trials, one sentence each; empty without trials.

    Examples
    --------
    >>> describe_search({"a": {"label": "ER", "tuning": {"trials": 9, "runs": 9, "tasks": 3}}})
    ['ER: chosen by a search of 9 trials (9 runs) on validation rows of the first 3 tasks']
    >>> describe_search({"a": {"stream": {"search": {"tasks": 3, "on": "test"}}}})
    ['1 recipe is a trial of a search on TEST ROWS of the first 3 tasks: ...']
    """
    counts: dict[tuple[str, int], int] = {}
    for recipe in recipes.values():
        if (found := search_facts(recipe)) is not None:
            counts[found] = counts.get(found, 0) + 1
    words = [_describe_tuning(one) for one in recipes.values() if one.get("tuning")]
    for (on, tasks), count in sorted(counts.items()):
        who = "1 recipe is a trial" if count == 1 else f"{count} recipes are trials"
        first = "the first task" if tasks == 1 else f"the first {tasks} tasks"
        it = "it" if count == 1 else "them"
        if on == "test":
            rest = f"on TEST ROWS of {first}: whatever is chosen by {it} has no test accuracy"
        else:
            rest = f"on validation rows of {first}: no result here is on test rows"
        words.append(f"{who} of a search {rest}")
    return words


def _describe_tuning(recipe: Mapping[str, Any]) -> str:
    """Describe the search that chose the values of a recipe, and its cost."""
    facts = recipe["tuning"]
    rows = "TEST ROWS" if facts.get("on") == "test" else "validation rows"
    parts = [plural(int(facts.get("runs", 0)), "run")]
    parts += [f"{facts['steps']:,} steps"] if "steps" in facts else []
    parts += [f"{facts['run_seconds']:.1f} seconds of training"] if "run_seconds" in facts else []
    tasks = int(facts.get("tasks", 0))
    first = "the first task" if tasks == 1 else f"the first {tasks} tasks"
    trials = plural(int(facts.get("trials", 0)), "trial")
    return (
        f"{recipe.get('label', '')}: chosen by a search of {trials} ({', '.join(parts)}) on {rows} "
        f"of {first}"
    )


# Remarks on runs that are excluded from means.


def describe_excluded_runs(result: Result, stage: int | None = None) -> list[str]:
    """Describe the runs without numbers after a stage (default: last), one line per label.

    Examples
    --------
    >>> from engram.records import Result, Rows
    >>> rows = Rows(recipe="r", label="ER", seed=0)
    >>> rows.add_array(
    ...     "accuracy", [[0.9, 0.5], [0.7, 0.8]], head="single", stage=[[0], [1]], task=[0, 1]
    ... )
    >>> more = Rows(recipe="r", label="ER", seed=1)
    >>> more.add_array("accuracy", [0.9, 0.5], head="single", stage=0, task=[0, 1])
    >>> rows.extend(more)
    >>> describe_excluded_runs(Result(rows.frame()))
    ['ER: 1 of 2 runs is left out of every mean: 1 not finished']
    """
    last = result.tasks - 1 if stage is None else np.minimum(result.tasks - 1, stage)
    rows = zip(result.matrix, last, strict=True)
    known = np.array([0 <= k < len(m) and bool(np.isfinite(m[k]).any()) for m, k in rows])
    lost, found = mark_diverged(result), []
    for label, own in result.by_label.items():
        missing = own[~known[own]]
        diverged, short = int(lost[missing].sum()), int((~lost[missing]).sum())
        parts = [f"{diverged} diverged"] * bool(diverged) + [f"{short} not finished"] * bool(short)
        if parts:
            verb = "is" if diverged + short == 1 else "are"
            count = f"{diverged + short} of {plural(len(own), 'run')}"
            found.append(f"{label}: {count} {verb} left out of every mean: {', '.join(parts)}")
    return found


def runs_at_stage(result: Result, stage: int | None = None) -> list[int]:
    """Return the indices of runs that reached a stage (default: the last of their stream)."""
    last = result.tasks - 1 if stage is None else np.full(len(result), stage)
    return [i for i, run in enumerate(result.runs) if int(last[i]) in result.stages[run]]


# Metrics of probes.


PLACE = ("head", "task", "cls")
COLUMNS = ("label", "metric", *PLACE, "stage", "mean", "std", "runs")


def is_probe_row(frame: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Mark the end-of-stage rows of probes, whose metrics are ``probe/metric``, [rows]."""
    words = frame["metric"].astype("category").cat
    own = np.array(["/" in w and not w.startswith("loss/") for w in words.categories], np.bool_)
    codes = words.codes.to_numpy()
    if not len(own):
        return np.zeros(len(frame), np.bool_)
    return np.asarray(own[codes] & (frame["step"].to_numpy() == -1))


def probe_table(result: Result) -> pd.DataFrame:
    """Implement `Result.probes`."""
    frame, chosen = result._frame, is_probe_row(result._frame)
    labels = np.array(result.run_labels, dtype=object)[result._arranged.run[chosen]]
    return result.name_streams(summarise_runs(frame[chosen].assign(label=labels)))


def summarise_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Average over the runs of each label, with standard deviations; NaN does not count."""
    texts = [name for name in TEXT_COLUMNS if name in rows]
    rows = rows.astype(dict.fromkeys(texts, str))
    groups = rows.groupby(list(COLUMNS[:6]), sort=False)["value"]
    found = groups.agg(mean="mean", std="std", runs="count").reset_index()
    order = dict.fromkeys(zip(found["label"], found["metric"], strict=True))
    rank = {pair: i for i, pair in enumerate(order)}
    place = [rank[pair] for pair in zip(found["label"], found["metric"], strict=True)]
    found = found.assign(place=place).sort_values(["place", *PLACE, "stage"], kind="stable")
    return found.drop(columns="place")[list(COLUMNS)].reset_index(drop=True)


def describe_places(table: pd.DataFrame, class_names: Mapping[int, str]) -> list[str]:
    """Describe the place (task, class, head) of each line of a `summarise_runs` table."""
    columns = zip(table["head"], table["task"], table["cls"], strict=True)
    return [describe_place(head, int(task), int(cls), class_names) for head, task, cls in columns]


def describe_place(
    head: str, task: int, cls: int, class_names: Mapping[int, str] | None = None
) -> str:
    """Describe the place of a number; "" for one of the whole stage.

    Examples
    --------
    >>> describe_place("single", 2, -1), describe_place("", -1, 7)
    ('task 3, single', 'class 7')
    """
    words = []
    if task >= 0:
        words.append(f"task {task + 1}")
    if cls >= 0:
        words.append(f"class {(class_names or {}).get(cls, cls)}")
    return ", ".join([*words, *([head] if head else [])])
