from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods.agem import AGEM, project
from engram.methods.finetune import Finetune
from tests.methods import small


def test_projection() -> None:  # [T-Q4]
    reference = torch.tensor([1.0, 1.0])
    found = project(torch.tensor([1.0, -2.0]), reference)
    assert torch.allclose(found, torch.tensor([1.5, -1.5]), atol=1e-5)
    same = torch.tensor([2.0, 1.0])
    assert torch.equal(project(same, reference), same)


def test_projection_without_reference_gradient() -> None:
    g = torch.tensor([1.0, -2.0])
    assert torch.equal(project(g, torch.zeros(2)), g)


@given(seed=st.integers(0, 10_000))
def test_projection_never_goes_against_the_reference(seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    g, reference = (torch.randn(20, generator=source, dtype=torch.float64) for _ in range(2))
    found = project(g, reference)
    assert found @ reference >= -1e-12
    assert torch.equal(found, g) == bool(g @ reference >= 0)


def test_uses_the_current_gradient_and_the_memory_apart() -> None:
    sizes: list[tuple[int, int]] = []
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    class Watched(AGEM):
        def gradient(self, grad: Any, batch: Any, state: Any) -> Tensor:
            found = super().gradient(grad, batch, state)
            if batch.memory:
                sizes.append((len(batch.w), len(batch.memory[0].w)))
                assert bool((batch.old == 0).all())
                assert bool((batch.memory[0].old == 1).all())
                pairs.append((found, grad(batch), grad(batch.memory[0])))
            return found

    learner = small.after(Watched(memory=Memory(total=12)))
    assert len(learner.exemplars) == 12
    assert {memory for _, memory in sizes} == {16}  # the batch size
    bent = 0
    for found, g, reference in pairs:
        expected = g
        if g @ reference < 0:
            bent += 1
            expected = g - (g @ reference) / (reference @ reference) * reference
        assert torch.allclose(found, expected, atol=1e-12)
    assert bent > 0


def test_forgets_less_than_finetuning() -> None:
    assert small.accuracy(AGEM()) > small.accuracy(Finetune()) + 0.1


def test_first_task_is_finetuning() -> None:
    assert torch.equal(small.after(AGEM(), 0).vector, small.after(Finetune(), 0).vector)


def test_masks_split_old_from_new_classes() -> None:
    binary = replace(small.EXACT, loss="bce")
    seen: list[Tensor] = []

    class Watched(AGEM):
        def gradient(self, grad: Any, batch: Any, state: Any) -> Tensor:
            if batch.memory:
                seen.extend((grad(batch), grad(batch.memory[0])))
            return super().gradient(grad, batch, state)

    learner = small.after(Watched(masks=True, memory=Memory(per_class=3)), 1, binary)
    name = learner.networks.class_rows[0]
    new, old = (learner.layout(g)[name] for g in seen[:2])
    assert not new[:2].any()
    assert bool(new[2:4].any())
    assert bool(old[:2].any())
    assert not old[2:4].any()


def test_multi_head_memory_uses_its_own_head() -> None:
    seen: list[Tensor] = []

    class Watched(AGEM):
        def gradient(self, grad: Any, batch: Any, state: Any) -> Tensor:
            if batch.memory:
                seen.append(grad(batch.memory[0]))
            return super().gradient(grad, batch, state)

    learner = small.after(Watched(), 1, on=small.stream(multi=True))
    weight = learner.layout(seen[0])[learner.networks.class_rows[0]]
    assert bool(weight[:2].any())
    assert not weight[2:].any()


@pytest.mark.parametrize("options", [{}, {"size": 5, "memory": Memory(per_class=4)}])
def test_lockstep_is_the_loop(options: dict[str, Any]) -> None:
    assert small.gap([AGEM(**options)] * 3) < 1e-10
    assert small.gap([AGEM(**options)] * 2, model=small.Normed) < 1e-10


@pytest.mark.parametrize(
    "options,words", [({"size": -1}, "size"), ({"memory": 500}, "memory: expected a Memory")]
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        AGEM(**options)
