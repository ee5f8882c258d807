"""Convolutions of few channels by kernels of our own on CUDA.

cuDNN is made for wide layers: a ResNet-32 on 32 x 32 images has 16 to 64 channels, and spends its
steps in small kernels that wait for memory and for each other. Here a tile of pixels meets all nine
taps in one program (``conv3x3_kernels``). In bf16 only; `plain_convolve` says what is computed, and
``residual`` makes whole blocks of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.models import kernel_trial, norm_pool
from engram.models.kernel_trial import waves

# channels in and out for which the kernels are cut
KNOWN = ((3, 16), (16, 16), (32, 32), (64, 64), (16, 32), (32, 64))
KIND = torch.bfloat16  # of numbers that they multiply
# Whether networks ask for them: not before whole trainings have been compared on a GPU with
# those of torch's layers (decision 54).
PROVEN = False
PACK = 64  # channels from which weights are laid out anew for the kernels
_broken: list[str] = []  # why the kernels are given up in this process


def knows(convolution: nn.Conv2d) -> bool:
    """Whether the kernels are made for a layer: 3 x 3 with a border, or 1 x 1, of few channels.

    Examples
    --------
    >>> knows(nn.Conv2d(16, 32, 3, 2, 1)), knows(nn.Conv2d(20, 20, 3, 1, 1))
    (True, False)
    """
    one = convolution
    size, pair = one.kernel_size[0], (one.in_channels, one.out_channels)
    shape = (one.kernel_size, one.padding, one.dilation, one.groups, one.padding_mode)
    edge = size // 2
    usual = shape == ((size, size), (edge, edge), (1, 1), 1, "zeros") and size in (1, 3)
    if not usual or pair not in KNOWN or one.stride not in ((1, 1), (2, 2)):
        return False
    stem = pair[0] == 3  # its images are read in float32, and have no gradient
    return one.weight.dtype == torch.float32 and not (stem and (size, *one.stride) != (3, 1, 1))


def serves(convolution: nn.Conv2d, x: Tensor) -> bool:
    """Whether a layer can have images like x [N, C, H, W] convolved by the kernels in this pass."""
    if not knows(convolution) or _kind(x) != KIND or _broken:
        return False
    halves = convolution.stride == (1, 1) or not (x.shape[2] % 2 or x.shape[3] % 2)
    return halves and norm_pool.applies(x) and not (x.shape[1] == 3 and x.requires_grad)


def _kind(x: Tensor) -> torch.dtype:
    """In which kind of numbers torch would convolve."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


# -- one convolution -------------------------------------------------------------------------------
class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, kind: torch.dtype) -> Tensor:
        from engram.models import conv3x3_launch as launch

        with torch.cuda.device_of(x):  # kernels start on the current device
            laid = laid_out(weight, kind)
            y = launch.convolve(x, laid, stride=stride, kind=kind).y
        ctx.save_for_backward(x, weight, laid)
        ctx.stride, ctx.kind = stride, kind
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        from engram.models import conv3x3_launch as launch

        x, weight, laid = ctx.saved_tensors
        needed = ctx.needs_input_grad
        if torch.is_grad_enabled():  # somebody wants the gradient of this gradient
            y = plain_convolve(x, weight, ctx.stride, ctx.kind)
            return *slopes_with_slopes(y, (x, weight), needed, dy), None, None
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = dweight = None
        with torch.cuda.device_of(x):
            if needed[0]:
                dx = launch.convolve(dy, laid, turned=True, stride=ctx.stride, kind=x.dtype).y
            if needed[1]:
                dweight = launch.weight_slope(x, dy, weight, stride=ctx.stride)
        return dx, dweight, None, None


def convolve(x: Tensor, weight: Tensor, stride: int = 1, kind: torch.dtype | None = None) -> Tensor:
    """`plain_convolve` of images with channels last by the kernels."""
    found: Tensor = _Convolve.apply(  # type: ignore[no-untyped-call]
        x, weight, stride, kind or x.dtype
    )
    return found


def plain_convolve(x: Tensor, weight: Tensor, stride: int, kind: torch.dtype) -> Tensor:
    """A convolution in a kind of numbers, 3 x 3 with a border of zeros or 1 x 1."""
    edge = weight.shape[2] // 2
    return F.conv2d(x.to(kind), weight.to(kind), stride=stride, padding=edge)


def laid_out(weight: Tensor, kind: torch.dtype) -> Tensor:
    """Weights as the kernels like them: few in channels-last order are read as they are."""
    from engram.models import conv3x3_launch as launch

    last = weight.is_contiguous(memory_format=torch.channels_last)
    return weight if last and weight.shape[0] < PACK else launch.pack(weight, kind)


def slopes_with_slopes(
    y: Tensor, given: Sequence[Tensor], needed: Sequence[bool], dy: Tensor
) -> list[Tensor | None]:
    """Gradients that have gradients, of those that are needed."""
    own = [one for one, asked in zip(given, needed, strict=False) if asked]
    found = iter(torch.autograd.grad(y, own, dy.to(y.dtype), create_graph=True))
    return [next(found) if asked else None for asked in needed[: len(given)]]


# -- whether they work here ------------------------------------------------------------------------
@functools.cache
def works(C: int, N: int, size: int, stride: int, H: int, W: int, device: torch.device) -> bool:
    """Whether the kernels can be made here and give what torch gives; tried once, on two images."""
    return tried(lambda: _gap(C, N, size, stride, H, W, KIND, device), 0.02)


def tried(gap: Callable[[], float], most: float) -> bool:
    """Whether kernels of convolutions, or of blocks of them, work here."""
    return kernel_trial.works(gap, most, what="convolutions", broken=_broken)


def _gap(
    C: int, N: int, size: int, stride: int, H: int, W: int, kind: torch.dtype,
    device: torch.device,
) -> float:  # fmt: skip
    """How far the kernels are from the formula."""
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        x = waves(2, H, W, C, device=device).to(torch.float32 if C == 3 else kind)
        x = x.permute(0, 3, 1, 2).requires_grad_(C > 3)
        weight = waves(N, size, size, C, device=device).permute(0, 3, 1, 2) / size / C**0.5
        weight.requires_grad_()
        y = convolve(x, weight, stride, kind)
        z = plain_convolve(x.to(kind), weight.to(kind), stride, torch.float32)
        return distance(y, z, [x, weight] if C > 3 else [weight])


def distance(y: Tensor, z: Tensor, own: Sequence[Tensor]) -> float:
    """The most by which y or a gradient of it differs from z, relative to the length of each."""
    slope = waves(*y.shape, device=y.device).to(y.dtype)
    one, two = (torch.autograd.grad(a, own, slope.to(a.dtype)) for a in (y, z))
    pairs = zip((y.detach(), *one), (z.detach(), *two), strict=True)
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)
