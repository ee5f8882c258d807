"""`exact=True`: the same bits in every pool, beside any other runs; and who trained with whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import engram
from tests.refusals import refuses

BASE = {"stream": {"data": "digits"}, "training": {"epochs": 1}, "keep": "parameters",
        "model": {"name": "mlp", "hidden": [64]}}  # fmt: skip
RECIPES = [{**BASE, "method": name, "seeds": [0, 1]} for name in ("ER", "DERpp")]


def numbers(result, seed):
    """Weights and scores after every stage of the runs of a seed, and what was logged."""
    keys = sorted((one for one in result.predictions if one.seed == seed), key=str)
    kept = [result.predictions.get(*key) for key in keys]
    rows = result.frame()
    timed = rows.metric.astype(str).str.contains("seconds|bytes")
    rows = rows[(rows.seed == seed) & ~timed]
    names = [name for name in rows if name != "value"]
    logged = rows.astype({"metric": str, "head": str}).sort_values(names, kind="stable").value
    return [*(one.parameters for one in kept), *(one.full() for one in kept), logged.to_numpy()]


def equal(first, second):
    assert len(first) == len(second) == 2 * 2 * 5 + 1
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))


def test_all_pools_give_the_same_bits(tmp_path):
    found = {
        pool: engram.sweep(RECIPES, pool=pool, device="cpu", exact=True, out=tmp_path / pool,
                           workers=2 if pool == "processes" else 0)
        for pool in ("serial", "together", "auto", "processes")
    }  # fmt: skip
    fewer = [{**one, "seeds": [1]} for one in RECIPES]
    found["without neighbours"] = engram.sweep(fewer, device="cpu", exact=True)
    wanted = numbers(found["serial"], 1)
    assert [pool for pool, one in found.items() if not equal(numbers(one, 1), wanted)] == []
    for pool, result in found.items():
        how = [one["execution"] for one in result.environment]
        assert {one["exact"] for one in how} == {True}, pool
        assert not any(one["modes"] for one in result.environment), pool


def test_orders_of_a_study_are_those_of_runs_by_themselves():
    """Two orders begin alike, so that one copies the other's first stages."""
    recipe = engram.Recipe.of({**BASE, "method": "ER", "evaluate_unseen": True})
    orders = [[0, 1, 2, 3, 4], [0, 1, 3, 2, 4]]
    both = engram.orders(recipe, task_orders=orders, device="cpu", exact=True).result
    for order in orders:
        alone = engram.orders(recipe, task_orders=[order], device="cpu", exact=True).result
        for key in alone.predictions:
            one, same = alone.predictions.get(*key), both.predictions.get(*key)
            assert np.array_equal(one.parameters, same.parameters)
            assert np.array_equal(one.full(), same.full())


@dataclass(frozen=True)
class Counts(engram.Method):
    """Notes how many threads there are."""

    def loss(self, net, batch, state):
        THREADS.add(torch.get_num_threads())
        return {"task": net.task(batch)}


THREADS: set[int] = set()


def test_one_thread_whatever_the_process_has():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        THREADS.clear()
        large = {"name": "mlp", "hidden": [3000, 3000]}
        engram.run(engram.load("blobs"), method=Counts(), device="cpu", exact=True, model=large,
                   epochs=1, batch_size=256)  # fmt: skip
        assert {*THREADS} == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_contradicts_it_is_refused():
    with refuses("together"):
        engram.run(engram.load("blobs"), device="cpu", exact=True, together=True)
    with refuses("exact"):
        engram.run(engram.load("blobs"), device="cpu", exact=1)


@pytest.mark.parametrize(
    ("pool", "groups"),
    [("together", [6]), ("serial", []), ("processes", [3, 3])],
)
def test_the_record_says_who_trained_with_whom(pool, groups, tmp_path):
    base = {"stream": {"data": "blobs"}, "method": "ER", "training": {"epochs": 1}, "seeds": 6}
    small = {**base, "model": {"name": "mlp", "hidden": [8]}}
    options = {"workers": 2} if pool == "processes" else {}
    result = engram.sweep([small], pool=pool, device="cpu", out=tmp_path, **options)
    for found in (result, engram.read(tmp_path)):
        assert {one["execution"]["pool"] for one in found.environment} == {pool}
        modes = {
            tuple(sorted(seed for _, seed, _ in entry["runs"]))
            for one in found.environment for entry in one["modes"] if entry["mapped"]
        }  # fmt: skip
        assert sorted(map(len, modes)) == groups
        assert sorted(sum(modes, ())) == [*range(6)][: sum(groups)]
