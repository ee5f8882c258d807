"""`verify`: whether the records of a run directory belong together and to what they claim."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import engram
from engram import methods
from engram.data import Data
from engram.engine.backend import inference_numerics
from engram.engine.engine import Engine
from engram.engine.evaluation import evaluate, items_of
from engram.engine.portable_state import restore_state
from engram.engine.run_definition import Run
from engram.errors import EngramError, RecordError, plural
from engram.experiments.build_methods import forbid_user_code
from engram.experiments.experiment_id import (
    ID_FORMAT,
    IDENTITY_PARTS,
    describe_order,
    identify,
    options_hash,
    short_hash,
)
from engram.experiments.model_file import load_model
from engram.experiments.plain_values import to_plain
from engram.experiments.recipe import Recipe
from engram.io import DiskError
from engram.memory import Memory
from engram.methods.method import Method
from engram.plugins import Untrusted
from engram.records import EvaluationItems, Result, RunDirectory, read, run_id
from engram.records.predictions import Prediction
from engram.records.record_checks import RecordChecks, RecordFinding
from engram.records.run_arrays import RunKey
from engram.records.saved_models import MODEL_FILE
from engram.streams.stream import Stream

# Largest difference, relative to the row, of scores that a kept model gives once more: they are
# stored in half precision, and rounding depends on device and batch. Weights of another run differ
# by about 1.
_SAME_SCORES = {"float32": 0.01, "float64": 0.01}
_COARSE_SCORES = 0.1  # of training in half precision


@dataclass(frozen=True)
class Verification:
    """What `verify` found in a run directory.

    Parameters
    ----------
    path
        The run directory.
    findings
        What is wrong: (check, where, what).
    notes
        What could not be checked, and why.
    checked
        How much was checked, by kind.
    """

    path: str
    findings: tuple[RecordFinding, ...]
    notes: tuple[str, ...]
    checked: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        lines = [str(one) for one in self.findings]
        lines += [f"not checked: {note}" for note in self.notes]
        done = ", ".join(f"{count} {what}" for what, count in self.checked.items() if count)
        verdict = plural(len(self.findings), "finding") if self.findings else "nothing is wrong"
        return "\n".join([*lines, f"{self.path}: {verdict}; checked: {done or 'nothing'}"])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as ``engram verify --json`` prints them."""
        return {
            "path": self.path, "ok": self.ok,
            "findings": [one._asdict() for one in self.findings],
            "notes": list(self.notes), "checked": dict(self.checked),
        }  # fmt: skip


def verify(
    path: str | os.PathLike[str], *, root: str | os.PathLike[str] | None = None,
    data: Data | None = None, trust: bool = False,
) -> Verification:  # fmt: skip
    """Check a run directory: its files, ids, numbers, ledgers, data and models.

    Numbers are computed once more from stored predictions, and those after the last task from the
    kept model where the data is at hand. A directory whose predictions, numbers, model and
    checksums were all replaced together cannot be told from an honest one.

    Parameters
    ----------
    root
        Directory of data sets; default: the recorded one.
    data
        The data, for runs on arrays in memory.
    trust
        Whether methods and networks that recipes name as ``module:Class`` may be imported.

    Examples
    --------
    >>> import tempfile
    >>> out = tempfile.mkdtemp()
    >>> _ = engram.run(engram.load("blobs"), method="ER", epochs=1, out=out, device="cpu")
    >>> found = verify(out)
    >>> found.ok, found.checked["models"], found.checked["scores predicted again"]
    (True, 1, 1)
    """
    folder = RunDirectory(path, create=False)
    checks = RecordChecks(folder)
    checks.check_files()
    checks.check_items()
    result = _read_result(folder, checks)
    if result is not None:
        checks.check_runs(result)
        checks.check_ledgers(result)
        checks.check_models(result)
        _check_environment(result, checks)
        _Recorded(folder, result, checks, root, data, trust).check()
    found = tuple(sorted(checks.findings))
    return Verification(str(folder.path), found, tuple(checks.notes), dict(checks.checked))


