"""Rules against data leakage: nothing from test rows or later tasks, no more than the memory
budget, no samples hidden in the state.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.checks.check_report import BrokenRule, DoesNotApply, explain, require
from engram.checks.toy_runs import (
    EXACT,
    ORDERS,
    StageCopy,
    copy_stage,
    enter_task,
    largest_gap,
    make_clouds,
    make_runs,
    make_streams,
    pretraining_rows,
    shrink_memory,
    shrink_settings,
    spy_on,
    train_runs,
    trees_equal,
)
from engram.data.dataset import Data
from engram.engine.engine import Engine, copy_learner
from engram.engine.evaluation import score_test_items
from engram.engine.loop import train_task
from engram.errors import AccessError, BadArgument
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import flatten, tree_map, tree_shapes
from engram.memory import Exemplars
from engram.methods.method import Method, Network
from engram.streams import Stream, Task, class_incremental


def check_reads_only_what_it_may(method: Method) -> None:
    """Only rows of the current task and of the memory are read, unless `reads` says "past"."""
    try:
        trained = train_runs(make_runs(shrink_settings(method), make_streams()[:1]))
    except AccessError as error:
        raise BrokenRule(explain(error, method)) from error
    except BadArgument as error:
        if not str(error).startswith("exemplars:"):
            raise
        raise DoesNotApply("it keeps more than its budget, which the next check is about") from None
    ledger = trained[max(trained)].stage.learner.ledger
    if method.reads != "past":
        require(ledger.total("past") == 0, 'reads earlier tasks: declare reads = "past"')


def check_test_and_future_rows_do_not_matter(method: Method) -> None:
    """With noise in place of all test rows and all later tasks, a task ends bitwise the same."""
    data = make_clouds()
    stream = make_streams(data)[0]
    clean_run = train_runs(make_runs(shrink_settings(method), [stream]))
    for stage in range(len(stream) - 1):
        known = torch.cat([torch.cat([t.train, t.valid]) for t in stream.tasks[: stage + 1]])
        known = torch.cat([known, pretraining_rows(method, stream)]).unique()
        blurred = class_incremental(_noise_outside(data, known), order=list(ORDERS[0]))
        clean, dirty = clean_run[0, stage], _train_until(shrink_settings(method), blurred, stage)
        equal = trees_equal(clean.tensors, dirty.tensors)
        require(
            equal,
            f"what is learnt in task {stage} depends on test rows or on later tasks: "
            "reach data through learner.batch only",
        )
        kept = trees_equal(tuple(clean.exemplars[:4]), tuple(dirty.exemplars[:4]))
        require(kept, f"exemplars of task {stage} depend on test rows or on later tasks")


def _noise_outside(data: Data, known: Tensor) -> Data:
    noise = 7 * keys.normal(keys.fold(0, "blurred"), *data.x.shape).float()
    x = torch.as_tensor(data.x)
    return replace(data, x=noise.index_copy(0, known, x[known]))


def _train_until(method: Method, stream: Stream, last: int, loss: str = "ce") -> StageCopy:
    runs = make_runs(method, [stream], training=replace(EXACT, loss=loss))
    for stage in Engine(runs, device="cpu", together=False).stages():
        if stage.stage == last:
            return copy_stage(stage)
    raise BrokenRule(f"the run ended before task {last} was done")


def check_memory_within_budget(method: Method) -> None:
    """After every task: no more items than allowed, each a training row of a task so far."""
    memory = method.memory
    stream = make_streams()[1]
    try:
        trained = train_runs(make_runs(shrink_memory(shrink_settings(method)), [stream]))
    except BadArgument as error:
        if not str(error).startswith("exemplars:"):  # an unrelated error
            raise
        advice = "declare a field `memory: Memory`, and"
        advice = advice if memory is None else "smaller memories are tried here, so"
        raise BrokenRule(
            f"{error}: {advice} let self.memory.update choose the exemplars"
        ) from error
    for (_, stage), after in trained.items():
        kept, limit = after.exemplars, 0
        if memory is not None:
            own = after.stage.learner
            tight_memory = shrink_memory(method).memory or memory
            groups = int((own.opened >= 0).sum())
            sizes = [len(task.train) for task in stream.tasks[: stage + 1]]
            limit = tight_memory.capacity(groups=groups, sizes=sizes) or 0
        require(
            len(kept) <= limit,
            f"{len(kept)} exemplars after task {stage}, the budget allows {limit}",
        )
        _require_own_items(stream, kept, stage)


def _require_own_items(stream: Stream, kept: Any, stage: int) -> None:
    for past in kept.stages.unique().tolist():
        require(past <= stage, f"an exemplar of task {past} is kept in task {stage}")
        rows = kept.rows[kept.stages == past]
        inside = torch.isin(rows, stream.tasks[past].train)
        require(bool(inside.all()), f"exemplars of task {past} are not its training rows")
    items = torch.stack([kept.rows, kept.stages, kept.columns])
    require(items.unique(dim=1).shape[1] == len(kept), "an exemplar is kept twice")


def check_exemplars_are_trained_on(method: Method) -> None:
    """A declared memory is filled; what it keeps comes back, and the update depends on it."""
    if method.memory is None:
        raise DoesNotApply("declares no memory")
    require(
        len(_kept_items(method)) > 0,
        "a memory is declared, and nothing is kept in it: write learner.exemplars = "
        "self.memory.update(learner, task.train) in finish",
    )
    at = enter_task(shrink_settings(method))
    shown: set[int] = set()
    felt = False
    for batch in at.own_batches():
        for part in (batch, *batch.memory):
            past = (part.old > 0) & (part.w > 0)
            shown |= {hash(tuple(row)) for row in part.x[past].flatten(1).tolist()}
        felt = felt or _update_uses_memory(at, batch)
    if not shown and _host_uses_memory(method):
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


def _kept_items(method: Method) -> Any:
    return train_runs(make_runs(shrink_settings(method), make_streams()[:1]))[0, 0].exemplars


def _host_uses_memory(method: Method) -> bool:
    """Return whether a task ends with other weights if the memory is emptied before it.

    With other answers, if the method trains nothing: those may compare with exemplars.
    """
    ends, trains = [], any(phase.rows != "none" for phase in method.phases(1))
    for emptied in (False, True):
        (run,) = make_runs(shrink_settings(method), make_streams()[:1])
        learner = Engine([run], device="cpu", together=False).learner(run)
        for stage in range(2):
            if stage and emptied:
                learner.exemplars = Exemplars.empty()
            train_task([learner], [run.method], run.training, stage, mapped=False)
        (scores,) = score_test_items([learner], [run.method])
        ends.append(learner.vector if trains else torch.as_tensor(scores))
    return not torch.equal(*ends)


def _update_uses_memory(at: Any, batch: Batch) -> bool:
    """Return whether the update depends on memory rows, or takes their gradient."""
    asked: list[Batch] = []

    def update(which: Batch) -> Tensor:
        grad = at.gradient(which, asked.append)
        answer: Tensor = at.method.gradient(grad, which, at.learners[0].state)
        return answer

    first = update(batch)
    if any(one is part for one in asked for part in batch.memory):
        return True
    past = (batch.old > 0).reshape(-1, *[1] * (batch.x.ndim - 1))
    memory = tuple(part._replace(x=part.x + 1.0) for part in batch.memory)
    other = update(batch._replace(x=torch.where(past, batch.x + 1.0, batch.x), memory=memory))
    return not torch.equal(first, other)


# Poisoned data: changing what a method may not know must change nothing.


def _same_outcome(one: StageCopy, other: StageCopy) -> bool:
    kept = trees_equal(tuple(one.exemplars[:4]), tuple(other.exemplars[:4]))
    return kept and trees_equal(one.tensors, other.tensors)


# -- labels --------------------------------------------------------------------------------------
def check_labels_out_of_sight_do_not_matter(method: Method) -> None:
    """With other labels for test rows, later tasks and what tasks hide, a task ends the same."""
    stream = make_streams()[0]
    clean_run = train_runs(make_runs(shrink_settings(method), [stream]))
    for stage in range(len(stream) - 1):
        other = _other_labels(stream, stage, pretraining_rows(method, stream))
        dirty = _train_until(shrink_settings(method), other, stage)
        require(
            _same_outcome(clean_run[0, stage], dirty),
            f"what is learnt in task {stage} depends on labels of test rows or of later tasks: "
            "take labels from batch.y or learner.labels only",
        )
    if method.reads == "past":  # may use all labels of earlier rows
        return
    one, other = (_two_levels(hidden) for hidden in (0, 1))
    try:
        clean, dirty = (
            _train_until(shrink_settings(method), each, 1, loss="auto") for each in (one, other)
        )
    except BadArgument:  # a method without label sets never sees a row with a hidden label
        return
    require(
        _same_outcome(clean, dirty),
        "what is learnt depends on labels that the task hides: take labels from batch.y",
    )


def _other_labels(stream: Stream, stage: int, aside: Tensor) -> Stream:
    """Exchange the labels that task `stage` may not see."""
    y = stream.data.y.clone()
    for k, task in enumerate(stream.tasks):
        y[task.test] = (y[task.test] + 1) % stream.data.n_classes
        if k > stage:  # within the task, so that every row keeps a visible label
            first, second = task.new
            mine = task.train[~torch.isin(task.train, aside)]
            y[mine] = first + second - y[mine]
    return replace(stream, data=replace(stream.data, y=y))


def _two_levels(hidden: int) -> Stream:
    """Make a stream whose task 0 shows two superclasses, and task 1 three classes.

    Rows also have a hidden label of the other level, which `hidden` changes.
    """
    sizes, count = (24, 24, 24, 24, 24, 24), 3
    data = make_clouds(sizes)
    fine = data.y[:, 0] % count
    coarse = count + (data.y[:, 0] >= count).long()
    upper = torch.arange(len(data)) % 2 == 0  # rows of task 0
    shown = torch.where(upper, coarse, fine)
    turned = torch.where(upper, (fine + hidden) % count, count + (coarse - count + hidden) % 2)
    y = torch.stack([shown, turned], 1)
    names = ("a", "b", "c", "A", "B")
    rows = {kind: getattr(data, kind) for kind in ("train", "test")}
    tasks = [
        Task(**{kind: rows[kind][upper[rows[kind]] == here] for kind in rows}, new=new)
        for here, new in ((True, (3, 4)), (False, (0, 1, 2)))
    ]
    return Stream(data=replace(data, y=y, classes=names), tasks=tuple(tasks))


# -- rows of the past ----------------------------------------------------------------------------
def check_lost_rows_do_not_matter(method: Method) -> None:
    """With noise in place of earlier rows that no memory holds, a task ends bitwise the same."""
    if method.reads == "past":
        raise DoesNotApply('reads = "past"')
    stream = make_streams()[0]
    dirty: StageCopy | None = None  # the task after the one before, on the other stream
    runs = make_runs(shrink_settings(method), [stream])
    for now in Engine(runs, device="cpu", together=False).stages():
        require(
            dirty is None or _same_outcome(copy_stage(now), dirty),
            f"task {now.stage} depends on rows of earlier tasks that are not in the memory: keep "
            "rows in learner.exemplars, under a declared memory",
        )
        for task in stream.tasks[now.stage + 1 :][:1]:
            known = torch.cat([task.train, task.valid, now.learner.exemplars.rows]).unique()
            noisy = replace(stream, data=_noise_outside(stream.data, known))
            dirty = _next_stage(shrink_settings(method), noisy, now.learner)


def _next_stage(method: Method, stream: Stream, after: RunLearner) -> StageCopy:
    """Train the stage after `after`, on a stream with the same tasks."""

    def resume(_place: int, learner: RunLearner) -> int:
        copy_learner(after, learner)
        return after.stage + 1

    runs = make_runs(method, [stream])
    for stage in Engine(runs, device="cpu", together=False).stages(resume=resume):
        return copy_stage(stage)
    raise BrokenRule(f"the run ended before task {after.stage + 1} was done")


# -- the evaluation ------------------------------------------------------------------------------
def check_closed_networks_wait(method: Method) -> None:
    """Before the task that opens a network, nothing depends on it, and its bytes do not count."""
    method = shrink_settings(method)
    stream = make_streams()[0]
    runs = make_runs(method, [stream])
    (settings,) = [Engine(runs, device="cpu").learner(run).networks.settings for run in runs]
    if not any(own.opens for own in settings.values()):
        raise DoesNotApply("no network is opened by a later task")
    usual = train_runs(runs)
    for stage in sorted({own.opens for own in settings.values()} & set(range(1, len(stream)))):

        def make_noise(original: Any, outline: Any, least: int = stage) -> Any:
            found = original(outline)
            for name, one in found.items():
                if isinstance(one, Network) and one.opens >= least:
                    for weight in one.module.parameters():
                        weight.data += keys.normal(keys.fold(0, name), *weight.shape)
            return found

        other = train_runs(make_runs(spy_on(method, "networks", make_noise), [stream]))
        for before in range(stage):
            mine, there = usual[0, before], other[0, before]
            one = mine.stage.learner
            open_ = one.networks.free(one.seen | True, before)
            same = torch.equal(mine.vector[open_], there.vector[open_])
            same = same and np.array_equal(mine.scores, there.scores)
            require(
                same and trees_equal(mine.state, there.state),
                f"task {before} depends on networks that task {stage} opens: ask them from then on",
            )
            start = one.networks.initial()[0]
            require(
                torch.equal(mine.vector[~open_], start[~open_].to(mine.vector)),
                f"weights of networks that task {stage} opens change in task {before}: their bytes "
                "do not count yet, so they stay as they are",
            )


def check_places_of_test_rows_do_not_matter(method: Method) -> None:
    """With half of the test rows in another order, training and scores stay the same."""
    stream = make_streams()[1]
    other = replace(stream, tasks=tuple(_halve_tests(task) for task in stream.tasks))
    mine, theirs = (
        train_runs(make_runs(shrink_settings(method), [one])) for one in (stream, other)
    )
    for (_, stage), one in mine.items():
        places = _find_test_rows(stream.tasks[: stage + 1], other.tasks[: stage + 1])
        again = theirs[0, stage]
        require(
            _same_outcome(one, again),
            f"what is learnt in task {stage} depends on the number or sequence of test rows",
        )
        scores = torch.as_tensor(one.scores)[places]
        away = largest_gap(torch.as_tensor(again.scores), scores)
        require(
            away < 1e-5,
            f"scores after task {stage} depend on the place of a row among the test rows: "
            "answer(net, x, state, stage) may use the input of the row itself only",
        )


def _halve_tests(task: Task) -> Task:
    count = len(task.test)
    order = keys.permutation(keys.fold(0, "places", int(task.test[0])), count, count)
    return replace(task, test=task.test[order][: count // 2])


def _find_test_rows(tasks: Sequence[Task], fewer: Sequence[Task]) -> Tensor:
    """Find the test rows of `fewer` among those of `tasks`."""
    found, start = [], 0
    for task, part in zip(tasks, fewer, strict=True):
        found.append(start + (part.test[:, None] == task.test).long().argmax(1))
        start += len(task.test)
    return torch.cat(found)


# Samples outside the memory.


SIZES = (20, 12, 24, 16, 28, 9)
SAMPLE = (2, 8, 3)  # 48 numbers do not match by chance, at any scale
ALIKE_CORRELATION = (
    0.995  # correlation; half precision and bytes stay above, a class mean is far below
)
# Gradients are sums over rows, of which few may remain: in small batches, of rows still wrong, of
# units that few rows reach. Moments of them, as optimisers keep, are no samples.
MIXES = replace(EXACT, batch_size=64, lr=0.001)
FEW_ROWS = 2  # a gradient of one row is a multiple of it; two rows are no accident
MOST_ENTRIES = 1 << 20  # entries of one tensor that are searched
MOST_DEPTH = 4


def make_wide_clouds() -> Data:
    """Make separable classes of samples that cannot be confused with each other."""
    key, count, each = keys.fold(0, "hoards"), len(SIZES), torch.tensor(SIZES)
    tests = torch.arange(count).repeat_interleave(4)
    y = torch.arange(count).repeat_interleave(each)
    centres = 3 * keys.normal(keys.fold(key, "centres"), count, *SAMPLE)
    noise = keys.normal(keys.fold(key, "noise"), len(y) + len(tests), *SAMPLE)
    x = (centres[torch.cat([y, tests])] + noise).float()
    return Data.from_arrays(x[: len(y)], y, test=(x[len(y) :], tests), name="wide clouds")


def check_keeps_no_samples_outside_its_memory(method: Method) -> None:
    """No inputs are stored in state, weights, buffers, optimiser, the method or its module."""
    stream, left = class_incremental(make_wide_clouds()), [None]

    def around(original: Any, learner: Any, task: Any) -> None:
        left[0] = tree_map(_copy_leaf, learner.opt)
        original(learner, task)

    watched = spy_on(shrink_settings(method), "finish", around)
    runs = make_runs(watched, [stream], model="smooth", training=MIXES)
    engine = Engine(runs, device="cpu", together=False)
    for stage in engine.stages():
        learner = stage.learner
        rows = torch.cat([task.train for task in stream.tasks[: stage.stage + 1]])
        rows = rows[~torch.isin(rows, learner.exemplars.rows)]
        inputs = learner.feed(rows).flatten(1).double()
        where: dict[str, list[int]] = {}
        for name, leaf in (
            *_learner_tensors(learner, left[0]),
            *_method_tensors(engine.runs[0].method),
        ):
            found = rows[_contains_inputs(leaf, inputs)].tolist()
            where |= {name: found} if found else {}
        kept = list(dict.fromkeys(row for found in where.values() for row in found))
        shown = ", ".join(map(str, kept[:3])) + ", ..." * (len(kept) > 3)
        holds = f"{' and '.join(where)} {'hold' if len(where) > 1 else 'holds'}"
        require(
            len(kept) < FEW_ROWS,
            f"after task {stage.stage}, {holds} {len(kept)} inputs that the memory does not (rows "
            f"{shown}): keep samples as learner.exemplars, under a declared memory",
        )


def _copy_leaf(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _learner_tensors(learner: RunLearner, opt: Any) -> Iterator[tuple[str, Tensor]]:
    """Iterate over a learner's tensors; the optimiser's only if changed since training.

    Its moments of a network that a method brings may hold few rows, whatever the model is.
    """
    written = tree_shapes(learner.opt) != tree_shapes(opt) or not trees_equal(learner.opt, opt)
    for part in ("state", "buffers", "vector", "free", *["opt"] * written):
        for name, leaf in flatten({part: getattr(learner, part)}).items():
            if isinstance(leaf, Tensor):
                yield f"learner.{name}", leaf


def _method_tensors(method: Method) -> Iterator[tuple[str, Tensor]]:
    """Iterate over tensors and arrays on a method, its classes and their modules."""
    yield from _walk_tensors("self", vars(method))
    for kind in type(method).__mro__:
        if kind is not object and not kind.__module__.startswith("engram."):
            yield from _walk_tensors(kind.__name__, dict(vars(kind)))
            yield from _walk_tensors(kind.__module__, vars(sys.modules[kind.__module__]))


def _walk_tensors(name: str, value: Any, depth: int = MOST_DEPTH) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        yield name, value
    elif depth and isinstance(value, dict):
        for key, inner in list(value.items()):
            if not str(key).startswith("__"):
                yield from _walk_tensors(f"{name}.{key}", inner, depth - 1)
    elif depth and isinstance(value, (list, tuple, set)):
        for place, inner in enumerate(value):
            yield from _walk_tensors(f"{name}[{place}]", inner, depth - 1)


def _contains_inputs(leaf: Tensor, inputs: Tensor) -> Tensor:
    """Mark the inputs [n, d] that a tensor contains, at any scale, along or across its axes."""
    size = inputs.shape[1]
    found = torch.zeros(len(inputs), dtype=torch.bool)
    if not size <= leaf.numel() <= MOST_ENTRIES or leaf.is_complex():
        return found
    whole = leaf.detach().cpu().double()
    forms = [whole.flatten()]
    if leaf.ndim > 1:
        forms += [whole.flatten(1).T.flatten(), whole.flatten(0, -2).T.flatten()]
    wanted = _standardize(inputs)
    for form in forms:
        for part in form.unfold(0, size, 1).split(1 << 14):
            found |= ((_standardize(part) @ wanted.T).abs() > ALIKE_CORRELATION).any(0)
    return found


def _standardize(rows: Tensor) -> Tensor:
    """Scale rows to mean 0 and length 1, so that products are correlations."""
    centred = rows - rows.mean(1, keepdim=True)
    return torch.nan_to_num(centred / centred.norm(dim=1, keepdim=True).clamp(min=1e-12))


def check_holds_no_more_for_more_rows(method: Method) -> None:
    """With twice the rows in every task, state outside the memory does not grow."""
    held, items = [], []
    for factor in (1, 2):
        stream = class_incremental(make_clouds([factor * size for size in SIZES]))
        trained = train_runs(make_runs(shrink_memory(shrink_settings(method)), [stream]))
        learner = trained[max(trained)].stage.learner
        size = learner.nbytes()
        held.append({kind: count for kind, count in size.items() if kind != "exemplars"})
        items.append(len(learner.exemplars))
    if items[0] != items[1]:
        raise DoesNotApply("its memory grows with the rows, and what belongs to it may, too")
    grown = [kind for kind in held[0] if held[1][kind] > held[0][kind]]
    require(
        not grown,
        f"{', '.join(grown)} grow from {sum(held[0].values())} to {sum(held[1].values())} bytes "
        "when tasks have twice the rows: what is kept of single rows belongs into the memory",
    )
