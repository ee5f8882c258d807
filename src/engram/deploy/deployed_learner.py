"""`engram.Learner`: a model that predicts and keeps learning by any method of the library."""

from __future__ import annotations

import copy
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from engram.data.dataset import Data
from engram.data.tables.table_rows import is_table
from engram.data.tables.table_schema import TableReport, TableSchema
from engram.data.texts.tokenization import are_texts
from engram.deploy.calibration import DEFAULT_RATE, Alarms, CalibrationRows, hold_out_rows
from engram.deploy.estimator import (
    Estimator,
    LearnerData,
    LearnerNotFitted,
    choose_detector,
    choose_fits,
    fit_detectors,
    key_detectors,
    name_labels,
    read_learner_data,
    refuse_for_label_sets,
    without_refitted,
)
from engram.deploy.forgetting import (
    Forgotten,
    Wanted,
    add_detectors,
    check_classes,
    drop_detectors,
    forgotten_columns,
    move_calibration,
    remaining_tasks,
    remove_rows,
)
from engram.deploy.model_card import write_card
from engram.deploy.new_task import (
    Array,
    NewTask,
    convert_inputs,
    describe_texts,
    extend_stream,
    hide_later_labels,
    label_kind,
    labels_to_names,
    learns_sets,
    remaining_rows,
    remaining_stream,
)
from engram.deploy.program_export import export_program
from engram.deploy.snapshot import LearnerSnapshot
from engram.deploy.table_inputs import is_bytes, read_first_table, read_later_table
from engram.deploy.widen_head import lacks_room, widen_learner
from engram.engine.backend import probe_numerics
from engram.engine.engine import Engine
from engram.engine.factory import LearnerFactory
from engram.engine.portable_state import CONSTANTS, PortableState, export_state, restore_state
from engram.engine.run_definition import Run
from engram.errors import BadArgument, EngramError, bad, wrap_read_errors
from engram.experiments.build_methods import build_method, forbid_user_code
from engram.experiments.build_probes import build_detectors
from engram.experiments.model_file import (
    LOCKED,
    describe_origin,
    is_sealed,
    load_model,
    save_model,
)
from engram.experiments.recipe_sections import check_model_section
from engram.experiments.sealed_rows import check_key, find_key
from engram.io import make_folders
from engram.learner.learner import RunLearner as EngineLearner
from engram.memory import Memory
from engram.methods.method import Method, rereads_rows
from engram.novelty.detector import Detector

Progress = Callable[[int, int], None]
TRUST_HINT = (
    "it is not Engram's own code; if you trust it, pass trust=True (--trust on the command line)"
)


class KeptRows(NamedTuple):
    """Rows of earlier tasks that a learner keeps, with their labels."""

    x: Tensor
    y: Any
    where: str  # in words


