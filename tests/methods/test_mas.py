from __future__ import annotations

from typing import Any

import pytest
import torch

from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods.finetune import Finetune
from engram.methods.mas import MAS
from engram.methods.quadratic_penalty import quadratic_penalty
from tests.methods import small

W = [[1.0, 2.0], [0.0, -1.0]]


@pytest.mark.parametrize(
    "importance,expected",
    [
        ("per_sample_abs", [[4, 4], [2, 2]]),
        ("batch_abs", [[1, 2], [0, 1]]),
        ("batch_sq", [[1, 4], [0, 1]]),
    ],
)
def test_importances(importance: str, expected: list[list[float]]) -> None:  # [T-A1]
    learner = small.bare(W, [[1.0, 1.0], [1.0, -1.0]], [0, 1])
    # only the rows of the example; the two zero rows that `bare` puts first have no gradient
    object.__setattr__(learner.task, "train", small.given(learner))
    method = MAS(importance=importance)
    method.finish(learner, learner.task)
    found = learner.state["importance"].reshape(2, 2)
    assert torch.allclose(found, torch.tensor(expected).double(), atol=1e-5)


def test_penalty_value() -> None:  # [T-A1]
    omega = torch.tensor([[4.0, 4.0], [2.0, 2.0]]).flatten()
    d = torch.tensor([[0.1, 0.0], [0.0, -0.2]]).flatten()
    zero = torch.zeros(4)
    assert quadratic_penalty(d, zero, omega, MAS().factor()).item() == pytest.approx(0.12)
    assert quadratic_penalty(d, zero, omega, MAS(half=True).factor()).item() == pytest.approx(0.06)


def passes(method: MAS) -> list[torch.Tensor]:
    """What a first pass would find after each task of this method's run."""
    found = []
    for stage in range(3):
        learner = small.after(method, stage)
        learner.state = {}
        method.finish(learner, learner.task)
        found.append(learner.state["importance"])
    return found


@pytest.mark.parametrize("accum", ["sum", "avg_by_count"])
def test_accumulation(accum: str) -> None:
    method = MAS(strength=0.1, accum=accum)
    parts = torch.stack(passes(method))
    learner = small.after(method)
    rows = torch.tensor([31 + 12, 24 + 17, 28 + 9]).double()
    weights = torch.ones(3) if accum == "sum" else rows / rows.sum()
    expected = (weights[:, None] * parts).sum(0)
    assert torch.allclose(learner.state["importance"], expected)
    assert torch.equal(learner.state["anchor"], learner.vector)


def test_new_columns_have_no_importance() -> None:
    learner = small.after(MAS(strength=0.1), 0)
    assert not learner.state["importance"][~learner.free].any()


def test_new_data_of_the_next_task_through_the_outputs_before() -> None:
    method = MAS(strength=0.1, data="new")
    assert "importance" not in small.after(method, 0).state
    learner = small.after(method, 1)
    weight = learner.layout(learner.state["importance"])[learner.networks.class_rows[0]]
    assert bool(weight[:2].any())
    assert not weight[2:].any()
    last = small.after(method, 2)
    more = last.layout(last.state["importance"])[learner.networks.class_rows[0]]
    assert torch.equal(more[:2], weight[:2])
    assert bool(more[2:4].any())
    other = small.after(MAS(strength=0.1), 0).state["importance"]
    assert not torch.allclose(learner.state["importance"], other)


def test_groups_of_rows_lie_between_one_and_all() -> None:
    # the size of a mean is at most the mean of sizes
    learner = small.after(Finetune(), 0)
    found = []
    for method in (
        MAS(importance="batch_abs", group=1),
        MAS(importance="batch_abs", group=8),
        MAS(importance="batch_abs"),
    ):
        learner.state = {}
        method.finish(learner, learner.task)
        found.append(learner.state["importance"].sum().item())
    assert found[0] > found[1] > found[2] > 0


def test_penalty_is_zero_right_after_a_task() -> None:
    method = MAS(strength=3.0)
    for stage in (0, 1):
        learner = small.after(method, stage, small.ADAM)
        value, slope = small.penalty_of(method, learner, learner.vector)
        assert value == 0
        assert not slope.any()
        assert small.penalty_of(method, learner, small.moved(learner))[0] > 0


def test_without_strength_it_is_finetuning() -> None:
    assert small.is_finetuning(MAS(strength=0))
    assert not small.is_finetuning(MAS(strength=0.1))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"importance": "batch_abs", "group": 16, "half": True, "batch_statistics": True},
        {"importance": "batch_sq", "accum": "avg_by_count", "memory": Memory(per_class=4)},
        {"data": "new"},
    ],
)
def test_lockstep_is_the_loop(options: dict[str, Any]) -> None:
    assert small.gap([MAS(strength=s, **options) for s in (0.05, 0.05, 0.1)]) < 1e-10


@pytest.mark.parametrize(
    "options,words",
    [
        ({"strength": -0.5}, "strength"),
        ({"importance": "abs"}, "importance: unknown name"),
        ({"accum": "mean"}, "accum"),
        ({"data": "old"}, "data"),
        ({"group": 0}, "group"),
        ({"batch_statistics": True}, "group: expected more than 1"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        MAS(**options)
