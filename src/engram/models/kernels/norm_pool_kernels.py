"""Triton kernels of batch norm, sum, ReLU and 2 x 2 pooling, and their launches; imported on
CUDA only. (keep the paragraphs that follow)

What they compute is in ``norm_pool``. Images lie in memory with the channels last, as [M, C]. A
window is what one answer comes from: a pixel, or 2 x 2 of them, its CORNERS. Sums over rows are
made in parts, one per program, and finished by a small kernel: no atomic additions, so that results
repeat bit by bit. Channels are constants of a kernel; sizes of batches and images are not, nor the
`floor` of an answer (0: a ReLU, else minus infinity) and to how many pixels a shortcut `adds` (all
or none), so that one serves all.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# mypy: disable-error-code="no-untyped-def, untyped-decorator"


@triton.jit(do_not_specialize=["M", "CHUNK"])
def _moments(
    x, first, second, M, CHUNK,
    C: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sums of a chunk's deviations from the first row, and of their squares."""
    part = tl.program_id(0)
    c = tl.arange(0, WIDE)
    inside = c < C
    base = tl.load(x + c, mask=inside, other=0.0).to(tl.float32)
    one = tl.zeros([ROWS, WIDE], tl.float32)
    two = tl.zeros([ROWS, WIDE], tl.float32)
    begin = part * CHUNK
    end = tl.minimum(begin + CHUNK, M)
    for start in range(begin, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        ok = (rows < end)[:, None] & inside[None, :]
        v = tl.load(x + rows[:, None] * C + c[None, :], mask=ok, other=0.0).to(tl.float32)
        d = tl.where(ok, v - base[None, :], 0.0)
        one += d
        two += d * d
    tl.store(first + part * C + c, tl.sum(one, 0), mask=inside)
    tl.store(second + part * C + c, tl.sum(two, 0), mask=inside)


@triton.jit
def _total(sums, parts, c, inside, C: tl.constexpr, SOME: tl.constexpr, FEW: tl.constexpr):
    found = tl.zeros([SOME, FEW], tl.float32)
    for start in range(0, parts, SOME):
        p = start + tl.arange(0, SOME)
        ok = (p < parts)[:, None] & inside[None, :]
        found += tl.load(sums + p[:, None] * C + c[None, :], mask=ok, other=0.0)
    return tl.sum(found, 0)


@triton.jit(do_not_specialize=["parts"])
def _settle(
    x, first, second, offset, mean, rstd, running_mean, running_var, parts, M, eps, momentum,
    C: tl.constexpr, SOME: tl.constexpr, FEW: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / deviation of the batch, and what they make of the running statistics."""
    c = tl.program_id(0) * FEW + tl.arange(0, FEW)
    inside = c < C
    away = _total(first, parts, c, inside, C, SOME, FEW) / M
    var = tl.maximum(_total(second, parts, c, inside, C, SOME, FEW) / M - away * away, 0.0)
    m = tl.load(x + c, mask=inside, other=0.0).to(tl.float32) + away
    tl.store(mean + c, m, mask=inside)
    tl.store(rstd + c, 1.0 / tl.sqrt(var + eps), mask=inside)
    if ADDS:
        m += tl.load(offset + c, mask=inside, other=0.0)
    old = tl.load(running_mean + c, mask=inside, other=0.0)
    tl.store(running_mean + c, old + momentum * (m - old), mask=inside)
    old = tl.load(running_var + c, mask=inside, other=0.0)
    tl.store(running_var + c, old + momentum * (var * (M / (M - 1.0)) - old), mask=inside)


@triton.jit
def _factors(mean, rstd, weight, beta, c, inside):
    m = tl.load(mean + c, mask=inside, other=0.0)
    s = tl.load(rstd + c, mask=inside, other=0.0) * tl.load(weight + c, mask=inside, other=0.0)
    return m, s, tl.load(beta + c, mask=inside, other=0.0)


@triton.jit
def _corner(x, at, ok, k, W, C: tl.constexpr):
    return tl.load(x + at + ((k // 2) * W + k % 2) * C, mask=ok, other=0.0).to(tl.float32)


@triton.jit
def _places(i, H, W, HP, WP, C: tl.constexpr, CORNERS: tl.constexpr):
    """Where the windows i begin."""
    row = i
    if CORNERS == 4:
        r = i % (HP * WP)
        row = (i // (HP * WP) * H + 2 * (r // WP)) * W + 2 * (r % WP)
    return row * C


@triton.jit
def _read_shortcut(shortcut, own, i, ok, adds, CORNERS: tl.constexpr):
    """What the shortcut adds to pixels; nothing is read where there is none."""
    found = 0.0
    if CORNERS == 1:
        mask = (i < adds)[:, None] & ok
        found = tl.load(shortcut + own, mask=mask, other=0.0).to(tl.float32)
    return found


@triton.jit(do_not_specialize=["adds", "windows", "H", "W", "HP", "WP"])
def _forward(
    x, shortcut, y, mean, rstd, weight, beta, floor, adds, windows, H, W, HP, WP,
    C: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    CORNERS: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, WIDE)
    inside = c < C
    m, s, t = _factors(mean, rstd, weight, beta, c, inside)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ok = (i < windows)[:, None] & inside[None, :]
    at = _places(i, H, W, HP, WP, C, CORNERS)[:, None] + c[None, :]
    own = i[:, None] * C + c[None, :]
    best = tl.zeros([ROWS, WIDE], tl.float32) + floor
    for k in tl.static_range(CORNERS):
        z = (_corner(x, at, ok, k, W, C) - m[None, :]) * s[None, :] + t[None, :]
        z += _read_shortcut(shortcut, own, i, ok, adds, CORNERS)
        best = tl.where(z != z, z, tl.maximum(best, z))  # what is no number stays none
    tl.store(y + own, best, mask=ok)


@triton.jit(do_not_specialize=["adds", "windows", "CHUNK", "H", "W", "HP", "WP"])
def _sum_gradients(
    x, shortcut, dy, mean, rstd, weight, beta, floor, adds, first, second, windows, CHUNK,
    H, W, HP, WP,
    C: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    CORNERS: tl.constexpr,
):  # fmt: skip
    """Sums over a chunk of the slopes that pass, and of their products with x - mean."""
    part = tl.program_id(0)
    c = tl.arange(0, WIDE)
    inside = c < C
    m, s, t = _factors(mean, rstd, weight, beta, c, inside)
    one = tl.zeros([ROWS, WIDE], tl.float32)
    two = tl.zeros([ROWS, WIDE], tl.float32)
    begin = part * CHUNK
    end = tl.minimum(begin + CHUNK, windows)
    for start in range(begin, end, ROWS):
        i = start + tl.arange(0, ROWS)
        ok = (i < end)[:, None] & inside[None, :]
        at = _places(i, H, W, HP, WP, C, CORNERS)[:, None] + c[None, :]
        own = i[:, None] * C + c[None, :]
        best = tl.zeros([ROWS, WIDE], tl.float32) + floor
        of = tl.zeros([ROWS, WIDE], tl.float32)
        for k in tl.static_range(CORNERS):
            v = _corner(x, at, ok, k, W, C) - m[None, :]
            z = v * s[None, :] + t[None, :]
            z += _read_shortcut(shortcut, own, i, ok, adds, CORNERS)
            of = tl.where(z > best, v, of)
            best = tl.maximum(best, z)
        g = tl.load(dy + own, mask=ok, other=0.0).to(tl.float32)
        g = tl.where(best > floor, g, 0.0)
        one += g
        two += g * of
    tl.store(first + part * C + c, tl.sum(one, 0), mask=inside)
    tl.store(second + part * C + c, tl.sum(two, 0), mask=inside)


@triton.jit(do_not_specialize=["parts"])
def _gather(
    first, second, rstd, dweight, dbeta, level, slope, parts, M,
    C: tl.constexpr, SOME: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(0) * FEW + tl.arange(0, FEW)
    inside = c < C
    r = tl.load(rstd + c, mask=inside, other=0.0)
    one = _total(first, parts, c, inside, C, SOME, FEW)
    two = _total(second, parts, c, inside, C, SOME, FEW)
    tl.store(dbeta + c, one, mask=inside)
    tl.store(dweight + c, two * r, mask=inside)
    tl.store(level + c, one / M, mask=inside)
    tl.store(slope + c, two * r * r / M, mask=inside)


@triton.jit(do_not_specialize=["adds", "windows", "H", "W", "HP", "WP", "HC", "WC"])
def _backward(
    x, shortcut, dy, dx, dshortcut, mean, rstd, weight, beta, floor, adds, level, slope, windows,
    H, W, HP, WP, HC, WC,
    C: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    CORNERS: tl.constexpr,
):  # fmt: skip
    """Windows at an odd edge have no answer, but their pixels were normalised with the rest."""
    c = tl.arange(0, WIDE)
    inside = c < C
    m, s, t = _factors(mean, rstd, weight, beta, c, inside)
    u = tl.load(level + c, mask=inside, other=0.0)
    q = tl.load(slope + c, mask=inside, other=0.0)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = i < windows
    h = i % (HC * WC) // WC
    w = i % WC
    whole = valid
    into = i
    if CORNERS == 4:
        whole = valid & (h < HP) & (w < WP)
        into = (i // (HC * WC) * HP + h) * WP + w
    at = _places(i, H, W, HC, WC, C, CORNERS)[:, None] + c[None, :]
    full = whole[:, None] & inside[None, :]
    own = into[:, None] * C + c[None, :]
    best = tl.zeros([ROWS, WIDE], tl.float32) + floor
    which = tl.zeros([ROWS, WIDE], tl.int32) - 1
    for k in tl.static_range(CORNERS):
        z = (_corner(x, at, full, k, W, C) - m[None, :]) * s[None, :] + t[None, :]
        z += _read_shortcut(shortcut, own, i, full, adds, CORNERS)
        which = tl.where(z > best, k, which)
        best = tl.maximum(best, z)
    g = tl.load(dy + own, mask=full, other=0.0).to(tl.float32)
    if CORNERS == 1:
        through = tl.where(best > floor, g, 0.0)
        tl.store(dshortcut + own, through, mask=(i < adds)[:, None] & full)
    for k in tl.static_range(CORNERS):
        there = valid
        if CORNERS == 4:
            there = valid & (2 * h + k // 2 < H) & (2 * w + k % 2 < W)
        here = there[:, None] & inside[None, :]
        v = _corner(x, at, here, k, W, C) - m[None, :]
        d = s[None, :] * (tl.where(which == k, g, 0.0) - u[None, :] - v * q[None, :])
        tl.store(dx + at + ((k // 2) * W + k % 2) * C, d, mask=here)


# -- launching the kernels of batch norm and pooling -----------------------------------------------

TILE = 4096  # entries that a program holds at once
PARTS = 528  # programs of a sum: four for each processor of a large GPU
FEW, SOME = 4, 256  # channels and parts that a program finishes at once


class _ImageTiling:
    """How images [N, C, H, W] are cut into programs."""

    def __init__(self, x: Tensor, pool: bool) -> None:
        self.N, self.C, self.H, self.W = x.shape
        self.pixels = self.N * self.H * self.W
        self.HP, self.WP = (self.H // 2, self.W // 2) if pool else (self.H, self.W)
        self.HC, self.WC = ((self.H + 1) // 2, (self.W + 1) // 2) if pool else (self.H, self.W)
        wide = triton.next_power_of_2(self.C)
        self.tile: dict[str, Any] = {"C": self.C, "WIDE": wide}
        self.rows = max(1, TILE // wide)  # pixels
        self.windows = max(1, TILE // 2 // wide) if pool else self.rows
        corners = 4 if pool else 1
        self.of_windows = {"ROWS": self.windows, "CORNERS": corners, **self.tile}

    def chunks(self, count: int, rows: int) -> tuple[int, int]:
        """Rows of a part, and how many parts."""
        chunk = triton.cdiv(triton.cdiv(count, PARTS), rows) * rows
        return chunk, triton.cdiv(count, chunk)

    @property
    def few(self) -> tuple[int]:
        return (triton.cdiv(self.C, FEW),)


def statistics(
    x: Tensor, offset: Tensor | None, running_mean: Tensor, running_var: Tensor, momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and 1 / deviation [C] of the batch; moves the running ones."""
    cut, new = _ImageTiling(x, False), running_mean.new_empty
    chunk, parts = cut.chunks(cut.pixels, cut.rows)
    first, second = new(parts, cut.C), new(parts, cut.C)
    _moments[(parts,)](x, first, second, cut.pixels, chunk, ROWS=cut.rows, **cut.tile)
    mean, rstd = new(2, cut.C).unbind()
    _settle[cut.few](
        x, first, second, mean if offset is None else offset, mean, rstd, running_mean, running_var,
        parts, float(cut.pixels), eps, momentum, C=cut.C, SOME=SOME, FEW=FEW,
        ADDS=offset is not None,
    )  # fmt: skip
    return mean, rstd


def forward(
    x: Tensor, shortcut: Tensor | None, mean: Tensor, rstd: Tensor, weight: Tensor, beta: Tensor,
    relu: bool, pool: bool,
) -> Tensor:  # fmt: skip
    """[N, C, H, W] or half of H and W."""
    cut = _ImageTiling(x, pool)
    shape = (cut.N, cut.C, cut.HP, cut.WP)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    windows = cut.N * cut.HP * cut.WP
    _forward[(triton.cdiv(windows, cut.windows),)](
        x, y if shortcut is None else shortcut, y, mean, rstd, weight, beta,
        0.0 if relu else -math.inf, 0 if shortcut is None else windows, windows,
        cut.H, cut.W, cut.HP, cut.WP, **cut.of_windows,
    )  # fmt: skip
    return y


def backward(
    dy: Tensor, x: Tensor, shortcut: Tensor | None, mean: Tensor, rstd: Tensor, weight: Tensor,
    beta: Tensor, relu: bool, pool: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, of the shortcut, of weight and beta."""
    cut = _ImageTiling(x, pool)
    windows = cut.N * cut.HP * cut.WP
    chunk, parts = cut.chunks(windows, cut.windows)
    added = dy if shortcut is None else shortcut
    first, second = weight.new_empty(parts, cut.C), weight.new_empty(parts, cut.C)
    floor, adds = 0.0 if relu else -math.inf, 0 if shortcut is None else windows
    own = (mean, rstd, weight, beta, floor, adds)
    _sum_gradients[(parts,)](
        x, added, dy, *own, first, second, windows, chunk, cut.H, cut.W, cut.HP, cut.WP,
        **cut.of_windows,
    )  # fmt: skip
    dweight, dbeta, level, slope = weight.new_empty(4, cut.C).unbind()
    _gather[cut.few](
        first, second, rstd, dweight, dbeta, level, slope, parts, float(cut.pixels),
        C=cut.C, SOME=SOME, FEW=FEW,
    )  # fmt: skip
    dx, windows = torch.empty_like(x), cut.N * cut.HC * cut.WC
    through = None if shortcut is None else torch.empty_like(dy)
    _backward[(triton.cdiv(windows, cut.windows),)](
        x, added, dy, dx, dx if through is None else through, *own, level, slope, windows,
        cut.H, cut.W, cut.HP, cut.WP, cut.HC, cut.WC, **cut.of_windows,
    )  # fmt: skip
    return dx, through, dweight, dbeta
