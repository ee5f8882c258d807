"""`Recorder`: records the results of runs (rows, predictions, probes, ledgers, checkpoints) in
memory or in a run directory, and says where each run resumes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engram import distributed
from engram.engine.backend import resolve_device
from engram.engine.evaluation import items_of
from engram.engine.grouping import MeasuredMode
from engram.engine.portable_state import export_state
from engram.errors import RecordError
from engram.experiments.callbacks import Callback, StageHook, make_callback
from engram.experiments.changed_recipes import describe_changes, read_recorded_recipes
from engram.experiments.checkpointing import Checkpoints, StepSaver, select_models
from engram.experiments.model_file import UnsavedModel, describe_run_origin
from engram.experiments.plan import Plan
from engram.experiments.reevaluate import (
    describe_unscored_runs,
    rebuild_probe_states,
    reevaluate_runs,
)
from engram.experiments.stage_records import measure_results, stored_arrays
from engram.io import to_plain, write_together
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import nbytes
from engram.records import (
    EvaluationItems,
    Prediction,
    Predictions,
    Result,
    Rows,
    RunDirectory,
    environment,
    read,
    run_id,
)
from engram.records.display_names import is_automatic
from engram.records.journal import RecordFile
from engram.records.locks import Claims
from engram.records.long_table import to_frame
from engram.records.predictions import StageKey
from engram.records.probe_arrays import ProbeArrays, StoredArrays
from engram.records.reading import find_models
from engram.records.run_arrays import RunKey
from engram.records.saved_models import ModelLocation
from engram.records.stage_result import StageResult

if TYPE_CHECKING:
    import pyarrow as pa


class Recorder:
    """Records of some plans; without `out` they are kept in memory.

    A worker, which records only some runs of a sweep, passes an open `RunDirectory` in place of a
    path; the process that started it has checked the directory.

    `open` are the plans that are not finished yet, whose stages `add` expects.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        out: str | Path | RunDirectory | None = None,
        *,
        device: Any = "auto",
        together: bool | None = None,
        callback: Callback | StageHook | str | None = None,
        rerun: bool = False,
        deadline: float | None = None,
        checkpoint_every: float = 300.0,
        execution: Mapping[str, Any] | None = None,
    ) -> None:
        self.plans = list(plans)
        self.device = resolve_device(device)
        self.callback = make_callback(callback) or Callback()
        self._worker = isinstance(out, RunDirectory)
        self.folder = _open_directory(out)
        self.claims = None if self.folder is None else Claims(self.folder.path)
        self.elsewhere: list[Plan] = []  # plans that another process is training
        self.checkpoints: Checkpoints | None = None
        self.saver: StepSaver | None = None
        self.open = self.plans
        if self.folder is not None:
            for note in (
                () if self._worker else describe_changes(plans, read_recorded_recipes(self.folder))
            ):
                self.callback.note(note)
            if rerun:
                self._refuse_busy()
                self.folder.supersede(plan.key for plan in plans)
            # measure with probes added since the runs were recorded
            reevaluate_runs(plans, self.folder, device=device, together=together)
            for note in describe_unscored_runs(plans, self.folder):
                self.callback.note(note)
            self.open = [plan for plan in plans if not self._finished(plan)]
            self._say_diverged()
            if not self._worker:
                self._relabel_finished(self.folder)
            if not self.open and not self._worker:
                with suppress(OSError):  # left by a worker that died after recording all
                    self.folder.tidy(plan.key for plan in plans)
        self._rerun, self._deadline, self._every = rerun, deadline, checkpoint_every
        self._began = time.perf_counter()
        self._execution = dict(execution or {})  # options of the call, for the record
        self._modes: list[dict[str, Any]] = []  # of groups in lockstep, and of measured ones
        self._measured = False  # whether there are measured ones
        self._timed = False  # whether the time is recorded
        self._going = len(self.open)  # runs that have not ended
        self._items: dict[tuple[str, str], EvaluationItems] = {}
        self._memory, self._written = MemoryRecords(), WrittenRecords()
        self._pending: list[StageResult] = []  # results whose group is not complete
        self.callback.begin(self.plans, len(self.plans) - len(self.open))

    def _finished(self, plan: Plan) -> bool:
        assert self.folder is not None
        return self.folder.ended(*plan.key, stages=plan.stages)

    def _relabel_finished(self, folder: RunDirectory) -> None:
        """Record a new label of an experiment that is recorded; nothing is trained."""
        known = set(folder.recipes())
        for recipe, plan in {plan.recipe: plan for plan in self.plans}.items():
            if recipe not in known or is_automatic(plan.label, plan.content):
                continue  # no label was asked for: one that was given before stays
            content = folder.recipe(recipe)
            if content.get("label") != plan.label:
                folder.write_recipe(recipe, {**content, "label": plan.label})

    def _say_diverged(self) -> None:
        """Note the runs that diverged, which count as finished although they have no last stage."""
        assert self.folder is not None
        if lost := sum(self.folder.diverged(*plan.key) for plan in self.plans):
            runs = "a run diverged" if lost == 1 else f"{lost} runs diverged"
            self.callback.note(
                f"{runs} before (finished); to train them anew: rerun=True (engram run --rerun)"
            )

    # -- how runs train, where that was measured ---------------------------------------------------
    def known_modes(self) -> dict[int, bool]:
        """Return of open runs, by place, whether they were mapped when they began."""
        if self.folder is None or self._rerun:
            return {}
        mapped = {
            tuple(key): bool(entry["mapped"])
            for facts in self.folder.documents("environment")[0]
            for entry in facts.get("modes", [])
            for key in entry["runs"]
        }
        places = enumerate(plan.key for plan in self.open)
        return {place: mapped[key] for place, key in places if key in mapped}

    def record_modes(
        self, modes: Sequence[MeasuredMode], lockstep: Sequence[Sequence[int]]
    ) -> None:
        """Keep how groups train, for the record and for whoever resumes them.

        Runs that are in no group of the record train alone.
        """
        self._measured = bool(modes)
        known = {place for one in modes for place in one.places}
        more = [MeasuredMode([*p], True, math.nan) for p in lockstep if not known & {*p}]
        self._modes = [
            {
                "mapped": one.mapped,
                "lockstep_over_alone": None if math.isnan(one.ratio) else round(one.ratio, 3),
                "runs": [list(self.open[place].key) for place in one.places],
            }
            for one in [*modes, *more]
        ]

    def _environment_facts(self, **timings: float) -> dict[str, Any]:
        facts = environment(self.device, **timings)
        return {**facts, "execution": self._execution, "modes": self._modes}

    # -- while runs train ------------------------------------------------------------------------
    def prepare(self) -> None:
        """Write recipes and items of the runs to train, and set up their checkpoints."""
        self._began = time.perf_counter()
        self._collect_items()
        if self.folder is None:
            return
        if not self._worker:
            self.folder.tidy(plan.key for plan in self.open)
        with write_together():
            self._write_recipes_and_items(self.folder)
        if self._measured:  # a run that is killed in its first task resumes in the way it began
            self._written.append(self.folder, (), None, environment=self._environment_facts())
        self.checkpoints = Checkpoints(self.folder, self.callback.note)
        # only this rank saves, so several ranks stop between stages
        deadline = None if distributed.current_ranks() else self._deadline
        self.saver = StepSaver(self.folder, self.open, self._every, self.callback.note, deadline)
        if self._rerun:
            self.saver.forget()

    def _collect_items(self) -> None:
        for plan in self.open:
            self._items[plan.recipe, plan.order] = items_of(plan.run.stream, plan.run.method)

    def _write_recipes_and_items(self, folder: RunDirectory) -> None:
        """Write recipes, and the items to which stored predictions belong.

        A study of orders that keeps counts stores no predictions, so it needs no items, which would
        be thousands of files.
        """
        for where in {(p.recipe, p.order): 0 for p in self.open if p.keep != "counts"}:
            folder.write_items(*where, self._items[where])
        known = set(folder.recipes())
        for recipe, content in {plan.recipe: plan.content for plan in self.open}.items():
            if recipe in known and is_automatic(str(content["label"]), content):
                given = folder.recipe(recipe).get("label") or content["label"]
                content = {**content, "label": given}  # more seeds of it change no name
            folder.write_recipe(recipe, content)
        if not self._worker:
            folder.list_recipes(plan.recipe for plan in self.plans)

    def resume(self, place: int, learner: RunLearner) -> int:
        """Load the state of an interrupted run into its learner; returns the stage to train next.

        States of probes added since are rebuilt from the records.
        """
        if self.folder is None or self.checkpoints is None or self.saver is None:
            return 0
        plan = self.open[place]
        if not self._claim(plan):
            return len(plan.run.stream)  # nothing to do here
        stages = self.saver.load(place, learner, self.folder.finished(*plan.key))
        stages = self.checkpoints.load(plan, learner) if stages is None else stages
        new = {k: one for k, one in plan.probes.items() if k not in learner.probes}
        if stages and new and learner.diverged < 0:
            found = rebuild_probe_states(plan, new, stages, self.folder, self.device)
            learner.probes = {**learner.probes, **found}
        return stages

    def _claim(self, plan: Plan) -> bool:
        """Claim a run; False if another process trains it, or has finished it meanwhile."""
        assert self.folder is not None and self.claims is not None  # noqa: PT018
        if not self.claims.take(run_id(*plan.key)):
            self.elsewhere.append(plan)
            return False
        return not self._finished(plan)

    def _refuse_busy(self) -> None:
        """Raise if another process is training a run that is to be run again."""
        assert self.claims is not None
        busy = [plan for plan in self.plans if not self.claims.free(run_id(*plan.key))]
        if busy:
            raise RecordError(f"{self._busy_in_words(busy)}; wait for it to end before rerunning")

    def _busy_in_words(self, busy: Sequence[Plan]) -> str:
        assert self.folder is not None
        first = f"{busy[0].label}, seed {busy[0].run.seed}"
        which = first if len(busy) == 1 else f"{len(busy)} of these runs ({first}, ...)"
        return f"{self.folder.path}: another process is training {which}"

    def release(self) -> None:
        """Release all claims on runs."""
        if self.claims is not None:
            self.claims.close()

    def report_skipped_runs(self) -> None:
        """Find the runs that workers skipped, and call `report_busy_runs`."""
        assert self.claims is not None
        self.elsewhere = [p for p in self.open if not self.claims.free(run_id(*p.key))]
        self.report_busy_runs()

    def report_busy_runs(self) -> None:
        """Note, or raise for, unfinished runs that another process is training."""
        if self._worker:  # the process that started the workers reports once
            return
        busy = [plan for plan in self.elsewhere if not self._finished(plan)]
        if not busy:
            return
        words = self._busy_in_words(busy)
        if len(busy) == len(self.plans):
            raise RecordError(f"{words}; wait for it, or give another directory")
        self.callback.note(f"{words}; left to it, and missing from the result")

    @property
    def is_ending(self) -> bool:
        """Whether a signal to end was received."""
        return self.saver is not None and self.saver.is_ending

    @property
    def nothing_pending(self) -> bool:
        """Whether all added results are written: no group is incomplete."""
        return not self._pending

    def save_on_signals(self) -> AbstractContextManager[None]:
        """Return a context in which signals to end save the runs, if there is a directory."""
        return nullcontext() if self.saver is None else self.saver.save_on_signals()

    def progress(self, places: Sequence[int], stage: int) -> Callable[[int, int], None]:
        """Return a function to call after steps of a stage of runs that train together."""
        here = [self.open[place] for place in places]
        return lambda done, total: self.callback.step(here, stage, done, total)

    def add(self, result: StageResult) -> None:
        """Add a finished stage; the results of a group are written with its last one."""
        self._pending.append(result)
        if not result.last_of_group:
            return
        results, self._pending = self._pending, []
        plans = [self.open[one.run] for one in results]
        measure_results(results, plans)
        if self.checkpoints is not None and self.saver is not None:
            # first, so that a recorded stage always has its checkpoint
            late = self._deadline is not None and time.monotonic() > self._deadline
            must = late or self.saver.due() or _stop_here(results, plans)
            if self.checkpoints.save(results, plans, must=must):
                self.saver.wait()
        self._write(results, plans)
        if self.checkpoints is not None and self.saver is not None:
            self.checkpoints.prune(results)
            self.saver.prune([(one.run, one.stage) for one in results])
        for one, plan in zip(results, plans, strict=True):
            self.callback.stage(plan, one.stage, one.rows)

    def _write(self, results: Sequence[StageResult], plans: Sequence[Plan]) -> None:
        if self.folder is None:
            self._memory.append(results, plans)
            return
        self._going -= sum(one.is_last for one in results)
        ledgers = collect_ledgers(results)
        self._written.append(
            self.folder, [one.key for one in results],
            Rows.join([one.rows for one in results]).arrow(),
            predictions=collect_predictions(results, plans), arrays=stored_arrays(results),
            ledger={"runs": ledgers} if ledgers else None,
            probes=list_probed_stages(results, plans) or None,
            environment=self._describe_environment(),
        )  # fmt: skip

    def _describe_environment(self) -> dict[str, Any] | None:
        """Describe the environment with the first stage, and with the last one and its time."""
        self._timed = not self._going
        if self._timed:
            return self._environment_facts(seconds=time.perf_counter() - self._began)
        return None if self._written.environment_part else self._environment_facts()

    def close(self) -> None:
        """Finish: record the time, and remove checkpoints from which no run will resume."""
        if self.folder is not None and self.checkpoints is not None:
            self.checkpoints.close(self.open)
            if not self._timed and self._written.environment_part:  # ended before all was trained
                facts = self._environment_facts(seconds=time.perf_counter() - self._began)
                self._written.append(self.folder, (), None, environment=facts)
            self._written.seal(self.folder)
            if not self._worker:
                self.folder.tidy(plan.key for plan in self.open)  # left by workers that were killed

    # -- afterwards ------------------------------------------------------------------------------
    def result(self) -> Result:
        """Return the runs of the plans, finished now or before, in the order of the plans."""
        if self.folder is None:
            found = self._memory.result(self.plans, self._items, self._environment_facts())
        elif self._written.hold_all(self.plans, self.folder):
            found = self._written.result(self.plans, self._items, self.folder)
        else:
            found = read(self.folder.path, recipes={plan.recipe for plan in self.plans})
        return found.of_runs(plan.key for plan in self.plans)


