"""Generated copies: rows that are another row's image, flipped or turned, made when they are read.

A copy is a row number, the row it comes from and a key. Whether it is flipped and by how much it is
turned are functions of the key, so a copy is the same image in every epoch, on every device and
after a resume, and no image is stored for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from engram import keys
from engram.errors import bad, check_float


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageCopies:
    """Rows behind the stored ones.

    Parameters
    ----------
    source
        [M] the stored row that each copy comes from.
    key
        [M] what its changes are drawn from.
    flip, rotate
        Probability that a copy is mirrored from left to right, and that it is turned.
    degrees
        By how much at most, to either side; what comes in from outside is black.

    Examples
    --------
    >>> copies = ImageCopies(
    ...     source=torch.tensor([0, 0]), key=torch.tensor([4, 5]), flip=1.0, rotate=0.0
    ... )
    >>> image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    >>> CopyTables(copies, 1, "cpu").apply(image, torch.tensor([1]))[0, 0].tolist()
    [[2, 1], [4, 3]]
    """

    source: Tensor
    key: Tensor
    flip: float = 0.5
    rotate: float = 0.5
    degrees: float = 30.0

    def __post_init__(self) -> None:
        check_float("flip", self.flip, 0.0, 1.0)
        check_float("rotate", self.rotate, 0.0, 1.0)
        check_float("degrees", self.degrees, 0.0, 180.0)
        if self.source.shape != self.key.shape or self.source.ndim != 1:
            raise bad("key", f"one number for each of {len(self.source)} rows", self.key.shape)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def options(self) -> dict[str, float]:
        """All but the rows, as plain values."""
        return {"flip": self.flip, "rotate": self.rotate, "degrees": self.degrees}

    @cached_property
    def flipped(self) -> Tensor:
        """[M] whether a copy is mirrored."""
        return keys.uniform(keys.fold(self.key, "flip")) < self.flip

    @cached_property
    def angle(self) -> Tensor:
        """[M] by how many degrees a copy is turned, 0 for those that are not."""
        drawn = keys.uniform(keys.fold(self.key, "angle")) * 2 - 1
        turned = keys.uniform(keys.fold(self.key, "rotate")) < self.rotate
        return torch.where(turned, drawn * self.degrees, 0.0)


class CopyTables:
    """What is needed to make copies on one device, by row number."""

    def __init__(self, copies: ImageCopies, stored: int, device: torch.device | str) -> None:
        self.stored = stored  # rows below are no copies
        own = torch.arange(stored)
        self.source = torch.cat([own, copies.source.cpu()]).to(device)
        still = torch.zeros(stored)
        turn = torch.cat([still.double(), copies.angle.cpu().double()]).deg2rad()
        self.flipped = torch.cat([still.bool(), copies.flipped.cpu()]).to(device)
        self.turned = (turn != 0).to(device)
        self.cos, self.sin = (part.float().to(device) for part in (turn.cos(), turn.sin()))

    def apply(self, raw: Tensor, rows: Tensor) -> Tensor:
        """Stored images [n, C, H, W] of the sources of `rows` [n] as the copies they become.

        Images that are no copies stay as they are, bit by bit; whole numbers stay whole numbers.
        """
        if raw.device.type == "cpu" and not bool((rows >= self.stored).any()):
            return raw  # asking costs nothing here; a GPU would have to wait for the answer
        shape = (-1, *[1] * (raw.ndim - 1))
        seen = torch.where(self.flipped[rows].reshape(shape), raw.flip(-1), raw)
        exact = seen if seen.dtype == torch.float64 else seen.float()
        grid = rotation_grid(self.cos[rows].to(exact.dtype), self.sin[rows].to(exact.dtype),
                           *raw.shape[-2:])  # fmt: skip
        turned = F.grid_sample(exact, grid, padding_mode="zeros", align_corners=False)
        if not raw.is_floating_point():
            turned = turned.round().clamp(0, 255)
        return torch.where(self.turned[rows].reshape(shape), turned.to(raw.dtype), seen)


def rotation_grid(cos: Tensor, sin: Tensor, height: int, width: int) -> Tensor:
    """[B, H, W, 2] where each pixel is read, pixel centres, both axes over [-1, 1].

    As `F.affine_grid` without aligned corners, which has no rule for ``vmap``. The aspect ratio
    enters because both axes have the same range whatever their length.
    """
    x = (torch.arange(width, device=cos.device, dtype=cos.dtype) * 2 + 1) / width - 1
    y = (torch.arange(height, device=cos.device, dtype=cos.dtype) * 2 + 1) / height - 1
    y = y[:, None]
    cos, sin = cos[:, None, None], sin[:, None, None]
    across = cos * x - sin * (height / width) * y  # [B, H, W]
    return torch.stack([across, sin * (width / height) * x + cos * y], dim=-1)


def check_copies(copies: Any, stored: int, sample_shape: tuple[int, ...]) -> None:
    """Refuse copies of rows that are not there, or of what is no image."""
    if len(sample_shape) != 3:
        raise bad("copies", "images of shape (channels, height, width)", sample_shape)
    source = copies.source
    if len(source) and not 0 <= int(source.min()) <= int(source.max()) < stored:
        raise bad("copies.source", f"stored rows from 0 to {stored - 1}", int(source.max()))
