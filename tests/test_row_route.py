"""The route of a row: through which types of ours it goes, and that each step is what it says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import make_dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

import engram
from engram.engine.engine import Engine
from engram.engine.evaluation import test_items as items_of
from engram.engine.loop import train_task
from engram.experiments import recorder, stage_records
from engram.experiments.plan import Planner
from engram.experiments.recipe import Experiment
from engram.methods.method import compute_scores
from engram.probes.stage_view import StageView
from engram.probes.standard_probes import Accuracy
from engram.records import Result

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
        output = learner.net()(learner.feed(rows, stages))
    hop(learner.net, output)
    scores = compute_scores(plan.run.method, output, learner.state)[place]
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