def _read_result(folder: RunDirectory, checks: RecordChecks) -> Result | None:
    try:
        result = read(folder.path)
    except DiskError:
        raise
    except RecordError as error:
        checks.find("files", folder.path, error)
        return None
    for problem in result.problems:
        known = str(problem.file).removeprefix(str(folder.path)).lstrip("/\\")
        if not any(one.where == known for one in checks.findings):
            checks.find("files", problem.file, problem.reason)
    return result


def _check_environment(result: Result, checks: RecordChecks) -> None:
    if not result.environment:
        checks.note("environment: none was recorded")
    for facts in result.environment:
        made = facts.get("engram")
        if not isinstance(made, Mapping) or not isinstance(facts.get("packages"), Mapping):
            if "engram" in facts or not isinstance(facts.get("packages"), Mapping):
                checks.find("environment", facts.get("part", "?"), "has no versions")
                continue
            made = {"version": facts["packages"].get("engram")}
        checks.checked["environments"] += 1
        if made.get("version") != engram.__version__:
            told = made.get("version")
            checks.note(f"recorded by Engram {told}, verified by {engram.__version__}")
        if (made.get("git") or {}).get("changed"):
            checks.note("recorded by a checkout of Engram with changes that are in no commit")
        if not facts.get("python") or not facts["packages"].get("torch"):
            checks.find("environment", facts.get("part", "?"), "has no versions")


