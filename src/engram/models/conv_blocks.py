"""`ConvBlocks`: convolution, batch norm, ReLU and pooling in sequence, fused on CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.models.forward_pass import ROW_WEIGHTS, SHARE
from engram.models.kernels import norm_pool
from engram.models.layers import BatchNorm


class ConvBlock(NamedTuple):
    """Consecutive layers that are fused."""

    convolution: nn.Conv2d
    norm: BatchNorm
    relu: nn.ReLU
    pool: nn.MaxPool2d | None


class ConvBlocks(nn.Sequential):
    """An ``nn.Sequential`` that fuses its blocks if `can_fuse` allows it.

    A block is a convolution, a `BatchNorm`, a ReLU and optionally a 2 x 2 pooling. The engine sets
    `fused`.

    Examples
    --------
    >>> net = ConvBlocks(nn.Conv2d(3, 5, 3), BatchNorm(5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    >>> [len(part) if isinstance(part, ConvBlock) else type(part).__name__ for part in net.parts()]
    [4, 'Flatten']
    >>> net(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 45])
    """

    fused: bool = False

    def parts(self) -> Iterator[ConvBlock | nn.Module]:
        """Iterate over blocks, and layers that belong to none."""
        layers, place = list(self), 0
        while place < len(layers):
            block = _block(layers[place : place + 4])
            yield layers[place] if block is None else block
            place += 1 if block is None else 3 + (block.pool is not None)

    def forward(self, x: Tensor) -> Tensor:
        if not can_fuse(self, x):
            return super().forward(x)  # type: ignore[no-any-return, no-untyped-call]
        for part in self.parts():
            if isinstance(part, ConvBlock):
                x = run_fused(part.convolution, part.norm, x, pool=part.pool is not None)
            else:
                x = part(x)
        return x


def can_fuse(layers: ConvBlocks, x: Tensor) -> bool:
    """Whether `run_fused` can be used in this pass: images on CUDA, not mapped.

    Not with hooks on layers, padding rows or several ranks, and not for gradients in eval mode (of
    importances), which are left to torch.
    """
    if not layers.fused or not norm_pool.applies(x) or SHARE.get() is not None:
        return False
    if ROW_WEIGHTS.get() is not None if layers.training else torch.is_grad_enabled():
        return False
    inside = (one for one in layers.modules() if one is not layers)
    return not any(one._forward_hooks or one._forward_pre_hooks for one in inside)


def run_fused(convolution: nn.Conv2d, norm: BatchNorm, x: Tensor, *, pool: bool = False) -> Tensor:
    """Compute convolution, batch norm, ReLU and optionally 2 x 2 pooling.

    The bias of the convolution is not added, since batch norm subtracts it again. The result equals
    that of the layers up to rounding.
    """
    x, offset = x.contiguous(memory_format=torch.channels_last), convolution.bias
    z = convolution._conv_forward(x, convolution.weight, None)
    ready = norm_pool.applies(z) and _channels_last(z)
    ready = ready and norm_pool.kernels_work(norm.features, False, True, pool, z.dtype, z.device)
    if not ready or norm.weight is None or norm.bias is None:
        y: Tensor = norm(z if offset is None else z + offset.reshape(-1, 1, 1)).relu()
        return F.max_pool2d(y, 2) if pool else y
    own = (norm.weight, norm.bias, offset)
    how: Any = {"eps": norm.eps, "pool": pool}
    if not norm.training:
        return norm_pool.run_inference(z, *own, (norm.mean, norm.var), **how)
    return norm_pool.run_training(z, *own, _running_statistics(norm), momentum=norm.momentum, **how)


def _running_statistics(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Return running statistics that may be modified."""
    if not norm.in_place:
        norm._buffers["mean"], norm._buffers["var"] = norm.mean.clone(), norm.var.clone()
    return norm.mean, norm.var


def _channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


def _block(layers: list[nn.Module]) -> ConvBlock | None:
    if len(layers) < 3:
        return None
    convolution, norm, relu = layers[:3]
    if not isinstance(convolution, nn.Conv2d) or not isinstance(norm, BatchNorm):
        return None
    if not isinstance(relu, nn.ReLU) or norm.axis != 1 or norm.weight is None:
        return None
    if convolution.groups != 1 or convolution.padding_mode != "zeros":
        return None
    pool = layers[3] if len(layers) > 3 else None
    return ConvBlock(convolution, norm, relu, pool if _is_half_pool(pool) else None)  # type: ignore[arg-type]


def _is_half_pool(pool: nn.Module | None) -> bool:
    if not isinstance(pool, nn.MaxPool2d) or pool.return_indices or pool.ceil_mode:
        return False
    sizes = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    pairs = [(one, one) if isinstance(one, int) else tuple(one) for one in sizes]
    return pairs == [(2, 2), (2, 2), (0, 0), (1, 1)]
