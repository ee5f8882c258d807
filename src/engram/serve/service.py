"""`Service`: models by name, and the training processes that learn their tasks in turn."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engram.deploy.model_store import StoreBusy, is_store
from engram.errors import EngramError, bad, check_int, unknown
from engram.serve.job_queue import LearningJob
from engram.serve.served_model import ServedModel, ServedStore
from engram.serve.service_metrics import ServiceMetrics
from engram.serve.training_process import TrainingProcess

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ModelPath = str | os.PathLike[str]
FOLLOW_SECONDS = 1.0  # between two looks at what others have changed
CHANGE_SECONDS = 20.0  # to wait for a task in training before a version is changed
LOG = logging.getLogger("engram.serve")


class Service:
    """Models, each with its queue, and training processes that they share.

    A model learns one task at a time, in the order of its queue; models take turns.

    Parameters
    ----------
    models
        The path of a model, or paths by name; the first one answers where no name is given.
    queue
        Largest number of waiting tasks of each model.
    learn_seconds
        Time limit of one task.
    processes
        Number of training processes, which bounds how many models learn at once.
    record
        Whether predictions and labels that come later are recorded, for `engram monitor`.
    """

    def __init__(
        self, models: ModelPath | Mapping[str, ModelPath], *, device: str = "auto",
        trust: bool = False, queue: int = 100, learn_seconds: float = 3600.0, processes: int = 1,
        record: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(models, Mapping):
            models = name_models([str(models)])
        self.metrics = ServiceMetrics()
        self.models: dict[str, ServedModel] = {}
        try:
            for name, path in models.items():
                kind = ServedStore if is_store(path) else ServedModel
                self.models[name] = kind(
                    name, path, metrics=self.metrics, device=device, trust=trust, queue=queue,
                    record=record,
                )  # fmt: skip
        except BaseException:
            self._close()
            raise
        count = min(check_int("processes", processes, 1), len(self.models))
        self._processes = [TrainingProcess(learn_seconds) for _ in range(count)]
        self._turns, self._busy = list(self.models.values()), set[str]()
        self._wanted: list[str] = []  # models that are waited for to be changed
        self._changed, self._over = threading.Condition(), False
        self._threads = [
            threading.Thread(target=self._learn_all, args=(process,), name="learn", daemon=True)
            for process in self._processes
        ]
        self._threads.append(threading.Thread(target=self._follow, name="follow", daemon=True))

    def start(self) -> None:
        """Start learning the waiting tasks."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop; a task in training is learnt again after the next start."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        for process in self._processes:
            process.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=10)
        for process in self._processes:
            process.close()
        self._close()

    def _close(self) -> None:
        for model in self.models.values():
            model.close()

    @property
    def first(self) -> ServedModel:
        """The model that answers where no name is given."""
        return next(iter(self.models.values()))

    def find(self, name: str) -> ServedModel:
        """Return the model of a name."""
        if name not in self.models:
            raise unknown("model", name, self.models)
        return self.models[name]

    def learn(
        self, model: ServedModel, x: Any, y: list[Any] | None, request: str = "",
        label: str | None = None,
    ) -> LearningJob:  # fmt: skip
        """Queue a task of a model; `request` is the id of the request that asked for it."""
        job = model.enqueue(x, y, label)
        job.request = request
        with self._changed:
            self._changed.notify_all()
        return job

    def change(self, model: ServedStore, verb: str, number: int) -> dict[str, Any]:
        """Serve another version of a model, between two of its tasks."""
        with self._changed:
            self._wanted.append(model.name)  # its next task waits
            free = self._changed.wait_for(lambda: model.name not in self._busy, CHANGE_SECONDS)
            self._wanted.remove(model.name)
            if not free:
                self._changed.notify_all()
                raise StoreBusy(f"{model.name}: a task is being learnt; try again")
            self._busy.add(model.name)
        try:
            return model.change(verb, number)
        finally:
            with self._changed:
                self._busy.discard(model.name)
                self._changed.notify_all()

    @property
    def ready(self) -> bool:
        """Whether the service predicts and learns: it has started, and is not stopping."""
        return not self._over and all(thread.is_alive() for thread in self._threads)

    # -- learning ----------------------------------------------------------------------------------
    def _learn_all(self, process: TrainingProcess) -> None:
        while (model := self._wait_for_turn()) is not None:
            job = model.jobs.next()
            assert job is not None  # only this thread takes from the queue of a busy model
            found = model.learn_next(job, process)
            if self._over and found.error:
                return  # stopped with the service: it is learnt after the next start
            model.finish(job, found)
            with self._changed:
                self._busy.discard(model.name)
                self._changed.notify_all()

    def _wait_for_turn(self) -> ServedModel | None:
        """Wait for a model with a task; the one that learnt last comes last. None when stopped."""
        with self._changed:
            while not self._over:
                for model in self._turns:
                    if model.name not in (*self._busy, *self._wanted) and len(model.jobs):
                        self._busy.add(model.name)
                        self._turns.remove(model)
                        self._turns.append(model)
                        return model
                self._changed.wait()
        return None

    def _follow(self) -> None:
        """Serve what other processes have changed."""
        while not self._over:
            with self._changed:
                self._changed.wait_for(lambda: self._over, FOLLOW_SECONDS)
            for model in self.models.values():
                try:
                    model.follow()
                except (EngramError, OSError) as problem:  # the version in hand is still served
                    LOG.warning("%s: its store cannot be followed: %s", model.name, problem)


def name_models(given: list[str]) -> dict[str, Path]:
    """Read ``PATH`` or ``NAME=PATH``; the name of a path alone is that of the file.

    Examples
    --------
    >>> name_models(["models/cats.engram", "night=models/dogs.engram"])
    {'cats': PosixPath('models/cats.engram'), 'night': PosixPath('models/dogs.engram')}
    >>> name_models(["a/model.engram", "b/model.engram"])
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: MODEL: expected a name of its own for each ..., got 'model'
    """
    found: dict[str, Path] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not equals or os.path.exists(one):
            name, path = Path(one).resolve().name.removesuffix(".engram"), one
            if not MODEL_NAME.fullmatch(name):
                name = re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-")[:64] or "model"
        if not MODEL_NAME.fullmatch(name):
            expected = "a name of letters, digits and . _ -, at most 64, before the = of NAME=PATH"
            raise bad("MODEL", expected, one)
        if name in found:
            raise bad("MODEL", "a name of its own for each model (NAME=PATH)", name)
        found[name] = Path(path)
    return found


def require_model(path: Path) -> Path:
    """Check that a model file or a store of versions exists; the error says how to get one."""
    if is_store(path):
        return path
    if path.is_dir():
        expected = "a model file (--label NAME --to model.engram saves one of a run) or a store"
        raise bad("MODEL", expected, str(path))
    if not path.is_file():
        raise bad("MODEL", "a model file that a learner saved", str(path))
    return path
