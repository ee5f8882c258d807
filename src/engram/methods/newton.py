"""The minimum of a smooth cost of a positive and a real number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

STEPS = 30
RIDGE = 1e-3  # keeps the minimum finite where labels can be had without any mistake
FLAT = 1e-6  # curvature below this counts as this


def minimum(cost: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """(alpha, beta) of the least ``cost(alpha, beta)``, found from (1, 0); alpha stays positive.

    Newton's method on log alpha and beta, with steps of length 1 at most, and a small pull towards
    (1, 0).

    Examples
    --------
    >>> alpha, beta = minimum(lambda a, b: 100 * ((a - 2) ** 2 + (b + 3) ** 2))
    >>> round(alpha.item(), 3), round(beta.item(), 3)
    (2.0, -3.0)
    """

    def ridged(point: Tensor) -> Tensor:
        return cost(point[0].exp(), point[1]) + 0.5 * RIDGE * (point**2).sum()

    point = torch.zeros(2, dtype=torch.float64)
    with torch.enable_grad():
        for _ in range(STEPS):
            leaf = point.clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(ridged(leaf), leaf)
            curve = torch.autograd.functional.hessian(ridged, point)
            values, axes = torch.linalg.eigh(curve)
            move = axes @ ((axes.T @ slope) / values.abs().clamp(min=FLAT))
            point = point - move / move.norm().clamp(min=1.0)
    return point[0].exp(), point[1]
