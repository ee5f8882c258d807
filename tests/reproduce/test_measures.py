from __future__ import annotations

import numpy as np
import pytest

from engram.experiments import Recipe
from engram.records import Result, Rows
from engram.reproduce import measures
from tests.reproduce.invented_paper import small_recipe


def recorded(recipe, matrices, *, head="single", order=""):
    """Rows of runs with these accuracy matrices, one per seed."""
    all_rows = None
    for seed, matrix in matrices.items():
        rows = Rows(recipe=recipe.key, label=recipe.label, seed=seed, order=order)
        values = np.array(matrix)
        rows.add_array("accuracy", values, head=head, stage=np.arange(len(values))[:, None],
                       task=np.arange(values.shape[1]))  # fmt: skip
        if all_rows is None:
            all_rows = rows
        else:
            all_rows.extend(rows)
    return all_rows


def result(*rows):
    import pandas as pd

    return Result(pd.concat([one.frame() for one in rows], ignore_index=True))


GOOD = [[0.9, 0.1, 0.0], [0.95, 0.8, 0.0], [0.7, 0.5, 0.96]]


def test_metrics_follow_the_seeds_of_the_recipe():
    recipe = small_recipe(seeds=[7, 3, 5])
    made = result(recorded(recipe, {3: GOOD, 7: np.array(GOOD) / 2}))
    values = measures.metric("average_accuracy", recipe, head="single", percent=True)(made)
    assert values == pytest.approx([36.0, 72.0, np.nan], nan_ok=True)
    forgotten = measures.metric("forgetting", recipe, head="single")(made)
    assert forgotten[1] == pytest.approx(0.275)


def test_unfinished_runs_and_absent_recipes_are_nan():
    recipe, other = small_recipe(), small_recipe(epochs=2)
    unfinished = np.full((3, 3), np.nan)
    unfinished[0] = GOOD[0]
    made = result(recorded(recipe, {0: GOOD, 1: unfinished[:1]}))
    values = measures.newest_task_accuracy(recipe, head="single")(made)
    assert values == pytest.approx([0.96, np.nan], nan_ok=True)
    assert np.isnan(measures.newest_task_accuracy(other, head="single")(made)).all()


def test_intransigence_is_paired_by_seed_even_for_a_reference_of_two_tasks():
    recipe, joint = small_recipe(seeds=[0, 1]), small_recipe("Joint", seeds=[0, 1])
    made = result(
        recorded(recipe, {0: GOOD, 1: GOOD}),
        recorded(joint, {0: [[0.5, 0.1], [0.9, 0.97]], 1: [[0.5, 0.1], [0.9, 0.93]]}),
    )
    values = measures.intransigence(recipe, joint, head="single")(made)
    assert values == pytest.approx([0.01, -0.03])


def test_order_disparity_takes_all_orders_at_once():
    orders = [[0, 1, 2, 3], [2, 3, 0, 1]]
    base = small_recipe(seeds=[0, 1])
    recipes = [base.change(stream={**base.stream, "order": order}) for order in orders]
    assert recipes[0].key == recipes[1].key
    accuracy = {"0-1-2-3": [0.2, 0.4, 0.9, 0.7], "2-3-0-1": [0.8, 0.8, 0.1, 0.1]}
    rows = []
    for order, by_class in accuracy.items():
        one = recorded(base, {0: [[0.5, 0.5], [0.5, 0.5]]}, order=order)
        names = {"stage": 1, "task": 0, "head": "single"}
        one.add_array("class_accuracy", by_class, cls=np.arange(4), **names)
        rows.append(one)
    made = result(*rows)
    pairs = [(0, 1), (2, 3)]
    values = measures.order_disparities(recipes, pairs)["aopd"](made)
    assert values == pytest.approx([100 * (0.5 + 0.7) / 2, np.nan], nan_ok=True)
    single = measures.order_disparities(recipes, [(c,) for c in range(4)])["mopd"](made)
    assert single[0] == pytest.approx(80)
    more = [*recipes, base.change(stream={**base.stream, "order": [0, 2, 1, 3]})]
    assert np.isnan(measures.order_disparities(more, pairs)["aopd"](made)).all()


def test_order_disparity_of_runs_of_which_none_is_finished_is_nan():
    base = small_recipe(seeds=[0])
    one = base.change(stream={**base.stream, "order": [0, 1, 2, 3]})
    made = result(recorded(base, {0: [[0.5, np.nan], [np.nan, np.nan]]}, order="0-1-2-3"))
    assert np.isnan(measures.order_disparities([one], [(0, 1), (2, 3)])["aopd"](made)).all()


def test_differences_need_both():
    first = measures.constant(1.0, 2.0)
    second = measures.constant(0.5, np.nan)
    assert measures.difference(first, second)(None) == pytest.approx([0.5, np.nan], nan_ok=True)


def test_recipes_of_several_orders_have_a_value_for_each():
    content = {
        "stream": {"kind": "iirc", "data": "cifar-100"},
        "method": "Finetune",
        "seeds": [0, 1],
    }
    recipes = [
        Recipe.of({**content, "stream": {**content["stream"], "configuration": k}}) for k in (2, 0)
    ]
    made = result(*(
        recorded(one, {0: np.array(GOOD) / scale, 1: GOOD}, order=one.order)
        for one, scale in zip(recipes, (2, 4), strict=True)
    ))  # fmt: skip
    values = measures.metric("average_accuracy", recipes, head="single")(made)
    assert values == pytest.approx([0.36, 0.72, 0.18, 0.72])
    curve = measures.metric_at_stages("average_accuracy", recipes, head="single")
    assert curve(0)(made) == pytest.approx([0.45, 0.9, 0.225, 0.9])
    assert np.isnan(curve(5)(made)).tolist() == [True] * 4
    newest = measures.newest_task_accuracy(recipes, head="single")(made)
    assert newest == pytest.approx([0.48, 0.96, 0.24, 0.96])
    alone = measures.metric("average_accuracy", recipes[1], head="single")(made)
    assert alone == pytest.approx([0.18, 0.72])
