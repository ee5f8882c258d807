"""Rows in, inputs out: the data of a stream on the device, scaled, viewed and augmented there."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from engram import keys
from engram.data.copies import CopyTables
from engram.data.core import Data
from engram.errors import bad, unknown
from engram.streams.core import View

AUGMENTATIONS = ("flip", "crop", "resized_crop")
CROP_PADDING = 4
AREA, SIDES = (0.08, 1.0), (3 / 4, 4 / 3)  # of a resized crop: share of the image, width to height


class Feed:
    """Inputs of any rows, in any leading shape, on one device.

    Everything here works row by row, so a row's input does not depend on others. `axes`, the order
    of a sample's axes that a network wants in memory, changes no value: a network that would
    permute them finds them so, instead of copying every batch.
    """

    def __init__(
        self,
        data: Data,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        view: View | None = None,
        augment: tuple[str, ...] = (),
        axes: tuple[int, ...] | None = None,
    ) -> None:
        for name in augment:
            if name not in AUGMENTATIONS:
                raise unknown("augment", name, AUGMENTATIONS)
        if augment and len(data.sample_shape) != 3:
            raise bad("augment", "images of shape (channels, height, width)", data.sample_shape)
        self.data, self.view, self.augment = data, view, augment
        self.device, self.dtype = device, dtype
        axes = tuple(range(len(data.sample_shape))) if axes is None else axes
        self._stored = tuple(data.sample_shape[axis] for axis in axes)
        self._back = (0, *(1 + axes.index(axis) for axis in range(len(axes))))
        # rows as flat vectors: whatever the memory format of the images, a batch is dense
        self._x = self._flat(data.x, axes).to(device) if isinstance(data.x, Tensor) else None
        copies = data.copies
        self._copies = None if copies is None else CopyTables(copies, len(data.x), device)
        shape = (-1, *[1] * (len(data.sample_shape) - 1))
        self._mean = torch.tensor(data.mean, device=device, dtype=dtype).reshape(shape)
        self._scale = 1 / torch.tensor(data.std, device=device, dtype=dtype).reshape(shape)

    @property
    def on_device(self) -> bool:
        """Whether all rows lie on the device; those of a memory map are fetched by the host."""
        return self._x is not None

    @staticmethod
    def _flat(x: Tensor, axes: tuple[int, ...]) -> Tensor:
        return x.permute(0, *(1 + axis for axis in axes)).flatten(1)

    def __call__(self, rows: Tensor, stages: Tensor | None = None) -> Tensor:
        """Inputs [..., *sample] of rows [...]; `stages` matter where tasks have a view."""
        flat = rows.reshape(-1)
        source = flat if self._copies is None else self._copies.source[flat]
        if self._x is not None:
            raw = self._x.index_select(0, source).reshape(len(flat), *self._stored)
            raw = raw.permute(self._back)
        else:
            raw = self.data.stored(source).to(self.device)
            raw = raw.reshape(len(flat), *self.data.sample_shape)
        if self._copies is not None:
            raw = self._copies.apply(raw, flat)
        if raw.dtype != torch.uint8:
            x = raw.to(self.dtype)
        elif raw.is_cuda and self.dtype == torch.float32:
            x = raw * (1 / 255)  # one kernel instead of two; on the CPU the slower way
        else:
            x = raw.to(self.dtype).mul_(1 / 255)
        if self.data.mean:
            x = (x - self._mean) * self._scale
        if self.view is not None:
            if stages is None:
                raise bad("stages", "the task of each row, because the stream has a view", None)
            x = self.view(x, stages.reshape(-1))
        return x.reshape(*rows.shape, *x.shape[1:])

    def augmented(self, rows: Tensor, stages: Tensor | None, key: Tensor) -> Tensor:
        """As a call, with the random flips and shifts of a training step; `key` [...] per run."""
        x = self(rows, stages)
        if not self.augment:
            return x
        size = rows.shape[-1]
        flat = x.reshape(-1, *x.shape[rows.ndim :])  # [R * B, C, H, W]
        if "crop" in self.augment:
            draw = keys.below(keys.fold(key, "crop"), 2 * CROP_PADDING + 1, size, 2)
            black = -self._mean * self._scale if self.data.mean else None
            flat = _shift(flat, draw.reshape(-1, 2) - CROP_PADDING, black)
        if "resized_crop" in self.augment:
            draw = keys.uniform(keys.fold(key, "resized crop"), size, 4)
            flat = resized_crop(flat, draw.reshape(-1, 4).to(flat.dtype))
        if "flip" in self.augment:
            turn = keys.keep(keys.fold(key, "flip"), 0.5, size).reshape(-1, 1, 1, 1)
            flat = torch.where(turn, flat.flip(-1), flat)
        return flat.reshape(x.shape)


def _shift(x: Tensor, by: Tensor, black: Tensor | None = None) -> Tensor:
    """Move each image [B, C, H, W] by its own (rows, columns), filling with black: 0 by default."""
    pad = CROP_PADDING
    height, width = x.shape[-2:]
    if black is None:
        wide = F.pad(x, (pad, pad, pad, pad))
    else:
        shape = (*x.shape[:2], height + 2 * pad, width + 2 * pad)
        wide = black.to(x.dtype).expand(shape).clone()
        wide[..., pad:-pad, pad:-pad] = x
    ys = torch.arange(height, device=x.device) + pad + by[:, :1]  # [B, H]
    xs = torch.arange(width, device=x.device) + pad + by[:, 1:]  # [B, W]
    item = torch.arange(len(x), device=x.device)[:, None, None]
    moved = wide.movedim(1, -1)[item, ys[:, :, None], xs[:, None, :]]  # [B, H, W, C]
    return moved.movedim(-1, 1)


def resized_crop(x: Tensor, draw: Tensor) -> Tensor:
    """Parts of images [B, C, H, W], stretched to their size; `draw` [B, 4] in [0, 1) decides.

    Area from 8 to 100 percent, sides from 3:4 to 4:3 evenly on a log scale, anywhere; a side that
    would exceed the image is as long as the image.
    """
    area = AREA[0] + (AREA[1] - AREA[0]) * draw[:, 0]
    low, high = math.log(SIDES[0]), math.log(SIDES[1])
    ratio = (low + (high - low) * draw[:, 1]).exp() * (x.shape[-2] / x.shape[-1])
    wide, tall = ((area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1))
    across, down = ((2 * draw[:, 2] - 1) * (1 - wide), (2 * draw[:, 3] - 1) * (1 - tall))
    zero = torch.zeros_like(wide)
    rows = [torch.stack(row, -1) for row in ((wide, zero, across), (zero, tall, down))]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)
