"""Batch norm, sum, ReLU and 2 x 2 pooling as one operation, and a trial of its CUDA kernels.

In small networks most of the device time between two convolutions goes into reading and writing
images, because torch normalises, rectifies and pools one after the other. On CUDA the kernels of
`norm_pool_kernels` do it in one pass; the plain functions here define the result, and are used
where the kernels are not applicable.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import maybe_current_level

from engram.models.forward_pass import PLAIN

MAX_WIDTH = 1024  # channels that one program of a kernel can hold
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_broken: list[str] = []  # why the kernels are given up in this process


def applies(x: Tensor) -> bool:
    """Whether the kernels can be used for images like x [N, C, H, W] in this pass."""
    if not x.is_cuda or x.ndim != 4 or x.dtype not in DTYPES or _broken or not _has_triton():
        return False
    plain = PLAIN.get() or torch.compiler.is_compiling() or maybe_current_level() is not None
    return x.shape[1] <= MAX_WIDTH and x.shape[1] < x.numel() < 2**31 and not plain


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


# -- what is computed ------------------------------------------------------------------------------
def plain_forward(
    x: Tensor, shortcut: Tensor | None, mean: Tensor, rstd: Tensor, weight: Tensor, beta: Tensor,
    relu: bool, pool: bool,
) -> Tensor:  # fmt: skip
    """relu((x - mean) * rstd * weight + beta + shortcut) of images [N, C, H, W], pooled by 2 x 2.

    The shortcut, ReLU and pooling are there if asked for.

    Examples
    --------
    >>> x, one = torch.tensor([[[[1.0, 2.0], [3.0, 5.0]]]]), torch.ones(1)
    >>> plain_forward(x, None, 2 * one, one, 3 * one, one, True, True).item()
    10.0
    """
    m, s, t = (v.reshape(-1, 1, 1) for v in (mean, rstd * weight, beta))
    y = (x - m) * s + t
    y = y if shortcut is None else y + shortcut
    y = y.relu() if relu else y
    return F.max_pool2d(y, 2) if pool else y


def plain_training(
    x: Tensor, shortcut: Tensor | None, weight: Tensor, beta: Tensor, eps: float, relu: bool,
    pool: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The same with mean and deviation of the batch, and its mean and (biased) variance."""
    var, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    rstd = (var + eps).rsqrt()
    return plain_forward(x, shortcut, mean, rstd, weight, beta, relu, pool), mean, var


# -- the operation ---------------------------------------------------------------------------------
class _NormPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shortcut: Tensor | None, weight: Tensor, beta: Tensor,
        offset: Tensor | None, running: Any, momentum: float, eps: float, relu: bool, pool: bool,
    ) -> Tensor:  # fmt: skip
        from engram.models.kernels import norm_pool_kernels as launch

        with torch.cuda.device_of(x):  # kernels start on the current device
            mean, rstd = launch.statistics(x, offset, running[0], running[1], momentum, eps)
            y = launch.forward(x, shortcut, mean, rstd, weight, beta, relu, pool)
        ctx.save_for_backward(x, shortcut, weight, beta, mean, rstd)
        ctx.eps, ctx.last, ctx.biased = eps, (relu, pool), offset is not None
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        from engram.models.kernels import norm_pool_kernels as launch

        x, shortcut, weight, beta, mean, rstd = ctx.saved_tensors
        none = torch.zeros_like(beta) if ctx.biased else None  # the mean takes the offset out
        if torch.is_grad_enabled():  # for second derivatives
            y = plain_training(x, shortcut, weight, beta, ctx.eps, *ctx.last)[0].to(dy.dtype)
            given = (x, shortcut, weight, beta)
            own = [
                one for one, needed in zip(given, ctx.needs_input_grad[:4], strict=True) if needed
            ]
            found = iter(torch.autograd.grad(y, own, dy, create_graph=True))
            slopes = [next(found) if needed else None for needed in ctx.needs_input_grad[:4]]
            return *slopes, none, None, None, None, None, None
        dy = dy.contiguous(memory_format=torch.channels_last)
        with torch.cuda.device_of(x):
            back = launch.backward(dy, x, shortcut, mean, rstd, weight, beta, *ctx.last)
        return *back, none, None, None, None, None, None


