"""Studies of orders, and skeletons in streams by subject and by view."""

from __future__ import annotations

import math

import numpy as np
import pytest

import engram
from engram import metrics
from engram.errors import BadArgument
from engram.recipes.orders import OrderStudy, order_plans, orders, task_orders_as_class_orders
from engram.recipes.recipe import Recipe
from engram.streams.orders import all_task_orders


def small(method="Finetune", **more):
    return Recipe.of(
        {
            "stream": {"data": "blobs", "data_options": {"classes": 6, "per_class": 10}},
            "model": {"name": "mlp", "hidden": [8]},
            "method": method,
            "training": {"epochs": 2, "batch_size": 0, "lr": 0.02},
            "average": "macro",
            "keep": "counts",
            **more,
        }
    )


@pytest.fixture(scope="module")
def study() -> OrderStudy:
    return orders(
        [small(seeds=2), small("Replay", seeds=2)], task_orders="all", class_orders=3,
        order_seed=1, device="cpu",
    )  # fmt: skip


def test_every_order_runs_once_per_seed(study):
    runs = list(study.result.select(label="Finetune").runs)
    assert len(runs) == len(set(runs)) == (math.factorial(3) + 3) * 2
    assert study.tasks == ((0, 1), (2, 3), (4, 5))


def test_columns_are_classes_whatever_the_order(study):
    table = study.class_table("Finetune", seed=0)
    assert list(table.columns) == list(range(6))
    last = table.loc[(0, "t2-1-0")]
    # plain training knows the last task only: classes 0 and 1 of the task that came last
    assert last[[0, 1]].mean() > last[[2, 3, 4, 5]].mean() + 0.3


def test_task_level_is_the_mean_of_the_classes_of_a_task(study):
    classes = study.class_table("Replay", seed=1)
    kept = classes[[name.startswith("t") for _, name in classes.index]]
    expected = np.stack([kept[[a, b]].mean(axis=1) for a, b in study.tasks], axis=1)
    found = study.performance("Replay", seed=1)
    assert found.shape == (6, 3)
    np.testing.assert_allclose(found, expected)
    assert study.performance("Replay", level="class", seed=1).shape == (9, 6)


def test_disparity_is_per_repetition(study):
    found = study.disparity("Finetune", level="class")
    assert len(found) == 2
    for seed, one in enumerate(found):
        own = metrics.order_disparity(study.performance("Finetune", level="class", seed=seed))
        np.testing.assert_array_equal(one.opd, own.opd)
    table = study.summary()
    values = [one.aopd for one in found]
    assert table.loc["Finetune", "class_aopd"] == pytest.approx(np.mean(values))
    assert table.loc["Finetune", "class_aopd_std"] == pytest.approx(np.std(values))  # ddof 0
    assert table.loc["Finetune", "task_mopd"] >= table.loc["Finetune", "task_aopd"]
    assert table.loc["Finetune", "task_aopd"] > table.loc["Replay", "task_aopd"]


def test_extremes_and_ends(study):
    table = study.extremes("Replay")
    assert len(table) == 9
    assert table["average_accuracy"].is_monotonic_decreasing
    assert study.by_end("Replay", place="last").index.tolist() == [0, 1, 2]
    with pytest.raises(BadArgument, match="place"):
        study.by_end("Replay", place="middle")


def test_a_task_order_is_the_class_order_it_amounts_to():
    recipe = small()
    stream = recipe.build_stream()
    by_task = orders(recipe, task_orders=[(2, 0, 1)], device="cpu")
    (order,) = [o for o in task_orders_as_class_orders(stream) if o[:4] == [4, 5, 0, 1]]
    by_class = orders(recipe, task_orders=0, class_orders=[order], device="cpu")
    np.testing.assert_allclose(by_task.result.matrix, by_class.result.matrix)
    assert len(task_orders_as_class_orders(stream)) == len(all_task_orders(3))


def test_study_in_a_directory_goes_on(tmp_path):
    recipe = small()
    first = orders(recipe, task_orders=2, out=tmp_path, device="cpu")
    more = orders(recipe, task_orders=4, out=tmp_path, device="cpu")
    assert len(first.result) == 2
    assert len(more.result) == 4
    assert set(first.result.runs) < set(more.result.runs)
    assert not list(tmp_path.glob("items-*"))


def test_plans_share_one_id():
    plans = order_plans(small(seeds=2), task_orders=[(0, 1, 2)], class_orders=[(5, 4, 3, 2, 1, 0)])
    assert {plan.recipe for plan in plans} == {small().id}
    assert [plan.order for plan in plans] == ["t0-1-2"] * 2 + ["c5-4-3-2-1-0"] * 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"task_orders": "some"}, "task_orders"),
        ({"task_orders": [(0, 1)]}, "task_order"),
        ({"task_orders": 0, "class_orders": [(0, 0, 1, 2, 3, 4)]}, "class_order"),
        ({"task_orders": 100}, "count"),
    ],
)
def test_bad_orders_are_refused(options, complaint):
    with pytest.raises(BadArgument, match=complaint):
        orders(small(), device="cpu", **options)


def test_unknown_names(study):
    with pytest.raises(BadArgument, match="label"):
        study.performance("EWC")
    with pytest.raises(BadArgument, match="level"):
        study.performance("Finetune", level="stage")


@pytest.mark.parametrize(("by", "tasks"), [("subject", 10), ("view", 3)])
def test_skeletons_by_subject_and_by_view(by, tasks):
    data = engram.load("skeletons", per_class=60, frames=4)
    stream = engram.domain_incremental(data, by=by)
    assert [task.domain for task in stream] == [f"{by}={k}" for k in range(tasks)]
    result = engram.run(
        stream, method=["Finetune", "Replay"], epochs=3, batch_size=0, lr=0.02, loss="balanced",
        model={"name": "gcn", "edges": "ucla", "width": 8, "hidden": 8}, average="macro",
        device="cpu",
    )  # fmt: skip
    assert result.matrix.shape == (2, tasks, tasks)
    # all classes are in every task, so later tasks may help earlier ones: better than guessing
    assert result.select(label="Replay").metric("average_accuracy")[0] > 0.2
