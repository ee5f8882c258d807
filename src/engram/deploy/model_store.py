"""`ModelStore`: a folder with the versions of a learner, a gate before each, and a way back.

``store.json`` says which version is served. Every file is whole or not there, and ``store.json`` is
written last, so that a process may die at any moment: the next one that writes completes or
removes what it left. One process at a time writes; others read and follow.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from engram.data.fingerprint import hash_content
from engram.deploy.calibration import explain_no_alarm
from engram.deploy.deployed_learner import Learner, Progress
from engram.deploy.estimator import LearnerNotFitted
from engram.deploy.forgetting import Forgotten, Wanted
from engram.deploy.gate import Check, Gate
from engram.deploy.monitor import STORE_FILE, Monitor
from engram.deploy.new_task import NewTask, labels_to_names, names_to_labels
from engram.errors import EngramError, RecordError, bad, check_int, plural, wrap_read_errors
from engram.experiments.model_file import LOCKED
from engram.experiments.plain_values import from_plain
from engram.experiments.sealed_rows import SEALED, find_key, seal, unseal
from engram.io import (
    TensorFile,
    check_folder_path,
    list_names,
    make_folders,
    read_json,
    remove_leftovers,
    save_tensors,
    sync,
    write_json,
)
from engram.records.locks import LOCK_FILE, Claims

if TYPE_CHECKING:
    import pandas as pd

    from engram.deploy.version_diff import VersionDiff

FORMAT = "engram-store-1"
VERSIONS, ASIDE = "versions", "aside"  # folders of models and their records, and of refused rows
WRITER = "writer"  # what a process claims
DEFAULT_GATE = Gate()
MOST_SERVED = 1000  # changes of the served version that are remembered
MOST_TRIES = 5  # to read a version while another process replaces it
_NUMBER = re.compile(r"([0-9]{6,9})\.(engram|json|safetensors)")


@dataclass(frozen=True, kw_only=True)
class Version:
    """What one call of `ModelStore.learn` has led to.

    Attributes
    ----------
    number, parent
        Its number from 1, and that of the version it began from; 0 for the first.
    how
        ``created``, ``learnt`` or ``forgot``.
    time
        When, in UTC.
    fingerprint, rows, classes
        Of the data: a hash, the number of rows, the names of their classes.
    metrics
        Accuracies before and after on kept rows (``kept``), on held-out new rows (``new``), and by
        class (``classes``).
    accepted, reason
        Whether the gate let it pass, and if not, why.
    checks
        What each rule of the gate found.
    note, notes
        The user's words, and plain values.
    state
        ``current``, ``kept``, ``refused``, or ``pruned``: without a model file.
    """

    number: int
    parent: int
    how: str = "learnt"
    time: str = ""
    fingerprint: str = ""
    rows: int = 0
    classes: tuple[str, ...] = ()
    metrics: Mapping[str, Any] | None = None
    accepted: bool = True
    reason: str = ""
    checks: tuple[Check, ...] = ()
    note: str = ""
    notes: Mapping[str, Any] | None = None
    state: str = "kept"

    def plain(self) -> dict[str, Any]:
        """Return the record as plain values; the state is not part of it."""
        found = {name: value for name, value in vars(self).items() if name != "state"}
        return {**found, "checks": [one._asdict() for one in self.checks]}

    @classmethod
    def from_plain(cls, found: Mapping[str, Any]) -> Self:
        """Return the version of a record."""
        checks = tuple(Check(**one) for one in found["checks"])
        return cls(**{**found, "checks": checks, "classes": tuple(found["classes"])})

    def __str__(self) -> str:
        kept = (self.metrics or {}).get("kept")
        accuracy = f", kept rows {kept['before']:.3f} -> {kept['after']:.3f}" if kept else ""
        told = self.reason if not self.accepted else f"{plural(self.rows, 'row')}{accuracy}"
        return f"version {self.number} ({self.state}): {told}"


class StoreBusy(EngramError):
    """Raised when another process is writing to a store."""


class ModelStore:
    """Versions of a learner in a folder; each learning has to pass a gate before it is served.

    Parameters
    ----------
    folder
        Made by `ModelStore.create`.
    device, trust, model, method, key
        As for `Learner.load`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(4).repeat(100)
    >>> x = np.float32(5 * np.eye(4)[y] + rng.normal(size=(400, 4)))
    >>> learner = Learner("ER", calibration=50, epochs=5, lr=0.01, device="cpu")
    >>> store = ModelStore.create(tempfile.mkdtemp() + "/shapes", learner.learn(x, y))
    >>> week = x + rng.normal(size=x.shape) / 2
    >>> store.learn(week, rng.permutation(y)).accepted  # labels shuffled
    False
    >>> store.learn(week, y, note="second week").accepted
    True
    >>> store.versions().state.tolist()
    ['kept', 'refused', 'current']
    >>> store.rollback(1).number, store.current.number
    (1, 1)
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, device: str = "auto", trust: bool = False,
        model: Any = None, method: Any = None, key: str | None = None,
    ) -> None:  # fmt: skip
        self.folder = check_folder_path("folder", folder)
        if not (self.folder / STORE_FILE).is_file():
            expected = "a folder that ModelStore.create made"
            raise bad("folder", expected, str(folder))
        self._key = find_key(key)
        self._options = {
            "device": device, "trust": trust, "model": model, "method": method, "key": self._key,
        }  # fmt: skip
        # readers wait for changes of the state, not for a learning
        self._lock, self._one_writer = threading.RLock(), threading.RLock()
        self._claims = Claims(self.folder)
        self._seen: Any = None  # identity of the pointer file that was read last
        self._state: dict[str, Any] = {}
        self._learner: Learner | None = None
        self._served = 0  # number of the version in `_learner`
        if self._claims.take(WRITER):  # or another process is writing, and everything is in order
            try:
                self._recover()
            finally:
                self._claims.release(WRITER)
        self._follow()

    @classmethod
    def create(
        cls, folder: str | os.PathLike[str], learner: Learner, *, gate: Gate | None = DEFAULT_GATE,
        keep: int = 10, note: str = "", key: str | None = None,
    ) -> Self:  # fmt: skip
        """Make a store whose first version is a learner that has learnt something.

        Parameters
        ----------
        gate
            The rules for what comes; None accepts everything. A gate needs calibration rows of
            every class: ``Learner(calibration=50)``.
        keep
            Number of accepted versions, and of refused ones, whose models stay on disk; the
            current one and pinned ones stay beyond it.
        key
            Encrypts rows in all files, as in `Learner.save`.
        """
        path = check_folder_path("folder", folder)
        if path.exists() and not _is_unfinished(path):
            raise bad("folder", "a new or an empty folder", str(folder))
        if not learner.tasks:
            raise LearnerNotFitted("a store needs a learner that has learnt something")
        if gate is not None and (missing := explain_no_gate(learner)):
            raise EngramError(missing)
        check_int("keep", keep, 1)
        for name in (VERSIONS, ASIDE):
            make_folders(path / name)
        snapshot = learner.snapshot
        first = Version(
            number=1, parent=0, how="created", time=_now(), note=note, notes=dict(learner.notes),
            rows=sum(task["rows"] for task in snapshot.facts["tasks"]),
            classes=tuple(snapshot.facts["classes"]),
        )  # fmt: skip
        learner = learner.copy()  # which may have a key of its own
        learner.save(path / VERSIONS / _name(1, "engram"), key=key)
        write_json(path / VERSIONS / _name(1, "json"), first.plain())
        state = {
            "format": FORMAT, "current": 1, "newest": 1, "keep": keep,
            "gate": None if gate is None else gate.plain(), "pinned": {}, "forgetting": None,
            "served": [{"version": 1, "time": first.time, "why": "created"}],
            "sealed": learner._key is not None,
        }  # fmt: skip
        write_json(path / STORE_FILE, state)
        sync(path.parent)
        settings = learner._settings
        return cls(
            path, device=learner.device, model=settings.model, method=settings.method,
            key=learner._key,
        )  # fmt: skip

    # -- reading -----------------------------------------------------------------------------------
    @property
    def learner(self) -> Learner:
        """The learner that is served now; to predict, not to learn (`ModelStore.learn`)."""
        self._follow()
        assert self._learner is not None
        return self._learner

    @property
    def current(self) -> Version:
        """The version that is served now."""
        self._follow()
        return self.version(self._state["current"])

    @property
    def monitor(self) -> Monitor:
        """What versions have predicted and how they did, in the folder of the store."""
        return Monitor.of(self.folder)

    @property
    def gate(self) -> Gate | None:
        """The rules that versions have to pass; may be replaced."""
        self._follow()
        found = self._state["gate"]
        return None if found is None else from_plain(Gate, found, path="gate")

    @gate.setter
    def gate(self, gate: Gate | None) -> None:
        if gate is not None and (missing := explain_no_gate(self.learner)):
            raise EngramError(missing)
        with self._writing():
            self._write_state(gate=None if gate is None else gate.plain())

    @property
    def numbers(self) -> list[int]:
        """Numbers of all versions, the oldest first."""
        return self._numbers("json")

    def version(self, number: int) -> Version:
        """Return the record of a version."""
        self._follow()
        check_int("version", number, 1)
        path = self._path(number, "json")
        if not path.is_file():
            raise bad("version", f"one of {self._numbers('json')}", number)
        with wrap_read_errors(path, "record of a version"):
            found = Version.from_plain(read_json(path))
        return replace(found, state=self._state_of(found))

    def versions(self) -> pd.DataFrame:
        """Return all versions, a row each, the oldest first.

        Columns as the attributes of `Version`, ``before`` and ``after``: accuracy on kept rows.
        """
        import pandas as pd

        rows = []
        for number in self._numbers("json"):
            one = self.version(number)
            kept = (one.metrics or {}).get("kept", {})
            rows.append({
                "number": one.number, "parent": one.parent, "state": one.state, "how": one.how,
                "time": one.time, "rows": one.rows, "classes": ", ".join(one.classes),
                "before": kept.get("before"), "after": kept.get("after"), "reason": one.reason,
                "note": one.note, "name": self._state["pinned"].get(str(number), ""),
                "fingerprint": one.fingerprint,
            })  # fmt: skip
        return pd.DataFrame(rows).astype({"before": float, "after": float})

    def open(self, number: int) -> Learner:
        """Load the learner of a version, accepted or refused, without serving it."""
        return Learner.load(self._require_model(number), **self._options)

    def refused_rows(self, number: int) -> tuple[Any, Any]:
        """Return the rows (x, y) of a refused learning, as they are kept aside."""
        path = self.folder / ASIDE / _name(number, "safetensors")
        if not path.is_file():
            raise bad("version", f"one of {self._numbers('safetensors')}, refused", number)
        x, y, facts = self._read_aside(path)
        return x, names_to_labels(facts["classes"], facts["kind"])[y.numpy()]

    def diff(self, first: int, second: int) -> VersionDiff:
        """Compare two versions: accuracies by class, changed predictions, settings, bytes."""
        from engram.deploy.version_diff import compare_versions

        return compare_versions(self.open(first), self.open(second), first, second)

    # -- writing -----------------------------------------------------------------------------------
    def learn(
        self, x: Any, y: Any = None, *, label: str | Sequence[str] | None = None,
        valid: Any = None, classes: Sequence[Any] | None = None, note: str = "",
        notes: Mapping[str, Any] | None = None, check: bool = True,
        progress: Progress | None = None,
    ) -> Version:  # fmt: skip
        """Learn rows as `Learner.learn` does, and serve the result if it passes the gate.

        What is refused is kept aside: its rows (`refused_rows`) and, if it came to training, the
        model (`open`). Wrong arguments raise an error and make no version.

        Parameters
        ----------
        label
            Of a table without `y`, as for `Learner.learn`.
        classes
            Labels that these rows should have; one without rows is a reason to refuse.
        note, notes
            Words and plain values for the record; `notes` are also added to those of the learner.
        check
            False: without the gate, for rows that were refused by mistake.
        """
        with self._writing():
            served = self._current_learner()
            new = served.prepare_task(x, y, label=label, valid=valid)
            gate = self.gate if check else None
            if gate is not None and (missing := explain_no_gate(served)):
                raise EngramError(missing)
            number = self._next_number()
            declared = () if classes is None else labels_to_names(_as_array(classes))
            about = Version(
                number=number, parent=self._served, time=_now(), rows=len(new.x), note=note,
                fingerprint=hash_content((new.classes, new.kind), [new.x, new.y]),
                classes=tuple(new.classes), notes=dict(notes or {}),
            )  # fmt: skip
            checks: list[Check] = []
            metrics: dict[str, Any] = {}
            if gate is not None:
                found = served._portable
                assert found is not None
                checks = gate.check_rows(served.snapshot, found, new, declared)
            candidate = None
            if all(one.passed for one in checks):
                candidate = served.copy().learn_task(new, progress=progress)
                candidate.notes.update(notes or {})
                if gate is not None:
                    fresh = len(new.x) - candidate.snapshot.facts["tasks"][-1]["rows"]
                    compared = gate.check_candidate(served.snapshot, candidate.snapshot, fresh)
                    checks, metrics = checks + compared[0], compared[1]
            failed = [f"{one.rule}: {one.text}" for one in checks if not one.passed]
            made = replace(
                about, accepted=not failed, reason="; ".join(failed), checks=tuple(checks),
                metrics=metrics,
            )  # fmt: skip
            self._keep(made, candidate, new)
            return self.version(number)

    def accept(self, number: int) -> Version:
        """Serve a refused version after all; the current one must be the one it began from."""
        with self._writing():
            one = self.version(number)
            if one.accepted:
                raise bad("version", "a refused version (rollback serves others)", number)
            if one.parent != self._served:
                expected = f"one that began from the current version {self._served}"
                raise bad("version", f"{expected} (learn its refused_rows again)", number)
            path = self._require_model(number)
            made = replace(one, accepted=True, reason=f"accepted by hand; {one.reason}")
            learner = Learner.load(path, **self._options)
            write_json(self._path(number, "json"), made.plain())
            self._serve(number, learner, "accepted by hand")
            self._prune()
            return self.version(number)

    def rollback(self, number: int) -> Version:
        """Serve an earlier accepted version again; later ones stay until they are pruned."""
        with self._writing():
            one = self.version(number)
            if not one.accepted:
                raise bad("version", "an accepted version (accept serves a refused one)", number)
            learner = Learner.load(self._require_model(number), **self._options)
            self._serve(number, learner, "rolled back")
            return self.version(number)

    def forget(
        self, rows: Any = None, classes: Any = None, *, retrain: bool = False, note: str = ""
    ) -> Forgotten:
        """Remove rows, or all rows of classes, from all versions and from what was set aside.

        As `Learner.forget`, in a new version, which is served without a gate. Rows are removed from
        older versions as well, whose weights were trained on them; with `retrain` their
        models are deleted. A process that dies here is completed by the next one that writes.
        """
        with self._writing():
            served = self._current_learner()
            wanted = served.find_wanted(rows, classes)
            candidate = served.copy()
            removed = candidate.forget_wanted(wanted, retrain=retrain)
            order = {
                "number": self._next_number(), "parent": self._served, "note": note,
                "hashes": [str(one) for one in wanted.hashes.tolist()],
                "classes": list(wanted.classes), "retrain": retrain,
            }  # fmt: skip
            self._write_state(forgetting=order)
            self._publish_forgotten(order, served, candidate, removed)
            older = self._forget_elsewhere(order)
            if older:
                told = f"weights of {plural(older, 'other version')} stay, without the rows"
                removed = removed._replace(remains=(*removed.remains, told))
            return removed

    def pin(self, number: int, name: str = "pinned") -> Version:
        """Keep the model of a version for good, under a name; an empty name ends that."""
        with self._writing():
            self._require_model(number)
            pinned = {k: v for k, v in self._state["pinned"].items() if k != str(number)}
            self._write_state(pinned={**pinned, str(number): name} if name else pinned)
            self._prune()
            return self.version(number)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Which version was served from when on, and why; the newest last."""
        self._follow()
        return [dict(one) for one in self._state["served"]]

    def __repr__(self) -> str:
        return f"ModelStore({str(self.folder)!r}: version {self._state['current']} is served)"

    # -- inside ------------------------------------------------------------------------------------
    def _path(self, number: int, kind: str) -> Path:
        return self.folder / VERSIONS / _name(number, kind)

    def _numbers(self, kind: str) -> list[int]:
        """List the numbers of the files of a kind."""
        folder = self.folder / (ASIDE if kind == "safetensors" else VERSIONS)
        found = (_NUMBER.fullmatch(name) for name in list_names(folder, "", f".{kind}"))
        return sorted(int(one[1]) for one in found if one)

    def _next_number(self) -> int:
        newest: int = self._state["newest"]
        return max(newest, *self._numbers("json")) + 1

    def _state_of(self, one: Version) -> str:
        if one.number == self._state["current"]:
            return "current"
        if not self._path(one.number, "engram").is_file() and one.accepted:
            return "pruned"
        return "kept" if one.accepted else "refused"

    def _require_model(self, number: int) -> Path:
        check_int("version", number, 1)
        path = self._path(number, "engram")
        if not path.is_file():
            raise bad("version", f"one with a model, {self._numbers('engram')}", number)
        return path

    def _read_state(self) -> dict[str, Any]:
        path = self.folder / STORE_FILE
        found: dict[str, Any] = read_json(path)
        with wrap_read_errors(path, "store"):
            if found["format"] != FORMAT:
                raise RecordError(f"{path}: is of another version ({found['format']})")
            found["current"], found["newest"], found["served"], found["pinned"]
        return found

    def _write_state(self, **changes: Any) -> None:
        with self._lock:
            state = {**self._state, **changes}
            write_json(self.folder / STORE_FILE, state)
            self._state = state

    def _follow(self) -> None:
        """Load what is served now, if another process has changed it."""
        with self._lock:
            for attempt in range(MOST_TRIES):
                now = os.stat(self.folder / STORE_FILE)
                seen = now.st_ino, now.st_mtime_ns, now.st_size
                if seen == self._seen:
                    return
                self._state = self._read_state()
                current = self._state["current"]
                if current != self._served:
                    try:
                        found = Learner.load(self._path(current, "engram"), **self._options)
                    except RecordError:  # it was replaced and pruned meanwhile
                        if attempt + 1 == MOST_TRIES or self._read_state()["current"] == current:
                            raise
                        continue
                    self._learner, self._served = found, current
                self._seen = seen
                return

    def _current_learner(self) -> Learner:
        self._follow()
        assert self._learner is not None
        return self._learner

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Be the only writer, on a store that is in order."""
        with self._one_writer:
            if not self._claims.take(WRITER):
                raise StoreBusy(f"{self.folder}: another process is writing to this store")
            try:
                self._recover()
                self._follow()
                if self._state.get(SEALED) and self._key is None:
                    raise EngramError(f"{self.folder}: rows cannot be read, since {LOCKED}")
                yield
            finally:
                self._claims.release(WRITER)

    def _keep(self, made: Version, candidate: Learner | None, new: NewTask) -> None:
        """Write a version, the record last, and serve it if it is accepted."""
        if not made.accepted:
            facts = {"classes": new.classes, "kind": new.kind}
            path = self.folder / ASIDE / _name(made.number, "safetensors")
            self._write_aside(path, new.x, new.y[:, 0], facts)
        if candidate is not None:
            candidate.save(self._path(made.number, "engram"))
        write_json(self._path(made.number, "json"), made.plain())
        if made.accepted:
            self._serve(made.number, candidate, made.how)
        else:
            self._write_state(newest=made.number)
        self._prune()

    def _serve(self, number: int, learner: Learner | None, why: str) -> None:
        """Let the pointer show to a version whose files are on disk."""
        switched = {"version": number, "time": _now(), "why": why}
        with self._lock:
            self._write_state(
                current=number, newest=max(number, self._state["newest"]),
                served=[*self._state["served"], switched][-MOST_SERVED:],
            )  # fmt: skip
            if learner is not None:
                self._learner, self._served = learner, number

    def _recover(self) -> None:
        """Complete or remove what a writer left that died."""
        for folder in (self.folder, self.folder / VERSIONS, self.folder / ASIDE):
            remove_leftovers(folder)
        with self._lock:
            self._state = self._read_state()
        written = self._numbers("json")
        for number in (n for n in written if n > self._state["newest"]):
            with wrap_read_errors(self._path(number, "json"), "record of a version"):
                one = Version.from_plain(read_json(self._path(number, "json")))
            if one.accepted:  # its record is the decision; only the pointer was missing
                self._serve(number, None, one.how)
            else:
                self._write_state(newest=number)
        for kind, place in (("engram", VERSIONS), ("safetensors", ASIDE)):
            for number in set(self._numbers(kind)) - set(written):
                (self.folder / place / _name(number, kind)).unlink()
        readable = self._key is not None or not self._state.get(SEALED)
        if self._state["forgetting"] is not None and readable:
            self._complete_forgetting()
        self._prune()

    def _publish_forgotten(
        self, order: Mapping[str, Any], served: Learner, candidate: Learner, removed: Forgotten
    ) -> None:
        """Write and serve the version in which something is forgotten."""
        number = order["number"]
        metrics: dict[str, Any] = {"removed": removed._asdict()}
        held = candidate.snapshot.calibration
        if held is not None and len(held.y):
            truth = candidate.snapshot.labels[held.y.numpy()]
            before, after = ((one.predict(held.x) == truth).mean() for one in (served, candidate))
            metrics["kept"] = {"rows": len(truth), "before": float(before), "after": float(after)}
        made = Version(
            number=number, parent=order["parent"], how="forgot", time=_now(), note=order["note"],
            rows=removed.rows + removed.calibration, classes=removed.classes, metrics=metrics,
        )  # fmt: skip
        candidate.save(self._path(number, "engram"))
        write_json(self._path(number, "json"), made.plain())
        self._serve(number, candidate, made.how)

    def _forget_elsewhere(self, order: Mapping[str, Any]) -> int:
        """Remove forgotten rows from all other files; return the number of other versions left."""
        hashes = np.array([int(one) for one in order["hashes"]], np.uint64)
        wanted, left = Wanted(hashes, tuple(order["classes"])), 0
        for number in self._numbers("engram"):
            path = self._path(number, "engram")
            if number == order["number"]:
                continue
            one = None if order["retrain"] else Learner.load(path, **self._options)
            if one is None or not set(labels_to_names(one.classes_)) - set(wanted.classes):
                path.unlink()
                continue
            one.forget_wanted(wanted)
            one.save(path)
            left += 1
        for number in self._numbers("safetensors"):
            self._forget_aside(number, wanted)
        self._write_state(forgetting=None)
        self._prune()
        return left

    def _forget_aside(self, number: int, wanted: Wanted) -> None:
        path = self.folder / ASIDE / _name(number, "safetensors")
        x, y, facts = self._read_aside(path)
        gone = wanted.find(x, y.numpy(), facts["classes"])
        if gone.all():
            path.unlink()
        elif gone.any():
            stay = torch.from_numpy(~gone)
            self._write_aside(path, x[stay], y[stay], facts)

    def _write_aside(self, path: Path, x: Any, y: Any, facts: Mapping[str, Any]) -> None:
        """Write rows that were refused, encrypted if those of models are."""
        tensors, about = {"x": x.contiguous(), "y": y.contiguous()}, dict(facts)
        if self._state.get(SEALED):
            assert self._key is not None  # or nothing could have been learnt
            tensors, about[SEALED] = seal(tensors, self._key, ("x",))
        save_tensors(path, tensors, {"facts": json.dumps(about)})

    def _read_aside(self, path: Path) -> tuple[Any, Any, dict[str, Any]]:
        """Read what `_write_aside` wrote: inputs, places of their classes, and facts."""
        file = TensorFile(path, what="rows set aside", framework="pt")
        with wrap_read_errors(path, "rows set aside"):
            facts = json.loads(file.facts["facts"])
            tensors = {name: file.get(name) for name in file.keys()}  # noqa: SIM118
            if SEALED in facts:
                if self._key is None:
                    raise EngramError(f"{path}: the rows cannot be read: {LOCKED}")
                tensors = unseal(tensors, facts.pop(SEALED), self._key, path)
            return tensors["x"], tensors["y"], facts

    def _complete_forgetting(self) -> None:
        """Forget what another process has begun to forget."""
        order = self._state["forgetting"]
        if order["number"] not in self._numbers("json"):
            hashes = np.array([int(one) for one in order["hashes"]], np.uint64)
            served = Learner.load(self._path(order["parent"], "engram"), **self._options)
            candidate = served.copy()
            wanted = Wanted(hashes, tuple(order["classes"]))
            removed = candidate.forget_wanted(wanted, retrain=order["retrain"])
            self._publish_forgotten(order, served, candidate, removed)
        self._forget_elsewhere(order)

    def _prune(self) -> None:
        """Delete the models that the policy does not keep; their records stay."""
        spared = {self._state["current"], *map(int, self._state["pinned"])}
        with_files = sorted({*self._numbers("engram"), *self._numbers("safetensors")})
        kept: dict[bool, list[int]] = {True: [], False: []}
        for number in with_files:
            kept[bool(read_json(self._path(number, "json"))["accepted"])].append(number)
        for numbers in kept.values():
            for number in numbers[: -self._state["keep"]]:
                if number not in spared:
                    self._path(number, "engram").unlink(missing_ok=True)
                    aside = self.folder / ASIDE / _name(number, "safetensors")
                    aside.unlink(missing_ok=True)