def _stop_here(results: Sequence[StageResult], plans: Sequence[Plan]) -> bool:
    """Whether a run is not to be trained further for now, and may go on later."""
    pairs = zip(results, plans, strict=True)
    return any(one.stage + 1 == plan.stages and not one.is_last for one, plan in pairs)


def _open_directory(out: str | Path | RunDirectory | None) -> RunDirectory | None:
    return out if out is None or isinstance(out, RunDirectory) else RunDirectory(out)


# Records of finished stages besides their rows, and records in memory.


MODEL_BYTES = 512 << 20  # limit of all models kept in memory


def collect_predictions(results: Sequence[StageResult], plans: Sequence[Plan]) -> list[Prediction]:
    """Make the stored predictions of finished stages."""
    kept = [_make_prediction(*pair) for pair in zip(results, plans, strict=True)]
    return [one for one in kept if one is not None]


def _make_prediction(result: StageResult, plan: Plan) -> Prediction | None:
    if result.diverged or plan.keep == "counts":
        return None
    recorded = result.recorded
    return Prediction.from_scores(
        recorded.scores, recorded.items, **result.key._asdict(), keep=plan.keep,
        **_kept_network(result.learner, plan.keep),
    )  # fmt: skip


def _kept_network(learner: RunLearner, keep: str) -> dict[str, Any]:
    """Return what ``keep="parameters"`` stores of a network for probes added later."""
    if keep != "parameters":
        return {}
    exemplars = torch.stack(learner.exemplars[:4])
    return {"parameters": learner.vector, "buffers": learner.buffers, "exemplars": exemplars}


