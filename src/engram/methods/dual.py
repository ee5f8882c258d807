"""A small quadratic program, min u' A u / 2 + q' u over u >= 0, without host decisions.

Written for one problem, it maps over runs and captures into a CUDA graph: fixed numbers of rounds,
and no library call that waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

EXACT = 6  # up to so many unknowns all active sets are tried
DONE = 1e-15  # products of unknown and slack, relative
RIDGE = 1e-13
STAY = 0.995  # share of the way to the boundary that a step may go


def nonnegative(a: Tensor, q: Tensor) -> Tensor:
    """The minimiser [t] of u' A u / 2 + q' u over u >= 0, A [t, t] symmetric and not indefinite.

    Examples
    --------
    >>> nonnegative(torch.eye(2), torch.tensor([-2.0, 3.0])).tolist()
    [2.0, 0.0]
    """
    # unit diagonal and unit q: tolerances then mean the same for all problems
    root = a.diagonal().clamp(min=0).sqrt()
    root = torch.where(root > 0, root, 1.0)
    scaled, slope = a / root[:, None] / root, q / root
    top = slope.abs().amax()
    top = torch.where(top > 0, top, 1.0)
    solve = _every_set if q.shape[0] <= EXACT else _interior
    return solve(scaled, slope / top) * top / root


def value(a: Tensor, q: Tensor, u: Tensor) -> Tensor:
    """[...] the objective of candidates u [..., t]."""
    return ((u @ a) * u).sum(-1) / 2 + u @ q


def _every_set(a: Tensor, q: Tensor) -> Tensor:
    """Solve for every choice of positive unknowns; the best that is feasible is the answer."""
    count = q.shape[0]
    number = torch.arange(2**count, device=q.device)[:, None]
    free = (number >> torch.arange(count, device=q.device)) % 2 == 1  # [2^t, t]
    return _best(a, q, eliminate(*_restricted(a, q, free)))


def _best(a: Tensor, q: Tensor, candidates: Tensor) -> Tensor:
    """The candidate [n, t] with the lowest objective; any is feasible once cut at 0."""
    sound = candidates.isfinite().all(-1)
    feasible = torch.where(sound[:, None], candidates, 0.0).clamp(min=0)
    best = value(a, q, feasible).argmin(-1, keepdim=True)
    return feasible.gather(0, best[:, None].expand(1, q.shape[0])).squeeze(0)


def _restricted(a: Tensor, q: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """Systems [n, t, t], [n, t] for stationary points whose unknowns are 0 unless `free` [n, t]."""
    both = free[:, :, None] & free[:, None, :]
    eye = torch.eye(q.shape[0], dtype=a.dtype, device=a.device)
    return torch.where(both, a, eye), torch.where(free, -q, 0.0)


def eliminate(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve positive definite systems [..., t, t] by elimination: they need no pivots."""
    count = right.shape[-1]
    table = torch.cat([matrix, right.unsqueeze(-1)], -1)  # [..., t, t + 1]
    eye = torch.eye(count, dtype=matrix.dtype, device=matrix.device)
    for k in range(count):
        row = table[..., k, :] / table[..., k, k, None]
        column = table[..., :, k] - eye[k]
        table = table - column.unsqueeze(-1) * row.unsqueeze(-2)
    return table[..., -1]


def _interior(a: Tensor, q: Tensor) -> Tensor:
    """Predictor and corrector along the central path, then one exact solve for the positive ones.

    Unknowns u and slacks w = A u + q stay positive while their products fall to 0.
    """
    x = torch.ones(2, q.shape[0], dtype=q.dtype, device=q.device)  # u and w
    for _ in range(12 + q.shape[0] // 5):
        u, w = x
        ratio = w / u
        inverse, _ = torch.linalg.inv_ex(a + torch.diag(ratio))
        off = torch.addmv(q, a, u)  # what the linear equation would be with w left out
        du = -(inverse @ off)
        change = torch.stack([du, -w - ratio * du])
        ahead = x + _reach(x, change) * change
        products = torch.stack([u * w, ahead[0] * ahead[1]]).mean(-1)
        aim = (products[1] / products[0]) ** 3 * products[0]
        centre = (aim - change[0] * change[1]) / u
        du = inverse @ (centre - off)
        change = torch.stack([du, centre - w - ratio * du])
        # once the products are rounding, a further round could only break what is there
        x = torch.where(products[0] > DONE, x + _reach(x, change) * change, x)
    matrix, right = _restricted(a, q, (x[0] > x[1]).expand(2, -1))
    # once with a trace of ridge, for unknowns that depend on each other
    ridge = torch.diag_embed(RIDGE * torch.stack([torch.zeros_like(q), torch.ones_like(q)]))
    exact, _ = torch.linalg.solve_ex(matrix + ridge, right)
    return _best(a, q, torch.cat([x[:1], exact]))


def _reach(x: Tensor, change: Tensor) -> Tensor:
    """Longest step, at most 1, that keeps x positive."""
    return STAY / (-change / x).amax().clamp(min=STAY)
