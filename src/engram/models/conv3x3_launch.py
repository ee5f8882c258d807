"""Launches of the kernels of 3 x 3 convolutions; imported on CUDA only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from engram.models import conv3x3_kernels as kernels
from engram.models import norm_pool_kernels
from engram.models.norm_pool_launch import _Cut

SOME, FEW = 256, 4  # tiles and channels that a program settles at once
NORM = Sequence[Tensor]  # mean, 1 / deviation, factor, offset; each [C]


class Tile(NamedTuple):
    """How a convolution is cut: pixels and channels of a program, taps at once, loop, warps."""

    rows: int
    cols: int
    span: int
    stages: int
    warps: int


class Parts(NamedTuple):
    """How a weights' gradient is cut: pixels at once, taps, groups of a program, programs."""

    rows: int
    span: int
    groups: int
    stages: int
    warps: int
    parts: int


TILES = {  # by the channels that go in and come out
    (3, 16): Tile(128, 16, 3, 0, 4),
    (16, 16): Tile(256, 16, 1, 0, 4),
    (32, 32): Tile(128, 32, 1, 0, 4),
    (64, 64): Tile(64, 64, 1, 4, 4),
    (16, 32): Tile(128, 32, 3, 0, 4),
    (32, 64): Tile(64, 32, 1, 4, 4),
}
TURNED = {  # back; at stride 2 one tap at a time
    (16, 16): TILES[16, 16],
    (32, 32): TILES[32, 32],
    (64, 64): TILES[64, 64],
    (32, 16): Tile(128, 16, 1, 4, 4),
    (64, 32): Tile(64, 32, 1, 4, 4),
}
ONE = Tile(64, 64, 1, 2, 4)  # filters of one tap
PARTS = {
    (3, 16): Parts(128, 3, 3, 2, 4, 264),
    (16, 16): Parts(64, 3, 3, 3, 4, 264),
    (32, 32): Parts(64, 3, 1, 3, 4, 88),
    (64, 64): Parts(64, 1, 1, 3, 4, 28),
    (16, 32): Parts(64, 3, 3, 2, 4, 132),
    (32, 64): Parts(64, 3, 1, 2, 4, 44),
}
ONE_PARTS = Parts(64, 1, 1, 2, 4, 64)


def tile_of(C: int, N: int, size: int, turned: bool) -> Tile:
    """How a convolution is cut where nothing else is said."""
    found = ONE if size == 1 else (TURNED if turned else TILES)[C, N]
    return found._replace(cols=min(found.cols, triton.next_power_of_2(N)))


def _fit(rows: int, pixels: int, H: int, W: int) -> dict[str, Any]:
    """How tiles lie in images of H x W, and whether they are all full."""
    fit = kernels.NEITHER
    if H * W % rows == 0 and rows % W == 0:
        fit = kernels.TILES_IN_IMAGE
    elif rows % (H * W) == 0:
        fit = kernels.IMAGES_IN_TILE
    return {"FIT": fit.value, "EVEN": pixels % rows == 0}


def strides(weight: Tensor) -> tuple[int, int, int]:
    """Of inputs, outputs and taps in weights [N, C, size, size] whose taps lie evenly."""
    return weight.stride(1), weight.stride(0), weight.stride(3)


def pack(weight: Tensor, kind: torch.dtype) -> Tensor:
    """Weights [N, C, size, size] of a kind, laid in memory as [size, size, C, N]."""
    N, C, *size = weight.shape
    packed = weight.new_empty((*size, C, N), dtype=kind)
    few, taps = 256, size[0] * size[1]
    grid = (triton.cdiv(taps * C * N, few),)
    kernels._pack[grid](weight, packed, *strides(weight), C=C, N=N, TAPS=taps, FEW=few)
    return packed.permute(3, 2, 0, 1)


class Conv(NamedTuple):
    """An answer [N, C, H, W], and sums over the pixels of each tile [tiles, C] where asked for."""

    y: Tensor
    one: Tensor
    two: Tensor
    tile: Tile


