"""Convolution, batch norm, ReLU and pooling in sequence, done on CUDA as CUDA likes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.models import norm_pool
from engram.models.context import ROW_WEIGHTS, SHARE
from engram.models.layers import BatchNorm

FUSES = False  # whether blocks take the kernels of `norm_pool` where those apply


class Block(NamedTuple):
    """Layers that follow each other and are done at once."""

    convolution: nn.Conv2d
    norm: BatchNorm
    relu: nn.ReLU
    pool: nn.MaxPool2d | None


class ConvBlocks(nn.Sequential):
    """An ``nn.Sequential`` that does its blocks at once where images lie on CUDA, channels last.

    A block is a convolution, a `BatchNorm`, a ReLU and perhaps a 2 x 2 pooling. There the bias is
    not added, since the batch norm takes it out again, and channels are padded to where tensor
    cores begin; nothing of this changes what is computed, beyond rounding. Everywhere else, and
    where a hook listens to a layer, it is the plain sequence.

    Examples
    --------
    >>> net = ConvBlocks(nn.Conv2d(3, 5, 3), BatchNorm(5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    >>> [len(part) if isinstance(part, Block) else type(part).__name__ for part in net.parts()]
    [4, 'Flatten']
    >>> net(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 45])
    """

    def parts(self) -> Iterator[Block | nn.Module]:
        """Blocks, and the layers that belong to none."""
        layers, place = list(self), 0
        while place < len(layers):
            block = _block(layers[place : place + 4])
            yield layers[place] if block is None else block
            place += 1 if block is None else 3 + (block.pool is not None)

    def forward(self, x: Tensor) -> Tensor:
        if not self._fuses(x):
            return super().forward(x)  # type: ignore[no-any-return, no-untyped-call]
        for part in self.parts():
            x = _at_once(part, x) if isinstance(part, Block) else part(x)
        return x

    def _fuses(self, x: Tensor) -> bool:
        if not FUSES or not norm_pool.applies(x) or SHARE.get() is not None:
            return False
        # what has a gradient by running statistics (an importance, say) is torch's
        plain = ROW_WEIGHTS.get() is not None if self.training else torch.is_grad_enabled()
        if plain or any(one._forward_hooks or one._forward_pre_hooks for one in self):
            return False
        kernels = (one.weight for one in self if isinstance(one, nn.Conv2d))
        return any(map(_channels_last, (x, *kernels)))  # of the input or the kernels, as cuDNN asks


def _channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


def _block(layers: list[nn.Module]) -> Block | None:
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
    return Block(convolution, norm, relu, pool if _halves(pool) else None)  # type: ignore[arg-type]


def _halves(pool: nn.Module | None) -> bool:
    if not isinstance(pool, nn.MaxPool2d) or pool.return_indices or pool.ceil_mode:
        return False
    pairs = [(one, one) if isinstance(one, int) else tuple(one) for one in _sizes(pool)]
    return pairs == [(2, 2), (2, 2), (0, 0), (1, 1)]


def _sizes(pool: nn.MaxPool2d) -> tuple[int | tuple[int, ...], ...]:
    return pool.kernel_size, pool.stride, pool.padding, pool.dilation


def _at_once(block: Block, x: Tensor) -> Tensor:
    convolution, norm, relu, pool = block
    z = _convolved(convolution, x)
    features, halves = norm.features, pool is not None
    ready = norm_pool.applies(z) and norm_pool.works(
        features, z.shape[1], halves, z.dtype, z.device
    )
    offset = torch.zeros_like(norm.mean) if convolution.bias is None else convolution.bias
    if not ready or norm.weight is None or norm.bias is None:
        y: Tensor = relu(norm(z[:, :features] + offset.reshape(-1, 1, 1)))
        return y if pool is None else pool(y)
    own = (norm.weight, norm.bias, offset)
    if not norm.training:
        return norm_pool.infer(z, *own, (norm.mean, norm.var), eps=norm.eps, pool=halves)
    if not norm.in_place:
        norm._buffers["mean"], norm._buffers["var"] = norm.mean.clone(), norm.var.clone()
    running = (norm.mean, norm.var)
    return norm_pool.train(z, *own, running, momentum=norm.momentum, eps=norm.eps, pool=halves)


def _convolved(convolution: nn.Conv2d, x: Tensor) -> Tensor:
    """Without the bias; channels may be more than asked for, the last ones being 0."""
    weight, many = convolution.weight, _multiple(x)
    inputs, outputs = -weight.shape[1] % many, -weight.shape[0] % many
    if inputs:
        x = F.pad(x, (0, 0, 0, 0, 0, inputs))
    if inputs or outputs:
        weight = F.pad(weight, (0, 0, 0, 0, 0, inputs, 0, outputs))
        weight = weight.contiguous(memory_format=torch.channels_last)
    y: Tensor = convolution._conv_forward(x, weight, None)
    return y


def _multiple(x: Tensor) -> int:
    """Tensor cores read 16 bytes at once: channels are aligned where they are used."""
    if torch.is_autocast_enabled(x.device.type) or x.dtype != torch.float32:
        return 8
    return 4 if torch.backends.cudnn.allow_tf32 else 1
