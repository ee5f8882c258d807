"""Evaluation of probes added after training, from recorded stages, and the index of the stages
that each probe has measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engram.engine.backend import probe_numerics, training_numerics
from engram.engine.engine import Engine
from engram.engine.evaluation import evaluate, items_of
from engram.errors import RecordError, plural
from engram.experiments.plan import Plan
from engram.experiments.stage_records import set_plan, stored_arrays
from engram.learner.learner import RunLearner
from engram.memory.exemplars import Exemplars
from engram.methods.method import Method
from engram.probes import Probe, measure
from engram.probes.probe import LEARNER_NEEDS
from engram.records import Prediction, Rows, RunDirectory, read
from engram.records.stage_result import StageResult
from engram.records.tombstones import Key, Tombstones, write_mark

MOST_RUNS_AT_ONCE = 256  # runs whose scores are in memory at the same time


@dataclass
class _RecordedRun:
    """A run with recorded stages, and the probes that have not measured them."""

    plan: Plan
    probes: Mapping[str, Probe]
    stages: list[int]
    states: dict[str, Any]
    learner: RunLearner | None = None

    @property
    def needs(self) -> set[str]:
        return {need for probe in self.probes.values() for need in probe.needs}

    @property
    def networks(self) -> bool:
        """Whether a probe needs the learner."""
        return bool(self.needs & set(LEARNER_NEEDS))


class _RunRecords:
    """Records of runs in a run directory, as probes need them."""

    def __init__(self, folder: RunDirectory) -> None:
        self.result = read(folder.path)
        self._diverged = {tuple(run): stage for run, stage in self.result.diverged.items()}
        self._facts: dict[Any, Any] = {}

    def kept(self, plan: Plan, stage: int) -> Prediction | None:
        return self.result.predictions.get(*plan.key, stage)

    def whole(self, plan: Plan, stage: int) -> bool:
        """Return whether the run had not diverged by a stage."""
        return stage < self._diverged.get(plan.key, stage + 1)

    def facts(self, plan: Plan, stage: int) -> dict[str, float]:
        """Return seconds, steps and bytes of a stage."""
        if plan.key not in self._facts:
            recipe, seed, order = plan.key
            frame = self.result.select(recipe=recipe, seed=seed, order=order).frame()
            plain = (frame["task"] == -1) & (frame["cls"] == -1) & (frame["step"] == -1)
            plain &= (frame["head"] == "") & ~frame["metric"].astype(str).str.contains("/")
            self._facts[plan.key] = frame[plain]
        here = self._facts[plan.key][self._facts[plan.key]["stage"] == stage]
        return dict(zip(here["metric"].astype(str), here["value"], strict=True))


def reevaluate_runs(
    plans: Sequence[Plan], folder: RunDirectory, *, device: Any, together: Any
) -> int:
    """Run missing probes on finished stages without training; returns the number of runs."""
    if not any(plan.probes for plan in plans):
        return 0
    known = read_measured_stages(folder)
    past: list[_RecordedRun] = []
    changed: dict[str, list[Any]] = {}  # name of a probe with another version: runs
    for plan in plans:
        stages = sorted(folder.finished(*plan.key))
        seen = known.get(plan.key, {})
        lacking = {k: p for k, p in plan.probes.items() if set(stages) - seen.get(k, set())}
        if stages and lacking:
            past.append(_RecordedRun(plan, lacking, stages, {}))
            for name in {probe_name(key) for key in lacking} & {probe_name(k) for k in seen}:
                changed.setdefault(name, []).append(plan.key)
    if past:
        records = _RunRecords(folder)
        _check(past, records)
        parts = _group_recorded_runs(past, device, together)
        for name, runs in changed.items():
            discard_measurements(folder, runs, name)
        for part in parts:
            _write(part, records, folder)
    return len(past)


def describe_unscored_runs(plans: Sequence[Plan], folder: RunDirectory) -> list[str]:
    """Describe finished stages that lack the scores of tasks to come which their plans ask for."""
    asked = {
        plan.key: sorted(folder.finished(*plan.key))
        for plan in plans
        if plan.evaluate_unseen and plan.run.stream.labels == "single"
    }
    if not any(asked.values()):
        return []
    result = read(folder.path, recipes={recipe for recipe, _, _ in asked})
    tasks = dict(zip(result.runs, result.tasks.tolist(), strict=True))
    matrices = dict(zip(result.runs, result.full_matrix, strict=True))
    lacking = sum(
        any(np.isnan(matrices[run][k, k + 1]) for k in asked[run] if k + 1 < tasks[run])
        for run in result.runs if run in asked
    )  # fmt: skip
    if not lacking:
        return []
    return [
        f"tasks to come were not scored (evaluate_unseen) in {plural(lacking, 'finished run')}; "
        "rerun=True (engram run --rerun) trains and scores anew"
    ]


def rebuild_probe_states(
    plan: Plan, probes: Mapping[str, Probe], stages: int, folder: RunDirectory, device: Any
) -> dict[str, Any]:
    """Recompute the states of probes after the first stages of a run from its records."""
    records = _RunRecords(folder)
    past = [_RecordedRun(plan, probes, list(range(stages)), {})]
    _check(past, records)
    for part in _group_recorded_runs(past, device, None):
        for stage in range(stages):
            _measure(part, stage, records)
    return past[0].states


def _check(past: Sequence[_RecordedRun], records: _RunRecords) -> None:
    """Raise if records are missing, before anything is measured."""
    for one in past:
        plan = one.plan
        for stage in one.stages:
            lost = (
                _find_missing(one, records.kept(plan, stage))
                if records.whole(plan, stage)
                else None
            )
            if lost:
                said, keeps, name = lost
                raise RecordError(
                    f"{plan.label}: {name} cannot be measured after the fact, {said} of stage "
                    f"{stage + 1} were not kept (seed {plan.run.seed}). Give rerun=True (--rerun) "
                    f"to run it anew; {keeps} what later probes need"
                )


def _find_missing(one: _RecordedRun, kept: Prediction | None) -> tuple[str, str, str] | None:
    """Return what a recorded stage lacks, what would keep it, and the probe that needs it."""
    whole = items_of(one.plan.run.stream, one.plan.run.method)
    for probe in one.probes.values():
        networks = bool(set(probe.needs) & set(LEARNER_NEEDS))
        if networks and (kept is None or kept.parameters is None):
            return "the parameters", 'keep="parameters" (--keep parameters) keeps', probe.name
        if networks and one.plan.run.method.implements("answer"):
            return "the states by which its method answers", "no value of keep holds", probe.name
        if kept is None or kept.scores is None:
            return "the scores", 'keep="scores" (--keep scores) keeps', probe.name
        if "unseen" in probe.needs and not networks and len(kept.scored(whole)) < len(whole):
            records = "evaluate_unseen=True (--evaluate-unseen) records"
            return "the scores of tasks to come", records, probe.name
    return None


def _group_recorded_runs(
    past: Sequence[_RecordedRun], device: Any, together: Any
) -> list[list[_RecordedRun]]:
    """Group runs to measure together; with networks, those that train together."""
    bare = [one for one in past if not one.networks]
    found = [bare[i : i + MOST_RUNS_AT_ONCE] for i in range(0, len(bare), MOST_RUNS_AT_ONCE)]
    rest = [one for one in past if one.networks]
    if rest:
        engine = Engine([one.plan.run for one in rest], device=device, together=together)
        for one in rest:
            one.learner = engine.learner(replace(one.plan.run, unseen="unseen" in one.needs))
            for probe in one.probes.values():
                probe.check(one.learner)
        found += [[rest[place] for place in places] for places, _ in engine.parts()]
    return found


def _write(part: Sequence[_RecordedRun], records: _RunRecords, folder: RunDirectory) -> None:
    for stage in sorted({k for one in part for k in one.stages}):
        here = [one for one in part if stage in one.stages]
        results = _measure(here, stage, records)
        done = [_entry(one, stage=stage, probes=list(one.probes)) for one in here]
        read_rows = [
            _entry(one, label=one.plan.label, reads=one.plan.run.method.reads,
                   stages={str(stage): {kind: n for kind, n in found.reads.items() if n}})
            for one in here
            if (found := results.get(one.plan.key)) is not None and any(found.reads.values())
        ]  # fmt: skip
        folder.append(
            Rows.join([one.rows for one in results.values()]), probes=done,
            ledger={"runs": read_rows} if read_rows else None,
            arrays=stored_arrays(list(results.values())),
        )  # fmt: skip


def _entry(one: _RecordedRun, **more: Any) -> dict[str, Any]:
    recipe, seed, order = one.plan.key
    return {"recipe": recipe, "seed": seed, "order": order, **more}


def _measure(
    part: Sequence[_RecordedRun], stage: int, records: _RunRecords
) -> dict[tuple[str, int, str], StageResult]:
    """Restore and measure a stage of the runs that had not diverged."""
    chosen = [one for one in part if records.whole(one.plan, stage)]
    results = _restore_results(chosen, stage, records)
    with probe_numerics(_precision(part)):
        measure(results, [()] * len(results), [one.probes for one in chosen])
    for one, result in zip(chosen, results, strict=True):
        one.states = dict(result.states)
    return {one.plan.key: result for one, result in zip(chosen, results, strict=True)}


def _precision(part: Sequence[_RecordedRun]) -> str:
    """Return the precision of runs that are measured together, which they share."""
    return part[0].plan.run.training.precision


def _restore_results(
    part: Sequence[_RecordedRun], stage: int, records: _RunRecords
) -> list[StageResult]:
    """Restore the results of a stage from its records."""
    kept = [records.kept(one.plan, stage) for one in part]
    learners = [
        _restore_learner(one.learner, own, stage)
        for one, own in zip(part, kept, strict=True)
        if one.learner is not None and own is not None
    ]
    features: list[Any] = [None] * len(part)
    if any("features" in one.needs for one in part):  # all have networks then
        plain = [Method()] * len(part)  # only features are used
        with training_numerics(_precision(part)):
            features = [one.features for one in evaluate(learners, plain, features=True)]
    results = []
    for one, own, seen in zip(part, kept, features, strict=True):
        assert own is not None  # ensured by `_check`
        run, whole = one.plan.run, items_of(one.plan.run.stream, one.plan.run.method)
        items = whole if "unseen" in one.needs else whole.up_to(stage)
        n = len(items)
        result = StageResult(
            stage=stage, stream=run.stream, method=run.method, seed=run.seed, items=items,
            scores=_resize(own.full(), n), features=seen, trained=one.learner, states=one.states,
            decided={h: _resize(own.predicted(whole, head=h), n) for h in items.heads},
            facts=records.facts(one.plan, stage),
        )  # fmt: skip
        set_plan(result, one.plan)
        results.append(result)
    return results


def _resize(values: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """Return n rows of recorded values [m, ...]; those of tasks that were not scored are no number.

    Nothing is predicted for them: no label (-1), or no set of labels.
    """
    if len(values) >= n:
        return values[:n]
    fill = np.nan if values.dtype.kind == "f" else False if values.dtype == np.bool_ else -1
    rest = np.full((n - len(values), *values.shape[1:]), fill, values.dtype)
    return np.concatenate([values, rest])


def _restore_learner(learner: RunLearner, kept: Prediction, stage: int) -> RunLearner:
    """Load the parameters, buffers and exemplars kept after a stage into a learner."""
    learner.enter(stage)
    learner.vector = torch.tensor(kept.parameters).to(learner.vector)
    stored = kept.buffers or {}
    if set(stored) != set(learner.buffers):
        missing = ", ".join(sorted(set(learner.buffers) - set(stored)))
        raise RecordError(f"{kept.key}: buffers were not kept ({missing}); run it again")
    learner.buffers = {k: torch.tensor(stored[k]).to(v) for k, v in learner.buffers.items()}
    if kept.exemplars is not None:
        learner.exemplars = Exemplars._make([*torch.tensor(kept.exemplars).unbind(0), 0])
    return learner


# The index of measured stages.


def read_measured_stages(folder: RunDirectory) -> dict[Key, dict[str, set[int]]]:
    """Read the measured stages by run and by the key of the probe, ``name@version``."""
    found: dict[Key, dict[str, set[int]]] = {}
    marks = Tombstones.read(folder.path).metrics
    documents, _ = folder.documents("probes")
    for document in documents:
        for one in document["runs"]:
            run = (str(one["recipe"]), int(one["seed"]), str(one["order"]))
            for key in one["probes"]:
                newest = marks.get(f"{probe_name(key)}/", {}).get(run, "")
                if document["part"] >= newest:
                    found.setdefault(run, {}).setdefault(key, set()).add(int(one["stage"]))
    return found


def probe_name(key: str) -> str:
    """Return the name of a probe, the prefix of its metrics, from its key.

    Examples
    --------
    >>> probe_name("entropy temperature=2@0a1b2c3d4e5f")
    'entropy temperature=2'
    """
    return key.rpartition("@")[0]


def discard_measurements(folder: RunDirectory, runs: Iterable[Key], name: str) -> None:
    """Mark a probe's records of some runs as superseded; nothing is deleted."""
    write_mark(folder.path, folder.new_mark(), runs, metrics=f"{name}/")
