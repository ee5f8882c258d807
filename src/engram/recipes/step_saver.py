"""Runs inside a task, saved every few minutes, when a signal comes, and when time is up."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from engram.ending import Ended, on_ending
from engram.engine.checkpoints import single as checkpoint
from engram.engine.checkpoints.group import name_of
from engram.engine.checkpoints.resume_point import ResumePoint
from engram.errors import RecordError, read_as
from engram.learner.learner import Learner
from engram.recipes.plan import Plan
from engram.records import RunDirectory, run_id
from engram.tensor_file import TensorFile

EVERY = "5m"  # unless told otherwise


class StepSaver:
    """One file for every group of runs that is inside a task.

    Parameters
    ----------
    every
        Seconds between two files of a group; what a dying process loses is no more than that.
    deadline
        When to save and stop (``time.monotonic``).
    """

    def __init__(
        self, folder: RunDirectory, plans: Sequence[Plan], every: float, note: checkpoint.Note,
        deadline: float | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.every, self.note, self.deadline = folder, every, note, deadline
        self.shelf = folder.path / "checkpoint" / "steps"
        self._names = [run_id(*plan.key) for plan in plans]
        self._last = time.monotonic()
        self._signal = 0  # that told the process to end
        self._held: dict[Path, dict[str, Any]] = {}  # by file: the facts of its runs
        for path in sorted(self.shelf.glob("[!.]*.safetensors")):
            try:
                file = TensorFile(path, what="checkpoint", framework="pt")
                self._held[path] = _runs_in(file)
            except RecordError as problem:
                if path.exists():  # else another process has removed it just now
                    self._pass_over(path, problem)
        recorded = folder.finished_runs() if self._held else {}
        self._drop((run_id(*run), stage) for run, stages in recorded.items() for stage in stages)

    @property
    def ending(self) -> bool:
        """Whether the process was told to end."""
        return self._signal > 0

    def end(self) -> None:
        """End the process as it was told to."""
        raise KeyboardInterrupt if self._signal == signal.SIGINT else Ended(self._signal)

    # -- writing ---------------------------------------------------------------------------------
    @property
    def stops(self) -> bool:
        """Whether training is to end behind what was saved: a signal came, or time is up."""
        return self.ending or (self.deadline is not None and time.monotonic() > self.deadline)

    def due(self) -> bool:
        """Whether it is time to save, or to end."""
        return self.stops or time.monotonic() - self._last >= self.every

    def wait(self) -> None:
        """Begin the interval again: the state was written elsewhere."""
        self._last = time.monotonic()

    def save(
        self, places: Sequence[int], learners: Sequence[Learner], points: Sequence[ResumePoint]
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
        path = self.shelf / f"{name_of(facts)}.safetensors"
        checkpoint.write(path, tensors, facts)
        self._held[path] = facts
        self.wait()

    # -- reading ---------------------------------------------------------------------------------
    def load(self, place: int, learner: Learner, finished: Collection[int]) -> int | None:
        """Put a run where it was inside a stage, given those recorded; returns that stage."""
        name, found = self._names[place], []
        for path, runs in self._held.items():
            facts = runs.get(name)
            if facts is None or facts["stage"] in finished:
                continue
            if set(range(facts["stage"])) <= set(finished):
                # those it trained with may have been others at first: the furthest file counts
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

    def _take(self, learner: Learner, path: Path, name: str, facts: dict[str, Any]) -> None:
        file = TensorFile(path, what="checkpoint", framework="pt")
        mine = [key for key in file.keys() if key.startswith(f"{name}/")]  # noqa: SIM118
        tensors = {key.removeprefix(f"{name}/"): file.get(key) for key in mine}
        checkpoint.take(learner, path, tensors, facts)
        with read_as(path, "checkpoint"):
            learner.resume_point = ResumePoint.unpacked(tensors, facts["resume"])

    def _pass_over(self, path: Path, problem: RecordError) -> None:
        """Name a file that cannot be gone on from."""
        checkpoint.put_aside(path)
        self.note(f"{problem}; its runs resume from the previous checkpoint")

    def prune(self, finished: Sequence[tuple[int, int]]) -> None:
        """Remove files of stages that are recorded by now: (place, stage) pairs."""
        self._drop((self._names[place], stage) for place, stage in finished)

    def _drop(self, finished: Iterable[tuple[str, int]]) -> None:
        """Forget what some runs were in; a file goes with the last of its runs."""
        done = set(finished)
        for path, runs in list(self._held.items()):
            left = {k: facts for k, facts in runs.items() if (k, facts["stage"]) not in done}
            self._held[path] = left
            if not left:
                path.unlink(missing_ok=True)
                del self._held[path]

    def forget(self) -> None:
        """Remove what would be gone on from: the runs are to begin anew."""
        for path, runs in list(self._held.items()):
            if not set(runs).isdisjoint(self._names):
                path.unlink(missing_ok=True)
                del self._held[path]

    def at_signals(self) -> AbstractContextManager[None]:
        """While this lasts, SIGTERM, SIGHUP and Ctrl-C mean: save what is going on, then stop."""
        return on_ending(self._told, keys=True)

    def _told(self, number: int) -> None:
        if self._signal and number == signal.SIGINT:  # once more: no time to save
            raise KeyboardInterrupt
        self._signal = number


def _runs_in(file: TensorFile) -> dict[str, Any]:
    """The facts of each run in a file, which say at least where it was."""
    found: dict[str, Any] = checkpoint.facts_of(file)
    with read_as(file.path, "checkpoint"):
        for facts in found.values():
            if not isinstance(facts["stage"], int):
                raise TypeError(f"stage {facts['stage']!r}")
            [int(one) for one in facts.get("resume", {}).get("position", [])]
    return found
