"""Residual blocks of few channels by kernels of our own on CUDA, forwards and backwards.

Batch norms have their sums from the convolutions around them (``conv3x3_kernels``) while answers
are at hand, so that images are read and written as seldom as can be, by few kernels. `plain_block`
says what is computed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram.models import conv3x3, norm_pool
from engram.models.conv3x3 import (
    distance,
    laid_out,
    plain_convolve,
    slopes_with_slopes,
    tried,
)
from engram.models.kernel_trial import waves


class Layer(NamedTuple):
    """A convolution and its batch norm: weights, factor, offset, running mean and variance."""

    weight: Tensor
    gamma: Tensor
    beta: Tensor
    mean: Tensor
    var: Tensor


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, running: Any, how: tuple[int, float, float, bool], *weights: Tensor
    ) -> Tensor:
        """`weights`: of the two or three layers, weight, gamma and beta of each."""
        from engram.models import conv3x3_launch as launch
        from engram.models import norm_pool_launch as norms

        stride, momentum, eps, relu = how
        kept: list[Tensor] = []

        def layer(number: int, x: Tensor, stride: int, short: Tensor | None, relu: bool) -> Tensor:
            weight, gamma, beta = weights[3 * number : 3 * number + 3]
            laid = laid_out(weight, x.dtype)
            conv = launch.convolve(x, laid, stride=stride, moments=True)
            mean, rstd = launch.settle(conv, running[number], momentum, eps)
            kept.extend((weight, laid, conv.y, mean, rstd, gamma, beta))
            return norms.forward(conv.y, short, mean, rstd, gamma, beta, relu, False)

        with torch.cuda.device_of(x):
            middle = layer(0, x, stride, None, True)
            short = layer(2, x, stride, None, False) if len(weights) == 9 else x
            y = layer(1, middle, 1, short, relu)
        ctx.save_for_backward(x, middle, short, *kept)
        ctx.stride, ctx.eps, ctx.relu = stride, eps, relu
        return y

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> Any:
        from engram.models import conv3x3_launch as launch
        from engram.models import norm_pool_launch as norms

        (x, middle, short, *rest), stride = ctx.saved_tensors, ctx.stride
        if torch.is_grad_enabled():
            return _plain_slopes(ctx, x, rest, dys[0])
        first, third, second = _Kept(*rest[:7]), rest[7:-7], _Kept(*rest[-7:])
        dy = dys[0].contiguous(memory_format=torch.channels_last)
        more: tuple[Tensor, ...] = ()
        with torch.cuda.device_of(x):
            dz2, through, *norm2 = norms.backward(
                dy, second.z, short, *second.norm, ctx.relu, False
            )
            dw2 = launch.weight_slope(middle, dz2, second.weight)
            back = launch.convolve(dz2, second.laid, turned=True, slopes=(first.z, first.norm))
            dz1, *norm1 = launch.through_norm(back, first.z, first.norm)
            dw1 = launch.weight_slope(x, dz1, first.weight, stride=stride)
            if third and through is not None:
                last = _Kept(*third)
                dz3, _, *norm3 = norms.backward(through, last.z, None, *last.norm, False, False)
                dw3 = launch.weight_slope(x, dz3, last.weight, stride=stride)
                through = launch.convolve(dz3, last.laid, turned=True, stride=stride).y
                more = (dw3, *norm3)
            dx = launch.convolve(dz1, first.laid, turned=True, stride=stride, add=through).y
        return dx, None, None, dw1, *norm1, dw2, *norm2, *more


class _Kept(NamedTuple):
    """What a block's backward pass needs of a layer."""

    weight: Tensor
    laid: Tensor
    z: Tensor
    mean: Tensor
    rstd: Tensor
    gamma: Tensor
    beta: Tensor

    @property
    def norm(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.mean, self.rstd, self.gamma, self.beta


def _plain_slopes(ctx: Any, x: Tensor, rest: Sequence[Tensor], dy: Tensor) -> Any:
    kept = [_Kept(*rest[i : i + 7]) for i in range(0, len(rest), 7)]
    kept = [kept[0], kept[-1], *kept[1:-1]]
    layers = [Layer(one.weight, one.gamma, one.beta, one.mean, one.mean) for one in kept]
    y = plain_block(x, layers, stride=ctx.stride, eps=ctx.eps, relu=ctx.relu)
    given = [x, *(value for one in layers for value in one[:3])]
    needed = [ctx.needs_input_grad[0], *ctx.needs_input_grad[3:]]
    dx, *slopes = slopes_with_slopes(y, given, needed, dy)
    return dx, None, None, *slopes


def block(
    x: Tensor, layers: Sequence[Layer], *, stride: int = 1, momentum: float, eps: float,
    relu: bool = True,
) -> Tensor:  # fmt: skip
    """`plain_block` of images with channels last; moves the running statistics in place."""
    running = [(one.mean, one.var) for one in layers]
    weights = [value for one in layers for value in one[:3]]
    found: Tensor = _Block.apply(  # type: ignore[no-untyped-call]
        x, running, (stride, momentum, eps, relu), *weights
    )
    return found


def plain_block(
    x: Tensor, layers: Sequence[Layer], *, stride: int = 1, eps: float, relu: bool = True
) -> Tensor:
    """A residual block in training: two layers, and x itself or what a third makes of it added."""

    def layer(x: Tensor, one: Layer, stride: int, add: Tensor | None, relu: bool) -> Tensor:
        z = plain_convolve(x, one.weight, stride, x.dtype)
        y = norm_pool.plain_train(z.to(one.gamma.dtype), add, one.gamma, one.beta, eps, relu, False)
        return y[0].to(x.dtype)

    short = layer(x, layers[2], stride, None, False) if len(layers) == 3 else x
    return layer(layer(x, layers[0], stride, None, True), layers[1], 1, short, relu)


# -- whether they work here ------------------------------------------------------------------------
@functools.cache
def works(C: int, N: int, stride: int, H: int, W: int, device: torch.device) -> bool:
    """Whether the kernels can be made here and give what torch gives; tried once, on two images."""
    return tried(lambda: _gap(C, N, stride, H, W, conv3x3.KIND, device), 0.1)


def _gap(
    C: int, N: int, stride: int, H: int, W: int, kind: torch.dtype, device: torch.device
) -> float:
    """How far the kernels are from the formulas, which round where they do."""

    def made(C: int, size: int) -> Layer:
        weight = waves(N, size, size, C, device=device).permute(0, 3, 1, 2) / size / C**0.5
        gamma = 1 + 0.5 * waves(N, device=device)
        beta = gamma / 2
        for one in (weight, gamma, beta):
            one.requires_grad_()
        return Layer(weight, gamma, beta, torch.zeros_like(gamma), torch.ones_like(gamma))

    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        x = waves(2, H, W, C, device=device).to(kind).permute(0, 3, 1, 2).requires_grad_()
        layers = [made(C, 3), made(N, 3), *([made(C, 1)] if stride == 2 or C != N else [])]
        y = block(x, layers, stride=stride, momentum=0.1, eps=1e-5, relu=False)
        z = plain_block(x, layers, stride=stride, eps=1e-5, relu=False)
        return distance(y, z, [x, *(value for one in layers for value in one[:3])])
