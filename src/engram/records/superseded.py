"""Runs that were run anew: what was recorded of them before a mark is kept, and passed over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from engram.records.files import read_json, write_json

Key = tuple[str, int, str]  # recipe, seed, order
PREFIX = "superseded-"


class Marks:
    """The newest mark of each run of a directory.

    Examples
    --------
    >>> marks = Marks({("r", 0, ""): "0002"})
    >>> marks.hides(("r", 0, ""), "0001"), marks.hides(("r", 0, ""), "0003")
    (True, False)
    """

    def __init__(self, newest: Mapping[Key, str] | None = None) -> None:
        self.newest = dict(newest or {})

    def __bool__(self) -> bool:
        return bool(self.newest)

    @classmethod
    def read(cls, folder: Path) -> Marks:
        """The marks of a run directory; a mark that cannot be read is an error, not nothing."""
        newest: dict[Key, str] = {}
        for path in mark_files(folder):
            part = path.stem.removeprefix(PREFIX)
            runs = read_json(path)["runs"]
            newest.update(((recipe, int(seed), order), part) for recipe, seed, order in runs)
        return cls(newest)

    def hides(self, run: Key, part: str) -> bool:
        """Whether what this part says about a run has been superseded."""
        return part < self.newest.get(run, "")

    def hides_entry(self, entry: Any, part: str) -> bool:
        """Whether an entry of a ledger is about a run that has been superseded."""
        try:
            run = (str(entry["recipe"]), int(entry["seed"]), str(entry["order"]))
        except (KeyError, TypeError):  # about no single run
            return False
        return self.hides(run, part)


def mark_files(folder: Path) -> list[Path]:
    """The files with marks, oldest first."""
    return sorted(folder.glob(f"{PREFIX}*.json"), key=lambda path: path.name)


def write_mark(folder: Path, part: str, runs: Iterable[Key]) -> Path:
    """From this part on, what older parts say about some runs counts no more."""
    return write_json(folder / f"{PREFIX}{part}.json", {"runs": [list(run) for run in runs]})