def convolve(
    x: Tensor, weight: Tensor, *, stride: int = 1, turned: bool = False, moments: bool = False,
    add: Tensor | None = None, slopes: tuple[Tensor, NORM] | None = None,
    kind: torch.dtype | None = None, tile: Tile | None = None,
) -> Conv:  # fmt: skip
    """Convolution of images x, 3 x 3 with a border of zeros or 1 x 1; `turned`: its way back.

    `stride` 2 halves the images, which have an even size, and `turned` doubles them.

    `moments` asks for the means of tiles and the sums of their squared deviations; `add` is added;
    `slopes` (z, norm) for the sums of what passes a ReLU behind a batch norm of z, and of its
    products with z - mean.
    """
    images, C, H, W = x.shape
    N, size = weight.shape[1 if turned else 0], weight.shape[2]
    H, W = (H * stride, W * stride) if turned else (H // stride, W // stride)
    tile = tile_of(C, N, size, turned) if tile is None else tile
    of_k, of_n, of_tap = strides(weight)
    of_k, of_n = (of_n, of_k) if turned else (of_k, of_n)
    pixels = images * H * W
    tiles = triton.cdiv(pixels, tile.rows)
    y = torch.empty(
        (images, N, H, W), dtype=kind or x.dtype, device=x.device,
        memory_format=torch.channels_last,
    )  # fmt: skip
    after, other = kernels.NOTHING, y
    norm: NORM = (weight,) * 4
    if moments:
        after = kernels.MOMENTS
    elif add is not None:
        after, other = kernels.SUM, add
    elif slopes is not None:
        after, (other, norm) = kernels.SLOPES, slopes
    sums = bool(moments or slopes)
    one, two = torch.empty((2, tiles if sums else 0, N), device=x.device).unbind()
    kernels._convolve[(tiles, triton.cdiv(N, tile.cols))](
        x, weight, y, other, *norm, one, two, pixels, of_k, of_n, of_tap,
        H=H, W=W, C=C, N=N, TILE=tile.rows, COLS=tile.cols, SPAN=tile.span,
        WIDE=triton.next_power_of_2(tile.span * C), STAGES=tile.stages, SIZE=size,
        STRIDE=stride, TURNED=turned, AFTER=after.value, **_fit(tile.rows, pixels, H, W),
        num_warps=tile.warps,
    )  # fmt: skip
    return Conv(y, one, two, tile)


def settle(
    conv: Conv, running: tuple[Tensor, Tensor], momentum: float, eps: float
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / deviation [C] of the batch; moves the running statistics."""
    images, N, H, W = conv.y.shape
    pixels = images * H * W
    mean, rstd = running[0].new_empty(2, N).unbind()
    kernels._settle[(triton.cdiv(N, FEW),)](
        conv.one, conv.two, mean, rstd, *running, pixels, len(conv.one), float(pixels), eps,
        momentum, N=N, TILE=conv.tile.rows, SOME=SOME, FEW=FEW,
    )  # fmt: skip
    return mean, rstd


def through_norm(conv: Conv, z: Tensor, norm: NORM) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of z, of factor and offset of a batch norm of z with ReLU, by the sums of `conv`.

    Its answer is the gradient of what the ReLU gave.
    """
    cut, (mean, rstd, gamma, beta), tiles = _Cut(z, False), norm, len(conv.one)
    dgamma, dbeta, level, slope = gamma.new_empty(4, cut.C).unbind()
    norm_pool_kernels._gather[cut.few](
        conv.one, conv.two, rstd, dgamma, dbeta, level, slope, tiles, float(cut.pixels),
        C=cut.C, SOME=SOME, FEW=FEW,
    )  # fmt: skip
    dz = torch.empty_like(z)
    norm_pool_kernels._backward[(triton.cdiv(cut.pixels, cut.windows),)](
        z, z, conv.y, dz, dz, mean, rstd, gamma, beta, 0.0, 0, level, slope, cut.pixels,
        cut.H, cut.W, cut.H, cut.W, cut.H, cut.W, **cut.of_windows,
    )  # fmt: skip
    return dz, dgamma, dbeta


def weight_slope(
    x: Tensor, dy: Tensor, weight: Tensor, *, stride: int = 1, cut: Parts | None = None
) -> Tensor:
    """Gradient of the weights, laid as they are."""
    C, (images, N, H, W), size = x.shape[1], dy.shape, weight.shape[2]
    if cut is None:
        cut = ONE_PARTS if size == 1 else PARTS[C, N]
    pixels, taps = images * H * W, size * size
    tiles = triton.cdiv(pixels, cut.rows)
    chunk = triton.cdiv(tiles, cut.parts)
    parts = triton.cdiv(tiles, chunk)
    sums = torch.empty((parts, taps, C, N), device=x.device)
    kernels._weight_parts[(parts, triton.cdiv(taps, cut.span * cut.groups))](
        x, dy, sums, pixels, chunk,
        H=H, W=W, C=C, N=N, TILE=cut.rows, COLS=triton.next_power_of_2(N), SPAN=cut.span,
        WIDE=triton.next_power_of_2(cut.span * C), GROUPS=cut.groups, STAGES=cut.stages,
        SIZE=size, STRIDE=stride, **_fit(cut.rows, pixels, H, W), num_warps=cut.warps,
    )  # fmt: skip
    slope = torch.empty_like(weight, dtype=torch.float32)
    few = max(16, min(256, taps * C * N // 144))
    few = triton.next_power_of_2(few)
    kernels._weight_total[(triton.cdiv(taps * C * N, few),)](
        sums, slope, parts, *strides(slope), C=C, N=N, TAPS=taps, SOME=4096 // few, FEW=few
    )
    return slope