def explain_no_gate(learner: Learner) -> str:
    """Explain why no gate can judge what a learner learns; empty if one can."""
    snapshot = learner.snapshot
    told = explain_no_alarm(snapshot.calibration, snapshot.facts, 1.0)
    if not told and not learner.calibration:
        told = "alarms need calibration rows of what comes: Learner(calibration=50)"
    return told.replace("alarms need", "a gate needs") + (" (gate=None: none)" if told else "")


def _is_unfinished(path: Path) -> bool:
    """Return whether nothing is in a folder but what `create` leaves if it is killed."""
    if not path.is_dir() or is_store(path):
        return False
    ours = (LOCK_FILE, f".{STORE_FILE}.tmp-")
    names = {one.name for one in path.iterdir() if not one.name.startswith(ours)}
    first = {_name(1, "engram"), _name(1, "json")}
    inside = {one.name for name in names & {VERSIONS, ASIDE} for one in (path / name).iterdir()}
    return names <= {VERSIONS, ASIDE} and all(name in first or ".tmp-" in name for name in inside)


def is_store(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is the folder of a `ModelStore`."""
    return (Path(path) / STORE_FILE).is_file()


def _name(number: int, kind: str) -> str:
    return f"{number:06d}.{kind}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _as_array(labels: Sequence[Any]) -> Any:
    return np.asarray(labels)
