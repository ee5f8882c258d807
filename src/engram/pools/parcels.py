"""Files of a run directory that travel between machines which share no disk.

A worker trains in a directory of its own; what appears there travels to the run directory, and what
a run directory knows of interrupted runs travels to the worker that goes on with them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from engram.disk import make_folder
from engram.engine.checkpoints import single as checkpoint
from engram.errors import RecordError
from engram.recipes import Plan
from engram.records import RunDirectory
from engram.records.files import read_bytes, write_bytes, write_json
from engram.records.parts import read_parts, write_part
from engram.records.predictions import write_predictions
from engram.records.run_names import new_part
from engram.tensor_file import TensorFile

Files = dict[str, bytes]  # contents by path, relative to the run directory
_NOT_SENT = "listed-"  # the order of recipes is known where they were asked for


class Outbox:
    """What is new in a worker's directory since it was last asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sent = self._look()

    def news(self) -> tuple[Files, list[str]]:
        """Files that are new or have changed, and the names of those that are gone."""
        now = self._look()
        changed = [name for name, stamp in now.items() if self._sent.get(name) != stamp]
        gone = [name for name in self._sent if name not in now]
        self._sent = now
        return {name: read_bytes(self.folder / name) for name in changed}, gone

    def _look(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path in self.folder.rglob("[!.]*"):
            if path.is_file() and not path.name.startswith(_NOT_SENT):
                known = path.stat()
                name = path.relative_to(self.folder).as_posix()
                found[name] = known.st_mtime_ns, known.st_size
        return found


def unpack(folder: Path, files: Mapping[str, bytes], gone: Sequence[str] = ()) -> None:
    """Put files into a directory; results come last, because they make a stage a finished one."""
    for name in [*files, *gone]:
        _check(name)
    for name in sorted(files, key=lambda name: (name.startswith("results-"), name)):
        path = folder / name
        make_folder(path.parent, inside=folder)
        write_bytes(path, files[name])
    for name in gone:
        (folder / name).unlink(missing_ok=True)


def _check(name: str) -> None:
    """Refuse a path that leads out of the directory."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise RecordError(f"{name}: is no path inside a run directory")


def pack(folder: RunDirectory, plans: Sequence[Plan]) -> Files:
    """All that a worker needs to go on with runs: finished stages, checkpoints, their recipes."""
    names = {folder.checkpoint_path(*plan.key).name for plan in plans}
    shelf = folder.path / "checkpoint"
    chosen = [path for name in names for path in sorted((shelf / name).glob("stage-*"))]
    for shared in ("groups", "steps"):
        files = sorted((shelf / shared).glob("[!.]*.safetensors"))
        chosen += [path for path in files if names & _runs_in(path)]
    found = {path.relative_to(folder.path).as_posix(): read_bytes(path) for path in chosen}
    begun = [plan for plan in plans if folder.finished(*plan.key)]
    return {**found, **_finished(folder, begun)} if begun else found


def _runs_in(path: Path) -> set[str]:
    """Names of the runs in a checkpoint of many; none where it is damaged or gone."""
    try:
        return set(checkpoint.facts_of(TensorFile(path, what="checkpoint", framework="pt")))
    except RecordError:
        return set()


def _finished(folder: RunDirectory, plans: Sequence[Plan]) -> Files:
    """What is recorded of some runs, as one part."""
    table = read_parts(folder.result_files()).table
    keys = {plan.key for plan in plans}
    columns = [table.column(name).to_pylist() for name in ("recipe", "seed", "order")]
    own = [place for place, key in enumerate(zip(*columns, strict=True)) if key in keys]
    part = new_part()
    with tempfile.TemporaryDirectory() as name:
        target = Path(name)
        measured = [plan for plan in plans if plan.probes]
        if measured:
            write_json(target / f"probes-{part}.json", {"runs": _probed(folder, measured)})
            kept = _predictions(folder, measured)
            if kept:
                write_predictions(target / f"predictions-{part}.safetensors", kept)
        write_part(target / f"results-{part}.parquet", table.take(np.array(own, np.int64)))
        return {path.name: path.read_bytes() for path in target.iterdir()}


def _probed(folder: RunDirectory, plans: Sequence[Plan]) -> list[dict[str, Any]]:
    return [
        {"recipe": plan.recipe, "seed": plan.run.seed, "order": plan.order, "stage": stage,
         "probes": list(plan.probes)}
        for plan in plans for stage in sorted(folder.finished(*plan.key))
    ]  # fmt: skip


def _predictions(folder: RunDirectory, plans: Sequence[Plan]) -> list[Any]:
    stored = folder.predictions()
    every = [
        stored.get(*plan.key, stage) for plan in plans for stage in folder.finished(*plan.key)
    ]  # fmt: skip
    return [one for one in every if one is not None]
