"""What makes a learner an estimator in scikit-learn's manner: parameters, fit, clone, pipelines."""

from __future__ import annotations

import threading
from dataclasses import fields, replace
from typing import Any, Self

import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError

from engram.data.core import Data
from engram.deploy.data_sets import labelled
from engram.deploy.detectors import keyed_detectors
from engram.deploy.extend import Settings
from engram.deploy.labels import Array, as_labels, as_names
from engram.deploy.published import Published
from engram.engine.backend import device_of
from engram.engine.checkpoints.portable import Portable
from engram.engine.training import Training
from engram.errors import EngramError, bad, unknown, whole
from engram.memory import Memory
from engram.methods.base import Method
from engram.novelty.base import Detector
from engram.recipes.names import build_method
from engram.recipes.plain import from_plain, to_plain
from engram.recipes.sections import model_section

TRAINING = tuple(one.name for one in fields(Training))
OWN = ("method", "model", "memory", "capacity", "detectors", "seed", "device")


class NothingLearnt(EngramError, NotFittedError):  # type: ignore[misc]
    """A learner was asked before it was taught."""


class Estimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Arguments and what was learnt so far; how to learn is for subclasses to say."""

    method: Any
    model: Any
    memory: Memory | int | None
    capacity: int
    detectors: Any
    seed: int
    device: str
    _training: dict[str, Any]
    _settings: Settings
    _device: torch.device
    _keyed: dict[str, Detector]
    _lock: Any
    _portable: Portable | None
    _published: Published | None
    _kind: str  # of labels

    def learn(self, x: Any, y: Any = None) -> Self:
        """Learn a task."""
        raise NotImplementedError

    def score(self, x: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy on rows and their labels, or on the test rows of a `Data`."""
        if isinstance(x, Data):
            if y is not None:
                raise bad("y", "None, because data has its own labels", type(y).__name__)
            x, y = labelled(x, x.test)
        return float(super().score(x, y, sample_weight))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, those of training that were given included."""
        return {name: getattr(self, name) for name in OWN} | self._training

    def set_params(self, **params: Any) -> Self:
        """Change arguments, which is to begin anew."""
        for name, value in params.items():
            if name not in (*OWN, *TRAINING):
                raise unknown("set_params", name, (*OWN, *TRAINING))
            if name in TRAINING:
                self._training[name] = value
            else:
                setattr(self, name, value)
        if params:
            self._forget()
            self._check()
        return self

    def __repr__(self) -> str:
        usual = {"memory": None, "capacity": 16, "detectors": self.detectors, "device": self.device}
        usual |= to_plain(Training())
        given = {k: v for k, v in self.get_params().items() if k not in usual or v != usual[k]}
        shown = ", ".join(f"{k}={v!r}" for k, v in given.items())
        return f"{type(self).__name__}({shown})"

    def __sklearn_is_fitted__(self) -> bool:
        return self._published is not None

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_published")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._published = threading.RLock(), None
        if self._portable is not None:
            self._publish(self._portable)

    def fit(self, x: Any, y: Any = None) -> Self:
        """Begin anew, with these rows as the only task."""
        with self._lock:
            self._forget()
            return self.learn(x, y)

    def partial_fit(self, x: Any, y: Any, classes: Any = None) -> Self:
        """As `learn`; `classes`, where given, are all that will ever come, and get room at once."""
        if classes is not None:
            every = set(as_names(as_labels(classes, len(classes), "classes")[0]))
            if strange := sorted(set(as_names(as_labels(y, len(x))[0])) - every):
                raise bad("y", f"labels among classes {sorted(every)[:10]}", strange[:5])
            room = max(self._settings.capacity, len(every))
            self._settings = replace(self._settings, capacity=room)
        return self.learn(x, y)

    @property
    def classes_(self) -> Array:
        """The labels known so far, sorted; columns of `predict_proba` have this order."""
        return self._now.classes

    # -- inside ------------------------------------------------------------------------------------
    def _forget(self) -> None:
        self._portable, self._published, self._kind = None, None, ""

    def _check(self) -> None:
        """Refuse arguments that cannot work, before anything is learnt."""
        method = build_method(self.method)
        if self.memory is not None:
            method = with_memory(method, self.memory)
        self._settings = Settings(
            method=method, model=model_section(self.model), seed=whole("seed", self.seed),
            training=from_plain(Training, self._training, path="training"),
            capacity=whole("capacity", self.capacity, 1),
        )  # fmt: skip
        self._device = device_of(self.device)
        self._keyed = keyed_detectors(self.detectors)

    def _publish(self, found: Portable) -> None:
        """From here on readers see what was learnt: one assignment, so never half of it."""
        published = Published(
            found, self._settings, kind=self._kind, device=self._device, detectors=self._keyed
        )
        self._portable, self._published = found, published

    @property
    def _now(self) -> Published:
        now = self._published  # read once: another thread may publish the next one
        if now is None:
            raise NothingLearnt("nothing has been learnt yet: call learn(x, y) or fit(x, y) first")
        return now


def with_memory(method: Method, memory: Memory | int) -> Method:
    """The method with another memory.

    Examples
    --------
    >>> with_memory(build_method("ER"), 100).memory.total
    100
    """
    if isinstance(memory, int):
        memory = Memory(total=whole("memory", memory, 1))
    if not any(one.name == "memory" for one in fields(method)):
        expected = f"None, because {type(method).__name__} keeps no exemplars"
        raise bad("memory", expected, memory)
    changed: Method = replace(method, memory=memory)  # type: ignore[call-arg]
    return changed
