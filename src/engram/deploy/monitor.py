"""`Monitor`: how a served model does, from what it has predicted and labels that come later."""

from __future__ import annotations

import math
import os
import secrets
import time as clock
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from scipy import stats

from engram.data.tables.table_rows import is_table
from engram.deploy.calibration import DEFAULT_RATE
from engram.deploy.deployed_learner import Learner
from engram.deploy.drift_tests import (
    ColumnReference,
    Comparison,
    compare_column,
    compare_novelty,
    describe_columns,
    plain_reference,
    read_reference,
    spend,
    split_columns,
)
from engram.deploy.line_journal import LineJournal
from engram.deploy.new_task import Array, RowLabels, are_lists, labels_to_names
from engram.errors import bad, check_float, check_int, unknown, wrap_read_errors
from engram.io import check_folder_path, make_folders, read_json, write_json
from engram.metrics.classification import expected_calibration_error
from engram.metrics.significance import holm

FORMAT = "engram-monitor-1"
STORE_FILE = "store.json"  # of a ModelStore
PERIODS = {"hour": 3600.0, "day": 86_400.0, "week": 604_800.0}
MOST_ROWS = 200_000
MOST_LEARNINGS = 1000
LEVEL = 0.95  # of the intervals
CALIBRATION_BINS = 15
OBSERVATION_COLUMNS = (
    "time", "period", "id", "model", "label", "probability", "p_value", "compared", "alarm", "rate",
    "truth", "delay", "right",
)  # fmt: skip


@runtime_checkable
class Served(Protocol):
    """A `ModelStore`, by what is used of it."""

    @property
    def learner(self) -> Learner: ...

    @property
    def current(self) -> Any: ...


class _Reference(NamedTuple):
    """What the inputs of a model are compared with."""

    key: str
    columns: list[ColumnReference]

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> _Reference:
        return cls(line["key"], read_reference(line["reference"]))


class _Test(NamedTuple):
    period: int
    model: int
    what: str
    rows: int
    found: Comparison


