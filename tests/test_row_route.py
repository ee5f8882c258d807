"""The route of a row: through which types of ours it goes, and that each step is what it says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

import engram
from engram import Data, Stream, Task
from engram.checks.toy_runs import EXACT, enter_task, make_runs, train_runs
from engram.engine.batches import select_step_unpadded
from engram.engine.engine import Engine
from engram.engine.evaluation import test_items as items_of
from engram.engine.loop import train_task
from engram.engine.sampler import SIZE_OF_BATCH, Sampler, StepRows, pad_runs
from engram.engine.trainers.single import SingleTrainer
from engram.experiments import recorder, stage_records
from engram.experiments.plan import Planner
from engram.experiments.recipe import Experiment
from engram.learner.batch import Batch, TrainingRows
from engram.learner.tensor_tree import leaves, tree_map
from engram.memory import Exemplars, Memory
from engram.methods import ER
from engram.methods.method import compute_answer
from engram.probes.stage_view import StageView
from engram.probes.standard_probes import Accuracy
from engram.records import Result

# -- a test row: from data to a printed number ---------------------------------------------------

SETTINGS = {"model": {"name": "mlp", "hidden": [4]}, "keep": "counts"}
# No stations: the network remembers its last outputs, recorders collect what runs give.
KEEPERS = {"FunctionalNet", "Recorder", "MemoryRecords"}
MOST_TYPES = 10


class ObjectsOfOurs:
    """While it is the profile function: every object of ours that is met in a function of ours."""

    def __init__(self) -> None:
        self.found: dict[int, Any] = {}  # held, so that no other object gets the same id

    def __call__(self, frame: Any, event: str, value: Any) -> None:
        if event == "return" and frame.f_globals.get("__name__", "").startswith("engram."):
            for one in (value, *frame.f_locals.values()):
                for part in one if type(one) in (list, tuple) and len(one) < 64 else [one]:
                    if type(part).__module__.startswith("engram."):
                        self.found[id(part)] = part

    def types_with(self, scores: torch.Tensor, number: float) -> set[type]:
        """Those that have the scores of a row or the number, be it inside another of them."""
        return {
            type(one) for one in self.found.values()
            if type(one).__name__ not in KEEPERS
            and any(has_row(array, scores, number) for array in arrays_in(one))
        }  # fmt: skip


def arrays_in(value: Any, depth: int = 8) -> Iterator[np.ndarray]:
    """All arrays in an object, its containers, and the objects of ours in it."""
    if isinstance(value, torch.Tensor):
        plain = type(value) is torch.Tensor and value.is_floating_point()
        value = value.detach().numpy() if plain else None
    if isinstance(value, pd.DataFrame):
        value = value["value"].to_numpy() if "value" in value else None
    if isinstance(value, np.ndarray | float):
        yield np.asarray(value)
    elif depth and isinstance(value, tuple | list):
        yield from (array for one in value for array in arrays_in(one, depth - 1))
    elif depth and isinstance(value, dict):
        yield from (array for one in value.values() for array in arrays_in(one, depth - 1))
    elif depth and type(value).__module__.startswith("engram."):
        yield from arrays_in(getattr(value, "__dict__", {}), depth - 1)


def has_row(array: np.ndarray, scores: torch.Tensor, number: float) -> bool:
    """Whether the scores of the row are in an array, in whatever precision, or the number."""
    if array.dtype.kind != "f" or not array.size:
        return False
    if array.ndim and array.shape[-1] == len(scores):
        rows = array.reshape(-1, len(scores)).astype(np.float64)
        if np.isclose(rows, scores.double().numpy(), rtol=2e-3, atol=1e-6).all(axis=1).any():
            return True
    return bool(array.dtype == np.float64 and (array == number).any())


def watch(function: Callable[[], Any]) -> tuple[Any, ObjectsOfOurs]:
    """What a function returns, and the objects of ours that were met."""
    seen = ObjectsOfOurs()
    sys.setprofile(seen)
    try:
        return function(), seen
    finally:
        sys.setprofile(None)


def test_a_test_row_becomes_a_number_through_ten_types(monkeypatch):
    """By hand, through the functions that `engram.run` calls; a further wrapping makes it fail."""
    hops: list[tuple[str, type]] = []

    def hop(function: Any, one: Any) -> Any:
        hops.append((f"{function.__module__}.{function.__qualname__}", type(one)))
        return one

    data = hop(engram.load, engram.load("digits"))
    stream = hop(engram.class_incremental, engram.class_incremental(data, classes_per_task=5))
    task = hop(engram.Stream, stream.tasks[0])
    row = int(task.test[3])
    (plan,) = Planner().plans(Experiment.of({"method": "ER", **SETTINGS}), stream)
    hop(Planner.plans, plan)
    learner = Engine([plan.run], device="cpu").learner(plan.run)
    hop(Engine.learner, learner)
    for stage in range(len(stream)):
        (result,) = train_task([learner], [plan.run.method], plan.run.training, stage, mapped=False)
    rows, stages = items_of(stream)
    place = rows.tolist().index(row)
    with torch.no_grad():
        x = learner.feed(rows, stages)
        output = compute_answer(plan.run.method, learner.net(), x, learner.state)
    hop(learner.net, output)
    scores = output.logits[place]
    hop(train_task, result)
    assert torch.equal(scores, torch.as_tensor(result.scores[place]))
    stage_records.set_plan(result, plan)
    view = hop(StageView, StageView([result]))
    assert torch.allclose(view.scores[0, place], scores, rtol=2e-3)  # as they are recorded
    found = hop(Accuracy.after_stage, Accuracy().after_stage(view))
    (own,) = found.by_run(
        recipe=[result.recipe], label=["ER"], seed=[0], order=[""], stage=result.stage
    )
    assert type(own) is type(found)
    by_hand = hop(Result, Result(own.frame(), recipes={plan.recipe: dict(plan.content)}))
    number = float(by_hand.matrix[0, -1, 0])

    def run() -> engram.Result:
        return engram.run(stream, method="ER", **SETTINGS)

    by_run, seen = watch(run)
    assert by_run.matrix[0, -1, 0] == number
    assert number not in (0, 1)  # 227 rows: it occurs nowhere else

    route = dict.fromkeys(kind for _, kind in hops)
    print(f"\ntest row {row} of task 0 becomes {number:.4f} through {len(route)} types:")
    for function, kind in hops:
        print(f"  {kind.__name__:12} from {function}")
    assert len(route) <= MOST_TYPES
    holders = seen.types_with(scores, number)
    assert holders <= set(route), "types that hold the row's scores or its number"
    assert {StageView, type(result), type(own), Result} <= holders

    # a wrapping that somebody adds is seen
    Wrapper = make_dataclass("Wrapper", ["result"], namespace={"__module__": "engram.wrapper"})
    usual = recorder.measure_results
    unwrap = {"__name__": "engram.wrapper", "Wrapper": Wrapper, "usual": usual}
    exec("def measure(results, plans):\n    wrapped = [Wrapper(one) for one in results]\n"
         "    usual([one.result for one in wrapped], plans)", unwrap)  # fmt: skip
    monkeypatch.setattr(recorder, "measure_results", unwrap["measure"])
    _, seen = watch(run)
    assert seen.types_with(scores, number) - set(route) == {Wrapper}


# -- a training row: from a task or the memory to a batch ----------------------------------------
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
        table, [memory], seeds=[0], stage=1, batch_size=EXACT.batch_size,
        incomplete_batch=EXACT.incomplete_batch, pair=True,
        memory_size=SIZE_OF_BATCH, dtype=torch.float64,
    )  # fmt: skip
    epoch: StepRows = sampler(0)
    step: StepRows = select_step_unpadded(epoch, 0, epoch.lengths[0])
    batch: Batch = SingleTrainer(learner, method, EXACT).collate(step)

    shown = WatchedER.batch._replace(times=batch.times)  # the step's clock is no row's affair
    for mine, seen in zip(leaves(batch), leaves(shown), strict=True):
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
