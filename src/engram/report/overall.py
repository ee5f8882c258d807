"""What sums up runs over label sets: one score over the test rows of all tasks so far."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from engram.records.views import SET_SCORES
from engram.report.costs import RUN

KEYS = [*RUN, "head", "metric", "stage"]


def overall_scores(frame: pd.DataFrame, runs: pd.DataFrame, stage: Any) -> npt.NDArray[np.float64]:
    """[run] the figure of each run after a stage, every test row counted once.

    It is not the mean of the scores of the tasks, which share rows and differ in size.
    """
    rows = frame[frame["metric"].isin(SET_SCORES) & (frame["step"] == -1) & (frame["task"] == -1)]
    rows = rows.astype({"name": str, "order": str, "head": str, "metric": str})
    known = rows.drop_duplicates(KEYS, keep="last").set_index(KEYS)["value"]
    place = runs.assign(metric=runs["figure"], stage=stage)[KEYS]
    return known.reindex(pd.MultiIndex.from_frame(place)).to_numpy(np.float64)
