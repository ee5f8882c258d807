"""Data sets of pictures, all of them resized."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engram.data.dataset import Data
from engram.data.images import check_sides
from engram.data.lazy_rows import LazyRows
from engram.errors import bad

_CHUNK = 1024  # pictures resized at a time


def read_resized(read: Callable[..., Data], known: Iterable[str], options: dict[str, Any]) -> Data:
    """What a reader gives; if it does not know the option ``resize``, resized afterwards."""
    others = {key: value for key, value in options.items() if key != "resize"}
    if options.get("resize") is None:
        return read(**others)
    size = check_sides("resize", options["resize"])
    return read(**others, resize=size) if "resize" in known else resized(read(**others), size)


def resized(data: Data, size: tuple[int, int]) -> Data:
    """The same pictures, height and width as given: bilinear, smoothed where they shrink.

    Examples
    --------
    >>> data = Data.from_arrays(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), ["a"] * 5)
    >>> resized(data, (4, 6)).sample_shape
    (3, 4, 6)
    """
    if len(data.stored_shape) != 3:
        raise bad("resize", f"None, since {data.name!r} has no images [C, H, W]", size)
    if data.stored_shape[1:] == size:
        return data
    if isinstance(data.x, LazyRows):
        raise bad("resize", "None, since these pictures are decoded as needed (give size=)", size)
    parts = []
    for start in range(0, len(data.x), _CHUNK):
        some = data.x[start : start + _CHUNK]
        some = some if isinstance(some, Tensor) else torch.from_numpy(np.array(some))
        parts.append(_resize(some, size))
    return replace(data, x=torch.cat(parts))


def _resize(x: Tensor, size: tuple[int, int]) -> Tensor:
    exact = x if x.is_floating_point() else x.float()
    found = F.interpolate(exact, size, mode="bilinear", align_corners=False, antialias=True)
    return found.to(x.dtype) if x.is_floating_point() else found.round().clamp(0, 255).to(x.dtype)
