"""Studies of orders, and skeletons in streams by subject and by view."""

from __future__ import annotations

import math

import numpy as np
import pytest

import engram
from engram import metrics
from engram.data.dataset import Data
from engram.errors import BadArgument
from engram.experiments import OrderStudy
from engram.experiments.order_study import orders
from engram.experiments.plan import Planner, make_plans
from engram.experiments.recipe import Experiment, Recipe
from engram.streams.hierarchical_streams import iirc, read_published_tasks
from engram.streams.task_orders import class_order
from tests.refusals import refuses


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
    assert set(study.tasks.values()) == {((0, 1), (2, 3), (4, 5))}
    assert set(study.tasks) == {small().id, small("Replay").id}


def test_columns_are_classes_whatever_the_order(study):
    table = study.class_table("Finetune", seed=0)
    assert list(table.columns) == list(range(6))
    last = table.loc[(0, "t2-1-0")]
    # plain training knows the last task only: classes 0 and 1 of the task that came last
    assert last[[0, 1]].mean() > last[[2, 3, 4, 5]].mean() + 0.3


def test_task_level_is_the_mean_of_the_classes_of_a_task(study):
    classes = study.class_table("Replay", seed=1)
    kept = classes[[name.startswith("t") for _, name in classes.index]]
    expected = np.stack([kept[[a, b]].mean(axis=1) for a, b in study.tasks[small().id]], axis=1)
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
    assert study.summary(ddof=1).loc["Finetune", "class_aopd_std"] == metrics.std(values)
    assert table.loc["Finetune", "task_mopd"] >= table.loc["Finetune", "task_aopd"]
    assert table.loc["Finetune", "task_aopd"] > table.loc["Replay", "task_aopd"]


def test_extremes_and_ends(study):
    table = study.extremes("Replay")
    assert len(table) == 9
    assert table["average_accuracy"].is_monotonic_decreasing
    assert study.by_end("Replay", place="last").index.tolist() == [0, 1, 2]
    with refuses("place"):
        study.by_end("Replay", place="middle")


def test_orders_of_a_hierarchy():
    """Label sets: an image that several tasks test counts once, and superclasses stay first."""
    stream = {"data": "blobs", "data_options": {"classes": 4}, "kind": "hierarchical",
              "hierarchy": {"low": [0, 1]}, "tasks": [["low", "2"], ["0", "3"], ["1"]]}  # fmt: skip
    recipe = Recipe.of({"stream": stream, "method": "Finetune", "training": {"epochs": 1}})
    with pytest.raises(BadArgument, match="task_order: expected 'superclass/low' in an earlier"):
        orders(recipe, device="cpu")
    study = orders(recipe, task_orders=[(0, 1, 2), (0, 2, 1)], device="cpu")
    table, once = study.class_table("Finetune"), study.result.class_accuracy()
    np.testing.assert_allclose(table.to_numpy(), once.reindex(columns=table.columns).to_numpy())
    best = study.extremes("Finetune")
    assert best.columns.tolist() == ["order", "precision_weighted_jaccard", "forgetting"]
    assert study.by_end("Finetune", place="last").columns.tolist() == best.columns.tolist()[1:]


def test_a_task_order_is_the_class_order_it_amounts_to():
    recipe = small()
    stream = recipe.build_stream()
    by_task = orders(recipe, task_orders=[(2, 0, 1)], device="cpu")
    order = class_order(stream, (2, 0, 1))
    assert order[:4] == [4, 5, 0, 1]
    by_class = orders(recipe, task_orders=0, class_orders=[order], device="cpu")
    np.testing.assert_allclose(by_task.result.matrix, by_class.result.matrix)


def test_study_in_a_directory_goes_on(tmp_path):
    recipe = small()
    first = orders(recipe, task_orders=2, out=tmp_path, device="cpu")
    more = orders(recipe, task_orders=4, out=tmp_path, device="cpu")
    assert len(first.result) == 2
    assert len(more.result) == 4
    assert set(first.result.runs) < set(more.result.runs)
    assert not list(tmp_path.glob("items-*"))


def test_plans_share_one_id():
    section = {"task_orders": [(0, 1, 2)], "class_orders": [(5, 4, 3, 2, 1, 0)]}
    plans = make_plans([Recipe.of({**small(seeds=2).plain(), "orders": section})])
    assert {plan.recipe for plan in plans} == {small().id}
    assert [plan.order for plan in plans] == ["t0-1-2"] * 2 + ["c5-4-3-2-1-0"] * 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"task_orders": "some"}, "task_orders"),
        ({"task_orders": [(0, 1)]}, "task_order"),
        ({"task_orders": 0, "class_orders": [(0, 0, 1, 2, 3, 4)]}, "class_order"),
        ({"task_orders": 100}, "count"),
        ({"task_orders": 0}, "task_orders: expected at least one order"),
        ({"task_orders": []}, "task_orders: expected at least one order"),
        ({"task_orders": True}, "task_orders"),
        ({"task_orders": -1}, "task_orders"),
        ({"task_orders": None}, "task_orders: expected a number"),
        ({"task_orders": [1]}, "task_orders: expected a number"),
        ({"task_orders": [(0, 1, 2), [0, 1, 2]]}, "every order only once"),
        ({"class_orders": 0.5}, "class_orders"),
    ],
)
def test_bad_orders_are_refused(options, complaint):
    with pytest.raises(BadArgument, match=complaint):
        orders(small(), device="cpu", **options)


def test_unknown_names(study):
    with refuses("label"):
        study.performance("EWC")
    with refuses("level"):
        study.performance("Finetune", level="stage")


