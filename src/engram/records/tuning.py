"""What was chosen when detectors were tuned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.records.arrange import RunKey
from engram.records.novelty import GRID, TUNING, stored_in_order

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

COLUMNS = ["label", "seed", "order", "detector", "option", "value", "auroc"]


def best(areas: Any) -> int:
    """The place of the largest area, the first where several are equal; NaN is the least.

    Examples
    --------
    >>> best([np.nan, 0.7, 0.9, 0.9])
    2
    """
    return int(np.nan_to_num(np.asarray(areas), nan=-1.0).argmax())


def tuned(result: Result) -> pd.DataFrame:
    """See `Result.tuned`."""
    import pandas as pd

    # objects, so that a whole number beside others stays one
    table = pd.DataFrame(list(_lines(result)), columns=COLUMNS, dtype=object)
    return table.astype({"seed": int, "auroc": float})


def tuned_in_words(result: Result) -> list[str]:
    """One sentence for each detector and label: what was chosen, and how often."""
    table = tuned(result)
    found = []
    for (label, detector), own in table.groupby(["label", "detector"], sort=False):
        runs = own.groupby(["seed", "order"], sort=False)
        said = [
            ", ".join(f"{option}={value}" for option, value in zip(run["option"], run["value"]))
            for _, run in runs
        ]
        counts = {one: said.count(one) for one in dict.fromkeys(said)}
        shown = "; ".join(f"{one} ({n} of {len(said)} runs)" for one, n in counts.items())
        area = runs["auroc"].first().mean()
        found.append(f"{detector} ({label}): {shown}, AUC {area:.3f} against the outside set")
    return found


def _lines(result: Result) -> Iterator[tuple[Any, ...]]:
    wanted = dict(zip(result.runs, result.run_labels, strict=True))
    for moment, detector in stored_in_order(result):
        run = RunKey(*moment[:3])
        arrays = result.stored.get(moment, detector)
        if not {TUNING, GRID} <= set(arrays):
            continue
        points = json.loads(bytes(np.asarray(arrays[GRID], np.uint8)))
        choice = best(arrays[TUNING])
        for option, value in points[choice].items():
            area = float(arrays[TUNING][choice])
            yield wanted[run], run.seed, run.order, detector, option, value, area
