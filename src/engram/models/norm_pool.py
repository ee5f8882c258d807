"""Batch norm, ReLU and 2 x 2 pooling of images as one operation, in as few passes as it can be.

Between two convolutions of a small network most of a step's device time goes into reading and
writing images: torch normalises, cuts at 0 and pools in turn, forwards and backwards. On CUDA
kernels of our own (``norm_pool_kernels``) do it at once; the plain functions below say what they
compute and take over where the kernels do not apply.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import maybe_current_level

from engram.models.context import PLAIN

WIDEST = 1024  # channels that one program of a kernel can hold
KINDS = (torch.float32, torch.bfloat16, torch.float16)


def applies(x: Tensor) -> bool:
    """Whether the kernels can be used for images like x [N, C, H, W] in this pass."""
    if not x.is_cuda or x.ndim != 4 or x.dtype not in KINDS:
        return False
    plain = PLAIN.get() or torch.compiler.is_compiling() or maybe_current_level() is not None
    return x.shape[1] <= WIDEST and x.shape[1] < x.numel() < 2**31 and not plain


# -- what is computed ------------------------------------------------------------------------------
def plain_forward(
    x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, beta: Tensor, pool: bool
) -> Tensor:
    """relu((x - mean) * rstd * weight + beta) of the first C channels, pooled by 2 x 2 if asked.

    Examples
    --------
    >>> x, one = torch.tensor([[[[1.0, 2.0], [3.0, 5.0]]]]), torch.ones(1)
    >>> plain_forward(x, 2 * one, one, 3 * one, one, True).item()
    10.0
    """
    m, s, t = (v.reshape(-1, 1, 1) for v in (mean, rstd * weight, beta))
    y = ((x[:, : len(weight)] - m) * s + t).relu()
    return F.max_pool2d(y, 2) if pool else y


def plain_train(
    x: Tensor, weight: Tensor, beta: Tensor, eps: float, pool: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The same with mean and deviation of the batch, and its mean and (biased) variance."""
    own = x[:, : len(weight)]
    var, mean = torch.var_mean(own, (0, 2, 3), correction=0)
    return plain_forward(x, mean, (var + eps).rsqrt(), weight, beta, pool), mean, var


# -- the operation ---------------------------------------------------------------------------------
class _NormPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, beta: Tensor, offset: Tensor, running: Any,
        momentum: float, eps: float, pool: bool,
    ) -> Tensor:  # fmt: skip
        from engram.models import norm_pool_kernels as kernels

        with torch.cuda.device_of(x):  # kernels start on the current device
            mean, rstd = kernels.statistics(x, offset, running[0], running[1], momentum, eps)
            y = kernels.forward(x, mean, rstd, weight, beta, pool)
        ctx.save_for_backward(x, weight, beta, mean, rstd)
        ctx.eps, ctx.pool = eps, pool
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        from engram.models import norm_pool_kernels as kernels

        x, weight, beta, mean, rstd = ctx.saved_tensors
        nothing = (torch.zeros_like(beta), None, None, None, None)  # a mean takes the offset out
        if torch.is_grad_enabled():  # somebody wants the gradient of this gradient
            y = plain_train(x, weight, beta, ctx.eps, ctx.pool)[0]
            found = torch.autograd.grad(y, (x, weight, beta), dy, create_graph=True)
            return *found, *nothing
        dy = dy.contiguous(memory_format=torch.channels_last)
        with torch.cuda.device_of(x):
            found = kernels.backward(dy, x, mean, rstd, weight, beta, ctx.pool)
        return *found, *nothing


def train(
    x: Tensor, weight: Tensor, beta: Tensor, offset: Tensor, running: tuple[Tensor, Tensor], *,
    momentum: float, eps: float, pool: bool,
) -> Tensor:  # fmt: skip
    """`plain_train` of x + `offset` by the kernels; moves the running mean and variance in place.

    The mean of a batch takes the offset (a convolution's bias) out again, so it shows in the
    running mean only, and its gradient is 0. x may have more channels than `weight`: padding.
    """
    found: Tensor = _NormPool.apply(x, weight, beta, offset, running, momentum, eps, pool)  # type: ignore[no-untyped-call]
    return found


def infer(
    x: Tensor, weight: Tensor, beta: Tensor, offset: Tensor, running: tuple[Tensor, Tensor], *,
    eps: float, pool: bool,
) -> Tensor:  # fmt: skip
    """`plain_forward` of x + `offset` by the running statistics, without gradient."""
    from engram.models import norm_pool_kernels as kernels

    mean, rstd = running[0] - offset, (running[1] + eps).rsqrt()
    with torch.cuda.device_of(x):
        return kernels.forward(x, mean, rstd, weight, beta, pool)


# -- whether they work here ------------------------------------------------------------------------
@functools.cache
def works(channels: int, stride: int, pool: bool, kind: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels can be made here and give what the formulas give; tried once.

    A missing C compiler shows when the first kernel is made, so that it is made on a few rows.
    """
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        gap = _gap(channels, stride, pool, kind, device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        said = repr(error)
    else:
        if gap < (1e-3 if kind == torch.float32 else 5e-2):
            return True
        said = f"they differ from torch's by {gap:.1e}"
    text = f"batch norm and pooling go without kernels of their own, more slowly: {said}"
    warnings.warn(text, stacklevel=2)
    return False


def _gap(channels: int, stride: int, pool: bool, kind: torch.dtype, device: torch.device) -> float:
    """How far the kernels are from the formulas on a small example (its numbers are few)."""
    shape = (3, 6, 6, stride)
    x = torch.arange(3 * 36 * stride, device=device).mul(7919).sin().add(0.5).view(shape)
    x = x.to(kind).permute(0, 3, 1, 2).requires_grad_()
    factor = torch.arange(channels, device=device).cos()
    weight, beta = factor.clone().requires_grad_(), (0.5 * factor).requires_grad_()
    running = torch.zeros_like(factor), torch.ones_like(factor)
    none = torch.zeros_like(factor)
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        y = train(x, weight, beta, none, running, momentum=1.0, eps=1e-5, pool=pool)
        z, mean, _ = plain_train(x.float(), weight, beta, 1e-5, pool)
        slope = torch.arange(z.numel(), device=device).sin().view_as(z)
        one = torch.autograd.grad(y, (x, weight, beta), slope.to(kind))
        two = torch.autograd.grad(z, (x, weight, beta), slope)
    pairs = zip((y, *one, running[0]), (z, *two, mean), strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)
