"""`Service`: a learner that predicts, the process that trains it (`TrainingProcess`), and the
queue of tasks (`JobQueue`).
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from engram.deploy.calibration import DEFAULT_RATE
from engram.deploy.deployed_learner import Learner
from engram.deploy.new_task import NewTask
from engram.errors import EngramError, RecordError, bad, check_choice
from engram.io import TensorFile, save_tensors, sync
from engram.novelty import detectors
from engram.records.locks import Claims
from engram.serve.service_metrics import ServiceMetrics

LOG = logging.getLogger("engram.serve")


class Service:
    """A model file, its learner, and the tasks to learn.

    The file always holds the last learnt task: the training process writes a second file, which
    then replaces it atomically. If that process dies, the learner is unaffected.

    Parameters
    ----------
    path
        A model file written by `Learner.save`; it is replaced as tasks are learnt.
    queue
        Largest number of waiting tasks.
    learn_seconds
        Time limit of one task.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, device: str = "auto", trust: bool = False,
        queue: int = 100, learn_seconds: float = 3600.0,
    ) -> None:  # fmt: skip
        self.path = Path(path).resolve()  # a link must lead to the same queue and the same lock
        self.device, self.trust = device, trust
        self.learner = Learner.load(self.path, device=device, trust=trust)
        folder = self.path.with_name(self.path.name + ".queue")
        if folder.exists() and not folder.is_dir():
            raise RecordError(f"{folder}: is not a folder, in which tasks could wait")
        folder.mkdir(exist_ok=True)
        self._claims = Claims(folder)
        if not self._claims.take("serve"):
            raise RecordError(f"{self.path}: is served by another process")
        self.jobs = JobQueue(folder, int(self.learner.notes.get("job", 0)), most=queue)
        self.metrics = ServiceMetrics()
        # unique to this process: a training process left by another service may still write
        self._next = folder / f"next-{os.getpid()}.engram"
        for left in folder.glob("next-*.engram"):
            with suppress(OSError):  # a folder of that name is not ours
                left.unlink()
        self._learning = TrainingProcess(learn_seconds)
        self._wake, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._learn_all, name="learn", daemon=True)

    def start(self) -> None:
        """Start learning the waiting tasks."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; a task in training is learnt again after the next start."""
        self._over.set()
        self._wake.set()
        self._learning.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._learning.close()
        self._claims.close()

    # -- requests ----------------------------------------------------------------------------------
    def predict(self, x: Any, task: int | None, probabilities: bool) -> dict[str, Any]:
        """Predict labels of inputs, all by the same snapshot."""
        now = self.learner.snapshot
        found: dict[str, Any] = {"tasks": now.stage + 1}
        if probabilities:
            found["classes"] = now.classes.tolist()
            found["probabilities"] = now.predict_proba(x, task).tolist()
        labels = now.predict(x, task)
        found["labels"] = labels if isinstance(labels, list) else labels.tolist()
        self.metrics.rows("predict", len(found["labels"]))
        return found

    def novelty(
        self, x: Any, detector: str | None, task: int | None, rate: float | None = None,
        per_class: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Compute novelty scores; detectors by name only, so that no module is imported.

        A learner with calibration rows adds p-values and alarms, at a rate of 0.05 by default.
        """
        learner = self.learner
        if detector is not None:
            check_choice("detector", detector, detectors())
        found: dict[str, Any] = {"tasks": learner.tasks}
        wanted = rate is not None or per_class
        if not wanted and (task is not None or learner.snapshot.explain_no_alarm()):
            found["novelty"] = learner.novelty(x, detector=detector, task=task).tolist()
        elif task is not None:
            raise bad("task", "none for alarms, which are about all classes", task)
        else:
            found["rate"] = DEFAULT_RATE if rate is None else rate
            asked = learner.alarm(x, found["rate"], detector=detector, per_class=per_class)
            found |= {name: one.tolist() for name, one in asked._asdict().items()}
        self.metrics.rows("novelty", len(found["novelty"]))
        return found

    def learn(self, x: Any, y: list[Any]) -> LearningJob:
        """Check a task as learning would, and queue it."""
        self.jobs.check_room()  # before the work of checking rows
        learner = self.learner
        new = NewTask.from_arrays(x, y, None, learner.snapshot.facts["inputs"])
        learner.check_task(new)
        job = self.jobs.add(new.x, y)
        self._wake.set()
        return job

    @property
    def ready(self) -> bool:
        """Whether the service predicts and learns: it has started, and is not stopping."""
        return self._thread.is_alive() and not self._over.is_set()

    @property
    def health(self) -> dict[str, Any]:
        """Return the state of the service."""
        now = self.learner.snapshot
        job = self.jobs.next()
        return {
            "status": "ok", "tasks": now.stage + 1, "classes": now.classes.tolist(),
            "input_shape": now.facts["inputs"]["shape"], "input_type": now.facts["inputs"]["dtype"],
            "queued": len(self.jobs), "learning": job is not None and job.state == "learning",
            "method": type(now.method).__name__, "heads": now.facts["head"],
            "label_sets": now.facts["labels"] == "set",
        }  # fmt: skip

    # -- learning ----------------------------------------------------------------------------------
    def _learn_all(self) -> None:
        while not self._over.is_set():
            job = self.jobs.next()
            if job is None:
                self._wake.wait()
                self._wake.clear()
                continue
            began = time.perf_counter()
            job.state = "learning"
            try:
                error = self._learn(job)
            except Exception as problem:  # such as a full disk; continue with the next task
                error = f"{type(problem).__name__}: {problem}"
            if self._over.is_set():
                return  # stopped with the service: it is learnt after the next start
            job.seconds = time.perf_counter() - began
            self.jobs.done(job.number, error)
            self.metrics.job("failed" if error else "learnt")

    def _learn(self, job: LearningJob) -> str:
        """Train a task in the other process and take over its model; returns the error, if any."""
        error = self._learning.learn(
            model=str(self.path), task=str(self.jobs.path(job.number)), out=str(self._next),
            number=job.number, device=self.device, trust=self.trust,
        )  # fmt: skip
        if not error:
            self._take_over(job)
        return error

    def _take_over(self, job: LearningJob) -> None:
        fresh = Learner.load(self._next, device=self.device, trust=self.trust)
        if fresh.notes.get("job") != job.number:
            raise EngramError("the process that learns has written another task's model")
        os.replace(self._next, self.path)
        sync(self.path.parent)
        self.learner = fresh  # one assignment: readers see the old one or the new one
        self.metrics.rows("learn", job.rows)


class QueueFull(EngramError):
    """Raised when too many tasks wait."""


def require_model_file(path: Path) -> Path:
    """Check that a model file exists; the error says how to get one."""
    if path.is_dir():
        expected = "a model file (--label NAME --to model.engram saves one from a run directory)"
        raise bad("MODEL", expected, str(path))
    if not path.is_file():
        raise bad("MODEL", "a model file that a learner saved", str(path))
    return path


# The training process, started when needed, and again if it dies.


class TrainingProcess:
    """Process that learns one task after the other.

    Parameters
    ----------
    seconds
        Time limit of a task, after which the process is killed.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._process: subprocess.Popen[str] | None = None
        self._late = threading.Event()
        self._said: Any = None

    def learn(self, **order: Any) -> str:
        """Learn a task and wait for it; returns the error, if any."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018
        self._late.clear()
        alarm = threading.Timer(self.seconds, self._end)
        alarm.start()
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # it died before reading
            line = ""
        finally:
            alarm.cancel()
        if line:
            return str(json.loads(line)["error"])
        code, words = process.wait(), self._read_last_line()
        self.close()
        if self._late.is_set():
            return f"learning took more than {self.seconds:g} seconds and was ended"
        how = f"signal {-code}" if code < 0 else f"code {code}"
        return f"the training process ended with {how}: {words or 'no message'}"

    def stop(self) -> None:
        """End the process, which makes a waiting `learn` return an error."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the process and release it; no `learn` may be waiting."""
        self.stop()
        process, self._process = self._process, None
        for end in () if process is None else (process.stdin, process.stdout, self._said):
            if end is not None:
                with suppress(OSError):  # unsent data for a dead process
                    end.close()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engram.serve.training_worker"], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self._said, text=True,
            )  # fmt: skip
        return self._process

    def _end(self) -> None:
        self._late.set()
        self.stop()

    def _read_last_line(self) -> str:
        self._said.seek(0)
        lines: list[str] = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


# The queue of tasks, as files that survive the process.


JOB_STATES = ("queued", "learning", "learnt", "failed")
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

    def done(self, number: int, error: str = "") -> None:
        """Finish a task; the file of one that failed is renamed and kept."""
        with self._lock:
            self._waiting.remove(number)
            job = self._known[number]
            job.state, job.error = ("failed", error) if error else ("learnt", "")
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
