"""Checks of a run directory against itself: checksums, predictions, ledgers, models.

What needs data or code (ids, fingerprints, budgets, predicting again) is in
`engram.experiments.verification`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engram.errors import EngramError, RecordError
from engram.io import TensorFile, list_names, parse_json, read_json
from engram.records import head_views, prediction_scoring
from engram.records.journal import (
    RecordFile,
    list_journals,
    list_records,
    read_journal,
)
from engram.records.label_tree import LABEL_VIEWS
from engram.records.long_table import Rows, to_frame
from engram.records.predictions import Prediction
from engram.records.run_arrays import RunKey
from engram.records.run_directory import (
    CHECKSUMS,
    RunDirectory,
    hash_model,
    read_sealed_journals,
    run_id,
)
from engram.records.saved_models import MODEL_FILE, check_owner
from engram.records.scored_items import EvaluationItems
from engram.records.stage_rows import add_predicted, make_counts
from engram.records.table_parts import MERGED_SUFFIX, read_part, read_parts, result_files

if TYPE_CHECKING:
    import pandas as pd

    from engram.records.result import Result

# Metrics that follow from stored predictions.
_FROM_PREDICTIONS = (*head_views.FIGURES, *LABEL_VIEWS, "class_accuracy", "predicted")
_PLACE = ["stage", "task", "cls", "head", "metric"]
_EQUAL = 1e-12  # numbers are made again by the same arithmetic
_TENSOR_FILES = {"predictions": "predictions file", "arrays": "arrays file"}
_MOST_SHOWN = 3


class RecordFinding(NamedTuple):
    """Something that is wrong in a run directory: which check found it, where, and what."""

    check: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.what}"


class RecordChecks:
    """Runs the checks of one directory, collecting findings, what was checked and what was not.

    Examples
    --------
    >>> import tempfile
    >>> rows = Rows(recipe="0a1b2c3d4e5f", label="ER", seed=0)
    >>> rows.add("accuracy", 0.9, stage=0, task=0, head="single")
    >>> folder = RunDirectory(tempfile.mkdtemp())
    >>> part = folder.append(rows)
    >>> checks = RecordChecks(folder)
    >>> checks.check_files()
    >>> checks.findings, checks.checked["checksums"]
    ([], 1)
    """

    def __init__(self, folder: RunDirectory) -> None:
        self.folder = folder
        self.findings: list[RecordFinding] = []
        self.notes: dict[str, None] = {}  # what was not checked, and why; each once
        self.checked: Counter[str] = Counter()
        self._models: dict[str, str] = {}  # hashes of the models of runs
        self._sealed: dict[str, int] = {}  # journals that are complete, and their numbers of parts

    def find(self, check: str, where: object, what: object) -> None:
        """Note that something is wrong."""
        path = str(where).removeprefix(f"{self.folder.path}").lstrip("/\\")
        words = " ".join(str(what).split()).replace(f"{self.folder.path}/", "")
        one = RecordFinding(check, path, words.removeprefix(f"{path}: "))
        if one not in self.findings:
            self.findings.append(one)

    def note(self, text: str) -> None:
        """Note that something was not checked."""
        self.notes[text] = None

    # -- files -----------------------------------------------------------------------------------
    def check_files(self) -> None:
        """Check that every file is there, can be read and has the checksum noted for it."""
        self._sealed = read_sealed_journals(self.folder.path)
        for name, parts in self._sealed.items():
            try:
                files = read_journal(self.folder.path / name).files
            except RecordError:
                self.find("files", name, "was written and is missing")
                continue
            if (have := sum(one.kind == "results" for one in files)) < parts:
                self.find("files", name, f"has {have} of the {parts} parts that were written")
        for path in list_journals(self.folder.path):
            try:
                contents = read_journal(path)
            except RecordError as problem:
                self.find("files", path, problem)
                continue
            for place in contents.damaged:
                self.find("files", path, f"is damaged at byte {place}")
            self._check_sums(path, contents.files)
        self._check_loose()
        for kind, read in _READERS.items():
            for file in list_records(self.folder.path, kind):
                self.checked["files"] += 1
                try:
                    read(file)
                except (EngramError, ValueError, KeyError) as problem:
                    self.find("files", file, problem)
        for path in sorted(self.folder.path.glob(f"checkpoint/*/{MODEL_FILE}")):
            try:
                _read_tensors(RecordFile(path), "model file")
            except RecordError as problem:
                self.find("files", path, problem)

    def _check_sums(self, path: Path, files: Sequence[RecordFile]) -> None:
        """Check the parts of a journal: each begins with the checksums of its files."""
        told: dict[str, str] = {}
        begun = known = False
        chain = ""
        for file in files:
            if file.kind == CHECKSUMS:
                for name in told:
                    self.find("checksums", path / name, "was written and is missing")
                content = file.read()
                try:
                    whole = parse_json(file, content)
                    told, models = dict(whole["sha256"]), dict(whole["models"])
                    previous = whole["previous"]
                except (RecordError, KeyError, TypeError, ValueError) as problem:
                    self.find("checksums", file, f"is not a list of checksums ({problem})")
                    told, models, previous = {}, {}, chain
                if previous != chain:
                    self.find("checksums", file, "does not follow the part before it")
                chain = hashlib.sha256(content).hexdigest()
                self._models |= models
                begun = known = True
                continue
            if not begun:
                continue
            if file.name not in told:
                self.find("checksums", file, "was not written with this part")
            elif told.pop(file.name) != hashlib.sha256(file.read()).hexdigest():
                self.find("checksums", file, "is not what was written")
            else:
                self.checked["checksums"] += 1
        if not known and files:
            self.note(f"checksums: {path.name} was written by a version that noted none")
        elif files and files[0].kind != CHECKSUMS:
            self.find("checksums", files[0], "was not written with any part")
        # the last part may be incomplete, as its writer was killed; results are written last
        if files and (files[-1].kind == "results" or path.name in self._sealed):
            for name in told:
                self.find("checksums", path / name, "was written and is missing")

    def _check_loose(self) -> None:
        """Check loose files beside journals: merged results against those that they hold."""
        loose = [one for one in list_records(self.folder.path, "results") if one.size is None]
        if any(not one.part.endswith(MERGED_SUFFIX) for one in loose):
            self.note("checksums: loose files, as older versions write them, have their own only")
        merged = [one for one in loose if one.part.endswith(MERGED_SUFFIX)]
        parts = [one for one in list_records(self.folder.path, "results") if one not in merged]
        if not merged or not parts:
            return
        live = to_frame(read_parts(result_files(self.folder.path)).table)
        first = to_frame(read_parts(parts).table)
        both = _compare(first, live, ["recipe", "seed", "order", "step", *_PLACE])
        wrong = both[both["_merge"] == "both"]
        wrong = wrong[~_same(wrong["value_x"], wrong["value_y"])]
        for where in sorted({(r, k, o) for r, k, o in wrong[["recipe", "seed", "order"]].values}):
            names = ", ".join(one.name for one in merged)
            self.find("checksums", run_id(*where), f"numbers in {names} differ from its parts")
        self.checked["merged numbers"] += len(both)

    # -- runs ------------------------------------------------------------------------------------
    def check_runs(self, result: Result) -> None:
        """Check each run: its stages, its numbers against its predictions, its label."""
        groups = _rows_by_run(result)
        for number, run in enumerate(result.runs):
            name = run_id(*run)
            stages = result.stages[run]
            have = sorted({int(k) for k in groups[run]["stage"].unique() if k >= 0})
            if missing := sorted(set(range(max(have, default=-1) + 1)) - set(have)):
                shown = ", ".join(str(k + 1) for k in missing)
                self.find("stages", name, f"the records of stage {shown} are missing")
            if run.recipe not in result.recipes and run.recipe not in self.folder.recipes():
                self.find("recipes", name, "has no recipe file")
            average = str(result.recipes.get(run.recipe, {}).get("average", "micro"))
            with_scores = self._check_predictions(result, run, groups[run], stages, average)
            if not with_scores:
                self._check_counts(name, groups[run], average)
            self.checked["runs"] += 1
            self._note_unfinished(result, number, have)

    def _note_unfinished(self, result: Result, number: int, have: list[int]) -> None:
        run, tasks = result.runs[number], int(result.tasks[number])
        if len(have) < tasks and run not in result.diverged:
            self.note(f"{run_id(*run)} is not finished: {len(have)} of {tasks} stages")

    def _check_predictions(
        self, result: Result, run: RunKey, rows: pd.DataFrame, stages: Sequence[int],
        average: str,
    ) -> bool:  # fmt: skip
        """Compare the recorded numbers of a run with those that its predictions give."""
        name = run_id(*run)
        try:
            items = result.items(run.recipe, run.order)
        except RecordError as problem:
            self.find("items", name, problem)
            return False
        keep = result.recipes.get(run.recipe, {}).get("keep", "counts")
        whole = True
        for stage in stages:
            try:
                kept = result.predictions.get(*run, stage)
            except RecordError as problem:
                self.find("predictions", name, problem)
                continue
            lost = result.diverged.get(run, stage + 1) <= stage
            if kept is None or items is None:
                whole = False
                if keep != "counts" and not lost:
                    what = "predictions" if kept is None else "test items"
                    self.find("predictions", name, f"{what} of stage {stage + 1} are missing")
                continue
            try:
                self._check_stage(name, kept, items, rows, stage, average)
            except (EngramError, ValueError, IndexError) as problem:
                text = f"do not fit the test items of stage {stage + 1} ({problem})"
                self.find("predictions", name, text)
        if not whole:
            self.note(f"{name}: no predictions were kept, so accuracies are checked by class only")
        return whole

    def _check_stage(
        self, name: str, kept: Prediction, items: EvaluationItems, rows: pd.DataFrame,
        stage: int, average: str,
    ) -> None:  # fmt: skip
        found, scored = Rows(runs=1), kept.scored(items)
        counts = make_counts([scored], stage)
        for head in items.heads:
            decided = kept.predicted(items, head=head)
            if moved := _count_undecided(kept, scored, decided, head):
                text = f"{moved} labels after stage {stage + 1} do not follow from the scores"
                self.find("predictions", name, text)
            add_predicted(found, decided[None], counts, stage=stage, head=head, average=average)
        if stage == 0:
            cells, place = make_counts([items], stage).cells
            found.add("class_count", make_counts([items], stage).number[cells], **place)
        made = Rows(recipe="", label="", seed=0)
        made.add_stage(found, stage=stage)
        recorded = rows[rows["stage"] == stage]
        names = (*_FROM_PREDICTIONS, *(["class_count"] if stage == 0 else []))
        recorded = recorded[recorded["metric"].isin(names)]
        both = _compare(made.frame(), recorded, _PLACE)
        self.checked["numbers from predictions"] += len(both)
        wrong = both[~_same(both["value_x"], both["value_y"])]
        lines = [_describe(one) for one in wrong.head(_MOST_SHOWN).itertuples()]
        if more := len(wrong) - len(lines):
            lines.append(f"{more} more")
        if lines:
            text = f"after stage {stage + 1}, predictions give other numbers: {'; '.join(lines)}"
            self.find("values", name, text)

    def _check_counts(self, name: str, rows: pd.DataFrame, average: str) -> None:
        """Compare accuracies of tasks with those of their classes."""
        share = rows[rows["metric"] == "class_accuracy"]
        size = rows[rows["metric"] == "class_count"]
        share = share[share["task"] >= 0].merge(
            size[["task", "cls", "value"]], on=["task", "cls"], suffixes=("", "_count")
        )
        if (rows["metric"] != "accuracy").all() or not len(share):
            return
        hits = share["value"] * share["value_count"]
        if (abs(hits - hits.round()) > 1e-6).any():
            self.find("values", name, "class accuracies are not shares of whole numbers of rows")
        keys = ["stage", "head", "task"]
        share = share.assign(hit=hits.round())
        groups = share.groupby(keys, observed=True)
        sums = groups[["hit", "value_count"]].sum()
        means = groups["value"].mean() if average == "macro" else sums["hit"] / sums["value_count"]
        told = rows[rows["metric"] == "accuracy"].set_index(keys)["value"]
        both = means.rename("made").to_frame().join(told.rename("told"), how="inner")
        self.checked["accuracies from classes"] += len(both)
        for where in both.index[~_same(both["made"], both["told"])][:_MOST_SHOWN]:
            stage, _, task = where
            text = f"accuracy of task {task + 1} after stage {stage + 1} is not that of its classes"
            self.find("values", name, text)

    # -- models and items ------------------------------------------------------------------------
    def check_models(self, result: Result) -> None:
        """Check that each model belongs to the run under whose name it lies."""
        owners = {run_id(*run): run for run in result.runs}
        for path in sorted(self.folder.path.glob(f"checkpoint/*/{MODEL_FILE}")):
            run = owners.get(path.parent.name)
            if run is None:
                self.note(f"{path.parent.name}: has a model, but no records")
                continue
            try:
                check_owner(path, run)
            except RecordError as problem:
                self.find("models", path, problem)
                continue
            told = self._models.get(path.parent.name)
            if told is not None and told != hash_model(path.parent):
                self.find("models", path, "is not the model that was written with the records")
                continue
            self.checked["models"] += 1

    def check_items(self) -> None:
        """Check that test items are those of the recipe and order that their file names."""
        for name in list_names(self.folder.path, "items-", ".safetensors"):
            path = self.folder.path / name
            try:
                facts = TensorFile(path, what="items file").facts
                own = self.folder.items_path(facts.get("recipe", ""), facts.get("order", ""))
                _read_tensors(RecordFile(path), "items file")
            except RecordError as problem:
                self.find("items", path, problem)
                continue
            if own != path:
                self.find("items", path, f"holds those of recipe {facts.get('recipe')}")
            self.checked["items"] += 1

    # -- ledgers ---------------------------------------------------------------------------------
    def check_ledgers(self, result: Result) -> None:
        """Check what each run read against what it was scored on and what it remembered."""
        entries: dict[RunKey, list[Mapping[str, Any]]] = {}
        for document in result.ledger:
            for one in document.get("runs", ()):
                try:
                    run = RunKey(str(one["recipe"]), int(one["seed"]), str(one["order"]))
                except (KeyError, TypeError, ValueError):
                    self.find("ledger", document.get("part", "ledger"), "has an entry of no run")
                    continue
                entries.setdefault(run, []).append(one)
        groups = _rows_by_run(result)
        for number, run in enumerate(result.runs):
            tasks = int(result.tasks[number])
            self._check_labels(run, groups[run], entries.get(run, []))
            finished = tasks - 1 in result.stages[run] and run not in result.diverged
            if finished and run not in entries and entries:
                self.find("ledger", run_id(*run), "has no entry, though the run is finished")
            for place, one in enumerate(entries.pop(run, [])):
                for text in _wrong_reads(one, result, run, groups[run], tasks, main=place == 0):
                    self.find("ledger", run_id(*run), text)
                self.checked["ledger entries"] += 1
        for run in entries:
            self.find("ledger", run_id(*run), "is about a run without results")

    def _check_labels(
        self, run: RunKey, rows: pd.DataFrame, entries: Sequence[Mapping[str, Any]]
    ) -> None:
        """Check that the results name a run as its ledger does."""
        label = str(rows["label"].iloc[-1]) if len(rows) else ""
        told = [str(one["label"]) for one in entries if "label" in one]
        if told and label not in told:
            text = f"is called {told[0]!r} there, and {label!r} in the results"
            self.find("ledger", run_id(*run), text)


def _rows_by_run(result: Result) -> dict[RunKey, pd.DataFrame]:
    """Return the rows of each run at the ends of stages."""
    whole = result.recorded_frame()  # with the labels as they were written
    ended = whole[whole["step"] == -1]
    groups = ended.groupby(["recipe", "seed", "order"], observed=True, sort=False)
    found: dict[RunKey, Any] = {}
    for key, part in groups:
        recipe, seed, order = map(str, key)
        found[RunKey(recipe, int(seed), order)] = part
    return {run: found.get(run, ended.iloc[:0]) for run in result.runs}


def _read_tensors(file: RecordFile, what: str) -> None:
    opened = file.tensors(what)
    for name in opened.keys():  # noqa: SIM118
        opened.get(name)


def _read_document(file: RecordFile) -> None:
    parse_json(file, file.read())


_READERS: dict[str, Any] = {
    "results": read_part,
    "predictions": lambda file: _read_tensors(file, _TENSOR_FILES["predictions"]),
    "arrays": lambda file: _read_tensors(file, _TENSOR_FILES["arrays"]),
    "ledger": _read_document,
    "probes": _read_document,
    "environment": _read_document,
    "listed": lambda file: read_json(file.path),
}


def _compare(made: pd.DataFrame, told: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Join numbers by their place, with those that only one side has."""
    texts = {name: str for name in ("recipe", "order", "head", "metric") if name in keys}
    left, right = (one[[*keys, "value"]].astype(texts) for one in (made, told))
    return left.merge(right, on=keys, how="outer", indicator=True)