def run_training(
    x: Tensor, weight: Tensor, beta: Tensor, offset: Tensor | None,
    running: tuple[Tensor, Tensor], *,
    shortcut: Tensor | None = None, momentum: float, eps: float, relu: bool = True,
    pool: bool = False,
) -> Tensor:  # fmt: skip
    """`plain_training` of x + `offset` by the kernels; moves the running mean and variance in
    place.

    The mean of a batch takes the offset (a convolution's bias) out again, so it shows in the
    running mean only, and its gradient is 0.
    """
    if shortcut is not None:
        shortcut = shortcut.to(x.dtype).contiguous(memory_format=torch.channels_last)
    found: Tensor = _NormPool.apply(  # type: ignore[no-untyped-call]
        x, shortcut, weight, beta, offset, running, momentum, eps, relu, pool
    )
    return found


def run_inference(
    x: Tensor, weight: Tensor, beta: Tensor, offset: Tensor | None,
    running: tuple[Tensor, Tensor], *,
    shortcut: Tensor | None = None, eps: float, relu: bool = True, pool: bool = False,
) -> Tensor:  # fmt: skip
    """`plain_forward` of x + `offset` by the running statistics, without gradient."""
    from engram.models.kernels import norm_pool_kernels as launch

    if shortcut is not None:
        shortcut = shortcut.to(x.dtype).contiguous(memory_format=torch.channels_last)
    mean, rstd = running[0] if offset is None else running[0] - offset, (running[1] + eps).rsqrt()
    with torch.cuda.device_of(x):
        return launch.forward(x, shortcut, mean, rstd, weight, beta, relu, pool)


# -- whether they work here ------------------------------------------------------------------------
@functools.cache
def kernels_work(
    channels: int, adds: bool, relu: bool, pool: bool, kind: torch.dtype,
    device: torch.device,
) -> bool:  # fmt: skip
    """Whether the kernels can be made here and give what the formulas give; tried once."""
    most = 1e-3 if kind == torch.float32 else 5e-2
    return passes_trial(
        lambda: _measure_gap(channels, adds, relu, pool, kind, device), most,
        what="batch norm and pooling", broken=_broken,
    )  # fmt: skip


def _measure_gap(
    channels: int, adds: bool, relu: bool, pool: bool, kind: torch.dtype,
    device: torch.device,
) -> float:  # fmt: skip
    """How far the kernels are from the formulas on a small example (its numbers are few)."""
    images = make_test_values(3, 6, 6, channels, device=device).to(kind).permute(0, 3, 1, 2)
    x = (images + 0.5).requires_grad_()
    shortcut = images.clone().requires_grad_() if adds else None
    factor = torch.arange(channels, device=device).cos()
    weight, beta = factor.clone().requires_grad_(), (0.5 * factor).requires_grad_()
    running = torch.zeros_like(factor), torch.ones_like(factor)
    own = [one for one in (x, shortcut, weight, beta) if one is not None]
    how: Any = {"shortcut": shortcut, "relu": relu, "pool": pool, "eps": 1e-5}
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        y = run_training(x, weight, beta, None, running, momentum=1.0, **how)
        also = None if shortcut is None else shortcut.float()
        z, mean, _ = plain_training(x.float(), also, weight, beta, 1e-5, relu, pool)
        slope = torch.arange(z.numel(), device=device).sin().view_as(z)
        one, two = torch.autograd.grad(y, own, slope.to(kind)), torch.autograd.grad(z, own, slope)
    pairs = zip((y, *one, running[0]), (z, *two, mean), strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)


# -- trials of a kernel before it is used ----------------------------------------------------------


def passes_trial(gap: Callable[[], float], most: float, *, what: str, broken: list[str]) -> bool:
    """Whether kernels can be made and are at `most` so far from torch's, as `gap` finds.

    Else a warning says that `what` goes on without them, and why, which `broken` keeps: the kernels
    are given up in this process. A missing C compiler shows when the first kernel is made.

    Examples
    --------
    >>> passes_trial(lambda: 1e-5, 1e-3, what="pooling", broken=[])
    True
    """
    try:
        found = gap()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        reason = repr(error)
    else:
        if found < most:
            return True
        reason = f"they differ from torch's by {found:.1e}"
    text = f"{what} run without custom kernels, more slowly: {reason}"
    warnings.warn(text, stacklevel=3)
    broken.append(reason)
    return False


def make_test_values(*shape: int, device: torch.device) -> Tensor:
    """Numbers without a generator, whose state is a run's own."""
    return torch.arange(math.prod(shape), device=device).mul(7919).sin().view(shape)
