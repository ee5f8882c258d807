"""PCR against a loop in plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import BadArgument
from engram.methods import PCR
from engram.methods.pcr import proxy_losses
from tests.methods import rehearsal, small
from tests.methods.plain_reservoirs import MEMORY

METHOD = PCR(temperature=0.2, memory=MEMORY)


def contrast(features: Tensor, vectors: Tensor, y: Tensor, temperature: float) -> Tensor:
    """The loss row by row against the vectors of all rows, as the paper writes it."""
    rows, proxies = F.normalize(features, dim=1), F.normalize(vectors, dim=1)[y]
    total = torch.zeros((), dtype=rows.dtype)
    for row, label in zip(rows, y, strict=True):
        shares = ((proxies @ row) / temperature).softmax(0)
        total = total - shares[y == label].mean().log()
    return total / len(y)


def test_the_loss_is_the_contrast_with_the_vectors_of_all_rows(monkeypatch):
    found: list[tuple[float, float]] = []
    loss = PCR.loss

    def noting(self: PCR, net: Any, batch: Any, state: Any) -> Any:
        terms = loss(self, net, batch, state)
        features, y = net(batch.x, batch.w).features, batch.target
        expected = contrast(features, net.params.head.weight, y, 0.2)
        found.append((float(terms["task"].detach()), float(expected.detach())))
        assert bool((batch.w == 1).all())
        return terms

    monkeypatch.setattr(PCR, "loss", noting)
    rehearsal.train(METHOD, rehearsal.class_incremental(rehearsal.clouds()))
    assert len(found) > 15
    assert all(ours == pytest.approx(theirs, abs=1e-9) for ours, theirs in found)


def test_only_classes_of_the_batch_are_pushed_and_as_often_as_they_have_rows():
    logits = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    y, open_ = torch.tensor([0, 0, 0, 1]), torch.ones(4, 3, dtype=torch.bool)
    padded = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    (proxy_losses(logits, y, open_, padded) * padded).sum().backward()
    third = 1 / 3
    expected = [[-third, third, 0], [-third, third, 0], [0, 0, 0], [2 * third, -2 * third, 0]]
    assert torch.allclose(logits.grad, torch.tensor(expected, dtype=torch.float64))


def test_the_temperature_is_not_learnt():
    decaying = {"weight_decay": 0.1}
    (*_, last) = rehearsal.train(
        METHOD, rehearsal.class_incremental(rehearsal.clouds()), **decaying
    )
    assert float(last.learner.params.head.scale) == 5.0


@pytest.mark.parametrize("model", [rehearsal.TINY, small.Normed])
def test_lockstep_is_the_loop(model):
    methods = [PCR(temperature=t, memory=MEMORY) for t in (0.1, 0.2, 0.5)]
    assert rehearsal.lockstep_gap(methods, model=model) < 1e-10


@pytest.mark.parametrize("values", [{"temperature": 0.0}, {"size": -1}, {"memory": 5}])
def test_bad_values(values):
    with pytest.raises(BadArgument, match=next(iter(values))):
        PCR(**values)
