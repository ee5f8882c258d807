"""The route of a row: through which types of ours it goes, and that each step is what it says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

import torch

from engram import Data, Stream, Task
from engram.checks.toy_runs import EXACT, enter_task, make_runs, train_runs
from engram.engine.batches import select_step_unpadded
from engram.engine.sampler import SIZE_OF_BATCH, Sampler, StepRows, pad_runs
from engram.engine.trainers.single import SingleTrainer
from engram.learner.batch import Batch, TrainingRows
from engram.learner.tensor_tree import leaves, tree_map
from engram.memory import Exemplars, Memory
from engram.methods import ER

FIRST, COUNT = 5000, 20  # row numbers begin where neither places, labels nor stages are found
SOURCES = {Stream, Task, Exemplars}  # where rows come from


def make_stream() -> Stream:
    """Two tasks of two classes; only the last rows of the data are in any task."""
    rows = torch.arange(FIRST, FIRST + 4 * COUNT)
    y = torch.zeros(FIRST + 4 * COUNT, dtype=torch.long)
    y[rows] = (rows - FIRST) // COUNT
    x = torch.arange(len(y)).float().reshape(-1, 1, 1, 1).repeat(1, 2, 1, 3) % 7
    train, test = rows.reshape(2, 2, COUNT).split([COUNT - 4, 4], 2)
    tasks = [
        Task(train=train[k].flatten(), test=test[k].flatten(), new=(2 * k, 2 * k + 1))
        for k in range(2)
    ]
    split = {"train": train.flatten(), "test": test.flatten()}
    data = Data(x=x, y=y[:, None], classes=tuple("abcd"), **split)
    return Stream(data=data, tasks=tasks)


def is_row_numbers(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype != torch.long or not value.numel():
        return False
    return bool(((value >= FIRST) & (value < FIRST + 4 * COUNT)).all())


def is_ours(kind: type) -> bool:
    return kind.__module__.startswith("engram.")


def holds_rows(value: Any) -> bool:
    """Whether row numbers are in a value, or in records and containers inside it."""
    if isinstance(value, tuple | list):
        return any(map(holds_rows, value))
    if isinstance(value, dict):
        return any(map(holds_rows, value.values()))
    if is_dataclass(value):
        return any(holds_rows(getattr(value, one.name, None)) for one in fields(value))
    return is_row_numbers(value)


def attributes(value: Any) -> Iterator[Any]:
    """What a plain object has of its own; records in it are types by themselves."""
    for one in getattr(value, "__dict__", {}).values():
        parts = one.values() if type(one) is dict else one if type(one) in (list, tuple) else [one]
        yield from (part for part in parts if isinstance(part, torch.Tensor))


class Watch:
    """Notes every type of ours that holds row numbers and is made or returned by some function."""

    def __init__(self) -> None:
        self.found: dict[type, None] = {}  # in order of appearance

    def __call__(self, frame: Any, event: str, value: Any) -> None:
        if event != "return":
            return
        made = frame.f_locals.get("self") if frame.f_code.co_name == "__init__" else value
        kind = type(made)
        if not is_ours(kind) or kind in self.found or kind in SOURCES:
            return
        record = isinstance(made, tuple) or is_dataclass(made)
        if holds_rows(made) if record else any(map(is_row_numbers, attributes(made))):
            self.found[kind] = None


@dataclass(frozen=True, kw_only=True)
class WatchedER(ER):
    """ER that watches from the start of the second task to its first batch."""

    watch: ClassVar[Watch]
    batch: ClassVar[Batch | None]

    def start(self, learner: Any, task: Any) -> Any:
        if learner.stage == 1 and type(self).batch is None:
            sys.setprofile(type(self).watch)
        return super().start(learner, task)

    def loss(self, net: Any, batch: Batch, state: Any) -> Any:
        if sys.getprofile() is type(self).watch:
            sys.setprofile(None)
            type(self).batch = tree_map(torch.clone, batch)
        return super().loss(net, batch, state)


def test_a_training_row_goes_through_three_types():
    """From a task or the memory to a batch; a further wrapping of row numbers makes this fail."""
    stream, method = make_stream(), WatchedER(memory=Memory(total=8))
    WatchedER.watch, WatchedER.batch = Watch(), None
    try:
        train_runs(make_runs(method, [stream]))
    finally:
        sys.setprofile(None)

    # the same step by hand: the functions that the engine calls, and nothing between them
    learner = enter_task(ER(memory=Memory(total=8)), on=[stream]).learners[0]
    kept, cpu = learner.exemplars, learner.device
    own: TrainingRows = learner.items()
    old: TrainingRows = learner.items(kept.rows, kept.stages)
    table, memory = pad_runs([own], cpu), pad_runs([old], cpu)
    sampler = Sampler(
        table, [memory], seeds=[0], stage=1, batch_size=EXACT.batch_size, last=EXACT.last,
        pair=True, memory_size=SIZE_OF_BATCH, dtype=torch.float64,
    )  # fmt: skip
    epoch: StepRows = sampler(0)
    step: StepRows = select_step_unpadded(epoch, 0, epoch.lengths[0])
    batch: Batch = SingleTrainer(learner, method, EXACT).collate(step)

    for mine, seen in zip(leaves(batch), leaves(WatchedER.batch), strict=True):
        assert torch.equal(mine, seen)
    place = int((batch.slot < 0).nonzero()[0])
    row = int(step.main.rows[place])
    assert row in stream.tasks[1].train
    assert row in own.rows
    assert row in table.rows
    assert row in epoch.main.rows[0, 0]
    assert torch.equal(batch.x[place], stream.data.x[row].double())

    route = [*WatchedER.watch.found, Batch]
    print(f"row {row} of Task 1:", " -> ".join(one.__name__ for one in route))
    for name, tensor in {
        "TrainingRows, of one run": own.rows,
        "TrainingRows, of R runs": table.rows,
        "StepRows, of S steps": epoch.main.rows,
        "StepRows, of one step": step.main.rows,
        "Batch": batch.x,
    }.items():
        print(f"  {name}: {list(tensor.shape)}")
    assert route == [TrainingRows, StepRows, Batch]
