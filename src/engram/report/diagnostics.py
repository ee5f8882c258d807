"""`diagnose`: find signs in the long table that a run does not do what its author believes, such
as loss terms without effect or unbalanced memories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from engram.errors import plural
from engram.metrics import human_bytes
from engram.records.head_views import FIGURES
from engram.records.label_tree import COUNTED

# Checks of what a run keeps.


UNBALANCED = 2.0  # ratio of the largest to the smallest class of the memory
MEMORY_KINDS = {
    "state_bytes": "method state", "network_bytes": "further networks",
    "buffer_bytes": "buffers", "optimizer_bytes": "optimiser",
}  # fmt: skip


def memory_balance(table: pd.DataFrame) -> list[Finding]:
    """Find memories that hold far more items of one class than of another."""
    rows = last_stage(select_metric(table, "memory_count"), RUN_COLUMNS)
    seen = select_metric(table, "class_accuracy")
    later = seen[seen["task"] > seen["stage"]]  # classes that cannot be in the memory yet
    keys = [*RUN_COLUMNS, "stage", "cls"]
    unmet = pd.MultiIndex.from_frame(rows[keys]).isin(pd.MultiIndex.from_frame(later[keys]))
    rows = rows[~(unmet & (rows["value"] == 0).to_numpy())]
    if not len(rows):
        return []
    per_run = rows.groupby(RUN_COLUMNS, observed=True)["value"].agg(["min", "max"])
    runs = per_run.reset_index().groupby("name", observed=True).size()
    skewed = per_run[per_run["max"] > UNBALANCED * per_run["min"]]
    found = []
    for name, group in skewed.reset_index().groupby("name", observed=True):
        text = (
            f"The memory is unbalanced in {len(group)} of {runs[name]} runs: "
            f"between {group['min'].min():g} and {group['max'].max():g} items per class."
        )
        found.append(Finding("warning", str(name), text))
    return found


def growth_outside_the_memory(table: pd.DataFrame) -> list[Finding]:
    """Find methods without a memory whose state grows with every task."""
    rows = table[table["metric"].isin([*MEMORY_KINDS, "memory_items"]) & (table["step"] == -1)]
    if not len(rows):
        return []
    keys = ["name", "stage", "metric"]
    means = rows.groupby(keys, observed=True)["value"].mean().unstack("metric").sort_index()
    means = means.rename(columns=str).reindex(columns=[*MEMORY_KINDS, "memory_items"]).fillna(0.0)
    names, total = means.index.get_level_values("name"), means[list(MEMORY_KINDS)].sum(axis=1)
    steps = total.groupby(names, observed=True).diff().dropna()
    later = steps.index.get_level_values("name")
    grows = (steps > 0).groupby(later, observed=True).agg(["all", "size"])
    kept = (means["memory_items"] != 0).groupby(names, observed=True).any()
    # state that appears after the first task is not growth
    growing = grows.index[grows["all"] & (grows["size"] >= 2) & ~kept.reindex(grows.index)]
    found = []
    for name in growing:
        sizes = means.xs(name, level="name")
        first, last = sizes.iloc[0], sizes.iloc[-1]
        grown = [
            f"{words} from {human_bytes(first[kind])} to {human_bytes(last[kind])}"
            for kind, words in MEMORY_KINDS.items()
            if last[kind] > first[kind]
        ]
        text = (
            f"It has no memory, yet what it stores grows with every task: {', '.join(grown)}. "
            "`engram check` can tell whether samples are hidden there."
        )
        found.append(Finding("warning", str(name), text))
    return found


# Findings, and helpers of the checks.


RUN_COLUMNS = ["name", "seed", "order"]


@dataclass(frozen=True)
class Finding:
    """One finding: its severity, the method and a description."""

    severity: str
    label: str
    text: str


def select_metric(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Select the rows of one metric."""
    return table[table["metric"] == metric]


