"""Honest data: nothing from the test rows, nothing from the future, no more than the budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engram import keys
from engram.checks.explain import explain
from engram.checks.report import Broken, DoesNotApply, require
from engram.checks.tamed import rows_aside, tame, tight
from engram.checks.task_start import task_start
from engram.checks.toys import (
    EXACT,
    ORDERS,
    After,
    clouds,
    runs_of,
    same,
    streams,
    train,
)
from engram.data.core import Data
from engram.engine.engine import Engine
from engram.engine.loop import train_task
from engram.errors import AccessError, BadArgument
from engram.learner.batch import Batch
from engram.memory import Exemplars
from engram.methods.base import Gradient, Method
from engram.streams import Stream, class_incremental


def check_reads_only_what_it_may(method: Method) -> None:
    """Only rows of the current task and of the memory are read, unless `reads` says "past"."""
    try:
        trained = train(runs_of(tame(method), streams()[:1]))
    except AccessError as error:
        raise Broken(explain(error, method)) from error
    except BadArgument as error:
        if not str(error).startswith("exemplars:"):
            raise
        raise DoesNotApply("it keeps more than its budget, which the next check is about") from None
    ledger = trained[max(trained)].stage.learner.ledger
    if method.reads != "past":
        require(ledger.total("past") == 0, 'reads earlier tasks: declare reads = "past"')


def check_test_and_future_rows_do_not_matter(method: Method) -> None:
    """With noise in place of all test rows and all later tasks, a task ends bitwise the same."""
    data = clouds()
    stream = class_incremental(data, order=list(ORDERS[0]))
    for stage in range(len(stream) - 1):
        known = torch.cat([torch.cat([t.train, t.valid]) for t in stream.tasks[: stage + 1]])
        known = torch.cat([known, rows_aside(method, stream)]).unique()
        blurred = class_incremental(_noise_outside(data, known), order=list(ORDERS[0]))
        clean, dirty = (_until(tame(method), one, stage) for one in (stream, blurred))
        equal = same(clean.tensors, dirty.tensors)
        require(
            equal,
            f"what is learnt in task {stage} depends on test rows or on later tasks: "
            "reach data through learner.batch only",
        )
        kept = same(tuple(clean.exemplars[:4]), tuple(dirty.exemplars[:4]))
        require(kept, f"exemplars of task {stage} depend on test rows or on later tasks")


def _noise_outside(data: Data, known: Tensor) -> Data:
    noise = 7 * keys.normal(keys.fold(0, "blurred"), *data.x.shape).float()
    x = torch.as_tensor(data.x)
    return replace(data, x=noise.index_copy(0, known, x[known]))


def _until(method: Method, stream: Stream, last: int, loss: str = "ce") -> After:
    from engram.checks.toys import copied

    runs = runs_of(method, [stream], training=replace(EXACT, loss=loss))
    for stage in Engine(runs, device="cpu", together=False).stages():
        if stage.stage == last:
            return copied(stage)
    raise Broken(f"the run ended before task {last} was done")


def check_memory_within_budget(method: Method) -> None:
    """After every task: no more items than allowed, each a training row of a task so far."""
    memory = method.memory_budget
    stream = streams()[1]
    try:
        trained = train(runs_of(tight(tame(method)), [stream]))
    except BadArgument as error:
        if not str(error).startswith("exemplars:"):  # about something else, by whoever raised it
            raise
        advice = "declare a field `memory: Memory`, and"
        advice = advice if memory is None else "smaller memories are tried here, so"
        raise Broken(f"{error}: {advice} let self.memory.update choose the exemplars") from error
    for (_, stage), after in trained.items():
        kept, limit = after.exemplars, 0
        if memory is not None:
            own = after.stage.learner
            tight_memory = tight(method).memory_budget or memory
            groups = int((own.opened >= 0).sum())
            sizes = [len(task.train) for task in stream.tasks[: stage + 1]]
            limit = tight_memory.capacity(groups=groups, sizes=sizes) or 0
        require(
            len(kept) <= limit,
            f"{len(kept)} exemplars after task {stage}, the budget allows {limit}",
        )
        _look_at_items(stream, kept, stage)


def _look_at_items(stream: Stream, kept: Any, stage: int) -> None:
    for past in kept.stages.unique().tolist():
        require(past <= stage, f"an exemplar of task {past} is kept in task {stage}")
        rows = kept.rows[kept.stages == past]
        inside = torch.isin(rows, stream.tasks[past].train)
        require(bool(inside.all()), f"exemplars of task {past} are not its training rows")
    items = torch.stack([kept.rows, kept.stages, kept.columns])
    require(items.unique(dim=1).shape[1] == len(kept), "an exemplar is kept twice")


def check_exemplars_are_trained_on(method: Method) -> None:
    """A declared memory is filled; what it keeps comes back, and the update depends on it."""
    if method.memory_budget is None:
        raise DoesNotApply("declares no memory")
    require(
        len(_kept(method)) > 0,
        "a memory is declared, and nothing is kept in it: write learner.exemplars = "
        "self.memory.update(learner, task.train) in finish",
    )
    at = task_start(tame(method))
    shown: set[int] = set()
    felt = False
    for batch in at.own_batches():
        for part in (batch, *batch.memory):
            past = (part.old > 0) & (part.w > 0)
            shown |= {hash(tuple(row)) for row in part.x[past].flatten(1).tolist()}
        felt = felt or _felt(at, batch)
    if not shown and _trained_by_host(method):
        return
    require(
        len(shown) > 0,
        "exemplars are stored, but no batch of the next task holds any, and start and finish do "
        "not train on them either: declare them in replay(stage)",
    )
    require(
        felt,
        "exemplars are in the batches, but the update does not depend on them: "
        "let the loss (or the gradient) use rows with batch.old = 1, or batch.memory",
    )


def _kept(method: Method) -> Any:
    return train(runs_of(tame(method), streams()[:1]))[0, 0].exemplars


def _trained_by_host(method: Method) -> bool:
    """Whether a task ends with other weights if the memory was emptied before it."""
    ends = []
    for emptied in (False, True):
        (run,) = runs_of(tame(method), streams()[:1])
        learner = Engine([run], device="cpu", together=False).learner(run)
        for stage in range(2):
            if stage and emptied:
                learner.exemplars = Exemplars.empty()
            train_task([learner], [run.method], run.training, stage, mapped=False)
        ends.append(learner.vector)
    return not torch.equal(*ends)


def _felt(at: Any, batch: Batch) -> bool:
    """Whether the update uses memory rows: other inputs there change it, or grad is asked there."""
    asked: list[Batch] = []

    def update(which: Batch) -> Tensor:
        def of(one: Batch, names: tuple[str, ...], elsewhere: Tensor | None) -> Tensor:
            asked.append(one)
            weights = at.learners[0].vector if elsewhere is None else elsewhere
            weights = weights.clone().requires_grad_(True)
            terms = at.method.loss(at.net(one, vector=weights), one, at.learners[0].state)
            total = sum(t for name, t in terms.items() if not names or name in names)
            found: Tensor = torch.autograd.grad(torch.as_tensor(total), weights)[0]
            return found

        grad = Gradient(of, at.learners[0].vector, at.learners[0].layout)
        answer: Tensor = at.method.gradient(grad, which, at.learners[0].state)
        return answer

    first = update(batch)
    if any(one is part for one in asked for part in batch.memory):
        return True
    past = (batch.old > 0).reshape(-1, *[1] * (batch.x.ndim - 1))
    memory = tuple(part._replace(x=part.x + 1.0) for part in batch.memory)
    other = update(batch._replace(x=torch.where(past, batch.x + 1.0, batch.x), memory=memory))
    return not torch.equal(first, other)