def list_probed_stages(
    results: Sequence[StageResult], plans: Sequence[Plan]
) -> list[dict[str, Any]]:
    """List the probes that have measured each stage."""
    return [
        {**one.key._asdict(), "probes": list(plan.probes)}
        for one, plan in zip(results, plans, strict=True) if plan.probes
    ]  # fmt: skip


def collect_ledgers(results: Sequence[StageResult]) -> list[dict[str, Any]]:
    """Collect the access ledgers of runs that have ended."""
    return [
        {
            "recipe": one.recipe, "label": one.label, "seed": one.seed, "order": one.order,
            "reads": one.method.reads, "stages": one.learner.ledger.to_dict(),
        }
        for one in results if one.is_last
    ]  # fmt: skip


class MemoryRecords:
    """Records of runs without a directory."""

    def __init__(self) -> None:
        self._rows: list[Rows] = []
        self._predictions: list[Prediction] = []
        self._arrays: list[StoredArrays] = []
        self._ledgers: list[dict[str, Any]] = []
        self._models: dict[RunKey, ModelLocation] = {}
        self._model_bytes = 0

    def append(self, results: Sequence[StageResult], plans: Sequence[Plan]) -> None:
        """Add finished stages with their plans."""
        self._rows += [one.rows for one in results]
        self._predictions += collect_predictions(results, plans)
        self._arrays += stored_arrays(results)
        self._ledgers += collect_ledgers(results)
        self._keep_models(results, plans)

    def _keep_models(self, results: Sequence[StageResult], plans: Sequence[Plan]) -> None:
        """Keep the models of finished runs, up to `MODEL_BYTES`."""
        for result, plan in select_models(results, plans):
            if self._model_bytes < MODEL_BYTES:
                run, key = plan.run, RunKey(*plan.key)
                found = export_state(result.learner, run)
                self._model_bytes += nbytes(found.tensors)
                made = describe_run_origin(run, plan.probes.values(), key)
                self._models[key] = UnsavedModel(found=found, run=run, made=made)

    def result(
        self,
        plans: Sequence[Plan],
        items: Mapping[tuple[str, str], EvaluationItems],
        facts: dict[str, Any],
    ) -> Result:
        """Build a result from all records."""
        return Result(
            Rows.join(self._rows).frame(),
            recipes={plan.recipe: dict(plan.content) for plan in plans},
            predictions=self._predictions,
            arrays=ProbeArrays(memory=self._arrays),
            items=items,
            ledger=self._ledgers,
            environment=[facts],
            models=self._models.get,
        )


