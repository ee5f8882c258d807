"""Many runs recorded at once say what each would say alone, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from engram.errors import BadArgument
from engram.records import EvaluationItems, Rows, record_stage
from engram.records.stage_rows import add_stage, stacking_key


def items_of(rng, tasks=3, per=2, n=40, **changes):
    """Items of a stream whose classes come in a drawn order."""
    width = tasks * per
    target = np.concatenate([np.arange(width), rng.integers(0, width, n - width)])
    visible = np.repeat(np.eye(tasks, dtype=bool), per, axis=1)
    fields = {
        "rows": rng.permutation(n), "task": target // per, "targets": target,
        "opening": np.arange(width) // per, "visible": visible, "classes": rng.permutation(width),
    }  # fmt: skip
    return EvaluationItems(**{**fields, **changes})


@pytest.mark.parametrize("average", ["micro", "macro"])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_block_is_the_rows_of_each_run(stage, average):
    rng = np.random.default_rng(stage)
    items = [items_of(rng) for _ in range(5)]
    scores = rng.normal(size=(5, 40, 6)).astype(np.float32) * 10
    scores[0, 3] = np.nan
    scores[1, 4] = 1e9
    block = Rows(runs=5)
    add_stage(block, list(scores), items, stage=stage, average=average)
    orders = [f"o{r}" for r in range(5)]
    found = block.by_run(
        recipe=["r"] * 5, label=["ER"] * 5, seed=range(5), order=orders, stage=stage
    )
    alone = []
    for r in range(5):
        alone.append(Rows(recipe="r", label="ER", seed=r, order=orders[r]))
        record_stage(alone[-1], scores[r], items[r], stage=stage, average=average)
    assert Rows.join(alone).arrow().equals(Rows.join(found).arrow())
    for mine, part in zip(alone, found, strict=True):
        assert mine.frame().astype({"order": str}).equals(part.frame().astype({"order": str}))
        assert mine.metrics == part.metrics


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_runs_may_have_different_numbers_of_items(stage):
    """Where only learnt tasks are scored, runs in other orders of tasks have fewer or more."""
    rng = np.random.default_rng(stage)
    sizes, block, alone = (23, 40, 31), Rows(runs=3), []
    items = [items_of(rng, n=n) for n in sizes]
    scores = [rng.normal(size=(n, 6)).astype(np.float32) for n in sizes]
    assert len({stacking_key(one, stage) for one in items}) == 1
    add_stage(block, scores, items, stage=stage, average="micro")
    found = block.by_run(
        recipe=["r"] * 3, label=["ER"] * 3, seed=range(3), order=[""] * 3, stage=stage
    )
    for r in range(3):
        alone.append(Rows(recipe="r", label="ER", seed=r))
        record_stage(alone[-1], scores[r], items[r], stage=stage)
    assert Rows.join(alone).arrow().equals(Rows.join(found).arrow())


def test_runs_of_another_form_are_left_alone():
    rng = np.random.default_rng(0)
    first = items_of(rng)
    later = items_of(rng, opening=np.array([0, 0, 0, 1, 2, 2]))  # three classes open at once
    assert stacking_key(first, 0) != stacking_key(later, 0)
    assert stacking_key(first, 2) == stacking_key(later, 2)
    rows = Rows(runs=2)
    with pytest.raises(ValueError, match="reshape"):
        add_stage(rows, list(rng.normal(size=(2, 40, 6))), [first, later], stage=0, average="micro")


def test_items_that_cannot_be_counted_together():
    rng = np.random.default_rng(0)
    assert stacking_key(items_of(rng), 0) == (3, 3, 6, 6, 2, ("single", "multi"))
    assert stacking_key(items_of(rng, multilabel=True), 0) is None
    target = np.zeros((40, 2), np.int64)
    assert stacking_key(items_of(rng, targets=target), 0) is None
    assert stacking_key(items_of(rng, targets=target[:, 0] - 1), 0) is None


@pytest.mark.parametrize("value", [[0.5], [[0.5], [0.5], [0.5]], np.zeros((2, 1, 1))])
def test_values_of_another_number_of_runs_are_refused(value):
    with pytest.raises(BadArgument, match="value: expected numbers"):
        Rows(runs=2).add("entropy", value)
