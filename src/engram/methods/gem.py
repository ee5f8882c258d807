"""Gradient episodic memory: gradients are projected so that they do not oppose those of past
tasks, by solving a small quadratic program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from engram import keys
from engram.errors import bad, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.linear_algebra import eliminate, inner_products, invert, may_read_values, solve
from engram.memory import Memory
from engram.methods.method import ARGMAX_OR_THRESHOLD, Gradient, Method, ReplaySpec, State, Terms
from engram.methods.quadratic_penalty import check_floats
from engram.per_run import PerRun
from engram.streams.stream import Task


def project(
    gradient: Tensor, past: Tensor, *, margin: float | Tensor = 0.0, eps: float | Tensor = 1e-3
) -> Tensor:
    """Project the gradient [P] so that it does not oppose those of past tasks [t, P].

    Returns g + M' v with v the minimiser of v' (M M' + eps I) v / 2 + (M g)' v over v >= margin, or
    g if it opposes none of them.

    Examples
    --------
    >>> g, past = torch.tensor([-2.0, 3.0]), torch.tensor([[1.0, 0.0]])
    >>> project(g, past, eps=0.0).tolist()
    [0.0, 3.0]
    """
    # the dual is tiny: double precision is cheap, and handles nearly parallel gradients
    products, along = inner_products(past, gradient)
    count = past.shape[0]
    curvature = products + eps * torch.eye(count, dtype=products.dtype, device=past.device)
    # v = margin + u, u >= 0
    v = margin + solve_nonnegative(curvature, along + margin * curvature.sum(-1))
    with torch.autocast(past.device.type, enabled=False):  # keep full precision
        projected = gradient + past.mT @ v.to(past.dtype)
    return torch.where((along < 0).any(), projected, gradient)


@dataclass(frozen=True, kw_only=True)
class GEM(Method):
    """Project each gradient so that no past task's memory loss increases, to first order.

    g~ = g + M' v, v = argmin over v >= margin of v' (M M' + eps I) v / 2 + (M g)' v,
    whenever some m_t' g < 0; the rows m_t of M are the gradients on each past task's exemplars.

    Parameters
    ----------
    margin
        Lower bound of v, at least 0 (memory strength in the authors' code). CGL: 5.
    eps
        Added to the diagonal, so that linearly dependent gradients cause no trouble.
    size
        Exemplars drawn per past task and step; 0: all of them.
    counted
        Share of a past task's exemplars that enter the loss. The others only pass through the
        network, for batch normalisation: ``GEM(counted=0.2, memory=Memory(fraction=1.0))`` keeps
        whole tasks for that, as CGLB does.
    redraw
        Redraw the rows that enter the loss at every step (CGLB); False: the memory's first ones.
    memory
        Exemplars to keep; all of them pass through the network in every step. The paper keeps a
        number of each task, ``Memory(per_task=256)``; CGL: 0.2 of each.

    Examples
    --------
    >>> GEM(margin=-1.0)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: margin: expected a number of at least 0, got -1.0

    References
    ----------
    Lopez-Paz and Ranzato 2017, Advances in Neural Information Processing Systems.
    """

    decides: ClassVar[tuple[str, ...]] = ARGMAX_OR_THRESHOLD

    margin: PerRun = 0.5
    eps: PerRun = 1e-3
    size: int = 0
    counted: PerRun = 1.0
    redraw: bool = False
    memory: Memory = field(default=Memory(total=500))

    def __post_init__(self) -> None:
        infinite = float("inf")
        check_floats(self, {"margin": (0.0, infinite), "eps": (0.0, infinite)})
        check_int("size", self.size)
        check_floats(self, {"counted": (0.0, 1.0)})
        if self.counted == 0:
            raise bad("counted", "a share above 0", self.counted)
        if not isinstance(self.memory, Memory):
            raise bad("memory", "a Memory such as Memory(total=500)", self.memory)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("tasks", self.size)

    def implements(self, verb: str) -> bool:
        return super().implements(verb) and (verb != "loss" or self.counted != 1)

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        if isinstance(self.counted, float) and self.counted == 1:
            return super().loss(net, batch, state)
        logits = net(batch.x, batch.w).logits  # of all rows
        w = torch.where(batch.old > 0, batch.w * self.counts(batch), batch.w)
        return {"task": net.networks.objective(logits, batch._replace(w=w))}

    def counts(self, batch: Batch) -> Tensor:
        """Return [B] 1 for the rows of a memory batch that enter the loss."""
        real = batch.w > 0
        number = real.sum()
        place = torch.arange(len(real), device=real.device)  # padding comes last
        if self.redraw:
            place = keys.permutation(keys.fold(batch.key, "counted"), len(real), number).argsort()
        # rounded up, with a tolerance so that 0.2 of 235 is 47
        chosen = place < torch.ceil(number * self.counted * (1 - 1e-6))
        return chosen.to(batch.w.dtype)

    def gradient(self, grad: Gradient, batch: Batch, state: State) -> Tensor:
        gradient = grad(batch)
        if not batch.memory:
            return gradient
        past = torch.stack([grad(one) for one in batch.memory])  # [t, P]
        return project(gradient, past, margin=self.margin, eps=self.eps)

    def finish(self, learner: RunLearner, task: Task) -> None:
        learner.exemplars = self.memory.update(learner, task.train)


# -- the quadratic program: minimise u' A u / 2 + q' u over u >= 0 ---------------------------------
# Written for one problem; it can be mapped over runs and captured into a CUDA graph, because the
# number of iterations is fixed and nothing waits for the device. A shortcut that depends on values
# is tried only where values may be read.

MOST_ENUMERATED = 6  # up to this many unknowns all active sets are tried
TOLERANCE = 1e-15  # relative, of products of unknown and slack
RIDGE = 1e-13  # for linearly dependent unknowns
MOST_EXCHANGES = 5
MOST_INTERIOR_STEPS = 12
STEP_SHARE = 0.995  # maximum fraction of the distance to the boundary per step


def solve_nonnegative(a: Tensor, q: Tensor) -> Tensor:
    """Minimise u' A u / 2 + q' u over u >= 0 [t], with A [t, t] positive semidefinite.

    Examples
    --------
    >>> solve_nonnegative(torch.eye(2), torch.tensor([-2.0, 3.0])).tolist()
    [2.0, 0.0]
    """
    # scale to unit diagonal and unit q, so that tolerances are relative
    root = a.diagonal().clamp(min=0).sqrt()
    root = torch.where(root > 0, root, 1.0)
    scaled, slope = a / root[:, None] / root, q / root
    top = slope.abs().amax()
    top = torch.where(top > 0, top, 1.0)
    slope = slope / top
    if q.shape[0] <= MOST_ENUMERATED:
        found = _solve_every_set(scaled, slope)
    else:
        early = _exchange_signs(scaled, slope) if may_read_values(slope) else None
        found = _solve_by_interior_points(scaled, slope) if early is None else early
    return found * top / root


def quadratic_objective(a: Tensor, q: Tensor, u: Tensor) -> Tensor:
    """Compute the objective [...] of candidates u [..., t]."""
    return ((u @ a) * u).sum(-1) / 2 + u @ q


def _solve_every_set(a: Tensor, q: Tensor) -> Tensor:
    """Solve for every set of positive unknowns, and return the best feasible solution."""
    count = q.shape[0]
    number = torch.arange(2**count, device=q.device)[:, None]
    free = (number >> torch.arange(count, device=q.device)) % 2 == 1  # [2^t, t]
    return _best_candidate(a, q, eliminate(*_restrict_system(a, q, free)))


def _best_candidate(a: Tensor, q: Tensor, candidates: Tensor) -> Tensor:
    """Return the candidate of [n, t] with the lowest objective after clamping at 0."""
    sound = candidates.isfinite().all(-1)
    feasible = torch.where(sound[:, None], candidates, 0.0).clamp(min=0)
    best = quadratic_objective(a, q, feasible).argmin(-1, keepdim=True)
    return feasible.gather(0, best[:, None].expand(1, q.shape[0])).squeeze(0)


def _restrict_system(a: Tensor, q: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """Return the linear systems of the `free` [..., t] unknowns, with the others set to 0."""
    both = free.unsqueeze(-1) & free.unsqueeze(-2)
    eye = torch.eye(q.shape[0], dtype=a.dtype, device=a.device)
    return torch.where(both, a, eye), torch.where(free, -q, 0.0)


def _exchange_signs(a: Tensor, q: Tensor) -> Tensor | None:
    """Exchange all unknowns of the wrong sign until none is left; None if that does not converge.

    Usually takes a few small solves instead of the fixed number of iterations below.
    """
    free = q < 0
    for _ in range(MOST_INTERIOR_STEPS):
        u, info = torch.linalg.solve_ex(*_restrict_system(a, q, free))
        signed = torch.where(free, u, torch.addmv(q, a, u))
        wrong = signed < -TOLERANCE
        if info or not bool(signed.isfinite().all()):
            return None
        if not bool(wrong.any()):
            found: Tensor = u.clamp(min=0)
            return found
        free = free ^ wrong
    return None


def _solve_by_interior_points(a: Tensor, q: Tensor) -> Tensor:
    """Follow the central path, then guess which unknowns are positive and solve for them."""
    count = q.shape[0]
    x = torch.ones(2, count, dtype=q.dtype, device=q.device)  # unknowns u and slacks A u + q
    for _ in range(8 + count // 8):
        x = _predict_and_correct(a, q, x)
    found, free = [x[0]], x[0] > x[1]
    ridge = a + RIDGE * torch.eye(count, dtype=a.dtype, device=a.device)
    for _ in range(MOST_EXCHANGES):
        u = solve(*_restrict_system(ridge, q, free))
        found.append(u)
        free = torch.where(free, u, -torch.addmv(q, a, u)) > 0
    return _best_candidate(a, q, torch.stack(found))


def _predict_and_correct(a: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """Take a predictor-corrector step: products of unknown and slack decrease and stay positive."""
    u, w = x
    ratio = w / u
    inverse = invert(a + torch.diag(ratio))
    off = torch.addmv(q, a, u)
    du = -(inverse @ off)
    change = torch.stack([du, -w - ratio * du])
    ahead = x + _longest_step(x, change) * change
    products = torch.stack([u * w, ahead[0] * ahead[1]]).mean(-1)
    aim = (products[1] / products[0]) ** 3 * products[0]
    centre = (aim - change[0] * change[1]) / u
    du = inverse @ (centre - off)
    change = torch.stack([du, centre - w - ratio * du])
    # stop once the products are rounding errors
    return torch.where(products[0] > TOLERANCE, x + _longest_step(x, change) * change, x)


def _longest_step(x: Tensor, change: Tensor) -> Tensor:
    """Return the longest step, at most 1, that keeps x positive."""
    return STEP_SHARE / (-change / x).amax().clamp(min=STEP_SHARE)
