"""Images in memory as faces: RGB of one size, classes by the names of the expressions."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from engram.data.arrays import Array
from engram.data.core import Data
from engram.data.crops import Frame, cut_image, square
from engram.data.expressions import expression_ids
from engram.data.images import kinds_in_words
from engram.errors import bad, whole

_CHUNK = 256  # pictures smoothed at once: more would leave the caches of a processor


def as_faces(data: Data, size: int | None) -> Data:
    """The same rows as uint8 [N, 3, size, size] with `EXPRESSIONS` as classes; None: as they are.

    Examples
    --------
    >>> x = torch.arange(5 * 16, dtype=torch.uint8).reshape(5, 1, 4, 4)
    >>> data = as_faces(Data.from_arrays(x, ["sad", "neutral", "sad", "sad", "sad"]), 8)
    >>> data.sample_shape, data.classes, data.labels.tolist()
    ((3, 8, 8), ('Neutral', 'Sadness'), [1, 0, 1, 1, 1])
    """
    if size is None:
        return data
    whole("size", size, low=8)
    if data.x.dtype not in (torch.uint8, np.uint8) or len(data.sample_shape) != 3:
        raise bad("size", "None, since these are no images of whole numbers", size)
    classes, place = expression_ids(f"classes of {data.name}", data.classes)
    y = torch.where(data.y >= 0, torch.from_numpy(place)[data.y.clamp(min=0)], -1)
    if data.sample_shape == (3, size, size):
        return replace(data, y=y, classes=classes)
    x = np.empty((len(data), 3, size, size), np.uint8)
    blank = 0
    for start in range(0, len(data), _CHUNK):
        faces = resized(np.asarray(data.x[start : start + _CHUNK]), size)
        x[start : start + len(faces)] = faces  # grey ones thrice
        blank += int((faces == faces[..., :1, :1]).all((1, 2, 3)).sum())
    notes = (*data.notes, *kinds_in_words(blank=blank))
    return replace(data, x=torch.from_numpy(x), y=y, classes=classes, notes=notes)


def resized(pictures: Array, size: int) -> Array:
    """uint8 [N, C, size, size] of pictures [N, C, H, W], cut to a square in the middle.

    As `cut_image` does it, bit by bit, but all pictures at once where that can be.

    Examples
    --------
    >>> resized(np.full((2, 1, 4, 6), 7, np.uint8), 8).shape
    (2, 1, 8, 8)
    """
    high, wide = pictures.shape[2:]
    if _rows_first(high, wide, size):
        return _together(pictures, size)
    flat = pictures.reshape(-1, high, wide)
    return np.stack([_alone(one, size) for one in flat]).reshape(*pictures.shape[:2], size, size)


@lru_cache
def _rows_first(high: int, wide: int, size: int) -> bool:
    """Whether Pillow smooths such pictures along rows before columns; it does what is cheaper."""
    noise = np.random.default_rng(0).integers(0, 256, (1, 1, high, wide), np.uint8)
    return bool((_together(noise, size)[0, 0] == _alone(noise[0, 0], size)).all())


def _alone(picture: Array, size: int) -> Array:
    from PIL import Image

    found: Array = cut_image(Image.fromarray(picture), size, Frame()).pixels[0]
    return found


def _together(pictures: Array, size: int) -> Array:
    """Along rows, then along columns: those of all pictures, as one tall picture."""
    _, (left, top, right, bottom) = square(pictures.shape[3], pictures.shape[2], Frame())
    wide = _along_rows(pictures, size, left, right)  # [N, C, H, size]
    lying = _along_rows(wide.swapaxes(2, 3), size, top, bottom)
    return np.ascontiguousarray(lying.swapaxes(2, 3))


def _along_rows(pictures: Array, size: int, first: float, last: float) -> Array:
    """[N, C, H, size] what lies between two columns of pictures [N, C, H, W]."""
    from PIL import Image

    shape = pictures.shape
    tall = Image.fromarray(np.ascontiguousarray(pictures).reshape(-1, shape[3]))
    area = (first, 0, last, tall.height)
    found = tall.resize((size, tall.height), Image.Resampling.BILINEAR, box=area)
    return np.asarray(found).reshape(*shape[:3], size)
