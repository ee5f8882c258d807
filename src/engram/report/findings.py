"""A finding of the doctor, and what its checks read the long table with."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

RUN = ["name", "seed", "order"]


@dataclass(frozen=True)
class Finding:
    """One thing to look at: how bad, in which method, and what was seen."""

    severity: str
    label: str
    text: str


def of_metric(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Rows of one metric."""
    return table[table["metric"] == metric]


def last_stage(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Rows of each run's last stage."""
    last = rows.groupby(keys, observed=True)["stage"].transform("max")
    return rows[rows["stage"] == last]


def listed(values: list[object], most: int = 8) -> str:
    """The first values, and how many more there are."""
    shown = ", ".join(str(v) for v in values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"


def run_counts(table: pd.DataFrame) -> pd.Series[int]:
    """How many runs each name has."""
    return table.drop_duplicates(RUN).groupby("name", observed=True).size()
