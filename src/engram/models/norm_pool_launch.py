"""Launches of the kernels of batch norm and pooling; imported on CUDA only."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from engram.models import norm_pool_kernels as kernels

TILE = 4096  # entries that a program holds at once
PARTS = 528  # programs of a sum: four for each processor of a large GPU
FEW, SOME = 4, 256  # channels and parts that a program finishes at once


class _Cut:
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
    cut, new = _Cut(x, False), running_mean.new_empty
    chunk, parts = cut.chunks(cut.pixels, cut.rows)
    first, second = new(parts, cut.C), new(parts, cut.C)
    kernels._moments[(parts,)](x, first, second, cut.pixels, chunk, ROWS=cut.rows, **cut.tile)
    mean, rstd = new(2, cut.C).unbind()
    kernels._settle[cut.few](
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
    cut = _Cut(x, pool)
    shape = (cut.N, cut.C, cut.HP, cut.WP)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    windows = cut.N * cut.HP * cut.WP
    kernels._forward[(triton.cdiv(windows, cut.windows),)](
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
    cut = _Cut(x, pool)
    windows = cut.N * cut.HP * cut.WP
    chunk, parts = cut.chunks(windows, cut.windows)
    added = dy if shortcut is None else shortcut
    first, second = weight.new_empty(parts, cut.C), weight.new_empty(parts, cut.C)
    floor, adds = 0.0 if relu else -math.inf, 0 if shortcut is None else windows
    own = (mean, rstd, weight, beta, floor, adds)
    kernels._slopes[(parts,)](
        x, added, dy, *own, first, second, windows, chunk, cut.H, cut.W, cut.HP, cut.WP,
        **cut.of_windows,
    )  # fmt: skip
    dweight, dbeta, level, slope = weight.new_empty(4, cut.C).unbind()
    kernels._gather[cut.few](
        first, second, rstd, dweight, dbeta, level, slope, parts, float(cut.pixels),
        C=cut.C, SOME=SOME, FEW=FEW,
    )  # fmt: skip
    dx, windows = torch.empty_like(x), cut.N * cut.HC * cut.WC
    through = None if shortcut is None else torch.empty_like(dy)
    kernels._backward[(triton.cdiv(windows, cut.windows),)](
        x, added, dy, dx, dx if through is None else through, *own, level, slope, windows,
        cut.H, cut.W, cut.HP, cut.WP, cut.HC, cut.WC, **cut.of_windows,
    )  # fmt: skip
    return dx, through, dweight, dbeta
