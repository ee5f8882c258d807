"""Parts of a run directory beside its results, which count once their results are there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from engram.disk import names
from engram.errors import RecordError
from engram.records.files import read_json
from engram.records.merging import part_of, parts_in
from engram.records.parts import Problem
from engram.records.superseded import Marks


def completed(folder: Path) -> Callable[[str], bool]:
    """Whether the results of a part were written, which is what completes it."""
    files = [folder / name for name in names(folder, "results-", ".parquet")]
    done = {part_of(path) for path in files} | parts_in(files)
    return lambda name: name in done


def documents(folder: Path, kind: str) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The parts of a kind (ledger, probes, environment), oldest first, and broken files."""
    found, problems = [], []
    # what was read belongs to results: a part cut short is made again, and must not count twice
    complete = completed(folder) if kind != "environment" else lambda name: True
    marks = Marks.read(folder)
    for path in sorted(folder.glob(f"{kind}-*.json"), key=lambda p: p.name):
        try:
            content = read_json(path)
        except RecordError as problem:
            problems.append(Problem(str(path), str(problem).removeprefix(f"{path}: ")))
            continue
        part = path.stem.removeprefix(f"{kind}-")
        whole = dict(content) if isinstance(content, dict) else {"entries": content}
        if marks and isinstance(whole.get("runs"), list):
            whole["runs"] = [one for one in whole["runs"] if not marks.hides_entry(one, part)]
        if whole.pop("alone", False) or complete(part):
            found.append({"part": part, **whole})
    return found, problems