def test_task_level_is_the_recorded_accuracy_mapped_back(study):
    result = study.result.select(label="Finetune", seed=0)
    table = study.task_table("Finetune", seed=0)
    for run, matrix in zip(result.runs, result.matrix, strict=True):
        if run.order.startswith("t"):
            order = [int(k) for k in run.order[1:].split("-")]
            np.testing.assert_allclose(table.loc[(0, run.order), order], matrix[-1])


@pytest.mark.parametrize(
    ("stream", "tasks"),
    [
        ({"data": "digits", "kind": "permuted", "tasks": 3}, 3),
        ({"data": "digits", "kind": "rotated", "angles": [0, 90]}, 2),
        ({"data": "skeletons", "kind": "domain_incremental", "by": "view",
          "data_options": {"per_class": 30, "frames": 3}}, 3),
    ],
)  # fmt: skip
def test_streams_whose_tasks_bring_no_classes(stream, tasks):
    study = orders(small(stream=stream, training={"epochs": 2, "batch_size": 0}), device="cpu")
    found = study.performance("Finetune")
    assert found.shape == (math.factorial(tasks), tasks)
    assert np.isfinite(found).all()
    means = [f"{level}_{name}" for level in ("task", "class") for name in ("aopd", "mopd")]
    assert np.isfinite(study.summary()[means].to_numpy()).all()
    assert study.summary()["task_aopd_std"].isna().all()  # of one seed nothing is known
    assert study.disparity("Finetune")[0].mopd > 0
    assert study.by_end("Finetune").index.tolist() == list(range(tasks))


def test_recipes_of_different_lengths_are_kept_apart():
    long = small(label="long")
    short = small(
        label="short", stream={"data": "blobs", "data_options": {"classes": 4, "per_class": 10}}
    )
    alone = [orders(one, device="cpu") for one in (long, short)]
    for pair in ([long, short], [short, long]):
        both = orders(pair, device="cpu")
        assert {key: len(tasks) for key, tasks in both.tasks.items()} == {long.id: 3, short.id: 2}
        for one in alone:
            (name,) = one.names
            for level in ("task", "class"):
                np.testing.assert_array_equal(
                    both.performance(name, level=level), one.performance(name, level=level)
                )
            assert both.extremes(name).equals(one.extremes(name))
        assert both.summary().index.tolist() == [one.label for one in pair]


def test_recipes_that_share_a_label_have_rows_of_their_own():
    pair = [small(), small(training={"epochs": 1, "batch_size": 0, "lr": 1e-6})]
    study = orders(pair, task_orders=2, device="cpu")
    names = ["Finetune (epochs 2, lr 0.02)", "Finetune (epochs 1, lr 1e-06)"]
    assert study.names == study.summary().index.tolist() == names
    found = [study.performance(one.id) for one in pair]
    assert not np.allclose(*found)
    np.testing.assert_array_equal(study.performance(names[1]), found[1])
    with pytest.raises(BadArgument, match=r"label: unknown name 'Finetune'.*epochs 2"):
        study.performance("Finetune")


def test_recipes_that_differ_in_their_own_order_are_kept_apart(tmp_path):
    first, second = small(), small().in_order((5, 4, 3, 2, 1, 0))
    study = orders([first, second], task_orders=[(0, 1, 2)], device="cpu", out=tmp_path)
    assert len(study.result) == 2
    assert list(study.tasks.values()) == [((0, 1), (2, 3), (4, 5)), ((5, 4), (3, 2), (1, 0))]
    alone = orders(second, task_orders=[(0, 1, 2)], device="cpu")
    here, there = list(study.tasks)
    np.testing.assert_allclose(study.performance(there), alone.performance("Finetune"))
    assert not np.allclose(study.class_table(here), study.class_table(there))


def test_classes_of_a_part_of_the_data():
    part = small(stream={**small().stream, "order": [1, 2, 4, 5]})
    study = orders(part, task_orders=0, class_orders=2, device="cpu")
    assert study.class_table("Finetune").columns.tolist() == [1, 2, 4, 5]
    with pytest.raises(BadArgument, match="under task orders"):
        study.performance("Finetune")


@pytest.mark.parametrize(
    ("recipes", "complaint"),
    [
        ([], "recipe: expected a Recipe"),
        (small().plain(), "recipe: expected a Recipe"),
        ([small().plain()], r"recipe\[0\]: expected a Recipe"),
        ("Finetune", "recipe: expected a Recipe"),
        (None, "recipe: expected a Recipe"),
        ([small(), small(label="other")], r"labels \['Finetune', 'other'\]"),
    ],
)
def test_bad_recipes_are_refused(recipes, complaint):
    with pytest.raises(BadArgument, match=complaint):
        orders(recipes, device="cpu")


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


def test_a_published_configuration_is_an_order() -> None:
    """Outside the id, in the order column."""
    superclasses, orphans, _ = read_published_tasks("cifar")
    names = [name for members in superclasses.values() for name in members] + orphans
    data = Data.from_arrays(np.arange(2000.0)[:, None], names * 20)
    one = Experiment.of({"method": "Finetune"})
    first, second = (Planner().plans(one, iirc(data, configuration=k))[0] for k in (0, 3))
    assert (first.order, second.order) == ("configuration-0", "configuration-3")
    assert first.recipe == second.recipe
    other = Planner().plans(one, iirc(data, configuration=3, information="complete"))[0]
    assert other.recipe != second.recipe


def test_recipes_name_configurations_as_orders() -> None:
    content = {"stream": {"kind": "iirc", "data": "cifar-100"}, "method": "Finetune"}
    recipe = Recipe.of(content)
    other = Recipe.of({**content, "stream": {**content["stream"], "configuration": 3}})
    assert (recipe.order, other.order) == ("configuration-0", "configuration-3")
    assert recipe.key == other.key
