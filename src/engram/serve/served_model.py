"""`ServedModel`: a model file, the learner that predicts from it, and the queue of its tasks."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from engram.deploy.calibration import DEFAULT_RATE
from engram.deploy.deployed_learner import Learner
from engram.deploy.new_task import NewTask
from engram.errors import EngramError, RecordError, bad, check_choice
from engram.io import sync
from engram.novelty import detectors
from engram.records.locks import Claims
from engram.serve.job_queue import JobQueue, LearningJob
from engram.serve.log_lines import LogFacts
from engram.serve.service_metrics import ServiceMetrics
from engram.serve.training_process import TrainingProcess

LOG = logging.getLogger("engram.serve")


class ServedModel:
    """A model that answers requests, and learns the tasks of its queue when its turn comes.

    The file always holds the last learnt task: the training process writes a second file, which
    then replaces it atomically. If that process dies, the learner is unaffected.

    Parameters
    ----------
    name
        What requests and metrics call it.
    path
        A model file written by `Learner.save`; it is replaced as tasks are learnt.
    queue
        Largest number of waiting tasks.
    """

    def __init__(
        self, name: str, path: str | os.PathLike[str], *, metrics: ServiceMetrics,
        device: str = "auto", trust: bool = False, queue: int = 100,
    ) -> None:  # fmt: skip
        self.name, self.metrics = name, metrics
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
        # unique to this process: a training process left by another service may still write
        self._next = folder / f"next-{os.getpid()}.engram"
        for left in folder.glob("next-*.engram"):
            with suppress(OSError):  # a folder of that name is not ours
                left.unlink()

    def close(self) -> None:
        """Let other processes serve the file."""
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
        self.metrics.rows(self.name, "predict", len(found["labels"]))
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
        self.metrics.rows(self.name, "novelty", len(found["novelty"]))
        return found

    def enqueue(self, x: Any, y: list[Any]) -> LearningJob:
        """Check a task as learning would, and queue it."""
        self.jobs.check_room()  # before the work of checking rows
        learner = self.learner
        new = NewTask.from_arrays(x, y, None, learner.snapshot.facts["inputs"])
        learner.check_task(new)
        return self.jobs.add(new.x, y)

    @property
    def state(self) -> dict[str, Any]:
        """What is served in numbers: tasks, classes, waiting tasks, whether one is being learnt."""
        job = self.jobs.next()
        return {
            "tasks": self.learner.tasks, "classes": len(self.learner.snapshot.classes),
            "queued": len(self.jobs), "learning": job is not None and job.state == "learning",
        }  # fmt: skip

    @property
    def health(self) -> dict[str, Any]:
        """What is served, and what waits to be learnt."""
        now = self.learner.snapshot
        return {
            "status": "ok", "model": self.name, **self.state, "classes": now.classes.tolist(),
            "input_shape": now.facts["inputs"]["shape"], "input_type": now.facts["inputs"]["dtype"],
            "method": type(now.method).__name__, "heads": now.facts["head"],
            "label_sets": now.facts["labels"] == "set",
        }  # fmt: skip

    # -- learning ----------------------------------------------------------------------------------
    def learn_next(self, job: LearningJob, process: TrainingProcess) -> str:
        """Learn the task that has waited longest; returns the error, if any."""
        began = time.perf_counter()
        job.state = "learning"
        try:
            error = process.learn(
                model=str(self.path), task=str(self.jobs.path(job.number)), out=str(self._next),
                number=job.number, device=self.device, trust=self.trust,
            )  # fmt: skip
            if not error:
                self._take_over(job)
        except Exception as problem:  # such as a full disk; continue with the next task
            error = f"{type(problem).__name__}: {problem}"
        job.seconds = time.perf_counter() - began
        return error

    def finish(self, job: LearningJob, error: str) -> None:
        """Take a task out of the queue, say so and count it."""
        self.jobs.done(job.number, error)
        self.metrics.job(self.name, job.state)
        told = LogFacts(
            event="job", model=self.name, job=job.number, state=job.state, rows=job.rows,
            seconds=round(job.seconds, 3), id=job.request,
        )  # fmt: skip
        if error:
            told["error"] = error
        LOG.log(logging.WARNING if error else logging.INFO, told)

    def _take_over(self, job: LearningJob) -> None:
        fresh = Learner.load(self._next, device=self.device, trust=self.trust)
        if fresh.notes.get("job") != job.number:
            raise EngramError("the process that learns has written another task's model")
        os.replace(self._next, self.path)
        sync(self.path.parent)
        self.learner = fresh  # one assignment: readers see the old one or the new one
        self.metrics.rows(self.name, "learn", job.rows)
