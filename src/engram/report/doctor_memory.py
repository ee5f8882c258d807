"""Signs that a run keeps something else than its author believes."""

from __future__ import annotations

import pandas as pd

from engram.metrics import human_bytes
from engram.report.findings import RUN, Finding, last_stage, of_metric

UNBALANCED = 2.0  # largest class of the memory over the smallest
HELD = {
    "state_bytes": "method state", "network_bytes": "further networks",
    "buffer_bytes": "buffers", "optimizer_bytes": "optimiser",
}  # fmt: skip


def memory_balance(table: pd.DataFrame) -> list[Finding]:
    """Memories that hold far more of one class than of another."""
    rows = last_stage(of_metric(table, "memory_count"), RUN)
    seen = of_metric(table, "class_accuracy")
    later = seen[seen["task"] > seen["stage"]]  # classes of which nothing can be kept yet
    keys = [*RUN, "stage", "cls"]
    unmet = pd.MultiIndex.from_frame(rows[keys]).isin(pd.MultiIndex.from_frame(later[keys]))
    rows = rows[~(unmet & (rows["value"] == 0).to_numpy())]
    if not len(rows):
        return []
    per_run = rows.groupby(RUN, observed=True)["value"].agg(["min", "max"])
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
    """Methods without a memory that hold more after every task."""
    rows = table[table["metric"].isin([*HELD, "memory_items"]) & (table["step"] == -1)]
    found = []
    for name, group in rows.astype({"metric": str}).groupby("name", observed=True):
        sizes = group.pivot_table(index="stage", columns="metric", values="value")
        sizes = sizes.reindex(columns=[*HELD, "memory_items"]).fillna(0.0).sort_index()
        steps = sizes[list(HELD)].sum(axis=1).diff().iloc[1:]
        # what a method begins to keep after its first task is no growth
        if len(steps) < 2 or sizes["memory_items"].any() or not bool((steps > 0).all()):
            continue
        first, last = sizes.iloc[0], sizes.iloc[-1]
        grown = [
            f"{words} from {human_bytes(first[kind])} to {human_bytes(last[kind])}"
            for kind, words in HELD.items()
            if last[kind] > first[kind]
        ]
        text = (
            f"It has no memory, yet what it stores grows with every task: {', '.join(grown)}. "
            "`engram check` can tell whether samples are hidden there."
        )
        found.append(Finding("warning", str(name), text))
    return found
