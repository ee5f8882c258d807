"""Marks of runs that were run or measured again: older records stay on disk but do not count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from engram.errors import wrap_read_errors
from engram.io import list_names, read_json, write_json

Key = tuple[str, int, str]  # recipe, seed, order
MARK_PREFIX = "superseded-"


class Tombstones:
    """The newest mark of each run of a directory, for all its records or for some metrics.

    Examples
    --------
    >>> marks = Tombstones({("r", 0, ""): "0002"})
    >>> marks.hides(("r", 0, ""), "0001"), marks.hides(("r", 0, ""), "0003")
    (True, False)
    """

    def __init__(
        self,
        newest: Mapping[Key, str] | None = None,
        metrics: Mapping[str, Mapping[Key, str]] | None = None,
    ) -> None:
        self.newest = dict(newest or {})
        self.metrics = {prefix: dict(runs) for prefix, runs in (metrics or {}).items()}

    def __bool__(self) -> bool:
        return bool(self.newest or self.metrics)

    @property
    def parts(self) -> set[str]:
        """Return the ids of all parts that mark something."""
        every = [self.newest, *self.metrics.values()]
        return {part for runs in every for part in runs.values()}

    @classmethod
    def read(cls, folder: Path) -> Tombstones:
        """Read the marks of a run directory; raises for a mark that cannot be read."""
        newest: dict[Key, str] = {}
        metrics: dict[str, dict[Key, str]] = {}
        for path in mark_files(folder):
            part = path.stem.removeprefix(MARK_PREFIX)
            content = read_json(path)
            with wrap_read_errors(path, "list of runs"):
                prefix = content.get("metrics")
                target = newest if prefix is None else metrics.setdefault(str(prefix), {})
                for recipe, seed, order in content["runs"]:
                    target[str(recipe), int(seed), str(order)] = part
        return cls(newest, metrics)

    def hides(self, run: Key, part: str) -> bool:
        """Return whether the records of a run in this part are superseded."""
        return part < self.newest.get(run, "")

    def hides_entry(self, entry: Any, part: str) -> bool:
        """Return whether an entry of a ledger is about a superseded run."""
        try:
            run = (str(entry["recipe"]), int(entry["seed"]), str(entry["order"]))
        except (KeyError, TypeError, ValueError):  # not about a single run
            return False
        return self.hides(run, part)


def mark_files(folder: Path) -> list[Path]:
    """List the files with marks, oldest first."""
    return [folder / name for name in list_names(folder, MARK_PREFIX, ".json")]


def write_mark(folder: Path, part: str, runs: Iterable[Key], metrics: str = "") -> Path:
    """Mark the records of some runs in parts older than this one as superseded.

    With `metrics`, only rows whose metric begins with it.
    """
    only = {"metrics": metrics} if metrics else {}
    content = {"runs": [list(run) for run in runs], **only}
    return write_json(folder / f"{MARK_PREFIX}{part}.json", content)