class _Recorded:
    """Checks of recipes against their ids, and against the data and code that they name."""

    def __init__(
        self, folder: RunDirectory, result: Result, checks: RecordChecks,
        root: str | os.PathLike[str] | None, data: Data | None, trust: bool,
    ) -> None:  # fmt: skip
        self.folder, self.result, self.checks = folder, result, checks
        self.root, self.data = None if root is None else str(root), data
        self.trust = trust
        self._loaded: dict[str, Data] = {}

    def check(self) -> None:
        runs: dict[str, list[RunKey]] = {}
        for run in self.result.runs:
            runs.setdefault(run.recipe, []).append(run)
        for name in self.folder.recipes():
            try:
                content = self.folder.recipe(name)
            except RecordError as problem:
                self.checks.find("recipes", f"recipes/{name}.yaml", problem)
                continue
            if self._check_id(name, content):
                self._check_against_data(name, content, runs.get(name, []))

    def _check_id(self, name: str, content: Mapping[str, Any]) -> bool:
        """Check a recipe against its id without its data; whether its data may be looked for."""
        where = f"recipes/{name}.yaml"
        identity = content.get("identity")
        if not isinstance(identity, Mapping):
            self.checks.note(f"{where}: has no identity (imported from elsewhere)")
            return False
        if identity.get("form") != ID_FORMAT:
            self.checks.note(f"{where}: has an id of another version")
            return False
        parts = {part: identity.get(part) for part in IDENTITY_PARTS}
        if short_hash(parts) != name:
            self.checks.find("recipes", where, "its parts do not give the id under which it lies")
        try:
            asked = options_hash(content)
        except (EngramError, KeyError, TypeError, ValueError) as problem:
            self.checks.find("recipes", where, f"is not a recipe ({problem})")
            return False
        if asked != identity.get("asked"):
            self.checks.find("recipes", where, "was edited: its options do not give its identity")
        for part, value in (("average", content.get("average")),):
            if short_hash(value) != identity.get(part):
                self.checks.find("recipes", where, f"was edited: {part}")
        self.checks.checked["recipes"] += 1
        return True

    def _check_against_data(
        self, name: str, content: Mapping[str, Any], runs: list[RunKey]
    ) -> None:
        where, identity = f"recipes/{name}.yaml", content["identity"]
        why = "give trust=True (--trust) to run the code that it names"
        try:
            with nullcontext() if self.trust else forbid_user_code(why):
                recipe = Recipe.of(_plain_recipe(content))
                stream = recipe.build_stream(self._load(recipe, identity))
                made = [
                    identify(
                        stream, method=recipe.method, model=recipe.model, training=recipe.training,
                        average=recipe.average, counted_from=counted,
                    )
                    for counted in dict.fromkeys(("", describe_order(stream)))
                ]  # fmt: skip
        except Untrusted as problem:
            return self.checks.note(f"{where}: code and data ({problem})")
        except (EngramError, OSError) as problem:
            return self.checks.note(f"{where}: data and code are not at hand ({problem})")
        self.checks.checked["data fingerprints"] += 1
        nearest = min(made, key=lambda one: len(_differing(one.content["identity"], identity)))
        for part in _differing(nearest.content["identity"], identity):
            text = f"{IDENTITY_PARTS[part]} at hand: not what the id was made of"
            if part in ("method", "model") and _is_own_code(content[part]):
                # its instructions differ between versions of Python, too
                self.checks.note(f"{where}: {text}")
            else:
                self.checks.find("data" if part == "data" else "recipes", where, text)
        if (told := content.get("stream", {}).get("head")) != stream.head:
            self.checks.find(
                "recipes", where, f"head view {told!r}, its stream has {stream.head!r}"
            )
        for run in runs:
            own = self._in_order(recipe, stream, run)
            if own is not None:
                self._check_run(run, recipe, own)
        return None

    def _load(self, recipe: Recipe, identity: Mapping[str, Any]) -> Data:
        if self.data is not None:
            return self.data
        if identity.get("data_in_memory"):
            raise RecordError("its data were arrays in memory: give data=")
        root = self.root or identity.get("data_root")
        key = repr((recipe.stream["data"], recipe.stream.get("data_options"), root))
        if key not in self._loaded:
            self._loaded[key] = recipe.data(root)
        return self._loaded[key]

    def _in_order(self, recipe: Recipe, stream: Stream, run: RunKey) -> Stream | None:
        """Return the stream of a run, which may have another order than its recipe."""
        if run.order == describe_order(stream):
            return stream
        try:
            ids = [int(one) for one in run.order.split("-")]
            own = recipe.in_order(ids).build_stream(stream.data)
        except (ValueError, EngramError):
            self.checks.note(f"{run_id(*run)}: test items and model (its order is no list of ids)")
            return None
        return own

    def _check_run(self, run: RunKey, recipe: Recipe, stream: Stream) -> None:
        name = run_id(*run)
        self._check_budget(run, recipe.method, stream)
        try:
            items = self.result.items(run.recipe, run.order)
        except RecordError:  # reported with the file
            return
        if items is not None and (
            field := _differing_items(items_of(stream, recipe.method), items)
        ):
            return self.checks.find("data", name, f"test items differ from the data in {field}")
        path = self.folder.checkpoint_path(*run) / MODEL_FILE
        if items is None or not path.is_file():
            return None
        try:
            self._predict_again(run, recipe, stream, items, path)
        except (EngramError, RuntimeError, KeyError, ValueError) as problem:
            self.checks.find(
                "models", name, f"its model and predictions cannot be compared ({problem})"
            )
        return None

    def _check_budget(self, run: RunKey, method: Method, stream: Stream) -> None:
        """Check that a memory never held more than its budget, and reads what is declared."""
        frame = self.result.select(recipe=run.recipe, seed=run.seed, order=run.order).frame()
        held = frame[(frame["metric"] == "memory_items") & (frame["step"] == -1)]["value"]
        most = None  # a method of the user's own may keep exemplars without a budget
        if isinstance(method.memory, Memory):
            sizes, groups = stream.train_sizes, int(stream.visible.sum())
            most = method.memory.capacity(groups=groups, sizes=sizes)
        if len(held) and most is not None and held.max() > most:
            text = f"{held.max():g} items in memory, of which its method may keep {most}"
            self.checks.find("ledger", run_id(*run), text)
        for document in self.result.ledger:
            for one in document.get("runs", ()):
                if (one.get("recipe"), one.get("seed"), one.get("order")) == tuple(run):
                    if one.get("reads") != method.reads:
                        text = f"reads {one.get('reads')!r}, its method declares {method.reads!r}"
                        self.checks.find("ledger", run_id(*run), text)
        self.checks.checked["budgets"] += 1

    def _predict_again(
        self, run: RunKey, recipe: Recipe, stream: Stream, items: EvaluationItems, path: Path
    ) -> None:
        """Compare the scores after the last task with those of the model that was kept."""
        stage = len(stream) - 1
        kept = self.result.predictions.get(*run, stage)
        if kept is None or (kept.scores is None and kept.single is None):
            return self.checks.note(f"{run_id(*run)}: its model (no predictions were kept)")
        found, _ = load_model(path)
        own = Run(
            stream=stream, method=recipe.method, model=recipe.model, training=recipe.training,
            seed=run.seed,
        )  # fmt: skip
        learner = Engine([own], device="cpu", together=False).learner(own)
        restore_state(learner, found)
        if found.stage != stage:
            text = f"its model is that of stage {found.stage + 1} of {stage + 1}"
            return self.checks.find("models", run_id(*run), text)
        with inference_numerics(recipe.training.precision), torch.no_grad():
            (made,) = evaluate([learner], [recipe.method])
        again = np.asarray(made.scores, np.float64)
        if kept.scores is not None and kept.scores.shape != again.shape:
            text = f"scores of shape {kept.scores.shape}, its model gives {again.shape}"
            return self.checks.find("models", run_id(*run), text)
        limit = _SAME_SCORES.get(recipe.training.precision, _COARSE_SCORES)
        gap = _score_gap(kept, again, items)
        if wrong := int((gap > limit).sum()):
            text = f"its model gives other scores for {wrong} of {len(gap)} test rows"
            return self.checks.find("models", run_id(*run), text)
        self.checks.checked["scores predicted again"] += 1
        return None