def _same(a: Any, b: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    both = np.isnan(first) & np.isnan(second)
    # a number that one side lacks is NaN there, as undefined ones are
    return np.asarray(both | (abs(first - second) <= _EQUAL))


def _describe(one: Any) -> str:
    where = [f"task {one.task + 1}"] * (one.task >= 0) + [f"class {one.cls}"] * (one.cls >= 0)
    place = ", ".join([*where, *([one.head] if one.head else [])])
    told = "none" if np.isnan(one.value_y) else f"{one.value_y:.6g}"
    made = "none" if np.isnan(one.value_x) else f"{one.value_x:.6g}"
    return f"{one.metric} ({place}) {told}, not {made}"


def _count_undecided(
    kept: Prediction, items: EvaluationItems, decided: np.ndarray[Any, Any], head: str
) -> int:
    """Count stored labels that stored scores do not give; rounding may have made ties of them."""
    if kept.scores is None:
        return 0
    scores, stage = kept.full(), kept.key.stage
    made = prediction_scoring.decide_predictions(scores, items, stage=stage, head=head)
    if made.dtype == np.bool_:
        return int(((made != decided) & (scores != 0)).any(-1).sum())
    row = np.arange(len(made))
    mask = head_views.open_columns(items, stage=stage, head=head)
    allowed = np.broadcast_to(mask, scores.shape)[row, decided]
    return int((~allowed | (scores[row, decided] < scores[row, made])).sum())


def _wrong_reads(
    entry: Mapping[str, Any],
    result: Result,
    run: RunKey,
    own: pd.DataFrame,
    tasks: int,
    *,
    main: bool,
) -> Iterator[str]:
    """Find reads in the ledger of a run that contradict its other records."""
    stages = entry.get("stages")
    if not isinstance(stages, Mapping):
        yield "has no stages"
        return
    held = own[own["metric"] == "memory_items"].set_index("stage")["value"].to_dict()
    curves = bool((result.recipes.get(run.recipe, {}).get("training") or {}).get("evaluate_every"))
    searched = "search" in (result.recipes.get(run.recipe, {}).get("stream") or {})
    for text, reads in stages.items():
        stage = int(text) if str(text).isdecimal() else -1
        if stage < 0 or (stage >= tasks and run not in result.diverged):
            yield f"reads in stage {text}, which its stream does not have"
            continue
        if any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in reads.values()):
            yield f"counts of stage {stage + 1} are not whole numbers"
            continue
        where = f"in stage {stage + 1}"
        if reads.get("past") and entry.get("reads") != "past":
            yield f"read {reads['past']} rows of earlier tasks {where}, which it may not"
        if reads.get("memory") and stage == 0:
            yield f"read {reads['memory']} rows of a memory {where}, before there was one"
        if reads.get("memory") and stage and held.get(stage - 1) == 0:
            yield f"read {reads['memory']} rows of an empty memory {where}"
        try:
            kept = result.predictions.get(*run, stage)
            items = result.items(run.recipe, run.order)
        except RecordError:  # reported with the file
            continue
        if main and kept is not None and items is not None and not curves and not searched:
            scored = len(kept.scored(items))
            if reads.get("test", 0) + reads.get("held_out", 0) < scored:
                yield f"scored {reads.get('test', 0)} test rows {where}, predictions are {scored}"
