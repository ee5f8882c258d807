"""Trials, and the file of a run directory that knows which values were tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from engram.errors import RecordError
from engram.records import Result
from engram.records.arrange import per_run
from engram.records.files import read_json, write_json

FOLDER = "searches"
FORMAT = "engram-search-1"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Some values, and what came of them.

    Parameters
    ----------
    value, std
        The metric, mean and standard deviation over seeds; no value if a run diverged or has not
        reached its last task.
    recipe
        The id under which its runs are recorded.
    """

    number: int
    batch: int
    values: dict[str, Any]
    recipe: str = ""
    label: str = ""
    value: float | None = None
    std: float | None = None
    runs: int = 0
    diverged: int = 0
    seconds: float = 0.0
    steps: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing is left to train."""
        return self.value is not None or self.diverged > 0


def measured(trials: Sequence[Trial], result: Result, metric: str) -> list[Trial]:
    """The trials with what a result says of them."""
    values, broken = result.metric(metric), set(result.diverged)
    frame, arranged = result._frame, result._arranged
    seconds, steps = (per_run(frame, arranged, name, "sum") for name in ("seconds", "steps"))
    lost = np.array([run in broken for run in result.runs], dtype=bool)
    owner = np.array([run.recipe for run in result.runs], dtype=object)
    found = []
    for one in trials:
        mine = owner == one.recipe
        own, runs = values[mine], int(mine.sum())
        whole = runs > 0 and not np.isnan(own).any() and not lost[mine].any()
        found.append(replace(
            one, runs=runs, diverged=int(lost[mine].sum()),
            value=float(own.mean()) if whole else None,
            std=float(own.std(ddof=1)) if whole and runs > 1 else None,
            seconds=float(np.nansum(seconds[mine])), steps=int(np.nansum(steps[mine])),
        ))  # fmt: skip
    return found


class TrialFile:
    """What a search has asked for, kept in its run directory; without one, in memory only."""

    def __init__(self, out: Path | None, key: str, question: Mapping[str, Any]) -> None:
        self.path = None if out is None else out / FOLDER / f"{key}.json"
        self.question = dict(question)

    def read(self) -> tuple[list[Trial], float]:
        """The trials so far, and the seconds that they took."""
        if self.path is None or not self.path.is_file():
            return [], 0.0
        content = read_json(self.path)
        if not isinstance(content, Mapping) or content.get("format") != FORMAT:
            raise RecordError(f"{self.path}: is not a search of this version")
        try:
            return [Trial(**one) for one in content["trials"]], float(content["seconds"])
        except (KeyError, TypeError, ValueError) as problem:
            raise RecordError(f"{self.path}: is not a valid search ({problem})") from problem

    def write(self, trials: Sequence[Trial], seconds: float, **found: Any) -> None:
        """Keep what is known by now."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT, **self.question, **found, "seconds": round(seconds, 3),
            "trials": [asdict(one) for one in trials],
        }  # fmt: skip
        write_json(self.path, content)
