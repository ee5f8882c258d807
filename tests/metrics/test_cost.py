"""Costs."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from engram.metrics import RunCost, bytes_held, human_bytes, total_cost


def test_stages_add_time_and_keep_the_peak() -> None:
    stages = [
        RunCost(
            seconds=1.5, steps=10, memory_items=5, memory_bytes=50, parameters=7, state_bytes=90
        ),
        RunCost(
            seconds=0.5, steps=30, memory_items=3, memory_bytes=80, parameters=9, state_bytes=60
        ),
    ]
    total = total_cost(stages)
    assert total == RunCost(2.0, 40, 5, 80, 9, 90)
    assert total.steps_per_second == 20.0
    assert total_cost([]) == RunCost()
    assert RunCost(**total.as_dict()) == total


def test_frozen_ratios_and_complaints() -> None:
    cost = RunCost(seconds=2.0, steps=10)
    with pytest.raises(dataclasses.FrozenInstanceError):
        cost.steps = 3  # type: ignore[misc]
    ratios = cost.relative_to(RunCost(seconds=4.0))
    assert ratios["seconds"] == 0.5
    assert ratios["steps"] == math.inf
    assert math.isnan(ratios["parameters"])
    assert math.isnan(RunCost().steps_per_second)
    for wrong in (-1, float("nan"), True, "3"):
        with pytest.raises(ValueError, match="steps: expected a number of at least 0"):
            RunCost(steps=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        cost + 1  # type: ignore[operator]


def test_bytes() -> None:
    tree = {"a": torch.zeros(3, dtype=torch.float16), "b": [np.zeros((2, 2)), ({"c": 1}, None)]}
    assert bytes_held(tree) == 3 * 2 + 4 * 8
    assert human_bytes(1023) == "1023 B"
    assert human_bytes(3 * 2**30) == "3.0 GiB"
    assert human_bytes(5 * 2**40) == "5.0 TiB"
