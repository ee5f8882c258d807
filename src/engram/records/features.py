"""Features of the three sets of test items: how long they are, and where they lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.errors import RecordError
from engram.records.arrange import RunKey
from engram.records.novelty import Sets, sets

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

STATISTICS = ("norm", "mean", "deviation")  # [n] each, of an item's features
PLACES, SAMPLE = "places", "sample"  # [m] test items, and [m, F] their features
# Inside items of the first task, of those between it and the newest, and of the newest.
DRAWN = ("first inside", "inside between", "newest inside", "forgotten", "outside")
GROUPS = ("inside", *DRAWN)


class FeatureSample(NamedTuple):
    """Features of some test items of one run after a stage, and the set of each."""

    recipe: str
    stage: int
    features: npt.NDArray[Any]  # [m, F]
    task: npt.NDArray[Any]  # [m]
    kind: npt.NDArray[Any]  # [m] inside, forgotten, outside, or "" for items that never were right


def grouped(found: Sets) -> dict[str, npt.NDArray[np.int64]]:
    """Places of the items of each group.

    Examples
    --------
    >>> from engram.records.novelty import sets_of
    >>> found = sets_of([1, 1, 1, 1, 0], [1, 0, 1, 1, 0], task=[0, 0, 1, 2, 3], stage=2)
    >>> {name: places.tolist() for name, places in grouped(found).items()}
    {'inside': [0, 2, 3], 'first inside': [0], 'inside between': [2], 'newest inside': [3], ...}
    """
    t = found.stage
    none: list[Any] = [np.empty(0, np.int64)]
    newest = found.inside[t:] if t else []  # the first task is no newest one
    parts = (found.inside, found.inside[:1], found.inside[1:t], newest)
    every = (*parts, found.forgotten, found.outside)
    return {name: np.concatenate([*none, *part]) for name, part in zip(GROUPS, every, strict=True)}


def has_features(result: Result) -> bool:
    """Whether statistics of features were stored of some run."""
    return any(True for _ in _stored(result))


def _stored(result: Result) -> Iterator[tuple[RunKey, int, dict[str, Any]]]:
    known = set(result.runs)
    for moment, probe in sorted(result.stored):
        run = RunKey(*moment[:3])
        if run in known and probe.split(" ")[0] == "features":
            arrays = result.stored.get(moment, probe)
            if set(STATISTICS) <= set(arrays):
                yield run, moment.stage, arrays


def feature_table(result: Result, column: str, names: Sequence[str]) -> pd.DataFrame:
    """Mean over the items of each set, then over the runs of each name, by stage and statistic."""
    import pandas as pd

    wanted = dict(zip(result.runs, names, strict=True))
    lines = []
    for run, stage, arrays in _stored(result):
        for name, places in grouped(sets(result, run, stage)).items():
            for statistic in STATISTICS:
                if len(places):
                    value = float(arrays[statistic][places].astype(np.float64).mean())
                    lines.append((wanted[run], stage, name, statistic, value))
    if not lines:
        raise RecordError("no features were stored of these runs (probes=[engram.probes.Features])")
    frame = pd.DataFrame(lines, columns=[column, "stage", "set", "statistic", "value"])
    by = frame.groupby([column, "stage", "set", "statistic"], sort=False)["value"]
    table = by.agg(["mean", "std", "count"]).reset_index()
    return table.rename(columns={"count": "runs"})


def feature_samples(result: Result, stages: Sequence[int] = (0, 1)) -> list[FeatureSample]:
    """Of the first run of every recipe, after the given stages."""
    first: dict[str, RunKey] = {}
    for run in sorted(result.runs):
        first.setdefault(run.recipe, run)
    found = []
    for run, stage, arrays in _stored(result):
        if stage in stages and first[run.recipe] == run and SAMPLE in arrays:
            found.append(_sample(result, run, stage, arrays))
    return found


def _sample(result: Result, run: RunKey, stage: int, arrays: dict[str, Any]) -> FeatureSample:
    items, places = result.items(run.recipe, run.order), arrays[PLACES].astype(np.int64)
    found = sets(result, run, stage)
    assert items is not None  # else there are no sets either
    kind = np.full(len(items.task), "", dtype="<U9")
    for name in ("inside", "forgotten", "outside"):
        for part in getattr(found, name):
            kind[part] = name
    features = arrays[SAMPLE].astype(np.float32)
    return FeatureSample(run.recipe, stage, features, items.task[places], kind[places])
