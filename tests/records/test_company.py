"""Many runs recorded at once say what each would say alone, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from engram.records import Items, Rows, record_stage
from engram.records.company import Block, add_stage, kind


def items_of(rng, tasks=3, per=2, n=40, **changes):
    """Items of a stream whose classes come in a drawn order."""
    width = tasks * per
    target = np.concatenate([np.arange(width), rng.integers(0, width, n - width)])
    visible = np.repeat(np.eye(tasks, dtype=bool), per, axis=1)
    fields = {
        "rows": rng.permutation(n), "task": target // per, "targets": target,
        "opening": np.arange(width) // per, "visible": visible, "classes": rng.permutation(width),
    }  # fmt: skip
    return Items(**{**fields, **changes})


@pytest.mark.parametrize("average", ["micro", "macro"])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_block_is_the_rows_of_each_run(stage, average):
    rng = np.random.default_rng(stage)
    items = [items_of(rng) for _ in range(5)]
    scores = rng.normal(size=(5, 40, 6)).astype(np.float32) * 10
    scores[0, 3] = np.nan
    scores[1, 4] = 1e9
    block = Block(5)
    assert add_stage(block, list(scores), items, stage=stage, average=average)
    orders = [f"o{r}" for r in range(5)]
    found = block.rows(recipe="r", label="ER", seed=range(5), order=orders, stage=stage)
    alone = []
    for r in range(5):
        alone.append(Rows(recipe="r", label="ER", seed=r, order=orders[r]))
        record_stage(alone[-1], scores[r], items[r], stage=stage, average=average)
    assert Rows.joined(alone).arrow().equals(found.arrow())
    for mine, part in zip(alone, found.parts(len(block)), strict=True):
        assert mine.frame().astype({"order": str}).equals(part.frame().astype({"order": str}))
        assert mine.metrics == part.metrics


def test_runs_of_another_form_are_left_alone():
    rng = np.random.default_rng(0)
    first = items_of(rng)
    later = items_of(rng, opening=np.array([0, 0, 0, 1, 2, 2]))  # three classes open at once
    block = Block(2)
    scores = list(rng.normal(size=(2, 40, 6)))
    assert not add_stage(block, scores, [first, later], stage=0, average="micro")
    assert len(block) == 0


def test_items_that_cannot_be_counted_together():
    rng = np.random.default_rng(0)
    assert kind(items_of(rng)) == (40, 3, 6)
    assert kind(items_of(rng, multilabel=True)) is None
    target = np.zeros((40, 2), np.int64)
    assert kind(items_of(rng, targets=target)) is None
    assert kind(items_of(rng, targets=target[:, 0] - 1)) is None
