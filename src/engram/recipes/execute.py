"""Run plans through the engine and keep what comes out: rows, predictions, ledger, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engram.engine import checkpoint
from engram.engine.evaluate import test_items
from engram.engine.run import Engine, Stage
from engram.engine.run_spec import Run, check_exemplars
from engram.learner.learner import Learner
from engram.records import (
    Items,
    Prediction,
    Result,
    Rows,
    RunDirectory,
    environment,
    read,
    record_stage,
)
from engram.streams.core import Stream

CHECKPOINT_RUNS = 32  # larger groups are repeated from their start when a process dies


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """One run and the names under which its numbers are kept."""

    run: Run
    content: Mapping[str, Any]  # the recipe as plain values
    recipe: str  # its id
    label: str
    order: str = ""
    keep: str = "scores"
    average: str = "micro"

    @property
    def key(self) -> tuple[str, int, str]:
        return self.recipe, self.run.seed, self.order


class Watcher:
    """What a caller may watch of an execution; every method may be left as it is."""

    def begin(self, plans: Sequence[Plan], done: int) -> None:
        """`done` of the plans were finished before."""

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        """Steps of a stage of some plans that train together."""

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        """A stage is recorded."""


@dataclass
class _Book:
    """Rows and predictions gathered in memory, and written where there is a directory."""

    folder: RunDirectory | None
    rows: list[Rows] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    items: dict[tuple[str, str], Items] = field(default_factory=dict)
    ledgers: list[dict[str, Any]] = field(default_factory=list)


def stream_items(stream: Stream, *, multilabel: bool) -> Items:
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
        multilabel=multilabel,
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
) -> Result:
    """Run what is not finished yet; returns everything the plans asked for.

    With `out`, finished stages are never run again and an interrupted run goes on after its last
    checkpoint. `deadline` (``time.monotonic``) stops cleanly between groups of runs. `compile`
    fuses the operations of a training step, see `engram.run`.
    """
    watcher = watcher or Watcher()
    for run in {(id(p.run.stream), id(p.run.method)): p.run for p in plans}.values():
        check_exemplars(run)
    folder = RunDirectory(out) if out is not None else None
    book = _Book(folder)
    open_plans = [plan for plan in plans if not _finished(plan, folder)]
    watcher.begin(plans, len(plans) - len(open_plans))
    if open_plans:
        _run(open_plans, book, device, together, compile, watcher, deadline, group_size)
    if folder is not None:
        return _asked(read(folder.path), plans)
    recipes = {plan.recipe: dict(plan.content) for plan in plans}
    return Result(
        _joined(book.rows),
        recipes=recipes,
        predictions=book.predictions,
        items=book.items,
        ledger=book.ledgers,
        environment=[environment(device)],
    )


def _asked(result: Result, plans: Sequence[Plan]) -> Result:
    """The runs of the plans, out of all that the directory holds."""
    recipes, seeds, orders = (set(part) for part in zip(*(p.key for p in plans), strict=True))
    present = {run.recipe for run in result.runs}
    return result.select(recipe=recipes & present, seed=seeds, order=orders)


def _joined(rows: Iterable[Rows]) -> Any:
    together = Rows()
    for one in rows:
        together.extend(one)
    return together.frame()


def _finished(plan: Plan, folder: RunDirectory | None) -> bool:
    if folder is None:
        return False
    done = folder.finished(*plan.key)
    return len(done) >= len(plan.run.stream)


def _run(
    plans: Sequence[Plan],
    book: _Book,
    device: Any,
    together: bool | None,
    compile: bool,
    watcher: Watcher,
    deadline: float | None,
    group_size: int,
) -> None:
    began = time.perf_counter()
    engine = Engine(
        [plan.run for plan in plans], device=device, together=together, compile=compile,
        group_size=group_size,
    )  # fmt: skip
    _prepare(plans, book)
    checkpoints = book.folder is not None and max(map(len, engine.groups())) <= CHECKPOINT_RUNS

    def resume(place: int, learner: Learner) -> int:
        if not checkpoints or book.folder is None:
            return 0
        key = plans[place].key
        return checkpoint.load(
            learner, book.folder.checkpoint_path(*key), book.folder.finished(*key)
        )

    def progress(places: Sequence[int], stage: int) -> Callable[[int, int], None]:
        here = [plans[p] for p in places]
        return lambda done, total: watcher.step(here, stage, done, total)

    pending: list[tuple[Plan, Stage, Rows]] = []
    for stage in engine.stages(
        resume=resume, progress=progress, deadline=deadline, stop_inside=checkpoints
    ):
        plan = plans[stage.run]
        pending.append((plan, stage, _rows(plan, stage, book.items[plan.recipe, plan.order])))
        if stage.last_of_group:
            _write(pending, book, checkpoints)
            for done_plan, done_stage, rows in pending:
                watcher.stage(done_plan, done_stage.stage, rows)
            pending = []
    if book.folder is not None:
        seconds = time.perf_counter() - began
        book.folder.append(None, environment=environment(engine.device, seconds=seconds))


def _prepare(plans: Sequence[Plan], book: _Book) -> None:
    for plan in plans:
        if (plan.recipe, plan.order) not in book.items:
            multilabel = plan.run.training.loss == "bce"
            items = stream_items(plan.run.stream, multilabel=multilabel)
            book.items[plan.recipe, plan.order] = items
            # Items explain stored predictions; a study of orders that keeps counts has none, and
            # would write thousands of files before its first step.
            if book.folder is not None and plan.keep != "counts":
                book.folder.write_items(plan.recipe, plan.order, items)
    if book.folder is not None:
        for recipe, content in {plan.recipe: plan.content for plan in plans}.items():
            book.folder.write_recipe(recipe, content)


def _rows(plan: Plan, stage: Stage, items: Items) -> Rows:
    """Everything the long table keeps of one stage of one run."""
    rows = Rows(recipe=plan.recipe, label=plan.label, seed=plan.run.seed, order=plan.order)
    learner, outcome = stage.learner, stage.outcome
    if learner.diverged >= 0:
        rows.add("diverged", 1.0, stage=stage.stage)
    else:
        record_stage(rows, outcome.scores, items, stage=stage.stage, average=plan.average)
    for step, scores in outcome.curve:
        _add_curve(rows, scores, items, stage.stage, step, plan.average)
    size = learner.nbytes()
    facts = {
        "seconds": outcome.seconds,
        "steps": outcome.steps,
        "parameters": learner.vector.numel(),
        "state_bytes": size["state"],
        "memory_items": len(learner.exemplars),
        "memory_bytes": size["exemplars"],
    }
    numbers = [(name, float(value), -1) for name, value in facts.items()]
    numbers += [
        (f"loss/{name}", value, step)
        for step, terms in outcome.losses
        for name, value in terms.items()
    ]
    names, values, steps = zip(*numbers, strict=True)
    rows.add_array(list(names), np.array(values), stage=stage.stage, step=np.array(steps))
    if len(learner.exemplars):
        counts = learner.exemplars.counts(items.width).numpy()
        rows.add_array("memory_count", counts, stage=stage.stage, cls=items.classes)
    if stage.stage == 0:
        _add_chance(rows, items)
    return rows


def _add_curve(
    rows: Rows, scores: np.ndarray, items: Items, stage: int, step: int, average: str
) -> None:
    from engram.records import predict, round_scores
    from engram.records.views import HEADS, task_accuracy

    for head in HEADS:
        said = predict(round_scores(scores), items, stage=stage, head=head)
        value = task_accuracy(said, items, average=average)
        task = np.arange(len(value))
        rows.add_array("accuracy", value, stage=stage, step=step, task=task, head=head)


def _add_chance(rows: Rows, items: Items) -> None:
    """What guessing gives: one over the number of competing classes."""
    task = np.arange(items.tasks)
    single = 1 / np.array([(items.opening <= k).sum() for k in task])
    multi = 1 / items.visible.sum(1)
    rows.add_array("chance", single, stage=0, task=task, head="single")
    rows.add_array("chance", multi, stage=0, task=task, head="multi")


def _write(pending: Sequence[tuple[Plan, Stage, Rows]], book: _Book, checkpoints: bool) -> None:
    predictions, ledgers = [], []
    for plan, stage, _ in pending:
        if stage.learner.diverged < 0:
            parameters = stage.learner.vector if plan.keep == "parameters" else None
            predictions.append(
                Prediction.of(
                    stage.outcome.scores,
                    book.items[plan.recipe, plan.order],
                    recipe=plan.recipe,
                    seed=plan.run.seed,
                    order=plan.order,
                    stage=stage.stage,
                    keep=plan.keep,
                    parameters=parameters,
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
        book.rows += [rows for _, _, rows in pending]
        book.predictions += kept
        book.ledgers += ledgers
        return
    if checkpoints:  # before the rows: a recorded stage must never lack its checkpoint
        for plan, stage, _ in pending:
            checkpoint.save(stage.learner, book.folder.checkpoint_path(*plan.key))
    joined = pending[0][2]
    for _, _, rows in pending[1:]:
        joined.extend(rows)
    book.folder.append(joined, predictions=kept, ledger={"runs": ledgers} if ledgers else None)
    if checkpoints:
        for plan, _, _ in pending:
            checkpoint.prune(book.folder.checkpoint_path(*plan.key))
