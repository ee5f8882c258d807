"""Tasks that wait to be learnt, as files: accepted is kept, whatever happens to the process."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from engram.errors import RecordError
from engram.tensor_file import TensorFile, save_tensors

STATES = ("queued", "learning", "learnt", "failed")
REMEMBERED = 1000  # jobs whose end is still known


@dataclass
class Job:
    """One task: what became of it so far."""

    number: int
    rows: int
    state: str = "queued"
    error: str = ""
    seconds: float = 0.0


class Jobs:
    """A queue in a folder: ``task-000001.safetensors`` until it is learnt.

    Numbers go on after the last one that the model has learnt, so a task that was learnt just
    before the process died is not learnt twice.

    Examples
    --------
    >>> import tempfile, torch
    >>> jobs = Jobs(Path(tempfile.mkdtemp()), learnt=4)
    >>> jobs.add(torch.zeros(2, 3), ["a", "b"]).number, len(jobs)
    (5, 1)
    >>> jobs.next().rows, jobs.read(5)[1]
    (2, ['a', 'b'])
    >>> jobs.done(5)
    >>> len(jobs), jobs.get(5).state
    (0, 'learnt')
    """

    def __init__(self, folder: Path, learnt: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._known: dict[int, Job] = {}
        self._waiting: list[int] = []
        self._last = learnt
        for path in sorted(folder.glob("task-*.safetensors*")):
            number = int(path.name.split("-")[1].split(".")[0])
            self._last = max(self._last, number)
            if path.name.endswith(".failed"):
                continue
            if number <= learnt:
                path.unlink()
                continue
            self._known[number] = Job(number, len(self.read(number)[0]))
            self._waiting.append(number)

    def __len__(self) -> int:
        return len(self._waiting)

    def path(self, number: int) -> Path:
        """The file of a task."""
        return self.folder / f"task-{number:06d}.safetensors"

    def add(self, x: Tensor, y: list[Any]) -> Job:
        """Keep a task; it is on the disk when this returns."""
        with self._lock:
            self._last += 1
            number = self._last
        save_tensors(self.path(number), {"x": x.contiguous()}, {"facts": json.dumps({"y": y})})
        with self._lock:
            job = self._known[number] = Job(number, len(x))
            self._waiting.append(number)
            self._waiting.sort()
            for old in sorted(self._known)[:-REMEMBERED]:
                if self._known[old].state in STATES[2:]:
                    del self._known[old]
        return job

    def read(self, number: int) -> tuple[Tensor, list[Any]]:
        """Inputs and labels of a task."""
        return read_task(self.path(number))

    def get(self, number: int) -> Job | None:
        """What is known of a task."""
        return self._known.get(number)

    def next(self) -> Job | None:
        """The task that has waited longest; it stays in the queue until it is done."""
        with self._lock:
            return self._known[self._waiting[0]] if self._waiting else None

    def done(self, number: int, error: str = "") -> None:
        """A task was learnt, or cannot be: then its file stays, with another name."""
        with self._lock:
            self._waiting.remove(number)
            job = self._known[number]
            job.state, job.error = ("failed", error) if error else ("learnt", "")
        path = self.path(number)
        if error:
            path.rename(path.with_name(path.name + ".failed"))
        else:
            path.unlink(missing_ok=True)


def read_task(path: Path) -> tuple[Tensor, list[Any]]:
    """Inputs and labels of a task's file."""
    file = TensorFile(path, what="task", framework="pt")
    try:
        return file.get("x"), list(json.loads(file.facts["facts"])["y"])
    except (KeyError, ValueError) as problem:
        raise RecordError(f"{path}: is not a task that was queued") from problem
