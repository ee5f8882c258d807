"""Records what comes out of runs (rows, predictions, probes, ledgers, checkpoints), in memory or
in a run directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from engram import distributed
from engram.engine.backend import resolve_device
from engram.engine.portable_state import export_state
from engram.errors import RecordError
from engram.experiments.callbacks import Callback
from engram.experiments.changed_recipes import describe_changes, read_recorded_recipes
from engram.experiments.checkpointing import Checkpoints, StepSaver, select_models
from engram.experiments.model_file import UnsavedModel, describe_run_origin
from engram.experiments.plan import Plan
from engram.experiments.reevaluate import rebuild_probe_states, reevaluate_runs
from engram.experiments.stage_records import measure_results, stored_arrays
from engram.io import write_together
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import nbytes
from engram.records import (
    EvaluationItems,
    Prediction,
    Result,
    Rows,
    RunDirectory,
    environment,
    read,
    run_id,
)
from engram.records.locks import Claims
from engram.records.probe_arrays import ProbeArrays, StoredArrays
from engram.records.run_arrays import RunKey
from engram.records.saved_models import ModelLocation
from engram.records.stage_result import StageResult


class Recorder:
    """The records of some plans; without `out` they are kept in memory.

    An open `RunDirectory` in place of a path is a worker's, who records some runs after others of a
    sweep: whoever began that has looked at all that the directory holds.

    `open` are the plans that are not finished yet, those whose stages `add` expects.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        out: str | Path | RunDirectory | None = None,
        *,
        device: Any = "auto",
        together: bool | None = None,
        callback: Callback | None = None,
        rerun: bool = False,
        deadline: float | None = None,
        checkpoint_every: float = 300.0,
    ) -> None:
        self.plans = list(plans)
        self.device = resolve_device(device)
        self.callback = callback or Callback()
        self._worker = isinstance(out, RunDirectory)
        self.folder = _open_directory(out)
        self.claims = None if self.folder is None else Claims(self.folder.path)
        self.elsewhere: list[Plan] = []  # another process is at work on them
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
            # probes that were named since the runs were recorded
            reevaluate_runs(plans, self.folder, device=device, together=together)
            self.open = [plan for plan in plans if not self._finished(plan)]
            self._say_diverged()
            if not self.open and not self._worker:
                with suppress(OSError):  # of a worker that died when all was recorded
                    self.folder.tidy()
        self._rerun, self._deadline, self._every = rerun, deadline, checkpoint_every
        self._began, self._environment = time.perf_counter(), ""
        self._items: dict[tuple[str, str], EvaluationItems] = {}
        self._memory = MemoryRecords()
        self._pending: list[StageResult] = []  # of runs whose group is not yet through
        self.callback.begin(self.plans, len(self.plans) - len(self.open))

    def _finished(self, plan: Plan) -> bool:
        assert self.folder is not None
        return self.folder.ended(*plan.key, stages=len(plan.run.stream))

    def _say_diverged(self) -> None:
        """A run that left all measure is finished, though it has no last stage."""
        assert self.folder is not None
        if lost := sum(self.folder.diverged(*plan.key) for plan in self.plans):
            runs = "a run diverged" if lost == 1 else f"{lost} runs diverged"
            self.callback.note(
                f"{runs} before (finished); to train them anew: rerun=True (engram run --rerun)"
            )

    # -- while runs train ------------------------------------------------------------------------
    def prepare(self) -> None:
        """Write down what is about to run, and make ready for its checkpoints."""
        self._began = time.perf_counter()
        self._collect_items()
        if self.folder is None:
            return
        if not self._worker:
            self.folder.tidy()
        with write_together():
            self._write_recipes_and_items(self.folder)
        # now, in case the process is killed; at the end once more, with the time it took
        self._environment = self.folder.write_environment(environment(self.device))
        self.checkpoints = Checkpoints(self.folder, self.callback.note)
        # of several ranks only this one saves: all of them stop between stages
        deadline = None if distributed.current_ranks() else self._deadline
        self.saver = StepSaver(self.folder, self.open, self._every, self.callback.note, deadline)
        if self._rerun:
            self.saver.forget()

    def _collect_items(self) -> None:
        for plan in self.open:
            self._items[plan.recipe, plan.order] = EvaluationItems.of_stream(plan.run.stream)

    def _write_recipes_and_items(self, folder: RunDirectory) -> None:
        """Recipes, and items, which explain stored predictions.

        A study of orders that keeps counts has none, and would write thousands of files before its
        first step.
        """
        for where in {(p.recipe, p.order): 0 for p in self.open if p.keep != "counts"}:
            folder.write_items(*where, self._items[where])
        for recipe, content in {plan.recipe: plan.content for plan in self.open}.items():
            folder.write_recipe(recipe, content)
        if not self._worker:
            folder.list_recipes(plan.recipe for plan in self.plans)

    def resume(self, place: int, learner: RunLearner) -> int:
        """The state of an interrupted run into its learner; the next stage to train, or go on with.

        Probes that were named since find out what they would know by now.
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
        """Whether a run is ours to train: nobody else is at it, or has finished it meanwhile."""
        assert self.folder is not None and self.claims is not None  # noqa: PT018
        if not self.claims.take(run_id(*plan.key)):
            self.elsewhere.append(plan)
            return False
        return not self._finished(plan)

    def _refuse_busy(self) -> None:
        """Complain where another process trains what is to be run anew."""
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
        """Whatever happened: what was claimed is free for others."""
        if self.claims is not None:
            self.claims.close()

    def report_skipped_runs(self) -> None:
        """After workers, who leave runs to others in silence: `say_elsewhere`."""
        assert self.claims is not None
        self.elsewhere = [p for p in self.open if not self.claims.free(run_id(*p.key))]
        self.report_busy_runs()

    def report_busy_runs(self) -> None:
        """Runs that were left to others and are not finished: never in silence."""
        if self._worker:  # it has a few of the runs only; whoever started it says so once
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
        """Whether the process was told to end by a signal."""
        return self.saver is not None and self.saver.is_ending

    @property
    def nothing_pending(self) -> bool:
        """Whether all that was added is recorded: no group has runs to come."""
        return not self._pending

    def save_on_signals(self) -> AbstractContextManager[None]:
        """While this lasts, signals that end save what is going on, where there is a directory."""
        return nullcontext() if self.saver is None else self.saver.save_on_signals()

    def progress(self, places: Sequence[int], stage: int) -> Callable[[int, int], None]:
        """What to call after steps of a stage of runs that train together."""
        here = [self.open[place] for place in places]
        return lambda done, total: self.callback.step(here, stage, done, total)

    def add(self, result: StageResult) -> None:
        """A finished stage; those of a group are written when its last one is there."""
        self._pending.append(result)
        if not result.last_of_group:
            return
        results, self._pending = self._pending, []
        plans = [self.open[one.run] for one in results]
        measure_results(results, plans)
        if self.checkpoints is not None and self.saver is not None:
            # first: a recorded stage must never lack its checkpoint
            late = self._deadline is not None and time.monotonic() > self._deadline
            if self.checkpoints.save(results, plans, must=late or self.saver.due()):
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
        ledgers = collect_ledgers(results)
        self.folder.append(
            Rows.join([one.rows for one in results]),
            predictions=collect_predictions(results, plans), arrays=stored_arrays(results),
            ledger={"runs": ledgers} if ledgers else None,
            probes=list_probed_stages(results, plans) or None,
        )  # fmt: skip

    def close(self) -> None:
        """All that could be run has been: note the time, remove what nobody will go on from."""
        if self.folder is not None and self.checkpoints is not None:
            self.checkpoints.close(self.open)
            seconds = time.perf_counter() - self._began
            facts = environment(self.device, seconds=seconds)
            self.folder.write_environment(facts, self._environment)
            if not self._worker:  # which merges while it appends
                self.folder.merge_if_many()
                self.folder.tidy()  # after workers that were killed

    # -- afterwards ------------------------------------------------------------------------------
    def result(self) -> Result:
        """The runs of the plans, finished now or before, in the order of the plans."""
        if self.folder is not None and self.folder.result_files():
            found = read(self.folder.path, recipes={plan.recipe for plan in self.plans})
        else:
            found = self._memory.result(self.plans, self._items, self.device)
        return found.of_runs(plan.key for plan in self.plans)


def _open_directory(out: str | Path | RunDirectory | None) -> RunDirectory | None:
    return out if out is None or isinstance(out, RunDirectory) else RunDirectory(out)


# What is recorded of finished stages besides their rows, and records without a directory.


MODEL_BYTES = 512 << 20  # of models in memory, after which no further one is kept


def collect_predictions(results: Sequence[StageResult], plans: Sequence[Plan]) -> list[Prediction]:
    """What finished stages keep of their scores."""
    kept = [_make_prediction(*pair) for pair in zip(results, plans, strict=True)]
    return [one for one in kept if one is not None]


def _make_prediction(result: StageResult, plan: Plan) -> Prediction | None:
    if result.diverged or plan.keep == "counts":
        return None
    return Prediction.from_scores(
        result.scores, result.items, **result.key._asdict(), keep=plan.keep,
        **_kept_network(result.learner, plan.keep),
    )  # fmt: skip


def _kept_network(learner: RunLearner, keep: str) -> dict[str, Any]:
    """What is kept of a network besides its scores: all that probes named later may need."""
    if keep != "parameters":
        return {}
    exemplars = torch.stack(learner.exemplars[:4])
    return {"parameters": learner.vector, "buffers": learner.buffers, "exemplars": exemplars}


def list_probed_stages(
    results: Sequence[StageResult], plans: Sequence[Plan]
) -> list[dict[str, Any]]:
    """Which probes have measured which stages."""
    return [
        {**one.key._asdict(), "probes": list(plan.probes)}
        for one, plan in zip(results, plans, strict=True) if plan.probes
    ]  # fmt: skip


def collect_ledgers(results: Sequence[StageResult]) -> list[dict[str, Any]]:
    """What runs that are through have read."""
    return [
        {
            "recipe": one.recipe, "label": one.label, "seed": one.seed, "order": one.order,
            "reads": one.method.reads, "stages": one.learner.ledger.to_dict(),
        }
        for one in results if one.is_last
    ]  # fmt: skip


class MemoryRecords:
    """The records of runs that have no directory."""

    def __init__(self) -> None:
        self._rows: list[Rows] = []
        self._predictions: list[Prediction] = []
        self._arrays: list[StoredArrays] = []
        self._ledgers: list[dict[str, Any]] = []
        self._models: dict[RunKey, ModelLocation] = {}
        self._model_bytes = 0

    def append(self, results: Sequence[StageResult], plans: Sequence[Plan]) -> None:
        """Finished stages, and their plans."""
        self._rows += [one.rows for one in results]
        self._predictions += collect_predictions(results, plans)
        self._arrays += stored_arrays(results)
        self._ledgers += collect_ledgers(results)
        self._keep_models(results, plans)

    def _keep_models(self, results: Sequence[StageResult], plans: Sequence[Plan]) -> None:
        """Models, as long as they are not too much for the memory."""
        for result, plan in select_models(results, plans):
            if self._model_bytes < MODEL_BYTES:
                run, key = plan.run, RunKey(*plan.key)
                found = export_state(result.learner, run)
                self._model_bytes += nbytes(found.tensors)
                made = describe_run_origin(run, plan.probes.values())
                self._models[key] = UnsavedModel(found=found, run=run, made=made)

    def result(
        self,
        plans: Sequence[Plan],
        items: Mapping[tuple[str, str], EvaluationItems],
        device: torch.device,
    ) -> Result:
        """All of it."""
        return Result(
            Rows.join(self._rows).frame(),
            recipes={plan.recipe: dict(plan.content) for plan in plans},
            predictions=self._predictions,
            arrays=ProbeArrays(memory=self._arrays),
            items=items,
            ledger=self._ledgers,
            environment=[environment(device)],
            models=self._models.get,
        )
