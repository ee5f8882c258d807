"""Checkpoints of runs that trained together in one file, since many small files are slow to write.

Tensors of equal shape are stacked, with a row per run, because hundreds of thousands of small
tensors would be slow to copy and to checksum. Other tensors are named by the run they belong to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engram.engine import checkpoints as checkpoint
from engram.errors import RecordError, wrap_read_errors
from engram.io import TensorFile
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import flatten

ALL_RUNS = "all"  # prefix of tensors with a row per run; ids of runs contain a dash
BYTES_AT_ONCE = 64 << 20  # larger tensors are stacked on the host, to save memory on the device


def estimate_bytes(learners: Collection[RunLearner], leave_out: Collection[str] = ()) -> int:
    """Estimate the size of the checkpoint of learners of equal shapes."""
    first = checkpoint.learner_tree(next(iter(learners)), leave_out)
    return len(learners) * sum(one.nbytes for one in flatten(first).values())


def save_group(
    learners: Mapping[str, RunLearner], folder: Path, leave_out: Collection[str] = (),
    *, synced: bool = True,
) -> Path:  # fmt: skip
    """Write learners, by the ids of their runs, after the same stage."""
    trees = {run: checkpoint.learner_tree(one, leave_out) for run, one in learners.items()}
    facts = {run: checkpoint.learner_facts(one, trees[run]) for run, one in learners.items()}
    tensors = stack_tensors({run: flatten(tree) for run, tree in trees.items()})
    stage = next(iter(learners.values())).stage
    return checkpoint.write_tensors_and_facts(
        folder / f"{group_name(learners)}-{stage:04d}.safetensors", tensors, facts, synced=synced
    )


def stack_tensors(leaves: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stack tensors of runs by name; those that differ in shape are kept by run.

    Examples
    --------
    >>> import torch
    >>> made = stack_tensors({"a-0": {"x": torch.ones(2)}, "b-0": {"x": torch.zeros(2)}})
    >>> made["all/x"].tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """
    runs, found = list(leaves), dict[str, Tensor]()
    for name in dict.fromkeys(name for one in leaves.values() for name in one):
        values = [leaves[run].get(name) for run in runs]
        kinds = {None if one is None else (one.shape, one.dtype, one.device) for one in values}
        own = {run: one for run, one in zip(runs, values, strict=True) if one is not None}
        if len(kinds) == 1:
            found[f"{ALL_RUNS}/{name}"] = _stack(list(own.values()))
        else:
            found |= {f"{run}/{name}": one.detach().cpu().clone() for run, one in own.items()}
    return {name: one.contiguous() for name, one in found.items()}


def _stack(values: list[Tensor]) -> Tensor:
    small = len(values) * values[0].nbytes <= BYTES_AT_ONCE
    return torch.stack([one.detach() if small else one.detach().cpu() for one in values]).cpu()


def group_name(runs: Collection[str]) -> str:
    """Return the name of a group of runs, independent of their order.

    Examples
    --------
    >>> group_name(["b-0-", "a-0-"]) == group_name(["a-0-", "b-0-"])
    True
    """
    return hashlib.sha256(" ".join(sorted(runs)).encode()).hexdigest()[:16]


def prune_group(
    runs: Collection[str], folder: Path, *, finished: bool = False, spare: Path | None = None
) -> None:
    """Delete all but the newest files of a group of runs and `spare`, or all if `finished`."""
    files = sorted(folder.glob(f"{group_name(runs)}-*.safetensors"), key=stage_in_name)
    for path in files if finished else files[: -checkpoint.KEPT_CHECKPOINTS]:
        if finished or path != spare:
            path.unlink(missing_ok=True)


def stage_in_name(path: Path) -> int:
    """Return the stage in the name of a file."""
    return int(path.stem.rpartition("-")[2])


class GroupFiles:
    """The checkpoints of a folder, each opened once for all learners.

    A damaged file is reported by `note`, and the previous checkpoint is used.
    """

    def __init__(self, folder: Path, note: checkpoint.Notify = checkpoint.warn) -> None:
        self.folder, self.note = folder, note
        self._files: dict[Path, tuple[TensorFile, dict[str, Any], dict[str, list[str]]]] = {}
        # of the file last read: tensors with a row per run, and the row of each
        self._rows: tuple[Path | None, dict[str, Tensor], dict[str, int]] = (None, {}, {})
        for path in sorted(folder.glob("[!.]*.safetensors")):
            try:
                self._files[path] = _open_file(path)
            except RecordError as problem:
                if path.exists():  # else another process has just removed it
                    self._pass_over(path, problem)

    def load(self, learner: RunLearner, run: str, finished: Collection[int]) -> int:
        """Load the newest state of a run whose stages are all recorded; return the next stage."""
        found = [
            path
            for path, (_, facts, _) in self._files.items()
            if run in facts and set(range(stage_in_name(path) + 1)) <= set(finished)
        ]
        for path in sorted(found, key=stage_in_name, reverse=True):
            file, facts, names = self._files[path]
            try:
                with wrap_read_errors(path, "checkpoint"):
                    checkpoint.check_owner(path, facts[run], run=run, stage=stage_in_name(path))
                    own = {name.removeprefix(f"{run}/"): name for name in names.get(run, ())}
                    tensors = {short: file.get(name) for short, name in own.items()}
                    rows, places = self._read_all_runs(path)
                    tensors |= {name: one[places[run]].clone() for name, one in rows.items()}
                checkpoint.restore_learner(learner, path, tensors, facts[run])
            except RecordError as problem:
                self._pass_over(path, problem)
                del self._files[path]
                continue
            return learner.stage + 1
        return 0

    def _read_all_runs(self, path: Path) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Read tensors with a row per run; cached, since runs of one file are read in sequence."""
        if self._rows[0] != path:
            file, facts, names = self._files[path]
            found = {
                name.removeprefix(f"{ALL_RUNS}/"): file.get(name)
                for name in names.get(ALL_RUNS, ())
            }
            self._rows = path, found, {run: place for place, run in enumerate(facts)}
        return self._rows[1:]

    def _pass_over(self, path: Path, problem: RecordError) -> None:
        checkpoint.rename_damaged(path)
        self.note(f"{problem}; using the previous checkpoint")

    def remove_finished(self, finished: Collection[str]) -> None:
        """Remove files all of whose runs are finished."""
        for path, (_, facts, _) in self._files.items():
            if set(facts) <= set(finished):
                path.unlink(missing_ok=True)


def _open_file(path: Path) -> tuple[TensorFile, dict[str, Any], dict[str, list[str]]]:
    file = TensorFile(path, what="checkpoint", framework="pt")
    names: dict[str, list[str]] = {}
    for name in file.keys():  # noqa: SIM118
        names.setdefault(name.partition("/")[0], []).append(name)
    return file, checkpoint.read_facts(file), names
