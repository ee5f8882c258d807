"""Run plans through the engine and keep what comes out: rows, predictions, ledger, checkpoints."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engram.engine.evaluate import test_items
from engram.engine.run import Engine
from engram.engine.run_spec import check_exemplars
from engram.learner.learner import Learner
from engram.recipes.changes import changed, distinct, recorded
from engram.recipes.checkpoints import Checkpoints
from engram.recipes.plan import Plan
from engram.recipes.remeasure import remeasure, states_of
from engram.recipes.rows import Done, group_rows
from engram.recipes.step_saver import StepSaver
from engram.records import (
    Items,
    Prediction,
    Result,
    Rows,
    RunDirectory,
    environment,
    read,
)
from engram.streams.core import Stream


class Watcher:
    """What a caller may watch of an execution; every method may be left as it is."""

    def note(self, text: str) -> None:
        """Something the caller should know before anything runs; a warning unless overridden."""
        warnings.warn(text, stacklevel=2)

    def begin(self, plans: Sequence[Plan], done: int) -> None:
        """`done` of the plans were finished before."""

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        """Steps of a stage of some plans that train together."""

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        """A stage is recorded."""


@dataclass
class Book:
    """Rows and predictions gathered in memory, and written where there is a directory."""

    folder: RunDirectory | None
    rows: list[Rows] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    items: dict[tuple[str, str], Items] = field(default_factory=dict)
    ledgers: list[dict[str, Any]] = field(default_factory=list)


def stream_items(stream: Stream) -> Items:
    """The test items of a stream, as the records keep them."""
    rows, stages = test_items(stream)
    return Items(
        rows=rows.numpy(),
        task=stages.numpy(),
        targets=stream.targets[rows].numpy(),
        opening=stream.opening.numpy(),
        visible=stream.visible.numpy(),
        classes=np.array(stream.order),
        names=tuple(stream.data.classes[c] for c in stream.order),
        multilabel=stream.labels == "set",
    )


def execute(
    plans: Sequence[Plan],
    *,
    out: str | Path | None = None,
    device: Any = "auto",
    together: bool | None = None,
    compile: bool = False,
    watcher: Watcher | None = None,
    deadline: float | None = None,
    group_size: int = 0,
    again: bool = False,
) -> Result:
    """Run what is not finished yet; returns everything the plans asked for.

    With `out`, finished stages are never run again and an interrupted run goes on after its last
    checkpoint; with `again` all are run anew. `deadline` (``time.monotonic``) stops cleanly between
    groups of runs. `compile` and `again`: see `engram.run`.
    """
    book = perform(
        plans, out=out, device=device, together=together, compile=compile, watcher=watcher,
        deadline=deadline, group_size=group_size, again=again,
    )  # fmt: skip
    if book.folder is not None:
        found = read(book.folder.path)
    else:
        found = Result(
            Rows.joined(book.rows).frame(),
            recipes={plan.recipe: dict(plan.content) for plan in plans},
            predictions=book.predictions,
            items=book.items,
            ledger=book.ledgers,
            environment=[environment(device)],
        )
    return found.of_runs(plan.key for plan in plans)


def perform(
    plans: Sequence[Plan],
    *,
    out: str | Path | None = None,
    device: Any = "auto",
    together: bool | None = None,
    compile: bool = False,
    watcher: Watcher | None = None,
    deadline: float | None = None,
    group_size: int = 0,
    again: bool = False,
) -> Book:
    """As `execute`, for callers that read what they need themselves."""
    watcher = watcher or Watcher()
    plans = distinct(plans)
    for run in {(id(p.run.stream), id(p.run.method)): p.run for p in plans}.values():
        check_exemplars(run)
    folder = None if out is None else RunDirectory(out)
    for note in changed(plans, recorded(folder)) if folder is not None else ():
        watcher.note(note)
    if again and folder is not None:
        folder.supersede(plan.key for plan in plans)
    if folder is not None:  # probes that were named since the runs were recorded
        remeasure(plans, folder, device=device, together=together)
    book = Book(folder)
    open_plans = [plan for plan in plans if not _finished(plan, folder)]
    watcher.begin(plans, len(plans) - len(open_plans))
    if open_plans:
        _run(open_plans, book, device, together, compile, watcher, deadline, group_size, again)
    return book


def _finished(plan: Plan, folder: RunDirectory | None) -> bool:
    if folder is None:
        return False
    done = folder.finished(*plan.key)
    return len(done) >= len(plan.run.stream)


def _run(
    plans: Sequence[Plan],
    book: Book,
    device: Any,
    together: bool | None,
    compile: bool,
    watcher: Watcher,
    deadline: float | None,
    group_size: int,
    again: bool,
) -> None:
    began = time.perf_counter()
    engine = Engine(
        [plan.run for plan in plans], device=device, together=together, compile=compile,
        group_size=group_size,
    )  # fmt: skip
    _prepare(plans, book)
    checkpoints = Checkpoints(book.folder) if book.folder is not None else None
    saver = None if book.folder is None else StepSaver(book.folder, plans)
    if again and saver is not None:
        saver.forget()

    def resume(place: int, learner: Learner) -> int:
        if checkpoints is None or saver is None:
            return 0
        plan = plans[place]
        stages = saver.load(place, learner, checkpoints.folder.finished(*plan.key))
        stages = checkpoints.load(plan, learner) if stages is None else stages
        new = {k: one for k, one in plan.probes.items() if k not in learner.probes}
        if stages and new and learner.diverged < 0:  # they were named since
            found = states_of(plan, new, stages, checkpoints.folder, engine.device)
            learner.probes = {**learner.probes, **found}
        return stages

    def progress(places: Sequence[int], stage: int) -> Callable[[int, int], None]:
        here = [plans[p] for p in places]
        return lambda done, total: watcher.step(here, stage, done, total)

    pending: list[Done] = []
    with saver.at_sigterm() if saver is not None else nullcontext():
        for stage in engine.stages(
            resume=resume, progress=progress, deadline=deadline,
            stop_inside=checkpoints is not None, saver=saver,
        ):  # fmt: skip
            plan = plans[stage.run]
            pending.append((plan, stage, book.items[plan.recipe, plan.order]))
            if not stage.last_of_group:
                continue
            rows = group_rows(pending)
            if checkpoints is not None:  # first: a recorded stage must never lack its checkpoint
                checkpoints.save(pending, deadline)
            _write(pending, rows, book)
            if checkpoints is not None and saver is not None:
                checkpoints.prune(pending)
                saver.prune([(one.run, one.stage) for _, one, _ in pending])
            for (done_plan, done_stage, _), own in zip(pending, rows, strict=True):
                watcher.stage(done_plan, done_stage.stage, own)
            pending = []
    if book.folder is not None and checkpoints is not None:
        checkpoints.close(plans)
        seconds = time.perf_counter() - began
        book.folder.append(None, environment=environment(engine.device, seconds=seconds))


def _prepare(plans: Sequence[Plan], book: Book) -> None:
    known: dict[int, Items] = {}  # the methods of a study share their streams
    for plan in plans:
        if (plan.recipe, plan.order) not in book.items:
            stream = plan.run.stream
            if id(stream) not in known:
                known[id(stream)] = stream_items(stream)
            items = known[id(stream)]
            book.items[plan.recipe, plan.order] = items
            # Items explain stored predictions; a study of orders that keeps counts has none, and
            # would write thousands of files before its first step.
            if book.folder is not None and plan.keep != "counts":
                book.folder.write_items(plan.recipe, plan.order, items)
    if book.folder is not None:
        for recipe, content in {plan.recipe: plan.content for plan in plans}.items():
            book.folder.write_recipe(recipe, content)
        book.folder.list_recipes(plan.recipe for plan in plans)


def _write(pending: Sequence[Done], rows: Sequence[Rows], book: Book) -> None:
    predictions, ledgers = [], []
    for plan, stage, items in pending:
        if stage.learner.diverged < 0 and plan.keep != "counts":
            predictions.append(
                Prediction.of(
                    stage.outcome.scores,
                    items,
                    recipe=plan.recipe,
                    seed=plan.run.seed,
                    order=plan.order,
                    stage=stage.stage,
                    keep=plan.keep,
                    **_network(stage.learner, plan.keep),
                )
            )
        if stage.stage == len(plan.run.stream) - 1 or stage.learner.diverged >= 0:
            ledgers.append(
                {
                    "recipe": plan.recipe,
                    "label": plan.label,
                    "seed": plan.run.seed,
                    "order": plan.order,
                    "reads": plan.run.method.reads,
                    "stages": stage.learner.ledger.to_dict(),
                }
            )
    kept = [p for p in predictions if p is not None]
    if book.folder is None:
        book.rows += rows
        book.predictions += kept
        book.ledgers += ledgers
        return
    joined = Rows.joined(rows)
    probed = [
        {
            "recipe": plan.recipe, "seed": plan.run.seed, "order": plan.order,
            "stage": stage.stage, "probes": list(plan.probes),
        }
        for plan, stage, _ in pending if plan.probes
    ]  # fmt: skip
    book.folder.append(
        joined, predictions=kept, ledger={"runs": ledgers} if ledgers else None,
        probes=probed or None,
    )  # fmt: skip


def _network(learner: Learner, keep: str) -> dict[str, Any]:
    """What is kept of a network besides its scores: all that probes named later may need."""
    if keep != "parameters":
        return {}
    exemplars = torch.stack(learner.exemplars[:4])
    return {"parameters": learner.vector, "buffers": learner.buffers, "exemplars": exemplars}
