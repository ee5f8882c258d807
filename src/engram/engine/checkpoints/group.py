"""Many learners that trained together, in one file: thousands of small ones would take minutes.

Names in the file begin with the run they belong to, so that each learner is read by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from engram.engine.checkpoints import single as checkpoint
from engram.errors import RecordError
from engram.learner.learner import Learner
from engram.learner.tree import flatten
from engram.tensor_file import TensorFile


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


def prune(runs: Collection[str], folder: Path, *, finished: bool = False) -> None:
    """Keep the newest files of a group of runs only; none where they are `finished`."""
    files = sorted(folder.glob(f"{name_of(runs)}-*.safetensors"), key=stage_of)
    for path in files if finished else files[: -checkpoint.KEPT]:
        path.unlink(missing_ok=True)


def stage_of(path: Path) -> int:
    """The stage after which a file was written."""
    return int(path.stem.rpartition("-")[2])


class GroupFiles:
    """The files of a folder, each opened once however many learners are read from it.

    A file that is damaged is named in a `note`; the state before it is taken.
    """

    def __init__(self, folder: Path, note: checkpoint.Note = checkpoint.warn) -> None:
        self.folder, self.note = folder, note
        self._files: dict[Path, tuple[TensorFile, dict[str, Any], dict[str, list[str]]]] = {}
        for path in sorted(folder.glob("[!.]*.safetensors")):
            try:
                self._files[path] = _opened(path)
            except RecordError as problem:
                if path.exists():  # else another process has just removed it
                    self._pass_over(path, problem)

    def load(self, learner: Learner, run: str, finished: Collection[int]) -> int:
        """Load the newest state of a run whose stages are all recorded; the next stage to train."""
        found = [
            path
            for path, (_, facts, _) in self._files.items()
            if run in facts and set(range(stage_of(path) + 1)) <= set(finished)
        ]
        for path in sorted(found, key=stage_of, reverse=True):
            file, facts, names = self._files[path]
            try:
                checkpoint.check_place(path, facts[run], run=run, stage=stage_of(path))
                tensors = {name.removeprefix(f"{run}/"): file.get(name) for name in names[run]}
                checkpoint.take(learner, path, tensors, facts[run])
            except RecordError as problem:
                self._pass_over(path, problem)
                del self._files[path]
                continue
            return learner.stage + 1
        return 0

    def _pass_over(self, path: Path, problem: RecordError) -> None:
        checkpoint.put_aside(path)
        self.note(f"{problem}; the state before it is taken")

    def remove_finished(self, finished: Collection[str]) -> None:
        """Remove files none of whose runs will be gone on with."""
        for path, (_, facts, _) in self._files.items():
            if set(facts) <= set(finished):
                path.unlink(missing_ok=True)


def _opened(path: Path) -> tuple[TensorFile, dict[str, Any], dict[str, list[str]]]:
    file = TensorFile(path, what="checkpoint", framework="pt")
    names: dict[str, list[str]] = {}
    for name in file.keys():  # noqa: SIM118
        names.setdefault(name.partition("/")[0], []).append(name)
    return file, checkpoint.facts_of(file), names
