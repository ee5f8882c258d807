"""`ServedModel`: a model file, the learner that predicts from it, and the queue of its tasks;
`ServedStore`: the same for a store of versions.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from engram.deploy.calibration import DEFAULT_RATE
from engram.deploy.deployed_learner import Learner
from engram.deploy.model_store import ModelStore
from engram.deploy.monitor import Monitor
from engram.deploy.snapshot import LearnerSnapshot
from engram.deploy.table_inputs import encode_inputs
from engram.errors import EngramError, RecordError, bad, check_choice
from engram.io import DiskError, sync
from engram.novelty import detectors
from engram.records.locks import Claims
from engram.serve.job_queue import JobQueue, LearningJob
from engram.serve.log_lines import LogFacts
from engram.serve.service_metrics import ServiceMetrics
from engram.serve.training_process import LearningOutcome, TrainingProcess
from engram.serve.training_worker import find_job

LOG = logging.getLogger("engram.serve")
MONITOR_SECONDS = 15.0  # between two computations of what the monitor knows


class ServedLearner(NamedTuple):
    """What answers: replaced in one assignment, so that readers see the old one or the new one."""

    learner: Learner
    version: int | None = None

    @property
    def monitored(self) -> Any:
        """The learner, or its version of a store, as a `Monitor` takes it."""
        if self.version is None:
            return self.learner
        return MonitoredVersion(self.learner, VersionNumber(self.version))


class VersionNumber(NamedTuple):
    """A version of a store by its number."""

    number: int


class MonitoredVersion(NamedTuple):
    """A version of a store, as a `Monitor` takes it."""

    learner: Learner
    current: VersionNumber


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
    record
        Whether predictions, labels that come later and learnings are recorded (`Monitor.of`).
    """

    def __init__(
        self, name: str, path: str | os.PathLike[str], *, metrics: ServiceMetrics,
        device: str = "auto", trust: bool = False, queue: int = 100, record: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.metrics = name, metrics
        self.path = Path(path).resolve()  # a link must lead to the same queue and the same lock
        self.device, self.trust = device, trust
        folder = self.path.with_name(self.path.name + ".queue")
        if folder.exists() and not folder.is_dir():
            raise RecordError(f"{folder}: is not a folder, in which tasks could wait")
        folder.mkdir(exist_ok=True)
        self._claims = Claims(folder)
        if not self._claims.take("serve"):
            raise RecordError(f"{self.path}: is served by another process")
        self._served = self._open()
        self.jobs = JobQueue(folder, self._last_job(), most=queue)
        self.monitor = self._open_monitor() if record else None
        self._numbers: tuple[float, dict[str, float]] = -MONITOR_SECONDS, {}
        # unique to this process: a training process left by another service may still write
        self._next = folder / f"next-{os.getpid()}.engram"
        for left in folder.glob("next-*.engram"):
            with suppress(OSError):  # a folder of that name is not ours
                left.unlink()

    def close(self) -> None:
        """Let other processes serve the file."""
        self._claims.close()

    @property
    def learner(self) -> Learner:
        """The learner that answers now."""
        return self._served.learner

    @property
    def version(self) -> int | None:
        """Number of the version that is served; None without versions."""
        return self._served.version

    # -- requests ----------------------------------------------------------------------------------
    def predict(
        self, x: Any, task: int | None, probabilities: bool, ids: list[str] | None = None
    ) -> dict[str, Any]:
        """Predict labels of inputs, all by the same snapshot.

        With a monitor they are recorded under `ids`, or new ones, which the answer has.
        """
        served = self._served
        now = served.learner.snapshot
        x, found = _read_rows(x, now)
        if probabilities:
            found["classes"] = now.classes.tolist()
            found["probabilities"] = now.predict_proba(x, task).tolist()
        if self.monitor is None:
            if ids is not None:
                raise bad("ids", "none, because nothing is recorded (engram serve --record)", ids)
            labels = now.predict(x, task)
        else:
            labels, found["ids"] = self._predict_and_record(served, x, ids)
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
        x, found = _read_rows(x, learner.snapshot)
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

    def label(self, ids: list[str], y: list[Any]) -> int:
        """Record labels of rows that were predicted; returns their number."""
        if self.monitor is None:
            raise NotRecorded(f"{self.name}: nothing is recorded (engram serve --record)")
        self.monitor.label(ids, y)
        self.metrics.rows(self.name, "label", len(ids))
        return len(ids)

    @property
    def numbers(self) -> dict[str, float]:
        """How the model does, as `Monitor.numbers`; computed at most every few seconds."""
        if self.monitor is None:
            return {}
        if time.monotonic() - self._numbers[0] > MONITOR_SECONDS:
            self._numbers = time.monotonic(), self.monitor.numbers()
        return self._numbers[1]

    def _open_monitor(self) -> Monitor:
        facts = self.learner.snapshot.facts
        if facts["labels"] == "set" or facts["head"] == "multi":
            raise bad("--record", "models that predict one label among all classes", self.name)
        return Monitor.of(self.path, synced=False)

    def _predict_and_record(
        self, served: ServedLearner, x: Any, ids: list[str] | None
    ) -> tuple[Any, list[str] | None]:
        assert self.monitor is not None
        try:
            seen = self.monitor.predict(served.monitored, x, ids=ids)
        except (DiskError, OSError) as problem:  # an answer without a record is better than none
            LOG.warning("%s: predictions are not recorded: %s", self.name, problem)
            return served.learner.snapshot.predict(x), None
        return seen["label"].to_numpy(), seen["id"].tolist()

    def enqueue(self, x: Any, y: list[Any] | None, label: str | None = None) -> LearningJob:
        """Check a task as learning would, and queue it."""
        self.jobs.check_room()  # before the work of checking rows
        new = self.learner.prepare_task(x, y, label=label)
        job = self.jobs.add(new.x, new.labels)
        job.table = None if new.report is None else new.report.facts()
        return job

    @property
    def state(self) -> dict[str, Any]:
        """What is served in numbers: tasks, classes, waiting tasks, whether one is being learnt."""
        job = self.jobs.next()
        return {
            "tasks": self.learner.tasks, "version": self.version,
            "classes": len(self.learner.snapshot.classes),
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
            "columns": now.facts["inputs"].get("schema", {}).get("features"),
        }  # fmt: skip

    # -- learning ----------------------------------------------------------------------------------
    def learn_next(self, job: LearningJob, process: TrainingProcess) -> LearningOutcome:
        """Learn the task that has waited longest, and serve what came of it."""
        began = time.perf_counter()
        job.state = "learning"
        try:
            found = process.learn(
                **self._place(), task=str(self.jobs.path(job.number)), number=job.number,
                device=self.device, trust=self.trust,
            )  # fmt: skip
            if not found.error and not found.refused:
                self._take_over(job)
        except Exception as problem:  # such as a full disk; continue with the next task
            found = LearningOutcome(f"{type(problem).__name__}: {problem}")
        job.seconds = time.perf_counter() - began
        return found

    def finish(self, job: LearningJob, found: LearningOutcome) -> None:
        """Take a task out of the queue, count it and log it."""
        job.version = found.version
        if self.monitor is not None and not found.error and not found.refused:
            try:
                self.monitor.record_learning(self._served.monitored, *self.jobs.read(job.number))
            except (EngramError, OSError) as problem:  # it is learnt all the same
                LOG.warning("%s: a learning is not recorded: %s", self.name, problem)
        self.jobs.done(job.number, found.error, found.refused)
        self.metrics.job(self.name, job.state)
        if job.state == "learnt":
            self.metrics.rows(self.name, "learn", job.rows)
        told = LogFacts(
            event="job", model=self.name, job=job.number, state=job.state, rows=job.rows,
            seconds=round(job.seconds, 3), id=job.request,
        )  # fmt: skip
        if found.version is not None:
            told["version"] = found.version
        if job.error:
            told["error"] = job.error
        LOG.log(logging.INFO if job.state == "learnt" else logging.WARNING, told)

    # -- what a file does, and a store of versions does otherwise ----------------------------------
    def _open(self) -> ServedLearner:
        """Load what is served at first."""
        return ServedLearner(Learner.load(self.path, device=self.device, trust=self.trust))

    def _last_job(self) -> int:
        """Return the number of the task that was learnt last."""
        return int(self.learner.notes.get("job", 0))

    def _place(self) -> dict[str, str]:
        """Tell the training process what learns, and where the result goes."""
        return {"model": str(self.path), "out": str(self._next)}

    def _take_over(self, job: LearningJob) -> None:
        """Serve what the training process has made."""
        fresh = Learner.load(self._next, device=self.device, trust=self.trust)
        if fresh.notes.get("job") != job.number:
            raise EngramError("the process that learns has written another task's model")
        os.replace(self._next, self.path)
        sync(self.path.parent)
        self._served = ServedLearner(fresh)

    def follow(self) -> None:
        """Serve what others have changed since."""

    def require_store(self) -> ServedStore:
        """Return this if it is a store of versions."""
        raise NoVersions(f"{self.name}: is a model file, which has no versions (ModelStore.create)")


class NotRecorded(EngramError):
    """Raised when labels come for a model whose predictions are not recorded."""


class NoVersions(EngramError):
    """Raised when a model file is asked about versions."""


class ServedStore(ServedModel):
    """The folder of an `engram.ModelStore`, whose gate decides about each task.

    The pointer of the store says which version is served. It is followed when a task was learnt,
    after a roll-back, and when another process has changed it (`follow`).
    """

    def _open(self) -> ServedLearner:
        self.store = ModelStore(self.path, device=self.device, trust=self.trust)
        return ServedLearner(self.store.learner, self.store.current.number)

    def _last_job(self) -> int:
        made = find_job(self.store)
        return 0 if made is None else int((made.notes or {})["job"])

    def _place(self) -> dict[str, str]:
        return {"store": str(self.path)}

    def _take_over(self, job: LearningJob) -> None:
        self.follow()

    def follow(self) -> None:
        fresh = self.store.learner
        if fresh is not self.learner:
            self._served = ServedLearner(fresh, self.store.current.number)

    def require_store(self) -> ServedStore:
        return self

    def list_versions(self, most: int) -> list[dict[str, Any]]:
        """Return the records of the newest versions, the oldest first."""
        return [self.describe(number) for number in self.store.numbers[-most:]]

    def describe(self, number: int) -> dict[str, Any]:
        """Return the record of a version."""
        one = self.store.version(number)
        return {**one.plain(), "state": one.state}

    def change(self, verb: str, number: int) -> dict[str, Any]:
        """Serve another version: ``rollback`` to it, or ``accept`` one that was refused."""
        check_choice("verb", verb, ("rollback", "accept"))
        change = self.store.rollback if verb == "rollback" else self.store.accept
        made = change(number)
        self.follow()
        LOG.warning(LogFacts(event=verb, model=self.name, version=made.number))
        return self.describe(made.number)


def _read_rows(x: Any, now: LearnerSnapshot) -> tuple[Any, dict[str, Any]]:
    """Encode rows that are records; what they had that the first table did not is in the answer."""
    found: dict[str, Any] = {"tasks": now.stage + 1}
    x, report = encode_inputs(x, now.facts["inputs"])
    if report is not None:
        found["table"] = report.facts()
    return x, found
