"""Tidy tables from which figures are drawn: curves, final accuracies, order disparities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from engram import metrics
from engram.records.head_views import SET_SCORES
from engram.records.summary import search_facts
from engram.report.recipe_facts import data_and_kind
from engram.report.report_data import RUN_COLUMNS, Floats, ReportData, overall_scores

BINS = 240  # points of a line over the whole training
SAMPLE = 300  # runs drawn in one violin or cloud


def describe_streams(facts: ReportData) -> str:
    """Describe the data sets and streams: "digits: class_incremental, 355 test rows, ...".

    Examples
    --------
    >>> from engram.report.report_data import build_report_data
    >>> from engram.report.report_inputs import COLUMNS, ReportInput
    >>> recipes = {"a": {"stream": {"data": "digits", "kind": "joint"}}}
    >>> row = dict.fromkeys(COLUMNS, "a") | dict.fromkeys(COLUMNS[2:8], 0) | {"value": 1.0}
    >>> describe_streams(build_report_data(ReportInput(pd.DataFrame([row]), recipes)))
    'digits: joint'
    """
    counts = facts.frame[facts.frame["metric"] == "class_count"]
    told: dict[tuple[str, str], str] = {}
    for recipe in facts.names:
        data, kind = data_and_kind(facts.recipes.get(recipe, {}))
        if not data or (data, kind) in told:
            continue
        words = [kind] if kind else []
        rows = counts[counts["recipe"] == recipe]
        rows = rows[rows["order"] == rows["order"].iloc[0]] if len(rows) else rows
        rows = rows.drop_duplicates(["task", "cls"])  # of one order: others test the same rows
        if len(rows):
            cut = search_facts(facts.recipes.get(recipe, {}))
            kinds = "validation rows" if cut is not None and cut[0] == "valid" else "test rows"
            words += [f"{rows['value'].sum():,.0f} {kinds}", f"{rows['cls'].nunique()} classes"]
        told[data, kind] = f"{data}: {', '.join(words)}" if words else data
    return "; ".join(told.values())


def stage_curves(digest: ReportData, names: Sequence[str]) -> pd.DataFrame:
    """Average each task (and -1: all tasks seen) after each stage over runs.

    Columns name, head, task, stage, value, std. Tasks appear from the stage that learns them. All
    tasks seen are the mean of their accuracies or, for label sets, the score over
    all their test rows, each once.
    """
    pieces = []
    for (name, head), matrix in digest.matrices.items():
        if name not in names:
            continue
        stages = matrix.shape[1]
        lower = np.where(np.tril(np.ones((stages, stages), np.bool_)), matrix, np.nan)
        seen = _score_seen_tasks(digest, name, head, lower)
        every = np.concatenate([lower, seen[..., None]], axis=-1)  # [run, stage, task + 1]
        mean, std = mean_and_std(every)
        stage, task = np.meshgrid(np.arange(stages), [*range(stages), -1], indexing="ij")
        piece = pd.DataFrame({"task": task.ravel(), "stage": stage.ravel(), "value": mean.ravel(),
                              "std": std.ravel()})  # fmt: skip
        pieces.append(piece.assign(name=name, head=head).dropna(subset=["value"]))
    columns = ["name", "head", "task", "stage", "value", "std"]
    return pd.concat(pieces)[columns] if pieces else pd.DataFrame(columns=columns)


def _score_seen_tasks(digest: ReportData, name: str, head: str, matrix: Floats) -> Floats:
    """Score all tasks seen, [run, stage], given a matrix [run, stage, task]."""
    stages, runs = range(matrix.shape[1]), digest.runs
    own = runs[runs["finished"] & (runs["name"] == name) & (runs["head"] == head)]
    if own["figure"].isin(SET_SCORES).all():
        values = [overall_scores(digest.frame, own, k) for k in stages]
    else:
        values = [np.asarray(metrics.average_accuracy(matrix, stage=k)) for k in stages]
    return np.stack(values, axis=-1)


def mean_and_std(values: Floats) -> tuple[Floats, Floats]:
    """Compute mean and sample standard deviation over the first axis; NaN for too few values.

    Examples
    --------
    >>> mean_and_std(np.array([[1.0], [3.0]]))
    (array([2.]), array([1.41421356]))
    """
    count = np.isfinite(values).sum(axis=0)
    filled = np.where(np.isfinite(values), values, 0.0)
    mean = np.divide(filled.sum(axis=0), count, out=np.full(count.shape, np.nan), where=count > 0)
    spread = np.where(np.isfinite(values), (values - mean) ** 2, 0.0).sum(axis=0)
    variance = np.divide(spread, count - 1, out=np.full(count.shape, np.nan), where=count > 1)
    return mean, np.sqrt(variance)


def progress_curves(digest: ReportData, metric: str, names: Sequence[str]) -> pd.DataFrame:
    """Average what was logged during training over runs, against the stages trained so far.

    Parameters
    ----------
    metric
        Name of a metric, or its beginning when it ends in ``/``.

    Returns
    -------
    Columns name, head, metric, task, stage, x, value. `x` is 1.25 when a quarter of the second
    stage is done, so that methods with unlike numbers of steps share an axis.
    """
    columns = ["name", "head", "metric", "task", "stage", "x", "value"]
    frame = digest.frame
    known = [str(m) for m in frame["metric"].cat.categories]
    wanted = [m for m in known if (m.startswith(metric) if metric.endswith("/") else m == metric)]
    rows = frame[
        frame["metric"].isin(wanted) & (frame["step"] >= 0) & frame["name"].isin(list(names))
    ]
    if not len(rows):
        return pd.DataFrame(columns=columns)
    long = _stage_lengths(frame, rows)
    length = long.reindex(pd.MultiIndex.from_frame(rows[["name", "stage"]].astype({"name": str})))
    x = rows["stage"].to_numpy() + (rows["step"].to_numpy() + 1) / length.to_numpy()
    width = (int(rows["stage"].max()) + 1) / BINS
    binned = rows.assign(x=x, bin=np.ceil(x / width).astype(np.int64))
    keys = ["name", "head", "metric", "task", "stage", "bin"]
    means = binned.groupby(keys, observed=True)[["x", "value"]].mean().reset_index()
    return means.astype({"name": str, "head": str, "metric": str})[columns]


def _stage_lengths(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.Series[float]:
    """Return the steps of each (name, stage): as recorded, and at least the last one logged."""
    last = rows.groupby(["name", "stage"], observed=True)["step"].max() + 1
    steps = frame[frame["metric"] == "steps"]
    told = steps.groupby(["name", "stage"], observed=True)["value"].max()
    both = pd.concat([last, told]).reset_index(name="steps").astype({"name": str})
    lengths: pd.Series[float] = both.groupby(["name", "stage"])["steps"].max().astype(float)
    return lengths


def final_accuracies(digest: ReportData) -> pd.DataFrame:
    """Tabulate mean and std of the final accuracy of each task (`task 1`...) by name and head."""
    rows = []
    for (name, head), matrix in digest.matrices.items():
        mean, std = mean_and_std(matrix[:, -1, :])
        row: dict[str, object] = {"name": name, "head": head}
        for task, (value, spread) in enumerate(zip(mean, std, strict=True)):
            row[f"task {task + 1}"] = value
            row[f"task {task + 1}_std"] = spread
        rows.append(row)
    return _add_stream_kind(pd.DataFrame(rows), digest)


def _add_stream_kind(table: pd.DataFrame, digest: ReportData) -> pd.DataFrame:
    """Add the stream, and whether a method is a reference: only similar rows compete for best."""
    if not len(table):
        return table
    kinds = digest.methods[["name", "head", "stream", "reads_past"]]
    return table.merge(kinds, on=["name", "head"])


def order_accuracies(digest: ReportData) -> pd.DataFrame:
    """Compute the average accuracy of each order over seeds, for names with several orders."""
    runs = digest.runs[digest.runs["finished"]] if len(digest.runs) else digest.runs
    if not len(runs):
        return pd.DataFrame(columns=["name", "head", "order", "average_accuracy"])
    means = runs.groupby(["name", "head", "order"])["average_accuracy"].mean().reset_index()
    count = means.groupby(["name", "head"])["order"].transform("size")
    return means[count > 1].reset_index(drop=True)


def order_disparities(digest: ReportData) -> pd.DataFrame:
    """Compute AOPD and MOPD per name and head, by task (for task orders) and by class."""
    rows = []
    for (name, head), group in order_accuracies(digest).groupby(["name", "head"]):
        row: dict[str, object] = {
            "name": name, "head": head, "orders": len(group),
            "low": group["average_accuracy"].min(), "high": group["average_accuracy"].max(),
        }  # fmt: skip
        for level, table in (
            ("task", _task_performance(digest, str(name), str(head))),
            ("class", _class_performance(digest, str(name), str(head))),
        ):
            complete = table.dropna(axis=1) if table is not None else pd.DataFrame()
            if complete.size:
                disparity = metrics.order_disparity(complete.to_numpy())
                row[f"{level}_aopd"] = float(disparity.aopd)
                row[f"{level}_mopd"] = float(disparity.mopd)
        rows.append(row)
    return _add_stream_kind(pd.DataFrame(rows), digest)


def _task_performance(digest: ReportData, name: str, head: str) -> pd.DataFrame | None:
    """Return final accuracies [order, task], tasks by content; None without task orders."""
    runs = digest.runs
    mine = runs[(runs["name"] == name) & (runs["head"] == head) & runs["finished"]]
    final = digest.matrices[name, head][:, -1, :]  # [run, position]
    tasks = final.shape[-1]
    contents = []
    for text in mine["order"]:
        parts = str(text).split("-") if text else [str(i) for i in range(tasks)]
        if sorted(parts) != sorted(str(i) for i in range(tasks)):
            return None
        contents.append([int(part) for part in parts])
    where = np.array(contents, np.int64)
    by_content = np.empty_like(final)
    np.put_along_axis(by_content, where, final, axis=-1)
    table = pd.DataFrame(by_content).assign(order=mine["order"].to_numpy())
    return table.groupby("order").mean()


def _class_performance(digest: ReportData, name: str, head: str) -> pd.DataFrame | None:
    """Return final accuracies [order, class], averaged over seeds."""
    frame = digest.frame
    rows = frame[
        (frame["metric"] == "class_accuracy") & (frame["name"] == name) & (frame["head"] == head)
        & (frame["step"] == -1)
    ]  # fmt: skip
    if not len(rows):
        return None
    last = rows[rows["stage"] == rows.groupby(RUN_COLUMNS, observed=True)["stage"].transform("max")]
    if (last["task"] < 0).any():  # label sets: an image tested by several tasks counts once
        last = last[last["task"] < 0]
    return last.pivot_table(index="order", columns="cls", values="value", observed=True)


def sample_rows(rows: pd.DataFrame, keys: list[str], most: int = SAMPLE) -> pd.DataFrame:
    """Select at most `most` rows per group, evenly spread and deterministic."""
    place = rows.groupby(keys, observed=True).cumcount()
    size = rows.groupby(keys, observed=True)[keys[0]].transform("size")
    stride = np.ceil(size / most).clip(lower=1)
    chosen: pd.DataFrame = rows[place % stride == 0]
    return chosen
