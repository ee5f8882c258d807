"""`JobQueue`: tasks that wait to be learnt, as files that survive the process."""

from __future__ import annotations

import json
import logging
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from engram.errors import EngramError, RecordError
from engram.io import TensorFile, save_tensors, sync

LOG = logging.getLogger("engram.serve")


class QueueFull(EngramError):
    """Raised when too many tasks wait."""


JOB_STATES = ("queued", "learning", "learnt", "refused", "failed")
TASK_FILE = re.compile(r"task-([0-9]{6,9})\.safetensors(\.failed)?")
MOST_REMEMBERED_JOBS = 1000  # finished jobs whose state is kept


@dataclass
class LearningJob:
    """One task and its state."""

    number: int
    rows: int
    state: str = "queued"
    error: str = ""
    seconds: float = 0.0
    request: str = ""  # id of the request that asked for it
    version: int | None = None  # what it became in a store of versions
    table: dict[str, Any] | None = None  # what its rows had that the first table did not


class JobQueue:
    """A queue in a folder: ``task-000001.safetensors`` until it is learnt.

    Tasks are learnt in the order of their numbers, which continue after the last one that the model
    has learnt, so a task that was learnt just before the process died is not learnt twice. A file
    that is damaged is set aside as ``.failed``, like a task that could not be learnt.

    Parameters
    ----------
    folder
        Where tasks wait.
    learnt
        Number of the task that the model has learnt last.
    most
        Largest number of waiting tasks.

    Examples
    --------
    >>> import tempfile, torch
    >>> jobs = JobQueue(Path(tempfile.mkdtemp()), learnt=4)
    >>> jobs.add(torch.zeros(2, 3), ["a", "b"]).number, len(jobs)
    (5, 1)
    >>> jobs.next().rows, jobs.read(5)[1]
    (2, ['a', 'b'])
    >>> jobs.done(5)
    >>> len(jobs), jobs.get(5).state
    (0, 'learnt')
    """

    def __init__(self, folder: Path, learnt: int, most: int = 100) -> None:
        self.folder, self.most = folder, most
        folder.mkdir(parents=True, exist_ok=True)
        self._lock, self._adding = threading.Lock(), threading.Lock()
        self._known: dict[int, LearningJob] = {}
        self._waiting: list[int] = []
        self._last = learnt
        for path in sorted(folder.glob("task-*.safetensors*")):
            found = TASK_FILE.fullmatch(path.name)
            if found is None:
                LOG.warning("%s: is not a queued task, and is ignored", path)
                continue
            number, failed = int(found[1]), found[2]
            self._last = max(self._last, number)
            if failed:
                continue
            try:
                rows = len(self.read(number)[0])
            except (EngramError, OSError) as problem:
                self._known[number] = LearningJob(number, 0, "failed", str(problem))
                self._set_aside(number)
                LOG.warning("%s; it is set aside as %s.failed", problem, path.name)
                continue
            if number == learnt:  # the process died before it removed the file
                path.unlink()
                continue
            self._known[number] = LearningJob(number, rows)
            self._waiting.append(number)

    def __len__(self) -> int:
        return len(self._waiting)

    def path(self, number: int) -> Path:
        """The file of a task."""
        return self.folder / f"task-{number:06d}.safetensors"

    def add(self, x: Tensor, y: list[Any]) -> LearningJob:
        """Add a task, which is on disk when this returns.

        One after the other: were a number drawn while the task before it is still being written,
        the later one might be learnt first.
        """
        with self._adding:
            self.check_room()
            number = self._last + 1
            save_tensors(self.path(number), {"x": x.contiguous()}, {"facts": json.dumps({"y": y})})
            return self._enter(LearningJob(number, len(x)))

    def check_room(self) -> None:
        """Raise if as many tasks wait as may."""
        count = len(self)
        if count >= self.most:
            wait = "1 task waits" if count == 1 else f"{count} tasks wait"
            raise QueueFull(f"{wait} already; try again later")

    def _enter(self, job: LearningJob) -> LearningJob:
        with self._lock:
            self._last = job.number
            self._known[job.number] = job
            self._waiting.append(job.number)
            for old in sorted(self._known)[:-MOST_REMEMBERED_JOBS]:
                if self._known[old].state in JOB_STATES[2:]:
                    del self._known[old]
        return job

    def read(self, number: int) -> tuple[Tensor, list[Any]]:
        """Read inputs and labels of a task."""
        return read_task(self.path(number))

    def get(self, number: int) -> LearningJob | None:
        """Return the state of a task; None if unknown."""
        return self._known.get(number)

    def next(self) -> LearningJob | None:
        """Return the task that has waited longest; it stays in the queue until it is done."""
        with self._lock:
            return self._known[self._waiting[0]] if self._waiting else None

    def done(self, number: int, error: str = "", refused: str = "") -> None:
        """Finish a task; the file of one that failed is renamed and kept."""
        with self._lock:
            self._waiting.remove(number)
            job = self._known[number]
            job.error = error or refused
            job.state = "failed" if error else "refused" if refused else "learnt"
        if error:
            self._set_aside(number)
        else:
            self.path(number).unlink(missing_ok=True)
            sync(self.folder)  # or a later one's number would let it be learnt twice

    def _set_aside(self, number: int) -> None:
        path = self.path(number)
        path.rename(path.with_name(path.name + ".failed"))
        sync(self.folder)


def read_task(path: Path) -> tuple[Tensor, list[Any]]:
    """Read inputs and labels from the file of a task."""
    file = TensorFile(path, what="task", framework="pt")
    try:
        x, y = file.get("x"), list(json.loads(file.facts["facts"])["y"])
    except (KeyError, TypeError, ValueError) as problem:
        raise RecordError(f"{path}: not a queued task") from problem
    if not x.ndim:
        raise RecordError(f"{path}: not a queued task")
    return x, y
