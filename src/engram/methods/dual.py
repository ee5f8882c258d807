"""A small quadratic program, min u' A u / 2 + q' u over u >= 0, without host decisions.

Written for one problem, it maps over runs and captures into a CUDA graph: fixed numbers of rounds,
no library call that waits for the device. Only where values may decide, a shorter way is tried.
"""

from __future__ import annotations

import torch
from torch import Tensor

EXACT = 6  # up to so many unknowns all active sets are tried
DONE = 1e-15  # products of unknown and slack, relative
RIDGE = 1e-13  # for unknowns that depend on each other
GUESSES = 5
LOOKS = 12
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
    slope = slope / top
    if q.shape[0] <= EXACT:
        found = _every_set(scaled, slope)
    else:
        early = _guessed(scaled, slope) if _may_look(slope) else None
        found = _interior(scaled, slope) if early is None else early
    return found * top / root


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
    """Systems [..., t, t], [..., t] for the `free` [..., t] unknowns, the others being 0."""
    both = free.unsqueeze(-1) & free.unsqueeze(-2)
    eye = torch.eye(q.shape[0], dtype=a.dtype, device=a.device)
    return torch.where(both, a, eye), torch.where(free, -q, 0.0)


def eliminate(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve positive definite systems [..., t, t] by elimination: they need no pivots."""
    return _eliminated(matrix, right.unsqueeze(-1))[..., 0]


def _eliminated(matrix: Tensor, right: Tensor) -> Tensor:
    """The same for several right sides [..., t, n]."""
    count = matrix.shape[-1]
    table = torch.cat([matrix, right], -1)  # [..., t, t + n]
    eye = torch.eye(count, dtype=matrix.dtype, device=matrix.device)
    for k in range(count):
        row = table[..., k, :] / table[..., k, k, None]
        column = table[..., :, k] - eye[k]
        table = torch.addcmul(table, column.unsqueeze(-1), row.unsqueeze(-2), value=-1)
    return table[..., count:]


def _must_eliminate(matrix: Tensor) -> bool:
    """On CUDA torch's own routines cannot be captured for several runs at once."""
    return matrix.is_cuda


def _inverse(matrix: Tensor) -> Tensor:
    if _must_eliminate(matrix):
        return _eliminated(matrix, torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device))
    found: Tensor = torch.linalg.inv_ex(matrix)[0]
    return found


def _solution(matrix: Tensor, right: Tensor) -> Tensor:
    if _must_eliminate(matrix):
        return eliminate(matrix, right)
    found: Tensor = torch.linalg.solve_ex(matrix, right)[0]
    return found


def _may_look(q: Tensor) -> bool:
    """Whether values may decide: one problem on the CPU, neither mapped nor captured."""
    wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(q)
    return q.device.type == "cpu" and not wrapped


def _guessed(a: Tensor, q: Tensor) -> Tensor | None:
    """Exchange all unknowns of the wrong sign until none is left; None where that goes in circles.

    A few small solves in place of the fixed rounds below, and the same answer.
    """
    free = q < 0
    for _ in range(LOOKS):
        u, info = torch.linalg.solve_ex(*_restricted(a, q, free))
        signed = torch.where(free, u, torch.addmv(q, a, u))
        wrong = signed < -DONE
        if info or not bool(signed.isfinite().all()):
            return None
        if not bool(wrong.any()):
            found: Tensor = u.clamp(min=0)
            return found
        free = free ^ wrong
    return None


def _interior(a: Tensor, q: Tensor) -> Tensor:
    """Most of the way along the central path, then guesses of which unknowns are positive."""
    count = q.shape[0]
    x = torch.ones(2, count, dtype=q.dtype, device=q.device)  # unknowns u and slacks A u + q
    for _ in range(8 + count // 8):
        x = _round(a, q, x)
    found, free = [x[0]], x[0] > x[1]
    ridge = a + RIDGE * torch.eye(count, dtype=a.dtype, device=a.device)
    for _ in range(GUESSES):
        u = _solution(*_restricted(ridge, q, free))
        found.append(u)
        free = torch.where(free, u, -torch.addmv(q, a, u)) > 0
    return _best(a, q, torch.stack(found))


def _round(a: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """One predictor and corrector: the products of unknown and slack fall, both stay positive."""
    u, w = x
    ratio = w / u
    inverse = _inverse(a + torch.diag(ratio))
    off = torch.addmv(q, a, u)
    du = -(inverse @ off)
    change = torch.stack([du, -w - ratio * du])
    ahead = x + _reach(x, change) * change
    products = torch.stack([u * w, ahead[0] * ahead[1]]).mean(-1)
    aim = (products[1] / products[0]) ** 3 * products[0]
    centre = (aim - change[0] * change[1]) / u
    du = inverse @ (centre - off)
    change = torch.stack([du, centre - w - ratio * du])
    # once the products are rounding, a further round could only break what is there
    return torch.where(products[0] > DONE, x + _reach(x, change) * change, x)


def _reach(x: Tensor, change: Tensor) -> Tensor:
    """Longest step, at most 1, that keeps x positive."""
    return STAY / (-change / x).amax().clamp(min=STAY)
