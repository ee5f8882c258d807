"""Steps taken apart, many at a time."""

from __future__ import annotations

import pytest
import torch

from engram.engine import batches
from engram.engine.batches import select_step_unpadded, take_apart
from engram.engine.sampler import StepRows
from engram.learner.batch import TrainingRows
from engram.learner.tensor_tree import leaves

STEPS, LENGTHS = 5, (3, 3, 2, 3, 1)


def make_rows(count: int) -> TrainingRows:
    """Numbers that are all different."""
    number = torch.arange(STEPS * count).reshape(1, STEPS, count)
    return TrainingRows(number, number + 100, (number + 200)[..., None], number / 7, number - 50)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("at_once", [2, 256])
def test_steps_are_those_selected_one_by_one(monkeypatch, whole, at_once):
    monkeypatch.setattr(batches, "STEPS_AT_ONCE", at_once)
    main, key = make_rows(3), torch.arange(STEPS)[None]
    rows = StepRows(main, key)
    if whole:
        rows = StepRows(main, key, (make_rows(2), make_rows(4)), main.rows + 7, main.rows % 2 == 0)
    for start in (0, 1):
        steps = list(take_apart(rows, start, STEPS, LENGTHS))
        assert len(steps) == STEPS - start
        for number, step in enumerate(steps, start):
            one = select_step_unpadded(rows, number, LENGTHS[number])
            assert type(step) is StepRows
            assert len(step.apart) == len(one.apart)
            for mine, other in zip(leaves(step), leaves(one), strict=True):
                assert torch.equal(mine, other)
