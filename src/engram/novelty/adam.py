"""Adam as a function of a state, for detectors that train something of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

BETAS, TINY = (0.9, 0.999), 1e-8
State = Mapping[str, Any]
Weights = Mapping[str, Tensor]


def adam(state: State, slope: Weights, lr: float, real: Tensor) -> State:
    """The state after a step; the same state where a batch holds no row.

    All weights at once: a step of a small network is over before the next kernel is launched.
    """
    steps = state["steps"] + 1
    weights, first, second = (flat(state[part]) for part in ("weights", "first", "second"))
    gradient = flat({name: slope[name] for name in state["weights"]})
    (a, b), count = BETAS, steps.to(gradient)
    after_first = a * first + (1 - a) * gradient
    after_second = b * second + (1 - b) * gradient**2
    move = after_first / (1 - a**count) / ((after_second / (1 - b**count)).sqrt() + TINY)
    chosen = {
        part: unflat(torch.where(real, new, old), state["weights"])
        for part, new, old in (
            ("weights", weights - lr * move, weights), ("first", after_first, first),
            ("second", after_second, second),
        )
    }  # fmt: skip
    return {**state, **chosen, "steps": torch.where(real, steps, state["steps"])}


def flat(parts: Weights) -> Tensor:
    """[P] some tensors as one vector."""
    return torch.cat([part.reshape(-1) for part in parts.values()])


def unflat(vector: Tensor, like: Weights) -> dict[str, Tensor]:
    """Views of a vector with the names and shapes of others.

    Examples
    --------
    >>> found = unflat(torch.arange(3), {"w": torch.ones(1, 2), "b": torch.ones(1)})
    >>> found["w"].tolist(), found["b"].tolist()
    ([[0, 1]], [2])
    """
    found = vector.split([part.numel() for part in like.values()])
    return {name: part.view(like[name].shape) for name, part in zip(like, found, strict=True)}
