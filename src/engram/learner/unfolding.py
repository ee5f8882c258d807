"""Convolutions as products of matrices, for the gradients of single samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor


class Unfolding(NamedTuple):
    """How a convolution reads its input, and the shape [O, H, W] of its answer.

    Examples
    --------
    >>> import torch
    >>> x, kernel = torch.arange(9.0).view(1, 1, 3, 3), torch.ones(1, 1, 2, 2)
    >>> columns = Unfolding((2, 2), (1, 1), (0, 0), (1, 2, 2)).columns(x)
    >>> (columns @ kernel.flatten()).tolist(), F.conv2d(x, kernel).flatten().tolist()
    ([[8.0, 12.0, 20.0, 24.0]], [8.0, 12.0, 20.0, 24.0])
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    shape: tuple[int, ...]

    def columns(self, x: Tensor) -> Tensor:
        """[B, H * W, I * k * k] what each place of the answer to x [B, I, ...] is made of."""
        (high, wide), (down, right), (above, left) = self.kernel, self.stride, self.padding
        x = F.pad(x, (left, left, above, above))
        windows = x.unfold(2, high, down).unfold(3, wide, right)  # [B, I, H, W, k, k]
        return windows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def pair(value: Any) -> tuple[int, int]:
    """A size of both axes of an image."""
    return (value, value) if isinstance(value, int) else tuple(value)