class Monitor:
    """What a model predicted, the labels that came later, and what follows from both.

    It writes into a folder of its own; what a call has written is on disk when it returns, and what
    a killed process left half written does not count. Inputs are not written, only in which of
    about ten bins of its column each value lies. The newest `most` rows are kept (labels count as
    rows), and 1,000 learnings; all that is computed is about those.

    Time is cut into periods of equal length, from the first record on. Times are seconds since
    1970, ``datetime`` or ISO texts; without one it is now.

    Parameters
    ----------
    folder
        Made with the first record. `Monitor.of` finds that of a model.
    period
        ``hour``, ``day``, ``week`` or a number of seconds; it is fixed by the first record.
    most
        Number of rows that are kept.
    synced
        Whether records wait for the disk. Without, a crash of the machine may lose the last ones.

    Examples
    --------
    >>> import tempfile
    >>> monitor = Monitor(tempfile.mkdtemp() + "/monitor", period="day")
    >>> ids = monitor.observe(["cat", "dog", "cat"], [0.9, 0.8, 0.6], time=0)
    >>> monitor.label(ids[:2], ["cat", "cat"], time=7200)
    >>> monitor.accuracy()[["rows", "labelled", "right", "accuracy"]].values.tolist()
    [[3.0, 2.0, 1.0, 0.5]]
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, period: str | float | None = None,
        most: int = MOST_ROWS, synced: bool = True,
    ) -> None:  # fmt: skip
        self.folder = check_folder_path("folder", folder)
        check_int("most", most, 1)
        self._wanted = None if period is None else _seconds(period)
        self._about: dict[str, Any] = {}
        self._kind: type | None = None  # of the labels
        self._rows = LineJournal(self.folder, "rows", most=most, synced=synced)
        self._learnings = LineJournal(self.folder, "learnings", most=MOST_LEARNINGS, synced=synced)
        begun = self._begun()
        if begun and self._wanted not in (None, begun["period"]):
            raise bad("period", f"{begun['period']:g} seconds, as in {self.folder}", period)

    @classmethod
    def of(cls, model: str | os.PathLike[str], **options: Any) -> Monitor:
        """The monitor of a model file (``FILE.monitor``), or of the folder of a `ModelStore`."""
        path = Path(model)
        if not (path.is_file() or (path / STORE_FILE).is_file()):
            raise bad("model", "a model file or the folder of a store", str(model))
        beside = path / "monitor" if path.is_dir() else path.with_name(f"{path.name}.monitor")
        return cls(beside, **options)

    # -- writing -----------------------------------------------------------------------------------
    def predict(
        self, model: Learner | Served, x: Any, *, ids: Sequence[str] | None = None,
        time: Any = None, rate: float = DEFAULT_RATE,
    ) -> pd.DataFrame:  # fmt: skip
        """Predict rows and record it: ``id``, ``label``, ``probability``, ``p_value``, ``alarm``.

        Alarms at `rate` need a learner with calibration rows; without, their columns are empty.
        Drift of inputs is watched from the first `record_learning` of this model on; for arrays
        also without one, against the rows that the learner keeps.
        """
        learner, number = _learner_of(model)
        now = learner.snapshot
        if now.facts["labels"] == "set" or now.facts["head"] == "multi":
            raise bad("model", "one that predicts one label among all classes", "another")
        check_float("rate", rate, 0.0, 1.0, open_low=True)
        share = learner.predict_proba(x)
        labels = learner.classes_[share.argmax(1)]
        found = pd.DataFrame({"label": labels, "probability": share.max(1)})
        watched = not now.explain_no_alarm(rate)
        alarms = learner.alarm(x, rate) if watched else None
        found["p_value"] = np.nan if alarms is None else alarms.p_value
        found["alarm"] = pd.array(
            [None] * len(found) if alarms is None else alarms.alarm, dtype="boolean"
        )
        if self._reference(number) is None and not is_table(x):
            kept = _kept_rows(learner)
            if kept is not None:
                self._write_learning(number, time, None, None, plain_reference(
                    describe_columns(kept[0].numpy())
                ))  # fmt: skip
        known = self._reference(number) is not None
        names = self.observe(
            labels, share.max(1), ids=ids, time=time, model=number, x=x if known else None,
            p_values=None if alarms is None else alarms.p_value,
            compared=None if alarms is None else alarms.compared, rate=rate,
        )  # fmt: skip
        found.insert(0, "id", names)
        return found

    def observe(
        self, labels: Any, probabilities: Any, *, ids: Sequence[str] | None = None,
        time: Any = None, model: int = 0, x: Any = None, p_values: Any = None,
        compared: Any = None, rate: float = DEFAULT_RATE,
    ) -> list[str]:  # fmt: skip
        """Record predictions made elsewhere, and return their ids.

        Parameters
        ----------
        labels, probabilities
            [n] what was predicted, and its probability.
        ids
            A text for each row, by which its label is joined later; made up if there are none.
            Of rows with one id, the first counts.
        model
            Number of the model: tasks that a `Learner` has learnt, or version of a `ModelStore`.
        x
            Inputs, of which only bins are recorded; needs a `record_learning` of this model.
        p_values, compared, rate
            Of `Learner.alarm`, if there are alarms.
        """
        said = _plain_labels("labels", labels)
        count = len(said)
        if not count:
            raise bad("labels", "at least one", "none")
        self._check_kind("labels", said)
        sure = _check_shares("probabilities", probabilities, count)
        names = [secrets.token_hex(8) for _ in said] if ids is None else _check_ids(ids, count)
        line: dict[str, Any] = {
            "kind": "seen", "time": _read_time(time), "model": check_int("model", model),
            "id": names, "label": said, "probability": sure,
        }  # fmt: skip
        if p_values is not None:
            if compared is None:
                raise bad("compared", "numbers of calibration rows, as in Learner.alarm", None)
            line["p_value"] = _check_shares("p_values", p_values, count)
            line["compared"] = np.broadcast_to(np.asarray(compared), count).tolist()
            line["rate"] = check_float("rate", rate, 0.0, 1.0, open_low=True)
        if x is not None:
            reference = self._reference(model)
            if reference is None:
                expected = f"None before record_learning of model {model}"
                raise bad("x", expected, type(x).__name__)
            columns = split_columns(x)
            if missing := [one.name for one in reference.columns if one.name not in columns]:
                raise bad("x", f"the columns of record_learning, with {missing[:5]}", [*columns])
            codes = [one.encode(columns[one.name]).tolist() for one in reference.columns]
            if any(len(one) != count for one in codes):
                raise bad("x", f"{count} rows, one for each label", len(x))
            line |= {"codes": codes, "against": reference.key}
        self._begin(line["time"])
        self._rows.append(line, items=count)
        return names

    def label(self, ids: Sequence[str], y: Any, *, time: Any = None) -> None:
        """Record the labels of rows by their ids; they may come late, early, or again.

        The last label of an id counts. A label waits for its row.
        """
        truth = _plain_labels("y", y)
        names = _check_ids(ids, len(truth))
        self._check_kind("y", truth)
        when = _read_time(time)
        line = {"kind": "label", "time": when, "id": names, "label": truth}
        self._begin(when)
        self._rows.append(line, items=len(truth))

    def record_learning(
        self, model: Learner | Served, x: Any = None, y: Any = None, *, time: Any = None
    ) -> None:
        """Record that a model has learnt: its accuracy on kept rows, and what it has learnt from.

        Parameters
        ----------
        x, y
            The rows. Later inputs are compared with the columns of `x`.
        """
        learner, number = _learner_of(model)
        reference = None if x is None else plain_reference(describe_columns(x))
        classes = None
        if y is not None:
            names = labels_to_names(np.asarray(y))
            classes = {name: names.count(name) for name in sorted(set(names))}
        self._write_learning(number, time, classes or {}, _score_kept(learner), reference)

    # -- reading -----------------------------------------------------------------------------------
    def observations(self) -> pd.DataFrame:
        """Return the rows that are kept, one for each id, with the labels that have come.

        ``truth`` is missing until the label comes, ``delay`` are the seconds between.
        """
        found: dict[str, list[Any]] = {name: [] for name in OBSERVATION_COLUMNS}
        labels: dict[str, tuple[Any, float]] = {}
        for line in self._rows.read():
            if line["kind"] == "label":
                labels.update(
                    (name, (one, line["time"])) for name, one in zip(line["id"], line["label"])
                )
                continue
            count = len(line["id"])
            found["id"] += line["id"]
            found["label"] += line["label"]
            found["probability"] += line["probability"]
            for name in ("p_value", "compared"):
                found[name] += line.get(name, [math.nan] * count)
            for name in ("time", "model"):
                found[name] += [line[name]] * count
            found["rate"] += [line.get("rate", math.nan)] * count
        first = list(dict(zip(reversed(found["id"]), range(len(found["id"]) - 1, -1, -1))).values())
        first.sort()
        frame = pd.DataFrame(
            {name: [found[name][k] for k in first] for name in found if found[name]},
            columns=list(OBSERVATION_COLUMNS),
        )
        joined = [labels.get(name) for name in frame["id"]]
        frame["period"] = [self._period(one) for one in frame["time"]]
        truth = [None if one is None else one[0] for one in joined]
        frame["truth"] = pd.Series(truth, dtype=object)
        frame["delay"] = [
            math.nan if one is None else one[1] - at for one, at in zip(joined, frame["time"])
        ]
        frame["right"] = pd.array(
            [None if one is None else one[0] == said for one, said in zip(joined, frame["label"])],
            dtype="boolean",
        )
        pairs = zip(frame["p_value"], frame["rate"])
        frame["alarm"] = pd.array(
            [None if math.isnan(p) else p <= asked for p, asked in pairs], dtype="boolean"
        )
        return frame

    def accuracy(self, by: str | Sequence[str] = ()) -> pd.DataFrame:
        """Return the prequential accuracy: of predictions made before their labels were known.

        Parameters
        ----------
        by
            Nothing for all rows together; ``period``, ``class`` (the true one), ``model``, or
            several of them.

        Returns
        -------
        DataFrame
            ``rows``, those ``labelled`` and ``right``, ``accuracy`` of the labelled ones, and its
            Clopper-Pearson interval of 95 percent, ``low`` and ``high``.
        """
        frame = self.observations()
        names = [by] if isinstance(by, str) else list(by)
        for name in names:
            if name not in ("period", "class", "model"):
                raise unknown("by", name, ["period", "class", "model"])
        if "class" in names:
            frame = frame[frame["truth"].notna()].rename(columns={"truth": "class"})
        frame = frame.assign(
            labelled=frame["right"].notna().astype(int),
            right=frame["right"].fillna(False).astype(int), rows=1,
        )  # fmt: skip
        counts = ["rows", "labelled", "right"]
        if names:
            found = frame.groupby(names)[counts].sum()
        else:
            found = frame[counts].sum().to_frame("all").T
        return _add_share(found, "accuracy", "right", "labelled")

    def shares(self, what: str = "label") -> pd.DataFrame:
        """Return the share of each class by period: of predictions, or of the ``truth``."""
        if what not in ("label", "truth"):
            raise unknown("what", what, ["label", "truth"])
        frame = self.observations()
        frame = frame[frame[what].notna()]
        return pd.crosstab(frame["period"], frame[what].map(str), normalize="index")

    def calibration(self, by: str = "") -> pd.DataFrame:
        """Return the expected calibration error of labelled rows, all or by ``period``.

        The mean gap between the probability of the predicted label and the accuracy, over 15 bins
        of that probability of equal width, each weighted by its rows. With few rows it is above 0
        even for a calibrated model. ``bin`` returns the bins themselves.
        """
        if by not in ("", "period", "bin"):
            raise unknown("by", by, ["period", "bin"])
        frame = self.observations()
        frame = frame[frame["right"].notna()].astype({"right": float})
        if by == "bin":
            edges = np.linspace(0, 1, CALIBRATION_BINS + 1)
            place = np.clip(np.searchsorted(edges, frame["probability"]) - 1, 0, None)
            groups = frame.groupby(place)[["probability", "right"]]
            found = groups.mean().rename(columns={"right": "accuracy"})
            return found.assign(labelled=groups.size()).rename_axis("bin")
        parts = frame.groupby("period") if by else [("all", frame)] * bool(len(frame))
        rows = {
            name: (len(part), _calibration_error(part["probability"], part["right"]))
            for name, part in parts
        }
        found = pd.DataFrame.from_dict(rows, "index", columns=["labelled", "calibration_error"])
        return found.rename_axis("period") if by else found

    def alarms(self, by: str = "") -> pd.DataFrame:
        """Return how many rows raised a novelty alarm, all or by ``period``, beside the rate."""
        if by not in ("", "period"):
            raise unknown("by", by, ["period"])
        frame = self.observations()
        frame = frame[frame["alarm"].notna()]
        frame = frame.assign(rows=1, alarms=frame["alarm"].astype(int))
        groups = frame.groupby("period" if by else lambda row: "all")
        found = groups[["rows", "alarms"]].sum().assign(expected=groups["rate"].mean())
        return _add_share(found, "share", "alarms", "rows")

    def drift(self, rate: float = 0.05) -> pd.DataFrame:
        """Test inputs and novelty of every finished period against what the model has learnt from.

        Without drift, the probability that any ``drift`` is ever true is at most `rate`, over all
        columns and periods, however often this is called (`engram.deploy.drift_tests`). A column
        has not drifted if its values are drawn as those of `record_learning`. Novelty has not if
        rows are drawn as the calibration rows are: of known classes in equal numbers.

        A period is finished when something of a later one was recorded. Rows that are recorded
        after that for an earlier period are left out, and so is the oldest period where older rows
        are no longer kept.

        Returns
        -------
        DataFrame
            For each period, model and ``what`` (a column, or ``novelty``): ``distance`` (largest
            difference of cumulative shares, or of a category's share), ``p_value``, ``adjusted``
            (Holm, within the period), the ``level`` of the period, and ``drift``: whether the
            adjusted value is at most the level.
        """
        check_float("rate", rate, 0.0, 1.0, open_low=True)
        tests = self._tests()
        rows = [
            (one.period, one.model, one.what, one.rows, *one.found, spend(rate, one.period))
            for one in tests
        ]
        names = ["period", "model", "what", "rows", "distance", "p_value", "level"]
        found = pd.DataFrame(rows, columns=names)
        groups = found.groupby("period")["p_value"]
        found.insert(6, "adjusted", groups.transform(holm) if len(found) else found["p_value"])
        return found.assign(drift=found["adjusted"] <= found["level"])

    def learnings(self) -> pd.DataFrame:
        """Return the learnings: ``time``, ``period``, ``model``, ``rows``, and accuracies on kept
        rows.

        ``kept`` says which rows: ``calibration`` were never trained on, ``memory`` were. Both are
        renewed by later learnings of their class.
        """
        rows = []
        for line in self._learnings.read():
            if line["kind"] == "reference":
                continue
            kept = line.get("kept") or {}
            rows.append({
                "time": line["time"], "period": self._period(line["time"]), "model": line["model"],
                "rows": sum((line.get("classes") or {}).values()), "kept": kept.get("rows", ""),
                **{f"accuracy of {name}": one for name, one in kept.get("classes", {}).items()},
            })  # fmt: skip
        columns = ["time", "period", "model", "rows", "kept"]
        frame = pd.DataFrame(rows)
        return frame if len(frame) else pd.DataFrame(columns=columns)

    def forgetting(self) -> pd.DataFrame:
        """Return for each class its accuracy on kept rows: ``best`` so far, ``now``, ``forgotten``.

        Forgotten is the best of earlier learnings minus the last, as in `engram.metrics.forgetting`
        with ``max``; a class that was learnt last only has forgotten nothing.
        """
        frame = self.learnings()
        frame = frame[frame["kept"] != ""]
        start = "accuracy of "
        found = {}
        for name in frame.columns[frame.columns.str.startswith(start)] if len(frame) else ():
            values = frame[name].dropna()
            best = values.iloc[:-1].max() if len(values) > 1 else values.iloc[-1]
            found[name.removeprefix(start)] = (best, values.iloc[-1], best - values.iloc[-1])
        names = ["best", "now", "forgotten"]
        return pd.DataFrame.from_dict(found, "index", columns=names).rename_axis("class")

    def numbers(self, rate: float = 0.05) -> dict[str, float]:
        """Return the state as plain numbers, for another monitoring system; nan is not known yet.

        ``rows``, ``labelled_rows``, ``unmatched_labels`` (of no row that is kept), ``learnings``,
        ``accuracy``, ``calibration_error``, ``alarm_share``, ``label_delay_seconds`` (median);
        ``last_period``, with ``accuracy_last_period``, ``calibration_error_last_period`` and
        ``alarm_share_last_period``; ``forgetting`` (mean over classes);
        and of the last finished period ``drifted_columns``, ``drifted_novelty`` (0 or 1) and
        ``smallest_drift_p_value`` (adjusted).
        """
        frame = self.observations()
        last = frame[frame["period"] == frame["period"].max()]
        drift = self.drift(rate)
        drift = drift[drift["period"] == drift["period"].max()]
        is_novelty = drift["what"] == "novelty"
        known = set(frame["id"])
        labels = {name for one in self._rows.read() if one["kind"] == "label" for name in one["id"]}
        forgotten = self.forgetting()["forgotten"].clip(lower=0)
        found = {
            "rows": len(frame), "labelled_rows": frame["right"].count(),
            "unmatched_labels": len(labels - known), "learnings": len(self.learnings()),
            "label_delay_seconds": frame["delay"].median(), "last_period": frame["period"].max(),
            "forgetting": forgotten.mean(),
            "drifted_columns": drift["drift"][~is_novelty].sum() if len(drift) else math.nan,
            "drifted_novelty": drift["drift"][is_novelty].sum() if is_novelty.any() else math.nan,
            "smallest_drift_p_value": drift["adjusted"].min(),
        }  # fmt: skip
        for end, part in (("", frame), ("_last_period", last)):
            told = part[part["right"].notna()].astype({"right": float})
            found[f"accuracy{end}"] = told["right"].mean()
            error = _calibration_error(told["probability"], told["right"])
            found[f"calibration_error{end}"] = error
            found[f"alarm_share{end}"] = part["alarm"].dropna().astype(float).mean()
        return {name: float(value) for name, value in sorted(found.items())}

    @property
    def damaged(self) -> int:
        """Number of lines that could not be read; half a line of a killed process is one."""
        for journal in (self._rows, self._learnings):
            list(journal.read())
        return self._rows.damaged + self._learnings.damaged

    def __repr__(self) -> str:
        return f"Monitor({str(self.folder)!r})"

    # -- inside ------------------------------------------------------------------------------------
    def _begun(self) -> dict[str, Any]:
        if self._about:  # it never changes
            return self._about
        path = self.folder / "monitor.json"
        if not path.is_file():
            return {}
        with wrap_read_errors(path, "monitor"):
            found: dict[str, Any] = read_json(path)
            if found["format"] != FORMAT:
                raise bad(str(path), f"the format {FORMAT}", found["format"])
            found["period"], found["begun"]
        self._about = found
        return found

    def _begin(self, time: float) -> None:
        if self._begun():
            return
        make_folders(self.folder)
        with self._rows.locked():
            if not self._begun():
                period = PERIODS["week"] if self._wanted is None else self._wanted
                about = {"format": FORMAT, "period": period, "begun": time}
                write_json(self.folder / "monitor.json", about)

    def _check_kind(self, argument: str, labels: list[Any]) -> None:
        """Refuse labels that no prediction could equal: 1 and "1" are not the same."""
        kind = self._kind
        if kind is None:
            seen = (one["label"][0] for one in self._rows.read() if one["kind"] == "seen")
            kind = self._kind = next((type(one) for one in seen), None)
        if kind is not None and labels and type(labels[0]) is not kind:
            expected = f"labels of the kind that is predicted ({kind.__name__})"
            raise bad(argument, expected, labels[0])

    def _period(self, time: float) -> int:
        """The number of the period of a time, from 1."""
        begun = self._begun()
        passed = (time - float(begun["begun"])) / float(begun["period"])
        return max(1, 1 + math.floor(passed))

    def _write_learning(
        self, model: int, time: Any, classes: Mapping[str, int] | None,
        kept: Mapping[str, Any] | None, reference: list[dict[str, Any]] | None,
    ) -> None:  # fmt: skip
        when = _read_time(time)
        told = classes is not None or kept is not None
        line = {"kind": "learning" if told else "reference", "time": when, "model": model,
                "key": secrets.token_hex(4)}  # fmt: skip
        parts = {"classes": classes, "kept": kept, "reference": reference}
        self._begin(when)
        self._learnings.append(
            {**line, **{k: v for k, v in parts.items() if v is not None}}, items=1
        )

    def _reference(self, model: int) -> _Reference | None:
        """The last reference of a model."""
        for line in reversed([*self._learnings.read()]):
            if line["model"] == model and "reference" in line:
                return _Reference.of(line)
        return None

    def _tests(self) -> list[_Test]:
        """Run all tests of finished periods."""
        parts: dict[tuple[int, int], list[dict[str, Any]]] = {}
        newest = oldest = 0
        for line in self._rows.read():
            period = self._period(line["time"])
            oldest = oldest or period
            if line["kind"] == "seen" and period >= newest:  # late rows would change what is tested
                parts.setdefault((period, line["model"]), []).append(line)
            newest = max(newest, period)
        for line in self._learnings.read():
            newest = max(newest, self._period(line["time"]))
        every = (line for line in self._learnings.read() if "reference" in line)
        references, found = {line["key"]: _Reference.of(line) for line in every}, []
        for (period, model), lines in sorted(parts.items()):
            if period >= newest or (self._rows.is_cut and period == oldest):
                continue
            told: dict[str, list[Any]] = {}
            for line in lines:
                if line.get("against") in references:
                    told.setdefault(line["against"], []).append(line["codes"])
            for key, parts_of in told.items():
                for place, column in enumerate(references[key].columns):
                    codes = np.concatenate([one[place] for one in parts_of])
                    result = compare_column(column, codes)
                    found.append(_Test(period, model, column.name, len(codes), result))
            by_count: dict[int, list[float]] = {}
            for line in lines:
                for value, count in zip(line.get("p_value", ()), line.get("compared", ())):
                    by_count.setdefault(count, []).append(value)
            for count, values in by_count.items():
                result = compare_novelty(np.array(values), count)
                found.append(_Test(period, model, "novelty", len(values), result))
        return found


def _learner_of(model: Any) -> tuple[Learner, int]:
    if isinstance(model, Served):
        return model.learner, int(model.current.number)
    if not isinstance(model, Learner):
        raise bad("model", "a Learner or a ModelStore", type(model).__name__)
    return model, model.tasks


def _kept_rows(learner: Learner) -> tuple[Any, Any, str] | None:
    """Rows that a learner keeps, their columns, and which: held out, or of its memory."""
    now, found = learner.snapshot, learner._portable
    if now.calibration is not None:
        return now.calibration.x, now.calibration.y, "calibration"
    if found is None or found.facts["rows_left_out"] or not len(found.tensors["rows/y"]):
        return None
    shape = found.facts["inputs"]["shape"]
    return found.tensors["rows/x"].reshape(-1, *shape), found.tensors["rows/y"][:, 0], "memory"


def _score_kept(learner: Learner) -> dict[str, Any] | None:
    now = learner.snapshot
    kept = _kept_rows(learner)
    if kept is None or now.facts["labels"] == "set" or now.facts["head"] == "multi":
        return None
    x, columns, which = kept
    truth = now.labels[columns.numpy()]
    right = pd.Series(now.predict(x) == truth).groupby(labels_to_names(truth)).mean()
    return {"rows": which, "classes": {str(name): float(one) for name, one in right.items()}}


def _calibration_error(probability: pd.Series, right: pd.Series) -> float:
    if not len(right):
        return math.nan
    sure = probability.to_numpy(np.float64)
    scores = np.stack([sure, np.zeros_like(sure)], 1)  # the other labels together do not matter
    return expected_calibration_error(scores, 1 - right.to_numpy(np.int64), CALIBRATION_BINS)


def _add_share(frame: pd.DataFrame, name: str, part: str, of: str) -> pd.DataFrame:
    """Add a share and its Clopper-Pearson interval."""
    hits, rows = frame[part].to_numpy(np.float64), frame[of].to_numpy(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = hits / rows
    tail = (1 - LEVEL) / 2
    low = np.where(hits > 0, stats.beta.ppf(tail, hits, rows - hits + 1), 0.0)
    high = np.where(hits < rows, stats.beta.ppf(1 - tail, hits + 1, rows - hits), 1.0)
    none = rows == 0
    return frame.assign(
        **{name: share, "low": np.where(none, np.nan, low), "high": np.where(none, np.nan, high)}
    )


# What callers give.


def _seconds(period: str | float) -> float:
    if isinstance(period, str):
        if period not in PERIODS:
            raise unknown("period", period, PERIODS)
        return PERIODS[period]
    return check_float("period", period, 0.0, open_low=True)


def _read_time(time: Any) -> float:
    """Seconds since 1970.

    Examples
    --------
    >>> _read_time("1970-01-02T00:00:00+00:00"), _read_time(5)
    (86400.0, 5.0)
    """
    if time is None:
        return clock.time()
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            raise bad("time", "a time such as 2026-11-20T08:30:00+00:00", time) from None
    if isinstance(time, datetime):
        return time.timestamp()
    return float(check_float("time", time))


def _plain_labels(argument: str, labels: Any) -> list[Any]:
    if are_lists(labels) or getattr(labels, "ndim", 1) != 1 or isinstance(labels, str):
        raise bad(argument, "one label for each row", type(labels).__name__)
    RowLabels.read(labels, len(labels), argument)  # raises for what is no label
    found: list[Any] = np.asarray(labels).tolist()
    return found


def _check_ids(ids: Sequence[str], count: int) -> list[str]:
    names = list(ids)
    if len(names) != count:
        raise bad("ids", f"{count}, one for each row", len(names))
    if wrong := [one for one in names if not isinstance(one, str) or not one]:
        raise bad("ids", "texts", wrong[0])
    if len(set(names)) < count:
        raise bad("ids", "texts that differ", next(one for one in names if names.count(one) > 1))
    return names


def _check_shares(argument: str, values: Any, count: int) -> list[float]:
    try:
        found: Array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise bad(argument, "numbers from 0 to 1", values) from None
    if found.shape != (count,):
        raise bad(argument, f"{count} numbers, one for each label", f"shape {found.shape}")
    if not ((found >= 0) & (found <= 1 + 1e-6)).all():
        raise bad(argument, "numbers from 0 to 1", found.tolist())
    clipped: list[float] = np.minimum(found, 1.0).tolist()
    return clipped
