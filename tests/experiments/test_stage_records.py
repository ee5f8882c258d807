"""Rows of a group of runs: together where they are alike, alone where not."""

from __future__ import annotations

from dataclasses import replace

import pytest

import engram
from engram.engine.engine import Engine
from engram.errors import BadArgument
from engram.experiments import Recipe, make_plans
from engram.experiments.stage_records import measure_results
from engram.records import Rows


def finished(method, training, **further):
    """What `execute` holds of every stage of runs in two orders with two seeds."""
    recipes = [
        Recipe.of({
            "stream": {"data": "blobs", "order": order}, "method": method, "seeds": 2,
            "training": {"epochs": 2, **training}, "model": {"name": "mlp", "hidden": [4]},
            **further,
        })
        for order in (list(range(10)), list(range(9, -1, -1)))
    ]  # fmt: skip
    plans = make_plans(recipes)
    engine = Engine([plan.run for plan in plans], device="cpu", together=True)
    group = []
    for stage in engine.stages():
        group.append((stage, plans[stage.run]))
        if stage.last_of_group:
            yield group
            group = []


def group_rows(group):
    """The rows of each run; the results themselves stay without."""
    results, plans = zip(*[(replace(one, rows=Rows()), plan) for one, plan in group], strict=True)
    measure_results(results, plans)
    return [one.rows for one in results]


@pytest.mark.parametrize("method", ["Finetune", "ER", "EWC"])
def test_together_as_alone(method):
    for group in finished(method, {}, average="macro"):
        assert len(group) == 4
        for rows, one in zip(group_rows(group), group, strict=True):
            assert to_list(rows) == to_list(group_rows([one])[0])


def test_a_diverged_run_says_so_and_the_others_go_on():
    group = next(finished("Finetune", {}))
    group[1][0].learner.diverged = 0
    rows = group_rows(group)
    assert ["diverged" in one.metrics for one in rows] == [False, True, False, False]
    assert "accuracy" not in rows[1].metrics
    assert "accuracy" in rows[2].metrics


def test_curves_are_kept():
    group = next(finished("Finetune", {"evaluate_every": 1}))
    for rows, one in zip(group_rows(group), group, strict=True):
        assert to_list(rows) == to_list(group_rows([one])[0])
        assert (rows.frame().query("metric == 'accuracy'")["step"] > 0).any()


def to_list(rows):
    return rows.frame().astype(str).values.tolist()


def test_only_pools_that_work_are_offered():
    recipe = {"stream": {"data": "blobs"}, "method": "Finetune"}
    with pytest.raises(BadArgument, match=r"Valid: auto, processes, ray, serial, together$"):
        engram.sweep([recipe], pool="slurm")
