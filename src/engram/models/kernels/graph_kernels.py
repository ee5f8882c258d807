"""Triton kernels of the graph network's elementwise work; imported on CUDA only.

The operations themselves, and what each argument is, are in ``graph_ops``. All tensors are dense
float32 with the runs first. Sums over rows are made in parts [R, S, W], one per program, and
finished by the caller: no atomic additions, so that results repeat bit by bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# mypy: disable-error-code="no-untyped-def, untyped-decorator"


TILE = 2048  # entries that a program holds at once
PROGRAMS = 4096  # about as many as keep every processor of a large GPU busy


@triton.jit
def _activate(near, far, bias, shift, at, ok):
    a = tl.load(near + at, mask=ok, other=0.0) + bias[None, :]
    b = tl.load(far + at, mask=ok, other=0.0) + shift[None, :]
    return a, b, tl.maximum(a, 0.0) + tl.maximum(b, 0.0)


@triton.jit
def _moments(
    near, far, bias, shift, real, means, squares, counts, N, V, W, CHUNK,
    ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Count, mean and squared deviations of the real rows of a chunk (Chan's combination)."""
    run, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    w = tl.arange(0, WIDE)
    inside = w < W
    b = tl.load(bias + run * W + w, mask=inside, other=0.0)
    c = tl.load(shift + run * W + w, mask=inside, other=0.0)
    count = 0.0
    mean = tl.zeros([WIDE], tl.float32)
    square = tl.zeros([WIDE], tl.float32)
    begin = part * CHUNK
    end = tl.minimum(begin + CHUNK, N)
    for start in range(begin, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        valid = rows < end
        counts_here = tl.load(real + run * (N // V) + rows // V, mask=valid, other=0.0)
        ok = valid[:, None] & inside[None, :]
        at = (run * N + rows)[:, None] * W + w[None, :]
        _, _, h = _activate(near, far, b, c, at, ok)
        keep = (counts_here[:, None] > 0) & ok
        some = tl.sum(counts_here, 0)
        new = tl.sum(tl.where(keep, h, 0.0), 0) / tl.maximum(some, 1.0)
        apart = tl.where(keep, h - new[None, :], 0.0)
        total = tl.maximum(count + some, 1.0)
        move = new - mean
        square += tl.sum(apart * apart, 0) + move * move * (count * some / total)
        mean += move * (some / total)
        count += some
    place = run * parts + part
    tl.store(means + place * W + w, mean, mask=inside)
    tl.store(squares + place * W + w, square, mask=inside)
    tl.store(counts + place, count)


@triton.jit
def _normalise(
    near, far, bias, shift, mean, scale, beta, y, N, W, ROWS: tl.constexpr, WIDE: tl.constexpr
):
    run, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    w = tl.arange(0, WIDE)
    inside = w < W
    own = run * W + w
    b = tl.load(bias + own, mask=inside, other=0.0)
    c = tl.load(shift + own, mask=inside, other=0.0)
    m = tl.load(mean + own, mask=inside, other=0.0)
    s = tl.load(scale + own, mask=inside, other=0.0)
    t = tl.load(beta + own, mask=inside, other=0.0)
    rows = block * ROWS + tl.arange(0, ROWS)
    ok = (rows < N)[:, None] & inside[None, :]
    at = (run * N + rows)[:, None] * W + w[None, :]
    _, _, h = _activate(near, far, b, c, at, ok)
    tl.store(y + at, (h - m[None, :]) * s[None, :] + t[None, :], mask=ok)


@triton.jit
def _products(
    dy, near, far, bias, shift, mean, sums, products, N, W, CHUNK,
    ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sums of dy and of dy (h - mean) over a chunk."""
    run, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    w = tl.arange(0, WIDE)
    inside = w < W
    own = run * W + w
    b = tl.load(bias + own, mask=inside, other=0.0)
    c = tl.load(shift + own, mask=inside, other=0.0)
    m = tl.load(mean + own, mask=inside, other=0.0)
    total = tl.zeros([WIDE], tl.float32)
    product = tl.zeros([WIDE], tl.float32)
    begin = part * CHUNK
    end = tl.minimum(begin + CHUNK, N)
    for start in range(begin, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        ok = (rows < end)[:, None] & inside[None, :]
        at = (run * N + rows)[:, None] * W + w[None, :]
        _, _, h = _activate(near, far, b, c, at, ok)
        g = tl.load(dy + at, mask=ok, other=0.0)
        total += tl.sum(g, 0)
        product += tl.sum(g * (h - m[None, :]), 0)
    place = (run * parts + part) * W + w
    tl.store(sums + place, total, mask=inside)
    tl.store(products + place, product, mask=inside)


@triton.jit
def _mix_backward(
    dy, near, far, bias, shift, real, mean, level, slope, scale, dnear, dfar, dbias, dshift,
    N, V, W, CHUNK, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Take dy back to both inputs, and their sums over a chunk."""
    run, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    w = tl.arange(0, WIDE)
    inside = w < W
    own = run * W + w
    b = tl.load(bias + own, mask=inside, other=0.0)
    c = tl.load(shift + own, mask=inside, other=0.0)
    m = tl.load(mean + own, mask=inside, other=0.0)
    u = tl.load(level + own, mask=inside, other=0.0)
    v = tl.load(slope + own, mask=inside, other=0.0)
    s = tl.load(scale + own, mask=inside, other=0.0)
    first = tl.zeros([WIDE], tl.float32)
    second = tl.zeros([WIDE], tl.float32)
    begin = part * CHUNK
    end = tl.minimum(begin + CHUNK, N)
    for start in range(begin, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        valid = rows < end
        counts_here = tl.load(real + run * (N // V) + rows // V, mask=valid, other=0.0)
        ok = valid[:, None] & inside[None, :]
        at = (run * N + rows)[:, None] * W + w[None, :]
        one, two, h = _activate(near, far, b, c, at, ok)
        g = tl.load(dy + at, mask=ok, other=0.0)
        through = counts_here[:, None] * (u[None, :] + (h - m[None, :]) * v[None, :])
        d = through + g * s[None, :]
        a = tl.where((one > 0) & ok, d, 0.0)
        e = tl.where((two > 0) & ok, d, 0.0)
        tl.store(dnear + at, a, mask=ok)
        tl.store(dfar + at, e, mask=ok)
        first += tl.sum(a, 0)
        second += tl.sum(e, 0)
    place = (run * parts + part) * W + w
    tl.store(dbias + place, first, mask=inside)
    tl.store(dshift + place, second, mask=inside)


@triton.jit
def _read(z, weight, offset, total, top, B, V, W, JOINTS: tl.constexpr, WIDE: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    run = place // B
    v, w = tl.arange(0, JOINTS), tl.arange(0, WIDE)
    inside = w < W
    ok = (v < V)[:, None] & inside[None, :]
    x = tl.load(z + (place * V + v)[:, None] * W + w[None, :], mask=ok, other=0.0)
    g = tl.load(weight + run * W + w, mask=inside, other=0.0)
    gate = tl.sigmoid(tl.sum(x * g[None, :], 1) + tl.load(offset + run))
    tl.store(total + place * W + w, tl.sum(gate[:, None] * x, 0), mask=inside)
    most = tl.max(tl.where(ok, x, float("-inf")), 0)
    tl.store(top + place * W + w, most, mask=inside)


@triton.jit
def _read_backward(
    dtotal, dtop, z, weight, offset, dz, dweight, doffset, B, V, W,
    JOINTS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64)
    run = place // B
    v, w = tl.arange(0, JOINTS), tl.arange(0, WIDE)
    inside = w < W
    ok = (v < V)[:, None] & inside[None, :]
    at = (place * V + v)[:, None] * W + w[None, :]
    x = tl.load(z + at, mask=ok, other=0.0)
    g = tl.load(weight + run * W + w, mask=inside, other=0.0)
    gate = tl.sigmoid(tl.sum(x * g[None, :], 1) + tl.load(offset + run))
    d = tl.load(dtotal + place * W + w, mask=inside, other=0.0)
    e = tl.load(dtop + place * W + w, mask=inside, other=0.0)
    here = (x == tl.max(tl.where(ok, x, float("-inf")), 0)[None, :]) & ok
    ties = tl.maximum(tl.sum(here.to(tl.float32), 0), 1.0)
    into = tl.sum(x * d[None, :], 1) * gate * (1 - gate)  # slope of each joint's gate
    into = tl.where(v < V, into, 0.0)
    found = gate[:, None] * d[None, :] + into[:, None] * g[None, :]
    tl.store(dz + at, found + tl.where(here, (e / ties)[None, :], 0.0), mask=ok)
    tl.store(dweight + place * W + w, tl.sum(into[:, None] * x, 0), mask=inside)
    tl.store(doffset + place, tl.sum(into, 0))


# -- launches --------------------------------------------------------------------------------------
class _Tiling:
    """How [R, B, V, W] is cut into programs."""

    def __init__(self, x: Tensor) -> None:
        self.R, B, self.V, self.W = x.shape
        self.N = B * self.V
        wide = triton.next_power_of_2(self.W)
        self.tile: dict[str, Any] = {"ROWS": max(1, TILE // wide), "WIDE": wide}
        parts = max(1, min(PROGRAMS // self.R, triton.cdiv(self.N, 2 * self.tile["ROWS"])))
        self.chunk = triton.cdiv(triton.cdiv(self.N, parts), self.tile["ROWS"]) * self.tile["ROWS"]
        self.parts = triton.cdiv(self.N, self.chunk)
        self.grid = (self.R, self.parts)
        self.blocks = (self.R, triton.cdiv(self.N, self.tile["ROWS"]))

    def partial(self, like: Tensor) -> Tensor:
        return like.new_empty(self.R, self.parts, self.W)


def mix(
    near: Tensor, far: Tensor, bias: Tensor, shift: Tensor, real: Tensor, weight: Tensor,
    beta: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """See ``graph_ops.plain_mix``."""
    cut = _Tiling(near)
    means, squares = cut.partial(near), cut.partial(near)
    counts = near.new_empty(cut.R, cut.parts, 1)
    _moments[cut.grid](
        near, far, bias, shift, real, means, squares, counts, cut.N, cut.V, cut.W, cut.chunk,
        **cut.tile,
    )  # fmt: skip
    count = counts.sum(1).clamp(min=1)  # [R, 1]
    mean = (counts * means).sum(1) / count
    var = (squares + counts * (means - mean[:, None]).square()).sum(1) / count
    scale = (var + eps).rsqrt() * weight
    y = torch.empty_like(near)
    _normalise[cut.blocks](
        near, far, bias, shift, mean, scale, beta, y, cut.N, cut.W, **cut.tile
    )  # fmt: skip
    return y, mean, var


def mix_back(
    dy: Tensor, dmean: Tensor, dvar: Tensor, near: Tensor, far: Tensor, bias: Tensor,
    shift: Tensor, real: Tensor, weight: Tensor, mean: Tensor, var: Tensor, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """See ``graph_ops.plain_mix_back``."""
    cut = _Tiling(near)
    sums, products = cut.partial(near), cut.partial(near)
    _products[cut.grid](
        dy, near, far, bias, shift, mean, sums, products, cut.N, cut.W, cut.chunk, **cut.tile
    )
    dbeta, product = sums.sum(1), products.sum(1)
    rstd = (var + eps).rsqrt()
    count = (real.sum(1, keepdim=True) * cut.V).clamp(min=1)
    level = (dmean - rstd * weight * dbeta) / count
    slope = (2 * dvar - product * weight * rstd**3) / count
    dnear, dfar = torch.empty_like(near), torch.empty_like(far)
    dbias, dshift = cut.partial(near), cut.partial(near)
    _mix_backward[cut.grid](
        dy, near, far, bias, shift, real, mean, level, slope, rstd * weight, dnear, dfar, dbias,
        dshift, cut.N, cut.V, cut.W, cut.chunk, **cut.tile,
    )  # fmt: skip
    return dnear, dfar, dbias.sum(1), dshift.sum(1), product * rstd, dbeta


def read(z: Tensor, weight: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """See ``graph_ops.plain_read``."""
    R, B, V, W = z.shape
    total, top = z.new_empty(R, B, W), z.new_empty(R, B, W)
    _read[(R * B,)](z, weight, offset, total, top, B, V, W, **_joints(V, W))
    return total, top


def read_back(
    dtotal: Tensor, dtop: Tensor, z: Tensor, weight: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``graph_ops.plain_read_back``."""
    R, B, V, W = z.shape
    dz, dweight, doffset = torch.empty_like(z), z.new_empty(R, B, W), z.new_empty(R, B)
    _read_backward[(R * B,)](
        dtotal, dtop, z, weight, offset, dz, dweight, doffset, B, V, W, **_joints(V, W)
    )
    return dz, dweight.sum(1), doffset.sum(1)


def _joints(V: int, W: int) -> dict[str, Any]:
    return {"JOINTS": triton.next_power_of_2(V), "WIDE": triton.next_power_of_2(W)}
