"""What each run cost, from the long table."""

from __future__ import annotations

import pandas as pd

RUN = ["name", "seed", "order"]
BESIDE = ("state_bytes", "network_bytes", "buffer_bytes", "optimizer_bytes")  # the memory
COSTS = ("seconds", "kept_bytes", *BESIDE, "memory_items", "parameters")


def costs_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Seconds summed over stages; what the run holds at its last stage."""
    # Beside the network that is trained; what is read of earlier tasks must be at hand as well.
    kept = ["state_bytes", "network_bytes", "memory_bytes", "past_bytes"]
    names = (*COSTS, "memory_bytes", "past_items", "past_bytes")
    wanted = [name for name in names if name != "kept_bytes"]
    rows = frame[frame["metric"].isin(wanted)].sort_values("stage", kind="stable")
    rows = rows.astype({"name": str, "order": str, "metric": str})
    last = rows.drop_duplicates([*RUN, "metric"], keep="last")
    table = last.pivot_table(index=RUN, columns="metric", values="value")
    table = table.reindex(columns=wanted)
    seconds = rows[rows["metric"] == "seconds"].groupby(RUN)["value"].sum()
    table["seconds"] = seconds.reindex(table.index)
    table["kept_bytes"] = table[kept].sum(axis=1, min_count=1)
    table["memory_items"] = table[["memory_items", "past_items"]].sum(axis=1, min_count=1)
    return table[list(COSTS)].reset_index()
