"""Checkpoints of runs: after stages (`Checkpoints`), and within a task, on signals and at a
deadline (`StepSaver`).
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from engram.engine import checkpoints as checkpoint
from engram.engine import group_checkpoints as group_checkpoint
from engram.engine.checkpoints import ResumePoint
from engram.engine.group_checkpoints import group_name
from engram.errors import RecordError, wrap_read_errors
from engram.experiments.model_file import save_run_model
from engram.experiments.plan import Plan
from engram.io import TensorFile
from engram.learner.learner import RunLearner
from engram.process import Ended, handle_end_signals
from engram.records import RunDirectory, run_id
from engram.records.stage_result import StageResult

MOST_SEPARATE_FILES = 32  # runs with a file each; larger groups share one
ALWAYS_WRITTEN_BYTES = 64 << 20  # size up to which state is written after every stage
WRITTEN_BYTES_PER_SECOND = 200e6  # assumed speed of the disk
MOST_WRITING_SHARE = 0.05  # share of the training time for writing larger state
SYNC_SECONDS = 10.0  # training that a power failure may cost; a kill costs none


class Checkpoints:
    """Checkpoints after stages, in a run directory.

    A checkpoint follows every stage of a group, unless the state is large and training was
    short: state of more than `ALWAYS_WRITTEN_BYTES` is written once writing takes no more than
    `MOST_WRITING_SHARE` of the time since the last one, or the interval of checkpoints inside a
    task has passed, whichever comes first. Parts that the next task initialises are not written. A
    finished run keeps its model.

    Every checkpoint outlives the process. One is synced, so that it outlives a power failure too,
    if the last one that was is older than `SYNC_SECONDS`, and kept until the next one is.
    """

    def __init__(self, folder: RunDirectory, note: checkpoint.Notify) -> None:
        self.folder, self.note = folder, note
        self.shared = folder.path / "checkpoint" / "groups"
        self._group_files = group_checkpoint.GroupFiles(self.shared, note)
        self._since: dict[str, float] = {}  # run: time of the last checkpoint, or of the start
        self._synced: dict[str, tuple[float, Path | None]] = {}  # run: the last synced, and when

    def load(self, plan: Plan, learner: RunLearner) -> int:
        """Load the newest state of a run into a fresh learner; returns the next stage to train."""
        finished = self.folder.finished(*plan.key)
        own = self.folder.checkpoint_path(*plan.key)
        self._since[own.name] = time.monotonic()
        self._synced[own.name] = time.monotonic(), None
        alone = checkpoint.load_checkpoint(learner, own, finished, self.note)
        shared = self._group_files.load(learner, own.name, finished) if not alone else 0
        return max(alone, shared)

    def save(
        self, results: Sequence[StageResult], plans: Sequence[Plan], *, must: bool = False
    ) -> bool:
        """Write the states of runs that trained together, before their stage is recorded.

        Returns whether they were written, which `must` enforces.
        """
        self._keep_models(results, plans)
        going = {_name(one): one.learner for one in results if not one.is_last}
        leave_out = _reinitialised_parts(plans[0])
        if not going or not (must or self._worth(going, leave_out)):
            return False
        synced = must or any(self._sync_due(name) for name in going)
        if len(results) <= MOST_SEPARATE_FILES:
            written = {
                name: checkpoint.save_checkpoint(
                    learner, self.folder.path / "checkpoint" / name, leave_out, synced=synced
                )
                for name, learner in going.items()
            }
        else:
            learners = {_name(one): one.learner for one in results}
            path = group_checkpoint.save_group(learners, self.shared, leave_out, synced=synced)
            written = dict.fromkeys(learners, path)
        now = time.monotonic()
        self._since |= dict.fromkeys(going, now)
        if synced:
            self._synced |= {name: (now, path) for name, path in written.items()}
        return True

    def _sync_due(self, name: str) -> bool:
        last, _ = self._synced.get(name, (-math.inf, None))
        return time.monotonic() - last >= SYNC_SECONDS

    def _spare(self, name: str) -> Path | None:
        return self._synced.get(name, (0.0, None))[1]

    def _keep_models(self, results: Sequence[StageResult], plans: Sequence[Plan]) -> None:
        for one, plan in select_models(results, plans):
            own = self.folder.checkpoint_path(*plan.key)
            save_run_model(own, one.learner, plan.run, plan.probes.values(), plan.key)

    def _worth(self, learners: dict[str, RunLearner], leave_out: Sequence[str]) -> bool:
        size = group_checkpoint.estimate_bytes(learners.values(), leave_out)
        now = time.monotonic()
        since = max(self._since.get(name, now) for name in learners)
        return (
            size <= ALWAYS_WRITTEN_BYTES
            or size / WRITTEN_BYTES_PER_SECOND <= MOST_WRITING_SHARE * (now - since)
        )

    def prune(self, results: Sequence[StageResult]) -> None:
        """Remove files that the recorded stage has made superfluous."""
        if len(results) <= MOST_SEPARATE_FILES:
            for one in results:
                own = self.folder.checkpoint_path(*one.key[:3])
                checkpoint.prune_checkpoints(own, finished=one.is_last, spare=self._spare(own.name))
            return
        first, runs = results[0], [_name(one) for one in results]
        written = self.shared / f"{group_checkpoint.group_name(runs)}-{first.stage:04d}.safetensors"
        if first.stage == len(first.stream) - 1:
            group_checkpoint.prune_group(runs, self.shared, finished=True)
        elif written.is_file():
            group_checkpoint.prune_group(runs, self.shared, spare=self._spare(runs[0]))

    def close(self, plans: Sequence[Plan]) -> None:
        """Remove files from which no run will resume."""
        done = [p for p in plans if self.folder.ended(*p.key, stages=len(p.run.stream))]
        group_checkpoint.GroupFiles(self.shared, self.note).remove_finished(
            [run_id(*plan.key) for plan in done]
        )
        for plan in done:
            checkpoint.prune_checkpoints(self.folder.checkpoint_path(*plan.key), finished=True)


def _name(result: StageResult) -> str:
    return run_id(*result.key[:3])


def select_models(
    results: Sequence[StageResult], plans: Sequence[Plan]
) -> list[tuple[StageResult, Plan]]:
    """Select finished runs whose model is kept: not those of large groups."""
    if len(results) > MOST_SEPARATE_FILES:
        return []
    return [
        (one, plan) for one, plan in zip(results, plans, strict=True)
        if one.is_last and not one.diverged and plan.keep != "counts"
    ]  # fmt: skip


def _reinitialised_parts(plan: Plan) -> tuple[str, ...]:
    """Return the parts that the next task initialises, which need not be kept between tasks."""
    return ("free", "opt") if plan.run.training.optim_reset else ("free",)


# Checkpoints within a task.


DEFAULT_INTERVAL = "5m"


class StepSaver:
    """Checkpoints within a task at intervals, on signals and at a deadline, one file per group.

    Parameters
    ----------
    every
        Seconds between two checkpoints of a group, which is the most that a killed process loses.
    deadline
        When to save and stop (``time.monotonic``).
    """

    def __init__(
        self, folder: RunDirectory, plans: Sequence[Plan], every: float, note: checkpoint.Notify,
        deadline: float | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.every, self.note, self.deadline = folder, every, note, deadline
        self.shelf = folder.path / "checkpoint" / "steps"
        self._names = [run_id(*plan.key) for plan in plans]
        self._last = time.monotonic()
        self._signal = 0  # the signal received, if any
        self._held: dict[Path, dict[str, Any]] = {}  # file: the facts of its runs
        for path in sorted(self.shelf.glob("[!.]*.safetensors")):
            try:
                file = TensorFile(path, what="checkpoint", framework="pt")
                self._held[path] = _runs_in(file)
            except RecordError as problem:
                if path.exists():  # otherwise another process has just removed it
                    self._pass_over(path, problem)
        recorded = folder.finished_runs() if self._held else {}
        self._drop((run_id(*run), stage) for run, stages in recorded.items() for stage in stages)

    @property
    def is_ending(self) -> bool:
        """Whether a signal to end was received."""
        return self._signal > 0

    def end(self) -> None:
        """End the process by the signal received."""
        raise KeyboardInterrupt if self._signal == signal.SIGINT else Ended(self._signal)

    # -- writing ---------------------------------------------------------------------------------
    @property
    def should_stop(self) -> bool:
        """Whether to stop after saving: a signal was received, or the deadline has passed."""
        return self.is_ending or (self.deadline is not None and time.monotonic() > self.deadline)

    def due(self) -> bool:
        """Whether it is time to save, or to stop."""
        return self.should_stop or time.monotonic() - self._last >= self.every

    def wait(self) -> None:
        """Restart the interval, since the state was saved after a stage."""
        self._last = time.monotonic()

    def save(
        self, places: Sequence[int], learners: Sequence[RunLearner], points: Sequence[ResumePoint]
    ) -> None:
        """Write the states of runs that train together."""
        tensors: dict[str, Any] = {}
        facts: dict[str, Any] = {}
        for place, learner, point in zip(places, learners, points, strict=True):
            name = self._names[place]
            own, own_facts = checkpoint.state_dict(learner)
            own["free"] = point.tensors.pop("free").cpu()
            more, where = point.packed()
            tensors |= {f"{name}/{key}": value for key, value in (own | more).items()}
            facts[name] = own_facts | {"resume": where}
        path = self.shelf / f"{group_name(facts)}.safetensors"
        checkpoint.write_tensors_and_facts(path, tensors, facts)
        self._held[path] = facts
        self.wait()

    # -- reading ---------------------------------------------------------------------------------
    def load(self, place: int, learner: RunLearner, finished: Collection[int]) -> int | None:
        """Restore a run inside a stage, given its recorded stages; returns that stage or None."""
        name, found = self._names[place], []
        for path, runs in self._held.items():
            facts = runs.get(name)
            if facts is None or facts["stage"] in finished:
                continue
            if set(range(facts["stage"])) <= set(finished):
                # a run may be in files of several groups: the furthest one counts
                found.append((facts.get("resume", {}).get("position", []), path))
        for _, path in sorted(found, reverse=True):
            facts = self._held[path][name]
            try:
                self._take(learner, path, name, facts)
            except RecordError as problem:
                self._pass_over(path, problem)
                del self._held[path]
                continue
            return int(facts["stage"])
        return None

    def _take(self, learner: RunLearner, path: Path, name: str, facts: dict[str, Any]) -> None:
        file = TensorFile(path, what="checkpoint", framework="pt")
        mine = [key for key in file.keys() if key.startswith(f"{name}/")]  # noqa: SIM118
        tensors = {key.removeprefix(f"{name}/"): file.get(key) for key in mine}
        checkpoint.restore_learner(learner, path, tensors, facts)
        with wrap_read_errors(path, "checkpoint"):
            learner.resume_point = ResumePoint.unpacked(tensors, facts["resume"])

    def _pass_over(self, path: Path, problem: RecordError) -> None:
        """Note a file from which no run can resume."""
        checkpoint.rename_damaged(path)
        self.note(f"{problem}; its runs resume from the previous checkpoint")

    def prune(self, finished: Sequence[tuple[int, int]]) -> None:
        """Remove files of stages that are recorded by now, given as (index of the run, stage)."""
        self._drop((self._names[place], stage) for place, stage in finished)

    def _drop(self, finished: Iterable[tuple[str, int]]) -> None:
        """Drop some runs from the files; a file is removed with the last of its runs."""
        done = set(finished)
        for path, runs in list(self._held.items()):
            left = {k: facts for k, facts in runs.items() if (k, facts["stage"]) not in done}
            self._held[path] = left
            if not left:
                path.unlink(missing_ok=True)
                del self._held[path]

    def forget(self) -> None:
        """Remove all files, so that the runs start over."""
        for path, runs in list(self._held.items()):
            if not set(runs).isdisjoint(self._names):
                path.unlink(missing_ok=True)
                del self._held[path]

    def save_on_signals(self) -> AbstractContextManager[None]:
        """Return a context in which SIGTERM, SIGHUP and Ctrl-C save the runs, then stop."""
        return handle_end_signals(self._told, keys=True)

    def _told(self, number: int) -> None:
        if self._signal and number == signal.SIGINT:  # a second time: stop without saving
            raise KeyboardInterrupt
        self._signal = number


def _runs_in(file: TensorFile) -> dict[str, Any]:
    """Read the facts of each run in a file, such as its stage and step."""
    found: dict[str, Any] = checkpoint.read_facts(file)
    with wrap_read_errors(file.path, "checkpoint"):
        for facts in found.values():
            if not isinstance(facts["stage"], int):
                raise TypeError(f"stage {facts['stage']!r}")
            [int(one) for one in facts.get("resume", {}).get("position", [])]
    return found