class Learner(Estimator):
    """A classifier that learns one task after another with a continual-learning method.

    `learn` treats the rows it is given as the engine treats a task of a stream: with the method's
    memory, importances, teachers and phases. Rows are not kept, except those in the memory. New
    classes may arrive at any time; there is room for `capacity` of them, which doubles when needed
    and leaves the outputs of the old ones bit-identical.

    This is not the learner that methods receive in their verbs, which is the engine's state of a
    run (`engram.learner`); one of those is trained here for every task.

    It follows scikit-learn's estimator interface: `fit` starts from scratch, `partial_fit` is
    `learn`. Other threads may predict while it learns, with the model of the last finished task.

    Parameters
    ----------
    method, model
        As for `engram.run`.
    memory
        Replaces the method's own: a `Memory`, or the total number of exemplars.
    capacity
        Initial number of output columns.
    detectors
        Novelty detectors, fitted after every task; `novelty` uses the first by default.
    refit
        ``memory``: after every task, detectors are fitted anew with the present network, to the
        rows of the task and of the method's memory, never to calibration rows. ``never``: what was
        fitted to a task stays as it was, although the network goes on changing. None: ``memory``
        where the method keeps rows of earlier tasks, else ``never``.
    calibration
        Rows of each class, at most, that are held out of training and kept for `alarm`.
    device
        ``auto``, ``cpu`` or ``cuda``.
    training
        Fields of `Training`: epochs, batch_size, lr, ...

    Examples
    --------
    >>> import numpy as np
    >>> x = np.repeat(np.eye(4, dtype=np.float32), 20, axis=0)
    >>> y = np.repeat(["ant", "bee", "cat", "dog"], 20)
    >>> learner = Learner(
    ...     "ER",
    ...     model={"name": "mlp", "hidden": [16]},
    ...     epochs=5,
    ...     batch_size=8,
    ...     lr=0.01,
    ...     device="cpu",
    ... )
    >>> learner.learn(x[:40], y[:40]).learn(x[40:], y[40:]).predict(x[::20]).tolist()
    ['ant', 'bee', 'cat', 'dog']
    """

    def __init__(
        self,
        method: Method | str | Mapping[str, Any] = "ER",
        model: Any = "mlp",
        *,
        memory: Memory | int | None = None,
        capacity: int = 16,
        detectors: Sequence[Any] = ("Energy",),
        refit: str | None = None,
        calibration: int = 0,
        seed: int = 0,
        device: str = "auto",
        **training: Any,
    ) -> None:
        self.method, self.model, self.memory, self.capacity = method, model, memory, capacity
        self.detectors, self.refit, self.calibration = detectors, refit, calibration
        self.seed, self.device = seed, device
        self._training, self._lock = dict(training), threading.RLock()
        self.notes = {}
        self._key: str | None = None  # encrypts rows in files
        self._forget()
        self._check()

    # -- learning ----------------------------------------------------------------------------------
    def learn(
        self, x: Any, y: Any = None, *, label: str | Sequence[str] | None = None,
        valid: Any = None, progress: Progress | None = None, **table: Any,
    ) -> Self:  # fmt: skip
        """Learn a task: rows of new classes, of known ones, or of both.

        Parameters
        ----------
        x, y
            [n, ...] inputs, and a label for each, or a list of labels for each (label sets). The
            first task decides shape and type. Or a `Data` alone: its training rows, by the names of
            their classes. Or rows with named columns: a table (pandas.DataFrame), records, or
            columns by name. The first ones decide the `schema`, which encodes all later ones.
        label
            Of a table without `y`: the column that has the classes, or columns of yes and no; by
            default those of the first table.
        valid
            (x, y) of validation rows, for training settings that watch them; or a table.
        progress
            Called as ``progress(steps, of)`` while it trains.
        table
            Of the first table: `missing`, `categories`, `dates`, `drop`, `attributes`, `separator`
            and `standardize`, as for `Data.from_frame`.

        An error leaves the learner unchanged.
        """
        with self._lock:
            new = self.prepare_task(x, y, label=label, valid=valid, **table)
            return self.learn_task(new, progress=progress)

    def prepare_task(
        self, x: Any, y: Any = None, *, label: str | Sequence[str] | None = None,
        valid: Any = None, **table: Any,
    ) -> NewTask:  # fmt: skip
        """Check rows as `learn` does, and return them as it would learn them; nothing changes."""
        about = None if self._portable is None else self._portable.facts["inputs"]
        report = None
        if is_table(x) and not (about is None and is_bytes(x) and label is None and not table):
            (x, y, valid, about), report = self._read_table(x, y, label, valid, about, table)
        elif label is not None or table:
            name, value = ("label", label) if label is not None else next(iter(table.items()))
            raise bad(name, "a table as x, which it is about", value)
        elif isinstance(x, Data):
            x, y, valid, about = self._given(x, y, valid, about)
        elif y is None:
            raise BadArgument("y: Learner requires y to be passed, but the target y is None")
        elif about is None and are_texts(x):
            about = describe_texts(x, self.model)
        new = replace(NewTask.from_arrays(x, y, valid, about), report=report)
        self.check_task(new)
        return new

    def learn_task(self, new: NewTask, *, progress: Progress | None = None) -> Self:
        """Learn what `prepare_task` returned."""
        with self._lock:
            found = self._portable
            if new.report is not None:
                new.report.warn()
            if found is not None and (missing := found.facts.get("optimizer_left_out")):
                warnings.warn(f"the optimiser state is reset: {missing}", stacklevel=3)
            held, detectors = CalibrationRows.from_state(found), self._detectors_to_fit()
            if self.calibration:
                new, held = hold_out_rows(new, found, most=self.calibration, seed=self.seed)
            stream = extend_stream(found, new, self._settings)
            if found is not None:
                found = without_refitted(found, detectors)
            if found is not None and lacks_room(found, self._settings, stream):
                found = widen_learner(found, self._settings, stream, detectors)
            run = self._settings.run(stream)
            learner = _train_last_task(run, found, self._device, progress)
            with probe_numerics(run.training.precision):
                learner.probes = fit_detectors(detectors, learner, run.method)
            self._kind = new.kind
            learnt = export_state(learner, run)
            # the fill value of NaN cannot be found from rows that are filled already
            learnt.facts["inputs"] = new.about
            if held is not None:
                learnt.tensors.update(held.tensors())
            closed = [] if found is None else forgotten_columns(found)
            again = {learnt.facts["classes"].index(name) for name in new.classes}
            if closed := [c for c in closed if c not in again]:
                learnt.facts["forgotten"] = closed
            self._publish(learnt)
        return self

    def forget(
        self, rows: Any = None, classes: Any = None, *, retrain: bool = False
    ) -> Forgotten:  # fmt: skip
        """Remove rows, or all rows of classes, from what the learner keeps; return what is left.

        Rows of the memory go with the values stored beside them, and calibration rows; a class is
        not predicted any more, until it is learnt again. Weights do not unlearn rows: `retrain`
        trains new ones on the rows that remain in the memory, task after task, which costs
        accuracy where the memory is small.

        Parameters
        ----------
        rows
            [n, ...] inputs as they were given to `learn`; equal ones are removed.
        classes
            A label, or a list of labels.
        retrain
            Forget everything but the remaining rows of the memory, and learn these anew.
        """
        with self._lock:
            return self.forget_wanted(self.find_wanted(rows, classes), retrain=retrain)

    def find_wanted(self, rows: Any = None, classes: Any = None) -> Wanted:
        """Check and describe what `forget` is given; the description does not hold the rows."""
        found = self._now_portable
        if rows is None and classes is None:
            raise bad("rows", "rows to forget, or classes", None)
        x = None if rows is None else convert_inputs(rows, found.facts["inputs"], "rows")
        names = [] if classes is None else labels_to_names(np.atleast_1d(np.asarray(classes)))
        return Wanted.of(x, check_classes(found, names))

    def forget_wanted(self, wanted: Wanted, *, retrain: bool = False) -> Forgotten:
        """Forget what `find_wanted` described."""
        with self._lock:
            state, removed = remove_rows(self._now_portable, wanted)
            if retrain:
                fresh = self.copy()
                fresh._forget()
                fresh.calibration = 0
                for task in remaining_tasks(state):
                    fresh.learn_task(replace(task, kind=self._kind))
                names = labels_to_names(self._now.classes)
                removed = removed.retrained_of(names, fresh._now_portable)
                state = move_calibration(state, fresh._now_portable)
            else:
                state, lost = self._fit_again(state)
                told = tuple(f"{name} can be used after the next learning" for name in lost)
                removed = removed._replace(remains=removed.remains + told)
            self._publish(state)
        return removed

    def _fit_again(self, found: PortableState) -> tuple[PortableState, list[str]]:
        """Fit detectors to the rows that remain; return which cannot be, and lose their state."""
        detectors = {key: one for key, one in self._detectors_to_fit().items() if one.fits}
        found = drop_detectors(found, detectors)
        last = found.tensors["rows/stage"] == found.stage
        able = {key: one for key, one in detectors.items() if one.refit == "memory"}
        if found.facts["rows_left_out"] or not bool(last.any()):
            able = {}
        if able:
            run = self._settings.run(remaining_stream(found, self._settings))
            learner = LearnerFactory(self._device).learner(run)
            restore_state(learner, found)
            learner.enter(found.stage)
            with probe_numerics(run.training.precision):
                found = add_detectors(found, fit_detectors(able, learner, run.method))
        return found, [one.name for key, one in detectors.items() if key not in able]

    @property
    def _now_portable(self) -> PortableState:
        if self._portable is None:
            raise LearnerNotFitted("nothing has been learnt yet")
        return self._portable

    def _detectors_to_fit(self) -> dict[str, Detector]:
        method = self._settings.method
        return choose_fits(self._keyed, self.refit, method, limited=self._limited)

    def copy(self) -> Self:
        """Return a learner with the same state; what one learns, the other does not."""
        with self._lock:
            other = copy.copy(self)
            other._lock, other._training = threading.RLock(), dict(self._training)
            other.notes = dict(self.notes)
        return other

    def _read_table(
        self, x: Any, y: Any, label: Any, valid: Any, about: dict[str, Any] | None,
        options: Mapping[str, Any],
    ) -> tuple[LearnerData, TableReport | None]:  # fmt: skip
        """Rows and labels of a table, encoded as the first one."""
        if about is None:
            made = read_first_table(x, y, label, options)
        elif options:
            name, value = next(iter(options.items()))
            raise bad(name, "nothing after the first table, which decided it", value)
        else:
            made = read_later_table(x, y, label, about)
        labels = made.y if made.classes is None else name_labels(made.y, made.classes, self._kind)
        if is_table(valid):
            held = read_later_table(valid, None, label, made.about)
            valid = held.x, name_labels(held.y, made.classes or held.classes or [], self._kind)
        return LearnerData(made.x, labels, valid, made.about), made.report

    def _given(self, data: Data, y: Any, valid: Any, about: dict[str, Any] | None) -> LearnerData:
        if y is not None:
            raise bad("y", "None, because data has its own labels", type(y).__name__)
        found = read_learner_data(data, about, self._kind)
        return found if valid is None else found._replace(valid=valid)

    def check_task(self, new: NewTask) -> None:
        """Raise if this learner cannot learn a task."""
        found = self._portable
        if new.sets if found is None else learns_sets(found):
            refuse_for_label_sets(self._keyed.values())
            if self.calibration:
                raise bad("calibration", "0 for sets of labels", self.calibration)
        if found is None:
            return
        if new.sets and not learns_sets(found):
            raise bad("y", "one label for each row, as learnt before", "sets of labels")
        if new.kind != self._kind:
            raise bad("y", f"labels of the kind learnt before ({self._kind})", new.kind)
        remaining_rows(found, new.x)  # raises where the memory did not come along

    # -- predicting --------------------------------------------------------------------------------
    def predict(self, x: Any, *, task: int | None = None) -> Any:
        """Predict the most likely labels, [n]; `task` (from 0) is needed with a head per task.

        For label sets, a list of the labels of each row whose probability is above a half.
        """
        return self._now.predict(x, task)

    def predict_proba(self, x: Any, *, task: int | None = None) -> Array:
        """Predict probabilities, [n, classes], in the order of `classes_`."""
        return self._now.predict_proba(x, task)

    def novelty(self, x: Any, *, detector: Any = None, task: int | None = None) -> Array:
        """Compute novelty scores of inputs, [n]; higher is more novel.

        `detector` is one of `detectors` (default: the first), or any that needs no fitting.
        """
        now = self._now
        return now.novelty(x, _find_detector(now, detector), task)

    def alarm(
        self, x: Any, rate: float = DEFAULT_RATE, *, detector: Any = None, per_class: bool = False
    ) -> Alarms:
        """Raise an alarm for inputs that are more novel than known ones are, save a share `rate`.

        A row's p-value is the share of calibration rows, itself included, that are at least as
        novel; at most `rate` raises an alarm. Of rows like the calibration rows, which are of known
        classes in equal numbers, not more than a share `rate` raise one, on average over
        calibration rows. Needs ``Learner(calibration=...)``.

        Parameters
        ----------
        rate
            Rate of false alarms.
        detector
            As for `novelty`.
        per_class
            Compare a row with calibration rows that are predicted as the same class, so that the
            rate holds for each predicted class. Where they are too few for an alarm at this rate,
            a row is compared with all of them; `compared` tells.

        Returns
        -------
        Alarms
            Arrays [n]: `novelty`, `p_value`, `alarm`, and `compared`, the number of calibration
            rows that a row was compared with.
        """
        now = self._now
        return now.alarm(x, _find_detector(now, detector), rate, per_class=per_class)

    def features(self, x: Any, *, task: int | None = None) -> Array:
        """Compute features, the inputs of the last layer, [n, F].

        `task` is needed where the answers of the method depend on it.
        """
        return self._now.features(x, task)

    @property
    def tasks(self) -> int:
        """Number of tasks learnt so far."""
        return 0 if self._snapshot is None else self._snapshot.stage + 1

    @property
    def schema(self) -> TableSchema | None:
        """How columns of tables become features, decided by the first one; None without one.

        ``learner.schema.check(table)`` reports what a table has that the first one did not.
        """
        about = {} if self._snapshot is None else self._snapshot.facts["inputs"]
        return TableSchema.from_facts(about["schema"]) if "schema" in about else None

    def kept_rows(self) -> KeptRows | None:
        """Return rows of earlier tasks with their labels, to judge what is learnt next.

        They are the calibration rows, if there are any, else those of the memory; None without.
        """
        now, found = self._now, self._portable
        assert found is not None
        if now.facts["head"] == "multi":
            return None
        if now.calibration is not None and len(now.calibration.x):
            labels = now.labels[now.calibration.y.numpy()]
            return KeptRows(now.calibration.x, labels, "held out for alarms")
        rows = found.tensors.get("rows/x")
        if rows is None or not len(rows):
            return None
        columns = hide_later_labels(found).tolist()
        many = [[now.labels[c].item() for c in row if c >= 0] for row in columns]
        sets = learns_sets(found)
        return KeptRows(rows, many if sets else [row[0] for row in many], "in the memory")

    def nbytes(self) -> dict[str, int]:
        """Return the bytes of what is kept, by kind: the rows of the memory are ``rows``.

        ``calibration`` are the rows held out, ``probes`` the detectors, ``net`` the network.
        """
        found: dict[str, int] = {}
        for name, tensor in [] if self._portable is None else self._portable.tensors.items():
            kind = name.removeprefix(CONSTANTS).partition("/")[0].partition(".")[0]
            found[kind] = found.get(kind, 0) + tensor.nbytes
        return found

    @property
    def snapshot(self) -> LearnerSnapshot:
        """The network after the last finished task; immutable, for consistent predictions."""
        return self._now

    # -- files -------------------------------------------------------------------------------------
    def save(self, path: str | os.PathLike[str], *, key: str | None = None) -> Path:
        """Write the complete state, memory included, into one file: tensors and JSON.

        `load` continues from there as if nothing had happened.

        Parameters
        ----------
        key
            Encrypts rows of the memory, calibration rows, and what is stored beside exemplars, by
            any text of at least 8 characters; also when this learner, or one loaded with the key,
            is saved again. Needs the extra ``encrypt``.
        """
        found = self._portable
        if found is None:
            raise LearnerNotFitted("nothing has been learnt yet, so there is nothing to save")
        if found.facts["rows_left_out"] == LOCKED:
            raise EngramError("rows would be lost: they are encrypted, and no key was given")
        if key is not None:
            self._key = check_key(key)
        make_folders(Path(path).parent)
        return save_model(path, found, {**self._made_by(), "notes": self.notes}, self._key)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, device: str = "auto", model: Any = None,
        method: Method | None = None, trust: bool = False, key: str | None = None,
    ) -> Learner:  # fmt: skip
        """Load a saved learner. `model` and `method` are needed if they are your own code.

        `key` opens encrypted rows (default: the environment variable ENGRAM_KEY). Without it such a
        model predicts, but cannot learn, raise alarms or be saved.
        """
        key = find_key(key)
        found, made = load_model(path, key)
        with wrap_read_errors(path, "model file"):
            own = cls.from_portable(
                found, made, device=device, model=model, method=method, trust=trust
            )
        own._key = key if is_sealed(path) else None
        return own

    @classmethod
    def from_portable(
        cls, found: PortableState, made: Mapping[str, Any], *, device: str = "auto",
        model: Any = None, method: Any = None, trust: bool = False,
    ) -> Learner:  # fmt: skip
        """Make a learner from the state of a run or another learner."""
        with nullcontext() if trust else forbid_user_code(TRUST_HINT):  # what the file names
            method = build_method(made["method"]) if method is None else method
            detectors = build_detectors(made) or ("Energy",)
            if model is None:
                model = check_model_section(_model_from(made["model"]))
        own = cls(
            method, model, detectors=detectors, seed=found.facts["seed"], device=device,
            capacity=found.columns, refit=made.get("refit"),
            calibration=made.get("calibration", 0), **made["training"],
        )  # fmt: skip
        # detectors of a run, or of an older file, that are not fitted anew go on as they were
        own._limited = "refit" in made or rereads_rows(own._settings.method)
        own._settings = replace(own._settings, head=found.facts["head"])
        own.notes = dict(made.get("notes") or {})
        own._kind = made.get("labels") or label_kind(found.facts["classes"])
        own._publish(found)
        return own

    def card(self) -> str:
        """Describe the model in Markdown: what it knows, and which rows of training it holds."""
        return write_card(self)

    def export(self, path: str | os.PathLike[str], *, format: str | None = None) -> Path:
        """Export the network for use without Engram: ``.pt2`` or ``.onnx``.

        It maps raw inputs [B, ...] to probabilities [B, classes] for any B. ONNX needs the extra
        ``onnx``.
        """
        return export_program(self._now, path, format)

    def _made_by(self) -> dict[str, Any]:
        now = self._settings
        made = describe_origin(
            method=now.method, model=now.model, training=now.training, labels=self._kind,
            detectors=self._keyed.values(),
        )  # fmt: skip
        refit = {"refit": self.refit} if self._limited else {}
        return {**made, **refit, "calibration": self.calibration}


def _find_detector(now: LearnerSnapshot, spec: Any) -> str:
    """Return the key of a detector, which is added if it needs no fitting."""
    key = choose_detector(now.detectors, now.probes, spec)
    if key not in now.detectors and now.facts["labels"] == "set":
        refuse_for_label_sets(key_detectors([spec]).values())
    if key not in now.detectors:
        now.detectors.update(key_detectors([spec]))
    return key


def _train_last_task(
    run: Run, found: PortableState | None, device: torch.device, progress: Progress | None
) -> EngineLearner:
    """Train the last task of a run, starting from the state before it."""
    engine = Engine([run], device=device, together=False)

    def resume(place: int, learner: EngineLearner) -> int:
        return 0 if found is None else restore_state(learner, found)

    report = None if progress is None else lambda places, stage: progress
    (done,) = engine.stages(resume=resume, progress=report)
    if done.learner.diverged >= 0:
        raise EngramError("training diverged (try a smaller lr): the learner is unchanged")
    return done.learner


def _model_from(plain: Any) -> Any:
    if isinstance(plain, Mapping) and "own" in plain:
        expected = f"the network {plain['own']}, which the file cannot hold (model=...)"
        raise bad("model", expected, None)
    return plain