def _score_gap(kept: Prediction, made: Any, items: EvaluationItems) -> Any:
    """Return how far stored scores are from others, relative to each row's largest, [n].

    Without scores: by how much other labels than the stored ones would have won.
    """
    open_ = np.asarray(items.opening <= kept.key.stage)
    made = np.nan_to_num(made)
    size = np.maximum(abs(made[:, open_]).max(axis=1, initial=0.0), 1e-6)
    if kept.scores is not None:
        told = np.nan_to_num(kept.full().astype(np.float64))
        return abs(told - made)[:, open_].max(axis=1, initial=0.0) / size
    predicted = kept.predicted(items, head="single")
    if predicted.dtype == np.bool_:  # the scores of wrong labels should be near the threshold
        wrong = (predicted != (made > 0)) & open_
        return np.where(wrong, abs(made), 0.0).max(axis=1, initial=0.0) / size
    best = made[:, open_].max(axis=1, initial=-np.inf)
    return (best - made[np.arange(len(made)), predicted]) / size


def _plain_recipe(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded recipe as one that can be built."""
    stream = {k: v for k, v in content["stream"].items() if k != "head"}
    rest = {k: v for k, v in content.items() if k in ("model", "method", "training", "average")}
    return {**rest, "stream": stream}


def _differing(made: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    return [part for part in IDENTITY_PARTS if made.get(part) != told.get(part)]


def _is_own_code(section: Any) -> bool:
    """Whether a section of a recipe names code that is not Engram's."""
    if isinstance(section, Mapping):
        parts = section.get("parts")
        inner = parts if isinstance(parts, list) else [section.get("name")]
        return any(_is_own_code(one) for one in inner) or any(
            isinstance(v, Mapping) and "name" in v for v in section.values()
        )
    return isinstance(section, str) and ":" in section and section not in methods.__all__


def _differing_items(made: EvaluationItems, told: EvaluationItems) -> str:
    """Return the first field in which test items differ; empty if they do not."""
    for name in ("rows", "task", "targets", "opening", "visible", "classes"):
        if not np.array_equal(getattr(made, name), getattr(told, name)):
            return name
    return "" if to_plain(made.names) == to_plain(told.names) else "names"
