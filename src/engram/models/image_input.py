"""`ImageInput`: images of a data set as a pre-trained network expects them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.data.dataset import Data
from engram.errors import bad, check_int
from engram.models.forward_pass import check_image_shape


class ImageInput(nn.Module):
    """Resizes and normalises each batch, so that no resized copy of the data is needed.

    Inputs are images with values from 0 to 1, or those that a data set has normalised by its own
    mean and deviation (`undo`). Grey images become three equal channels.

    Parameters
    ----------
    name
        Name of the network, for messages.
    size
        Height and width that the network sees. Images are resized bilinearly, with antialiasing
        where they shrink.
    mean, std
        What the network subtracts from values from 0 to 1, and what it divides them by.

    Examples
    --------
    >>> look = ImageInput("net", (1, 4, 4), size=8, mean=(0.5,) * 3, std=(0.5,) * 3)
    >>> look(torch.ones(2, 1, 4, 4)).shape, look(torch.ones(2, 1, 4, 4)).unique().tolist()
    (torch.Size([2, 3, 8, 8]), [1.0])
    """

    def __init__(
        self,
        name: str,
        sample_shape: tuple[int, ...],
        *,
        size: int,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__()
        channels, height, width = check_image_shape(name, sample_shape)
        if channels not in (1, len(mean)):
            raise bad("sample_shape", f"images of 1 or {len(mean)} channels for {name}", channels)
        self.size = check_int("model.size", size, 1)
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        self.channels = channels
        self.resizes = (height, width) != (size, size)
        self.shrinks = height > size or width > size
        self._of_data: tuple[tuple[float, ...], tuple[float, ...]] = (), ()
        self._known: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def undo(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Take back a normalisation of the data, so that the network's own replaces it."""
        self._of_data = tuple(map(float, mean)), tuple(map(float, std))
        self._known = {}

    def describe(self) -> str:
        """Describe what is done to an image of the data set, for keys of features.

        Examples
        --------
        >>> ImageInput("net", (3, 4, 4), size=8, mean=(0.5,), std=(1.0,)).describe()
        Traceback (most recent call last):
        ...
        engram.errors.BadArgument: sample_shape: expected images of 1 or 1 channels for net, got 3
        >>> ImageInput("net", (1, 4, 4), size=8, mean=(0.5,), std=(1.0,)).describe()
        'bilinear to 8, minus (0.5,), divided by (1.0,)'
        """
        resized = f"bilinear{' antialiased' if self.shrinks else ''} to {self.size}"
        kept = f"kept at {self.size}"
        return f"{resized if self.resizes else kept}, minus {self.mean}, divided by {self.std}"

    def extra_repr(self) -> str:
        return self.describe()

    def forward(self, x: Tensor) -> Tensor:
        factor, offset = self._factors(x)
        x = x * factor + offset  # first, because the image is usually the smaller one
        if self.resizes:
            x = F.interpolate(
                x, (self.size, self.size), mode="bilinear", antialias=self.shrinks,
                align_corners=False,
            )  # fmt: skip
        return x

    def _factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factor and offset of each channel, [C, 1, 1]."""
        place = x.device, x.dtype
        if place not in self._known:
            with torch.inference_mode(False):  # for later passes with gradients, too
                self._known[place] = self._make_factors(x)
        return self._known[place]

    def _make_factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(one, dtype=torch.float64) for one in (self.mean, self.std))
        was, by = self._of_data
        shift = torch.tensor(was, dtype=torch.float64) if was else torch.zeros(())
        scale = torch.tensor(by, dtype=torch.float64) if was else torch.ones(())
        both = ((scale / std).expand_as(mean), ((shift - mean) / std).expand_as(mean))
        factor, offset = (one.reshape(-1, 1, 1).to(x.device, x.dtype) for one in both)
        return factor, offset


_LOOKED_AT = 1000  # rows whose values are checked
_ROUNDED = 1e-3  # how far values may leave [0, 1] by rounding


def check_pixels(net: nn.Module, data: Data) -> None:
    """Refuse data that a network with an `ImageInput` would misread: values not from 0 to 1.

    Images of bytes are scaled to this range anyway.

    Examples
    --------
    >>> data = Data.from_arrays(200 * torch.rand(4, 3, 5, 5), [0, 1, 0, 1])
    >>> check_pixels(ImageInput("net", (3, 5, 5), size=8, mean=(0.5,) * 3, std=(0.5,) * 3), data)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: data: expected images of bytes, or of values from 0 to 1, got ...
    """
    if not any(isinstance(module, ImageInput) for module in net.modules()):
        return
    if data.standardize:
        raise bad("data", "images that are not standardized, which the network does itself", True)
    if data.x.dtype in (torch.uint8, np.uint8) or not len(data.x):
        return
    some = data.stored(torch.arange(min(len(data.x), _LOOKED_AT)))
    low, high = float(some.min()), float(some.max())
    if not -_ROUNDED <= low <= high <= 1 + _ROUNDED:
        expected = "images of bytes, or of values from 0 to 1"
        raise bad("data", expected, f"values from {low:.3g} to {high:.3g}")
