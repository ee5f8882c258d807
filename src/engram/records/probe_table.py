"""What probes measured, summed up over runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.records.table import NAMES

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

PLACE = ("head", "task", "cls")
COLUMNS = ("label", "metric", *PLACE, "stage", "mean", "std", "runs")


def is_probed(frame: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """[rows] the end-of-stage rows of probes: their metrics are ``probe/metric``."""
    words = frame["metric"].astype("category").cat
    own = np.array(["/" in w and not w.startswith("loss/") for w in words.categories], np.bool_)
    codes = words.codes.to_numpy()
    if not len(own):
        return np.zeros(len(frame), np.bool_)
    return np.asarray(own[codes] & (frame["step"].to_numpy() == -1))


def probe_table(result: Result) -> pd.DataFrame:
    """One line per label, metric, place and stage; see `Result.probes`."""
    frame, chosen = result._frame, is_probed(result._frame)
    labels = np.array(result.run_labels, dtype=object)[result._arranged.run[chosen]]
    return summed(frame[chosen].assign(label=labels))


def summed(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean and sample standard deviation over the runs of each label; NaN values do not count."""
    texts = [name for name in NAMES if name in rows]
    rows = rows.astype(dict.fromkeys(texts, str))
    groups = rows.groupby(list(COLUMNS[:6]), sort=False)["value"]
    found = groups.agg(mean="mean", std="std", runs="count").reset_index()
    order = dict.fromkeys(zip(found["label"], found["metric"], strict=True))
    rank = {pair: i for i, pair in enumerate(order)}
    place = [rank[pair] for pair in zip(found["label"], found["metric"], strict=True)]
    found = found.assign(place=place).sort_values(["place", *PLACE, "stage"], kind="stable")
    return found.drop(columns="place")[list(COLUMNS)].reset_index(drop=True)


def places_of(table: pd.DataFrame, class_names: Mapping[int, str]) -> list[str]:
    """Where each line of a `summed` table belongs, in words."""
    columns = zip(table["head"], table["task"], table["cls"], strict=True)
    return [place_of(head, int(task), int(cls), class_names) for head, task, cls in columns]


def place_of(head: str, task: int, cls: int, class_names: Mapping[int, str] | None = None) -> str:
    """Where a number belongs, in words; "" for one of the whole stage.

    Examples
    --------
    >>> place_of("single", 2, -1), place_of("", -1, 7)
    ('task 3, single', 'class 7')
    """
    words = []
    if task >= 0:
        words.append(f"task {task + 1}")
    if cls >= 0:
        words.append(f"class {(class_names or {}).get(cls, cls)}")
    return ", ".join([*words, *([head] if head else [])])