def last_stage(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Select the rows of each run's last stage."""
    last = rows.groupby(keys, observed=True)["stage"].transform("max")
    return rows[rows["stage"] == last]


def format_list(values: list[object], most: int = 8) -> str:
    """Format the first values, and the number of further ones."""
    shown = ", ".join(str(v) for v in values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"


def run_counts(table: pd.DataFrame) -> pd.Series[int]:
    """Count the runs of each name."""
    return table.drop_duplicates(RUN_COLUMNS).groupby("name", observed=True).size()


SEVERITIES = ("error", "warning", "note")
FEW_RUNS = 3
MANY_METHODS = 10  # methods with the same finding
LARGE_LOSS_RATIO = 100.0  # ratio of a term to the task loss
LARGE_DRIFT = 1.0  # shift of a BatchNorm mean in standard deviations
TOO_FEW_LABELS = 0.05  # labels per image below which a run predicts nothing
TOO_MANY_LABELS = 0.9  # share of the known labels above which it predicts all


Check = Callable[[pd.DataFrame], list[Finding]]


def diagnose(frame: pd.DataFrame, classes: Mapping[int, str] | None = None) -> list[Finding]:
    """Find problems in a long table, the worst first.

    Parameters
    ----------
    frame
        Long table of results; a column `name`, if any, is used in place of `label`.
    classes
        Name of each class id, such as `Result.class_names`; ids are shown without names.

    Examples
    --------
    >>> row = {
    ...     "recipe": "0",
    ...     "label": "EWC",
    ...     "seed": 0,
    ...     "order": "",
    ...     "stage": 1,
    ...     "step": -1,
    ...     "task": -1,
    ...     "cls": -1,
    ...     "head": "",
    ...     "metric": "diverged",
    ...     "value": 1.0,
    ... }
    >>> [finding.text for finding in diagnose(pd.DataFrame([row]))]
    ['1 of 1 runs diverged (first at stage 2).', 'Averaged over only 1 run: ...']
    """
    table = frame if "name" in frame.columns else frame.assign(name=frame["label"])
    if len(table) == 0:
        return []
    silent: Check = partial(silent_classes, names=classes or {})
    found = [one for check in (*CHECKS, silent) for one in _merge_findings(check(table))]
    return sorted(found, key=lambda f: (SEVERITIES.index(f.severity), f.label))


def _merge_findings(found: list[Finding]) -> list[Finding]:
    """Merge a finding that many methods share into one."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        groups.setdefault((finding.severity, finding.text), []).append(finding)
    return [
        finding
        for (severity, text), same in groups.items()
        for finding in (
            same
            if len(same) <= MANY_METHODS
            else [Finding(severity, f"{len(same):,} methods", text)]
        )
    ]


def diverged_runs(table: pd.DataFrame) -> list[Finding]:
    """Find runs whose loss stopped being finite."""
    rows = select_metric(table, "diverged")
    rows = rows[rows["value"] > 0]
    runs = run_counts(table)
    found = []
    for name, group in rows.groupby("name", observed=True):
        count, first = len(group.drop_duplicates(RUN_COLUMNS)), int(group["stage"].min()) + 1
        text = f"{count} of {runs[name]} runs diverged (first at stage {first})."
        found.append(Finding("error", str(name), text))
    return found


def impossible_accuracies(table: pd.DataFrame) -> list[Finding]:
    """Find accuracies outside 0 to 1, such as percentages."""
    rows = table[table["metric"].isin([*FIGURES, "class_accuracy"])]
    wrong = rows[(rows["value"] < 0) | (rows["value"] > 1)]
    return [
        Finding("error", str(name), f"{len(group)} accuracies are outside 0 to 1 "
                f"(for example {group['value'].iloc[0]:.4g}).")
        for name, group in wrong.groupby("name", observed=True)
    ]  # fmt: skip


def few_runs(table: pd.DataFrame) -> list[Finding]:
    """Find means over too few runs."""
    counts = run_counts(table)
    return [
        Finding("note", str(name), f"Averaged over only {plural(int(count), 'run')}: "
                f"use at least {FEW_RUNS} seeds before comparing means.")
        for name, count in counts[counts < FEW_RUNS].items()
    ]  # fmt: skip


def loss_terms(table: pd.DataFrame) -> list[Finding]:
    """Find penalty and distillation terms without effect, or far larger than the task loss."""
    # In the first stage there is nothing to preserve yet, so zero is correct.
    losses = [one for one in table["metric"].unique() if str(one).startswith("loss/")]
    rows = table[table["metric"].isin(losses) & (table["stage"] >= 1)]
    rows = rows[np.isfinite(rows["value"])]
    if not len(rows):
        return []
    sizes = rows.assign(value=rows["value"].abs(), metric=rows["metric"].astype(str))
    means = sizes.groupby(["name", "metric"], observed=True)["value"].mean()
    found = []
    for (name, metric), mean in means.items():
        term = str(metric).removeprefix("loss/")
        task = means.get((name, "loss/task"), np.nan)
        if term in ("task", "total"):
            continue
        if mean == 0:
            text = f"The loss term “{term}” is zero after the first stage: it has no effect."
            found.append(Finding("warning", str(name), text))
        elif task > 0 and mean / task > LARGE_LOSS_RATIO:
            text = f"The loss term “{term}” is {mean / task:,.0f} times the task loss on average."
            found.append(Finding("warning", str(name), text))
    return found


def silent_classes(table: pd.DataFrame, names: Mapping[int, str]) -> list[Finding]:
    """Find classes that were learnt but are never predicted after the last stage."""
    keys = [*RUN_COLUMNS, "head"]
    rows = last_stage(select_metric(table, "predicted"), keys)
    seen = last_stage(select_metric(table, "class_accuracy"), keys)
    if not len(rows) or not len(seen):
        return []
    learnt = seen[seen["task"] <= seen["stage"]][[*keys, "stage", "cls"]].drop_duplicates()
    both = learnt.merge(rows[[*keys, "stage", "cls", "value"]], on=[*keys, "stage", "cls"],
                        how="left").fillna({"value": 0.0})  # fmt: skip
    silent = both[both["value"] == 0]
    found = []
    for (name, head), group in silent.groupby(["name", "head"], observed=True):
        runs = len(group.drop_duplicates(RUN_COLUMNS))
        classes = sorted(int(c) for c in group["cls"].unique())
        view = f" ({head}-head view)" if head else ""
        text = (
            f"In {plural(runs, 'run')} some learnt classes are never predicted after the last stage"
            f"{view}: {format_list([names.get(c, c) for c in classes])}."
        )
        found.append(Finding("warning", str(name), text))
    return found


def repeated_samples(table: pd.DataFrame) -> list[Finding]:
    """Find test rows that are training rows too."""
    rows = select_metric(table, "repeated_samples")
    worst = rows[rows["value"] > 0].groupby("name", observed=True)["value"].max()
    return [
        Finding("warning", str(name), f"{int(count):,} test rows have the same input as a "
                "training row: accuracy on them reflects memorisation, not generalisation.")
        for name, count in worst.items()
    ]  # fmt: skip


def batchnorm_drift(table: pd.DataFrame) -> list[Finding]:
    """Find BatchNorm statistics that drifted from those of older tasks."""
    rows = select_metric(table, "bn_drift")
    worst = rows[rows["value"] > LARGE_DRIFT].groupby("name", observed=True)["value"].max()
    return [
        Finding("warning", str(name), f"BatchNorm statistics drifted by up to {value:.2g} standard "
                "deviations: old tasks are evaluated with the statistics of new ones.")
        for name, value in worst.items()
    ]  # fmt: skip


def unfinished_runs(table: pd.DataFrame) -> list[Finding]:
    """Find runs that stopped before the last stage without diverging."""
    rows = table[table["metric"].isin(FIGURES) & (table["step"] == -1) & (table["task"] >= 0)]
    spans = rows.groupby(RUN_COLUMNS, observed=True).agg(
        stages=("stage", "max"), tasks=("task", "max")
    )
    spans["tasks"] = spans.groupby(level="name", observed=True)["tasks"].transform("max")
    lost = select_metric(table, "diverged")
    gone = lost[lost["value"] > 0].drop_duplicates(RUN_COLUMNS).set_index(RUN_COLUMNS).index
    short = spans[(spans["stages"] < spans["tasks"]) & ~spans.index.isin(gone)]
    return [
        Finding("warning", str(name), f"{plural(len(group), 'run')} stopped before the last stage "
                f"and {'is' if len(group) == 1 else 'are'} left out of every mean.")
        for name, group in short.groupby(level="name", observed=True)
    ]  # fmt: skip


def label_counts(table: pd.DataFrame) -> list[Finding]:
    """Find runs over label sets that predict nothing, or every label."""
    rows = last_stage(select_metric(table, COUNTED), RUN_COLUMNS)
    opened = (
        last_stage(select_metric(table, "predicted"), RUN_COLUMNS)
        .groupby(RUN_COLUMNS, observed=True)["cls"]
        .nunique()
    )
    found = []
    for name, group in rows.groupby("name", observed=True):
        labels = opened.reindex(pd.MultiIndex.from_frame(group[RUN_COLUMNS])).to_numpy()
        counts = group["value"].to_numpy()
        for many, what in (
            (counts < TOO_FEW_LABELS, "predict nothing: hardly any label is above the threshold"),
            (
                (labels > 2) & (counts > TOO_MANY_LABELS * labels),
                "predict every label for every image",
            ),
        ):
            if many.any():
                text = f"{plural(int(many.sum()), 'run')} {what} ({counts[many].mean():.2g} labels "
                text += f"per image, of {int(labels[many].max())} known)."
                found.append(Finding("warning", str(name), text))
    return found


CHECKS: tuple[Check, ...] = (
    diverged_runs,
    label_counts,
    impossible_accuracies,
    unfinished_runs,
    loss_terms,
    memory_balance,
    growth_outside_the_memory,
    repeated_samples,
    batchnorm_drift,
    few_runs,
)
