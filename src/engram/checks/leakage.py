"""Poisoned data: what a method may not know is changed, and nothing that it does may change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engram import keys
from engram.checks.data_access import _noise_outside, _until
from engram.checks.report import Broken, DoesNotApply, require
from engram.checks.tamed import rows_aside, tame
from engram.checks.toys import (
    After,
    clouds,
    copied,
    gap,
    runs_of,
    same,
    streams,
    train,
)
from engram.engine.engine import Engine
from engram.engine.groups.prefixes import copy_learner
from engram.errors import BadArgument
from engram.learner.learner import Learner
from engram.methods.base import Method
from engram.streams import Stream, Task


def _equal(one: After, other: After) -> bool:
    kept = same(tuple(one.exemplars[:4]), tuple(other.exemplars[:4]))
    return kept and same(one.tensors, other.tensors)


# -- labels --------------------------------------------------------------------------------------
def check_labels_out_of_sight_do_not_matter(method: Method) -> None:
    """With other labels for test rows, later tasks and what tasks hide, a task ends the same."""
    stream = streams()[0]
    for stage in range(len(stream) - 1):
        other = _other_labels(stream, stage, rows_aside(method, stream))
        clean, dirty = (_until(tame(method), one, stage) for one in (stream, other))
        require(
            _equal(clean, dirty),
            f"what is learnt in task {stage} depends on labels of test rows or of later tasks: "
            "take labels from batch.y or learner.labels only",
        )
    if method.reads == "past":  # may complete the labels of earlier rows
        return
    one, other = (_two_levels(hidden) for hidden in (0, 1))
    try:
        clean, dirty = (_until(tame(method), each, 1, loss="auto") for each in (one, other))
    except BadArgument:  # a method that refuses sets of labels meets no row that hides one
        return
    require(
        _equal(clean, dirty),
        "what is learnt depends on labels that the task hides: take labels from batch.y",
    )


def _other_labels(stream: Stream, stage: int, aside: Tensor) -> Stream:
    """The same tasks, with labels exchanged where task `stage` may not look."""
    y = stream.data.y.clone()
    for k, task in enumerate(stream.tasks):
        y[task.test] = (y[task.test] + 1) % stream.data.n_classes
        if k > stage:  # exchanged within the task, so that every row keeps a visible label
            first, second = task.new
            mine = task.train[~torch.isin(task.train, aside)]
            y[mine] = first + second - y[mine]
    return replace(stream, data=replace(stream.data, y=y))


def _two_levels(hidden: int) -> Stream:
    """Task 0 shows two superclasses, task 1 three classes.

    Rows of one task carry a label of the other level as well, which is hidden; `hidden` turns it.
    """
    sizes, count = (24, 24, 24, 24, 24, 24), 3
    data = clouds(sizes)
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
    stream = streams()[0]
    for stage in range(1, len(stream)):
        before = _until(tame(method), stream, stage - 1)
        known = torch.cat([stream.tasks[stage].train, stream.tasks[stage].valid])
        known = torch.cat([known, before.exemplars.rows]).unique()
        noisy = replace(stream, data=_noise_outside(stream.data, known))
        clean, dirty = (
            _next_stage(tame(method), one, before.stage.learner) for one in (stream, noisy)
        )
        require(
            _equal(clean, dirty),
            f"task {stage} depends on rows of earlier tasks that are not in the memory: keep rows "
            "in learner.exemplars, under a declared memory",
        )


def _next_stage(method: Method, stream: Stream, after: Learner) -> After:
    """The stage behind `after`, on a stream with the same tasks."""

    def resume(_place: int, learner: Learner) -> int:
        copy_learner(after, learner)
        return after.stage + 1

    runs = runs_of(method, [stream])
    for stage in Engine(runs, device="cpu", together=False).stages(resume=resume):
        return copied(stage)
    raise Broken(f"the run ended before task {after.stage + 1} was done")


# -- the evaluation ------------------------------------------------------------------------------
def check_places_of_test_rows_do_not_matter(method: Method) -> None:
    """Half of the test rows, in another sequence: the same training, the same scores of each."""
    stream = streams()[1]
    other = replace(stream, tasks=tuple(_fewer(task) for task in stream.tasks))
    mine, theirs = (train(runs_of(tame(method), [one])) for one in (stream, other))
    places = _places(stream.tasks, other.tasks)
    for (_, stage), one in mine.items():
        again = theirs[0, stage]
        require(
            _equal(one, again),
            f"what is learnt in task {stage} depends on the number or sequence of test rows",
        )
        scores = torch.as_tensor(one.scores)[places]
        away = gap(torch.as_tensor(again.scores), scores)
        require(
            away < 1e-5,
            f"scores after task {stage} depend on the place of a row among the test rows: "
            "scores(output, state) may use the row's own features and logits only",
        )


def _fewer(task: Task) -> Task:
    count = len(task.test)
    order = keys.order(keys.fold(0, "places", int(task.test[0])), count, count)
    return replace(task, test=task.test[order][: count // 2])


def _places(tasks: Sequence[Task], fewer: Sequence[Task]) -> Tensor:
    """Where the test rows of `fewer` are among those of `tasks`."""
    found, start = [], 0
    for task, part in zip(tasks, fewer, strict=True):
        found.append(start + (part.test[:, None] == task.test).long().argmax(1))
        start += len(task.test)
    return torch.cat(found)
