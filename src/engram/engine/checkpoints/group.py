"""Many learners that trained together, in one file: thousands of small ones would take minutes.

Names in the file begin with the run they belong to, so that each learner is read by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from engram.engine.checkpoints import single as checkpoint
from engram.errors import RecordError
from engram.learner.learner import Learner
from engram.learner.tree import flatten


def nbytes(learners: Collection[Learner], leave_out: Collection[str] = ()) -> int:
    """About how much files of these learners, which are alike, will hold."""
    first = checkpoint.tree_of(next(iter(learners)), leave_out)
    return len(learners) * sum(one.nbytes for one in flatten(first).values())


def save(learners: Mapping[str, Learner], folder: Path, leave_out: Collection[str] = ()) -> Path:
    """Write learners, by the id of their run, after the stage that they have in common."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {}
    for run, learner in learners.items():
        own, facts[run] = checkpoint.state_dict(learner, leave_out)
        tensors |= {f"{run}/{name}": value for name, value in own.items()}
    stage = next(iter(learners.values())).stage
    return checkpoint.write(folder / f"{name_of(learners)}-{stage:04d}.safetensors", tensors, facts)


def name_of(runs: Collection[str]) -> str:
    """The name of a group of runs, whatever their order.

    Examples
    --------
    >>> name_of(["b-0-", "a-0-"]) == name_of(["a-0-", "b-0-"])
    True
    """
    return hashlib.sha256(" ".join(sorted(runs)).encode()).hexdigest()[:16]


def prune(runs: Collection[str], folder: Path, *, below: int) -> None:
    """Remove the files of a group of runs from before stage `below`."""
    for path in folder.glob(f"{name_of(runs)}-*.safetensors"):
        if stage_of(path) < below:
            path.unlink(missing_ok=True)


def stage_of(path: Path) -> int:
    """The stage after which a file was written."""
    return int(path.stem.rpartition("-")[2])


class GroupFiles:
    """The files of a folder, each opened once however many learners are read from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[Path, tuple[Any, dict[str, Any], dict[str, list[str]]]] = {}
        for path in sorted(folder.glob("[!.]*.safetensors")):
            self._files[path] = _opened(path)

    def load(self, learner: Learner, run: str, finished: Collection[int]) -> int:
        """Load the newest state of a run whose stages are all recorded; the next stage to train."""
        found = [
            path
            for path, (_, facts, _) in self._files.items()
            if run in facts and set(range(stage_of(path) + 1)) <= set(finished)
        ]
        if not found:
            return 0
        path = max(found, key=stage_of)
        handle, facts, names = self._files[path]
        tensors = {name.removeprefix(f"{run}/"): handle.get_tensor(name) for name in names[run]}
        checkpoint.take(learner, path, tensors, facts[run])
        return learner.stage + 1

    def remove_finished(self, finished: Collection[str]) -> None:
        """Remove files none of whose runs will be gone on with."""
        for path, (_, facts, _) in self._files.items():
            if set(facts) <= set(finished):
                path.unlink(missing_ok=True)


def _opened(path: Path) -> tuple[Any, dict[str, Any], dict[str, list[str]]]:
    from safetensors import safe_open

    names: dict[str, list[str]] = {}
    try:
        handle: Any = safe_open(path, framework="pt")
        facts = json.loads(handle.metadata()["facts"])
        for name in handle.keys():  # noqa: SIM118
            names.setdefault(name.partition("/")[0], []).append(name)
    except Exception as error:
        raise RecordError(f"{path}: unreadable checkpoint ({error})") from error
    return handle, facts, names
