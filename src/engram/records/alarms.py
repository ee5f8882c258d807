"""Thresholds of detectors: who is called novel, and how often wrongly, as the network moves on.

After every stage a detector also scores the newest task's validation rows that the network gets
right. Against these a score has a conformal p-value; below a stated rate it raises an alarm. On
items like the validation rows, the rate is what comes out. Later it may not be: the network and the
detector move on, which an AUC, blind to thresholds, cannot show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engram.errors import RecordError, number
from engram.records.arrange import RunKey
from engram.records.novelty import CALIBRATION, FAMILIARITY, sets, stored_in_order

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

Floats = npt.NDArray[np.float64]
PLACE = ["detector", "stage", "task"]


def p_values(scores: Any, calibration: Any) -> Floats:
    """[n] share of calibration scores, and the item itself, that are no more familiar.

    NaN in the calibration does not count; a score that is NaN is the least familiar of all.

    Examples
    --------
    >>> p_values([0.1, 0.35, 0.9, np.nan], [0.2, 0.3, 0.4, np.nan]).tolist()
    [0.25, 0.75, 1.0, 0.25]
    """
    scores, kept = np.asarray(scores, np.float64), np.asarray(calibration, np.float64)
    kept = np.sort(kept[~np.isnan(kept)])
    below = np.searchsorted(kept, np.where(np.isnan(scores), -np.inf, scores), side="right")
    return np.asarray((1 + below) / (len(kept) + 1), np.float64)


def false_alarms(result: Result, rate: float) -> pd.DataFrame:
    """See `Result.false_alarms`."""
    return alarm_table(result, rate, "label", result.run_labels)


def alarm_table(result: Result, rate: float, column: str, names: Sequence[str]) -> pd.DataFrame:
    """The same, mean over the runs of each name, which stand in `column`."""
    import pandas as pd

    number("rate", rate, 0.0, 1.0)
    lines = list(_lines(result, rate, names))
    if not lines:
        wanted = "detectors and validation rows (valid=0.1 of a stream)"
        raise RecordError(f"these runs have no calibrated threshold: it takes {wanted}")
    place = [column, *PLACE]
    frame = pd.DataFrame(lines, columns=[*place, "frozen", "renewed"])
    by = frame.groupby(place, sort=False, observed=True)
    return by.agg(frozen=("frozen", "mean"), renewed=("renewed", "mean"), runs=("frozen", "size")) \
        .reset_index()  # fmt: skip


def _lines(
    result: Result, rate: float, names: Sequence[str]
) -> Iterator[tuple[str, str, int, int, float, float]]:
    wanted = dict(zip(result.runs, names, strict=True))
    calibrations: dict[tuple[RunKey, str], dict[int, Any]] = {}
    for moment, detector in stored_in_order(result):
        run = RunKey(*moment[:3])
        arrays = result.stored.get(moment, detector)
        if not {FAMILIARITY, CALIBRATION} <= set(arrays):
            continue
        known = calibrations.setdefault((run, detector), {})
        known[moment.stage] = arrays[CALIBRATION]
        familiarity, inside = arrays[FAMILIARITY], sets(result, run, moment.stage).inside
        for task, places in enumerate(inside):
            own = familiarity[task if len(familiarity) > 1 else 0][places]
            alarms = [_share(own, known.get(k), rate) for k in (task, moment.stage)]
            yield wanted[run], detector, moment.stage, task, alarms[0], alarms[1]


def _share(scores: Any, calibration: Any, rate: float) -> float:
    """How many of the scores raise an alarm; NaN where there are none, or nothing to compare."""
    if calibration is None or not len(scores) or np.isnan(calibration).all():
        return float("nan")
    return float((p_values(scores, calibration) <= rate).mean())
