from __future__ import annotations

from typing import Any

import pytest
import torch

from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods import ER, SSIL
from engram.streams import permuted
from tests.methods.rehearsal import FakeNet, Normed, batch_of, clouds, final, lockstep_gap

# a row of new class 2 and a memory row of old class 0; two old classes, two new ones
STUDENT = torch.tensor([[1.0, 0.0, 2.0, 1.0], [2.0, 0.0, 1.0, 3.0]], dtype=torch.float64)
TEACHER = torch.tensor([[0.0, 1.0, 9.0, 0.0], [1.5, 0.5, 0.0, 9.0]], dtype=torch.float64)
BATCH = batch_of([2, 0], opened=[0, 0, 1, 1], now=1, old=[0, 1])
STATE = {"teacher": {}, "blocks": torch.tensor([[True, True, False, False]])}
SMALL = Memory(total=20)


def terms(student: torch.Tensor = STUDENT, **options: Any) -> dict[str, float]:
    net: Any = FakeNet(student, TEACHER)
    return {k: v.item() for k, v in SSIL(**options).loss(net, BATCH, STATE).items()}


@pytest.mark.parametrize(
    "inputs, distilled, total",
    [("all", (0.111820 + 0.489837) / 2, 0.520924), ("replay", 0.111820, 0.331915)],
)
def test_terms(inputs: str, distilled: float, total: float) -> None:
    """[T-D1]"""
    found = terms(kd_inputs=inputs)
    assert found["task"] == pytest.approx(0.220095, abs=2e-6)
    assert found["distill"] == pytest.approx(distilled, abs=2e-6)
    assert sum(found.values()) == pytest.approx(total, abs=2e-6)


def test_new_logits_move_nothing_old() -> None:
    """A constant on all new logits is no term's business."""
    moved = STUDENT + torch.tensor([0.0, 0.0, 5.0, 5.0])
    assert terms(moved) == pytest.approx(terms(), abs=1e-12)
    assert ER().loss(FakeNet(moved), BATCH, {})["task"] != ER().loss(  # type: ignore[arg-type]
        FakeNet(STUDENT), BATCH, {}  # type: ignore[arg-type]
    )["task"]  # fmt: skip


def test_padding_counts_nowhere() -> None:
    padded = BATCH.map(lambda t: torch.cat([t, t[:1]]) if t.ndim and len(t) == 2 else t)
    padded = padded._replace(w=torch.tensor([1.0, 1.0, 0.0]).double())
    both = torch.cat([STUDENT, STUDENT[:1]]), torch.cat([TEACHER, TEACHER[:1]])
    net: Any = FakeNet(*both)
    found = SSIL().loss(net, padded, STATE)
    assert {k: v.item() for k, v in found.items()} == pytest.approx(terms(), abs=1e-12)


def test_the_first_task_is_plain_training() -> None:
    batch = batch_of([1, 0], opened=[0, 0, -1, -1], now=0)
    net: Any = FakeNet(STUDENT)
    assert SSIL().loss(net, batch, {}).keys() == {"task"}
    assert SSIL().loss(net, batch, {})["task"] == ER().loss(net, batch, {})["task"]


@pytest.mark.parametrize("inputs", ["all", "replay"])
def test_lockstep(inputs: str) -> None:
    method = SSIL(memory=SMALL, kd_inputs=inputs)
    assert lockstep_gap(method, model=Normed) < 1e-10


def test_without_new_classes_all_rows_compete_among_the_old_ones() -> None:
    moved = final(SSIL(memory=SMALL), permuted(clouds(), tasks=2))
    assert torch.isfinite(moved).all()


@pytest.mark.parametrize(
    "values", [{"size": -1}, {"memory": 5}, {"temperature": 0.0}, {"kd_inputs": "new"}]
)
def test_bad_values(values: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match=next(iter(values))):
        SSIL(**values)
