"""Which stages of which runs a directory has recorded, looked up again when it has changed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from engram.disk import DiskError, names
from engram.records.arrange import ended_stages, ends
from engram.records.merging import result_files
from engram.records.parts import Problem, read_parts
from engram.records.superseded import PREFIX
from engram.records.table import to_frame

Run = tuple[str, int, str]  # recipe, seed, order
_SETTLED = 100_000_000  # ns after which a directory's time stamp surely shows its last change


class FinishedStages:
    """Stages of the runs in a folder; `look` reads what others have written since the last time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stages: dict[Run, set[int]] = {}
        self.diverged: set[Run] = set()
        self.problems: dict[str, Problem] = {}  # by file
        self._read: set[str] = set()
        self._marked: list[str] = []
        self._stamp = -1

    def look(self) -> FinishedStages:
        """Read the parts that are new since the last look."""
        try:
            stamp = self.path.stat().st_mtime_ns
        except OSError as problem:
            raise DiskError(problem, self.path) from problem
        if stamp == self._stamp:
            return self
        for _ in range(5):  # a file that vanishes before it is read is in a merged one: look again
            listed = names(self.path, ("results-", PREFIX), "")  # one walk: there may be thousands
            marked = [one for one in listed if one.startswith(PREFIX) and one.endswith(".json")]
            if marked != self._marked:  # what was read may count no more
                self._marked, self._read, self.stages = marked, set(), {}
                self.diverged = set()
            parts = [one for one in listed if one.endswith(".parquet")]
            fresh = [p for p in result_files(self.path, parts) if p.name not in self._read]
            found, diverged, problems = _stages(fresh)
            if all(Path(one.file).exists() for one in problems):
                break
        self.problems.update({one.file: one for one in problems})
        for run, stages in found.items():
            self.stages.setdefault(run, set()).update(stages)
        self.diverged |= diverged
        self._read.update(p.name for p in fresh)
        # A change in the same clock tick would leave the stamp as it is: trust old stamps only.
        self._stamp = stamp if time.time_ns() - stamp > _SETTLED else -1
        return self


def _stages(
    files: Sequence[Path],
) -> tuple[dict[Run, set[int]], set[Run], tuple[Problem, ...]]:
    """Stages with end-of-stage rows in some part files, per run; diverged runs; broken files."""
    if not files:
        return {}, set(), ()
    parts = read_parts(files)
    frame = to_frame(parts.table)
    lost = frame[ends(frame, "diverged") & (frame["value"].to_numpy() > 0)]
    return ended_stages(frame), set(ended_stages(lost)), parts.problems
