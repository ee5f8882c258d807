"""`Estimator`, the scikit-learn side of a learner (parameters, fit, clone); training rows from
data sets; novelty detectors of a learner.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from engram.data.dataset import Data
from engram.data.label_checks import MAX_CLASSES
from engram.data.standardization import fit_standardization
from engram.data.tables.table_rows import is_table
from engram.deploy.new_task import (
    Array,
    LearnerSettings,
    RowLabels,
    convert_labels,
    label_kind,
    labels_to_names,
    names_to_labels,
)
from engram.deploy.snapshot import LearnerSnapshot
from engram.deploy.table_inputs import describe_first, read_later_table, translate_data
from engram.engine.backend import resolve_device
from engram.engine.portable_state import PortableState
from engram.engine.training import Training
from engram.errors import EngramError, bad, check_choice, check_int, unknown
from engram.experiments.build_methods import build_method
from engram.experiments.build_probes import build_detectors, key_probes
from engram.experiments.plain_values import from_plain, to_plain
from engram.experiments.recipe_sections import check_model_section
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import pick, stack
from engram.losses import multi_hot
from engram.memory import Memory
from engram.methods.method import Method, rereads_rows
from engram.metrics import precision_weighted_jaccard
from engram.novelty.detector import REFITS, Detector, gather_facts
from engram.probes.stage_view import StageView
from engram.records.scored_items import EvaluationItems
from engram.records.stage_result import StageResult

TRAINING_PARAMETERS = tuple(one.name for one in fields(Training))
OWN_PARAMETERS = (
    "method", "model", "memory", "capacity", "detectors", "refit", "calibration", "seed", "device",
)  # fmt: skip


class LearnerNotFitted(EngramError, NotFittedError):  # type: ignore[misc]
    """Raised when a learner is used before it has learnt anything."""


class Estimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Parameters and learnt state of a learner; subclasses implement `learn`."""

    method: Any
    model: Any
    memory: Memory | int | None
    capacity: int
    detectors: Any
    refit: str | None
    calibration: int
    seed: int
    device: str
    _training: dict[str, Any]
    _settings: LearnerSettings
    _device: torch.device
    _keyed: dict[str, Detector]
    _limited: bool  # whether detectors keep a limited number of rows of each class
    _lock: Any
    _portable: PortableState | None
    _snapshot: LearnerSnapshot | None
    _kind: str  # kind of the labels
    _notes: dict[str, Any]

    def learn(self, x: Any, y: Any = None) -> Self:
        """Learn a task."""
        raise NotImplementedError

    def score(self, x: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Compute the accuracy on rows with labels, or on the test rows of a `Data`.

        A table may have its labels itself, in the column that was learnt from.

        For label sets, the precision-weighted Jaccard similarity over the labels learnt so far;
        rows that have none of them do not count.
        """
        if isinstance(x, Data):
            if y is not None:
                raise bad("y", "None, because data has its own labels", type(y).__name__)
            x = translate_data(x, self._now.facts["inputs"])
            x, y = select_labelled(x, x.test, self._kind)
        elif y is None:
            x, y = self._read_labels(x)
        if self._now.facts["labels"] == "set":
            if sample_weight is not None:
                raise bad("sample_weight", "None, for sets of labels", type(sample_weight).__name__)
            return self._score_label_sets(x, y)
        return float(super().score(x, y, sample_weight))

    def _read_labels(self, x: Any) -> tuple[Any, Any]:
        """The features of a table and its own labels."""
        if not is_table(x):
            raise bad("y", "a label for each row", None)
        found = read_later_table(x, None, None, self._now.facts["inputs"])
        if found.report is not None:
            found.report.warn()
        return found.x, name_labels(found.y, found.classes or [], self._kind)

    def _score_label_sets(self, x: Any, y: Any) -> float:
        scores = self._now.scores(x)
        labels = RowLabels.read(y, len(scores))
        if labels.kind != self._kind:
            raise bad("y", f"labels of the kind learnt before ({self._kind})", labels.kind)
        known = self._now.facts["classes"]
        truth = multi_hot(labels.places(known), len(known), torch.bool)
        counts = truth.any(-1)
        if not bool(counts.any()):
            raise bad("y", "rows with labels learnt so far", labels.classes[:5])
        said = scores[counts, : len(known)] > 0
        return float(precision_weighted_jaccard(truth[counts].numpy(), said.numpy()))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor, including given training settings."""
        return {name: getattr(self, name) for name in OWN_PARAMETERS} | self._training

    def set_params(self, **params: Any) -> Self:
        """Change arguments, which discards what was learnt; an error leaves all as it was."""
        before = dict(self.__dict__)
        self._training = dict(self._training)
        for name, value in params.items():
            if name in TRAINING_PARAMETERS:
                self._training[name] = value
            elif name in OWN_PARAMETERS:
                setattr(self, name, value)
        try:
            for name in params:
                if name not in (*OWN_PARAMETERS, *TRAINING_PARAMETERS):
                    raise unknown("set_params", name, (*OWN_PARAMETERS, *TRAINING_PARAMETERS))
            self._check()
        except BaseException:
            self.__dict__.update(before)
            raise
        if params:
            self._forget()
        return self

    def __repr__(self) -> str:
        usual = {"memory": None, "capacity": 16, "detectors": self.detectors, "device": self.device}
        usual |= to_plain(Training()) | {"calibration": 0, "refit": None}
        given = {k: v for k, v in self.get_params().items() if k not in usual or v != usual[k]}
        shown = ", ".join(f"{k}={v!r}" for k, v in given.items())
        return f"{type(self).__name__}({shown})"

    def __sklearn_is_fitted__(self) -> bool:
        return self._snapshot is not None

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_snapshot")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._snapshot = threading.RLock(), None
        if self._portable is not None:
            self._publish(self._portable)

    def fit(self, x: Any, y: Any = None) -> Self:
        """Start from scratch, with these rows as the only task."""
        with self._lock:
            self._forget()
            return self.learn(x, _flatten_column(y))

    def partial_fit(self, x: Any, y: Any, classes: Any = None) -> Self:
        """Learn a task as `learn` does; `classes` are all future ones, for which room is made."""
        y = _flatten_column(y)
        if classes is not None:
            every = set(labels_to_names(convert_labels(classes, len(classes), "classes")[0]))
            if strange := sorted(set(RowLabels.read(y, len(x)).classes) - every):
                raise bad("y", f"labels among classes {sorted(every)[:10]}", strange[:5])
            room = max(self._settings.capacity, len(every))
            self._settings = replace(self._settings, capacity=room)
        return self.learn(x, y)

    @property
    def classes_(self) -> Array:
        """The labels known so far, sorted; columns of `predict_proba` have this order."""
        return self._now.classes

    @property
    def n_features_in_(self) -> int:
        """Number of features of a row; `AttributeError` for inputs of more than one axis."""
        shape = self._now.facts["inputs"]["shape"]
        if len(shape) > 1:
            raise AttributeError(f"inputs of shape {tuple(shape)} have no number of features")
        return int(shape[0])

    @property
    def notes(self) -> dict[str, Any]:
        """Plain values of yours, which files hold as well."""
        return self._notes

    @notes.setter
    def notes(self, notes: Mapping[str, Any]) -> None:
        self._notes = dict(notes)

    # -- inside ------------------------------------------------------------------------------------
    def _forget(self) -> None:
        self._portable, self._snapshot, self._kind = None, None, ""

    def _check(self) -> None:
        """Raise for invalid arguments, before anything is learnt."""
        method = build_method(self.method)
        if self.memory is not None:
            method = replace_memory(method, self.memory)
        self._settings = LearnerSettings(
            method=method, model=check_model_section(self.model), seed=check_int("seed", self.seed),
            training=from_plain(Training, self._training, path="training"),
            capacity=check_int("capacity", self.capacity, 1, MAX_CLASSES),
        )  # fmt: skip
        check_int("calibration", self.calibration)
        self._device = resolve_device(self.device)
        self._keyed, self._limited = key_detectors(self.detectors), True
        check_refits(self.refit, self._keyed.values(), method)

    def _publish(self, found: PortableState) -> None:
        """Publish the learnt state to readers by a single assignment, so never half of it."""
        snapshot = LearnerSnapshot(
            found, self._settings, kind=self._kind, device=self._device, detectors=self._keyed
        )
        self._portable, self._snapshot = found, snapshot

    @property
    def _now(self) -> LearnerSnapshot:
        now = self._snapshot  # read once: another thread may publish the next one
        if now is None:
            raise LearnerNotFitted(
                "nothing has been learnt yet: call learn(x, y) or fit(x, y) first"
            )
        return now


def _flatten_column(y: Any) -> Any:
    """A table of one column as labels, with scikit-learn's warning."""
    if getattr(y, "ndim", 1) == 2 and y.shape[1] == 1:
        return column_or_1d(y, warn=True)
    return y


def replace_memory(method: Method, memory: Memory | int) -> Method:
    """Return the method with another memory.

    Examples
    --------
    >>> replace_memory(build_method("ER"), 100).memory.total
    100
    """
    if isinstance(memory, int):
        memory = Memory(total=check_int("memory", memory, 1))
    if not any(one.name == "memory" for one in fields(method)):
        expected = f"None, because {type(method).__name__} keeps no exemplars"
        raise bad("memory", expected, memory)
    changed: Method = replace(method, memory=memory)  # type: ignore[call-arg]
    return changed


# Data sets as tasks of a learner.


class LearnerData(NamedTuple):
    """Rows with labels of a data set, and a description of its inputs."""

    x: Tensor | Array
    y: Any  # labels [n], or a list of labels for each row
    valid: tuple[Any, Any] | None
    about: dict[str, Any]


def read_learner_data(data: Data, about: dict[str, Any] | None, kind: str = "") -> LearnerData:
    """Read the training and validation rows of a data set.

    Class ids are valid within one data set only, so labels are class names. `about` describes the
    inputs of a learner that has learnt before: scales and fill values of missing numbers
    are those of its first task, and so are the features of a table. `kind` is that of its labels.

    Examples
    --------
    >>> data = Data.from_arrays([[1.0], [2.0]], ["cat", "dog"], test=([[1.0]], ["cat"]))
    >>> read_learner_data(data, None).y.tolist()
    ['cat', 'dog']
    """
    if about is None:
        data = fit_standardization(data, data.train)
        about = describe_first(data)
    else:
        data = translate_data(data, about)
    valid = select_labelled(data, data.valid, kind) if len(data.valid) else None
    return LearnerData(*select_labelled(data, data.train, kind), valid, about)


def name_labels(y: Sequence[Any], classes: Sequence[str], kind: str = "") -> Any:
    """Labels from names of classes, or lists of them; numeric names become numbers.

    They stay names for a learner whose labels are names (`kind`).

    Examples
    --------
    >>> name_labels(["7", "3"], ["3", "7"]).tolist(), name_labels(["7"], ["7"], "str").tolist()
    ([7, 3], ['7'])
    """
    kind = "str" if kind == "str" else label_kind(classes)
    if y and isinstance(y[0], list):
        return [names_to_labels(one, kind).tolist() for one in y]
    return names_to_labels(y, kind)


def select_labelled(data: Data, rows: Tensor, kind: str = "") -> tuple[Tensor, Any]:
    """Select inputs of rows and their labels by name, as `name_labels` makes them."""
    kind = "str" if kind == "str" else label_kind(data.classes)
    names = names_to_labels(data.classes, kind)
    if not data.is_multilabel:
        return data.gather(rows), names[data.labels[rows].cpu().numpy()]
    sets = [names[row[row >= 0]].tolist() for row in data.y[rows].cpu().numpy()]
    return data.gather(rows), sets


# Novelty detectors of a learner, fitted after every task as in a run.


def key_detectors(specs: Any) -> dict[str, Detector]:
    """Return detectors by the keys of their states, as in a run."""
    found = cast(dict[str, Detector], key_probes(build_detectors({"detectors": specs})))
    for detector in found.values():
        detector.check_refit()
        if detector.outside:
            expected = "detectors that need no outside set"
            raise bad("detectors", expected, detector.name)
    return found


def refuse_for_label_sets(detectors: Iterable[Detector]) -> None:
    """Raise for a detector whose scores suppose that one label of a row excludes the others."""
    for detector in detectors:
        if not detector.for_label_sets:
            expected = "detectors that suppose no single label, such as 'Energy' or 'KNN'"
            raise bad("detectors", expected, f"{detector.name}, for sets of labels")


def check_refits(refit: str | None, detectors: Iterable[Detector], method: Method) -> None:
    """Raise for detectors that shall be fitted to the memory of a method that keeps no rows."""
    if refit is not None:
        check_choice("refit", refit, REFITS)
    if not rereads_rows(method) and "memory" in (refit, *(one.refit for one in detectors)):
        expected = f"'never', because {type(method).__name__} keeps no rows of earlier tasks"
        raise bad("refit", expected, "memory")


def choose_fits(
    detectors: Mapping[str, Detector], refit: str | None, method: Method, *, limited: bool
) -> dict[str, Detector]:
    """Return detectors as a learner fits them: on which rows, and with how many to keep.

    Examples
    --------
    >>> from engram.novelty import KNN
    >>> for name in ("ER", "EWC"):
    ...     print(choose_fits({"knn": KNN()}, None, build_method(name), limited=True)["knn"].name)
    knn refit=memory per_class=50
    knn per_class=50
    """
    refit = refit or ("memory" if rereads_rows(method) else "never")
    found = {}
    for key, detector in detectors.items():
        if detector.fits and refit == "memory":
            detector = replace(detector, refit=refit)
        found[key] = detector.limit_rows() if limited else detector
    return found


def without_refitted(found: PortableState, detectors: Mapping[str, Detector]) -> PortableState:
    """Return a state without those of detectors that are fitted anew."""
    anew = [key for key, one in detectors.items() if one.refit == "memory"]
    lost = tuple(f"probes/{key}/" for key in anew)
    tensors = {name: one for name, one in found.tensors.items() if not name.startswith(lost)}
    parts = found.facts["structure"]["dict"]
    states = parts.get("probes", {"dict": {}})["dict"]
    kept = {k: v for k, v in states.items() if k not in anew}
    structure = {"dict": {**parts, "probes": {"dict": kept}}}
    return PortableState(tensors, {**found.facts, "structure": structure})


def fit_detectors(
    detectors: Mapping[str, Detector], learner: RunLearner, method: Method
) -> dict[str, Any]:  # fmt: skip
    """Fit every detector after the task just learnt, and return the states.

    A detector that goes on fitting, but has not seen the earlier tasks, has no state.
    """
    result = StageResult(
        stage=learner.stage, stream=learner.stream, method=method, seed=learner.seed,
        items=EvaluationItems.of_stream(learner.stream),
        scores=np.zeros((0, len(learner.opened))), trained=learner, states=learner.probes,
    )  # fmt: skip
    view, found = StageView([result]), {}
    for key, detector in detectors.items():
        before, anew = learner.probes.get(key), detector.refit == "memory"
        if not learner.stage:
            detector.refuse(gather_facts(learner))
        if learner.stage and before is None and detector.fits and not anew:
            continue
        state = detector.fit_stage(view.for_probe(detector.needs, stack([before or {}])))
        found[key] = pick(state, 0)
    return found


def choose_detector(detectors: Mapping[str, Detector], states: Mapping[str, Any], spec: Any) -> str:
    """Return the key of the chosen detector; by default, of the first."""
    if spec is None:
        if not detectors:
            raise bad("detector", "the name of a novelty detector, such as 'Energy'", None)
        key = next(iter(detectors))
    else:
        ((key, detector),) = key_detectors([spec]).items()
        if key not in detectors and detector.fits:
            known = sorted(one.name for one in detectors.values())
            expected = (
                f"a detector in use while tasks were learnt ({', '.join(known) or 'none'}) "
                "or one that needs no fitting"
            )
            raise bad("detector", expected, detector.name)
        if key not in detectors:
            return key
    if detectors[key].fits and key not in states:
        expected = "a detector that has seen all tasks"
        raise bad("detector", expected, f"{detectors[key].name}, which was added later")
    return key