class WrittenRecords:
    """Records that this process has written, from which a result is made without reading them.

    Predictions and arrays are read from their files when they are asked for.
    """

    def __init__(self) -> None:
        self.environment_part = ""  # the part that describes the environment
        self._tables: list[pa.Table] = []
        self._stages: dict[RunKey, set[int]] = {}
        self._ledger: list[dict[str, Any]] = []
        self._environment: dict[str, Any] = {}
        self._files: tuple[RecordFile, ...] = ()

    def append(
        self, folder: RunDirectory, stages: Iterable[StageKey], table: pa.Table | None,
        **records: Any,
    ) -> None:  # fmt: skip
        """Append a part with some stages to the directory, as `RunDirectory.append` takes it."""
        part = folder.append(table, environment_part=self.environment_part, **records)
        if table is not None:
            self._tables.append(table)
        for one in stages:
            self._stages.setdefault(RunKey(*one[:3]), set()).add(one.stage)
        if (ledger := records.get("ledger")) is not None:
            self._ledger.append({"part": part, **to_plain(ledger)})
        if (facts := records.get("environment")) is not None:
            self.environment_part = self.environment_part or part
            self._environment = {"part": self.environment_part, **to_plain(facts)}

    def seal(self, folder: RunDirectory) -> None:
        """Note that the directory has all that this process writes."""
        self._files = folder.own_files
        folder.seal()

    def hold_all(self, plans: Sequence[Plan], folder: RunDirectory) -> bool:
        """Whether nothing of the plans was recorded before, or by another process."""
        return all(
            self._stages.get(RunKey(*plan.key), set()) == folder.finished(*plan.key)
            for plan in plans
        )

    def result(
        self,
        plans: Sequence[Plan],
        items: Mapping[tuple[str, str], EvaluationItems],
        folder: RunDirectory,
    ) -> Result:
        """Build a result, as `read` does."""
        import pyarrow as pa

        kept = {(plan.recipe, plan.order) for plan in plans if plan.keep != "counts"}
        return Result(
            to_frame(pa.concat_tables(self._tables)) if self._tables else Rows().frame(),
            recipes={plan.recipe: to_plain(dict(plan.content)) for plan in plans},
            predictions=Predictions(one for one in self._files if one.kind == "predictions"),
            arrays=ProbeArrays(one for one in self._files if one.kind == "arrays"),
            items={key: one for key, one in items.items() if key in kept},
            ledger=self._ledger,
            environment=[self._environment] if self._environment else [],
            models=find_models([folder]),
        )
