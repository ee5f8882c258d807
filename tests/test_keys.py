"""Draws depend on their key, and on nothing that was done before."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from engram import keys


def test_a_draw_that_was_traced_first_is_a_draw_of_numbers_later():
    shape = (7, 1231)  # a size that no other test draws

    def step(key: torch.Tensor) -> torch.Tensor:
        return keys.uniform(key, *shape)

    trace = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(torch.tensor(1))
    drawn = keys.uniform(2, *shape)
    assert type(drawn) is torch.Tensor
    assert 0.4 < drawn.mean() < 0.6
    assert torch.equal(trace(torch.tensor(2)), drawn)
