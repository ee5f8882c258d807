"""What is served: a learner that many may ask, while another process learns the next task."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from engram.deploy.extend import NewTask
from engram.deploy.learner import Learner
from engram.disk import sync
from engram.errors import EngramError, RecordError, bad, choose
from engram.novelty import detectors
from engram.records.claims import Claims
from engram.serve.jobs import Job, Jobs
from engram.serve.learning import Learning
from engram.serve.metrics import Metrics


class Service:
    """A model file, the learner that was in it, and the tasks that it is to learn.

    The file always holds the last task that was learnt: a process that learns writes beside it, and
    what it wrote takes its place at once. Whatever that process dies of, the learner stays.

    Parameters
    ----------
    path
        A model file that `Learner.save` wrote; it is replaced as tasks are learnt.
    queue
        How many tasks may wait.
    learn_seconds
        How long one task may take.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, device: str = "auto", trust: bool = False,
        queue: int = 100, learn_seconds: float = 3600.0,
    ) -> None:  # fmt: skip
        self.path = Path(path)
        self.device, self.trust, self.queue = device, trust, queue
        self.learner = Learner.load(self.path, device=device, trust=trust)
        folder = self.path.with_name(self.path.name + ".queue")
        folder.mkdir(exist_ok=True)
        self._claims = Claims(folder)
        if not self._claims.take("serve"):
            raise RecordError(f"{self.path}: is served by another process")
        self.jobs = Jobs(folder, int(self.learner.notes.get("job", 0)))
        self.metrics = Metrics()
        # of this process alone: a learning process that outlived another service may still write
        self._next = folder / f"next-{os.getpid()}.engram"
        for left in folder.glob("next-*.engram"):
            left.unlink(missing_ok=True)
        self._learning = Learning(learn_seconds)
        self._wake, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._learn_all, name="learn", daemon=True)

    def start(self) -> None:
        """Begin with what waits."""
        self._thread.start()

    def stop(self) -> None:
        """End; a task that is being learnt is learnt again after the next start."""
        self._over.set()
        self._wake.set()
        self._learning.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._learning.close()
        self._claims.close()

    # -- asking ------------------------------------------------------------------------------------
    def predict(self, x: Any, task: int | None, probabilities: bool) -> dict[str, Any]:
        """Labels of inputs, all of one and the same published network."""
        now = self.learner.published
        found: dict[str, Any] = {"tasks": now.stage + 1}
        if probabilities:
            found["classes"] = now.classes.tolist()
            found["probabilities"] = now.predict_proba(x, task).tolist()
        labels = now.predict(x, task)
        found["labels"] = labels if isinstance(labels, list) else labels.tolist()
        self.metrics.rows("predict", len(found["labels"]))
        return found

    def novelty(self, x: Any, detector: str | None, task: int | None) -> dict[str, Any]:
        """How novel inputs are; detectors by name only, for a name of a module would run code."""
        learner = self.learner
        if detector is not None:
            choose("detector", detector, detectors())
        found = learner.novelty(x, detector=detector, task=task).tolist()
        self.metrics.rows("novelty", len(found))
        return {"novelty": found, "tasks": learner.tasks}

    def learn(self, x: Any, y: list[Any]) -> Job:
        """Check a task as learning would, and keep it for later."""
        if len(self.jobs) >= self.queue:
            count = len(self.jobs)
            wait = "1 task waits" if count == 1 else f"{count} tasks wait"
            raise QueueFull(f"{wait} already; try again later")
        learner = self.learner
        new = NewTask.of(x, y, None, learner.published.facts["inputs"])
        learner.refuse(new)
        job = self.jobs.add(new.x, y)
        self._wake.set()
        return job

    @property
    def health(self) -> dict[str, Any]:
        """What is there."""
        now = self.learner.published
        job = self.jobs.next()
        return {
            "status": "ok", "tasks": now.stage + 1, "classes": now.classes.tolist(),
            "input_shape": now.facts["inputs"]["shape"], "input_type": now.facts["inputs"]["dtype"],
            "queued": len(self.jobs), "learning": job is not None and job.state == "learning",
            "method": type(now.method).__name__, "heads": now.facts["head"],
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
            except Exception as problem:  # the disk, say; the next task may fare better
                error = f"{type(problem).__name__}: {problem}"
            if self._over.is_set():
                return  # killed with us: it is learnt after the next start
            job.seconds = time.perf_counter() - began
            self.jobs.done(job.number, error)
            self.metrics.job("failed" if error else "learnt")

    def _learn(self, job: Job) -> str:
        """Let the other process learn a task and take over what it made; why not, in words."""
        error = self._learning.learn(
            model=str(self.path), task=str(self.jobs.path(job.number)), out=str(self._next),
            number=job.number, device=self.device, trust=self.trust,
        )  # fmt: skip
        if not error:
            self._take_over(job)
        return error

    def _take_over(self, job: Job) -> None:
        fresh = Learner.load(self._next, device=self.device, trust=self.trust)
        if fresh.notes.get("job") != job.number:
            raise EngramError("the process that learns has written another task's model")
        os.replace(self._next, self.path)
        sync(self.path.parent)
        self.learner = fresh  # one assignment: readers have the old one or the new one
        self.metrics.rows("learn", job.rows)


class QueueFull(EngramError):
    """Too many tasks wait."""


def need_model(path: Path) -> Path:
    """A model file, or a complaint that says how to get one."""
    if path.is_dir():
        expected = "a model file (--label NAME --to model.engram saves one from a run directory)"
        raise bad("MODEL", expected, str(path))
    if not path.is_file():
        raise bad("MODEL", "a model file that a learner saved", str(path))
    return path
