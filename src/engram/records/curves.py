"""Scores stage by stage: over all tasks so far, of the newest task, and views of label sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engram.records.judging import average_name
from engram.records.metric_values import CURRENT, recorded_views
from engram.records.summary import mean_std

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result


def curves(result: Result) -> pd.DataFrame:
    """Mean, deviation and number of runs after every stage, by label, metric and stage."""
    import pandas as pd

    names = [*map(average_name, dict.fromkeys(result.figures)), CURRENT, *recorded_views(result)]
    labels = np.array(result.run_labels, dtype=object)
    rows = []
    for name in names:
        values = result.curve(name)  # [run, stage]
        for label in result.labels:
            mine = values[labels == label]
            for k in range(values.shape[1]):
                known = int((~np.isnan(mine[:, k])).sum())
                if known:
                    rows.append((label, name, k, *mean_std(mine[:, k]), known))
    columns = ["label", "metric", "stage", "mean", "std", "runs"]
    return pd.DataFrame(rows, columns=pd.Index(columns))
