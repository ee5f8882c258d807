"""From a picture to a face of one size: what is cut out of it, and how it got its colours."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engram.data.arrays import Array
from engram.data.limits import check_regular
from engram.errors import bad

if TYPE_CHECKING:
    from PIL.Image import Image

CROPS = ("landmarks", "box", "centre", "whole")
_GREY = ("1", "L", "LA", "I", "I;16", "F")
Box = tuple[float, float, float, float]  # left, top, right, bottom


class Cut(NamedTuple):
    """A face: uint8 [3, size, size], and what is to be counted about it."""

    pixels: Array
    crop: str  # one of CROPS
    grey: bool
    transparent: bool
    blank: bool
    lost: bool = False  # whether its box, or its landmarks, are no part of the picture


@dataclass(frozen=True)
class Frame:
    """Where the face is in a picture: landmarks [n, 2] (x, y), a box, or neither.

    `margin` is added around the landmarks on every side, as a part of their extent: those of a
    whole face end at the brows. `bottom` rows of pixels at the lower edge are no part of the
    picture.
    """

    points: Array | None = None
    box: Box | None = None
    margin: float = 0.15
    bottom: int = 0


def cut_face(source: bytes | Path, size: int, frame: Frame | None = None, label: str = "") -> Cut:
    """The face in a picture as RGB; a broken picture is a `BadArgument` of the kind "broken".

    Examples
    --------
    >>> from PIL import Image
    >>> stream = io.BytesIO()
    >>> Image.new("L", (30, 20), 7).save(stream, "png")
    >>> cut = cut_face(stream.getvalue(), 8)
    >>> cut.pixels.shape, cut.crop, cut.grey, cut.blank
    ((3, 8, 8), 'centre', True, True)
    """
    from PIL import Image

    where = label or (str(source) if isinstance(source, Path) else "image")
    try:
        if isinstance(source, Path):
            check_regular(source)
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            image.load()
            return cut_image(image, size, frame or Frame())
    except (OSError, SyntaxError, Image.DecompressionBombError) as problem:
        raise bad(where, "a readable, complete image", str(problem)).of_kind("broken") from None


def cut_image(image: Image, size: int, frame: Frame) -> Cut:
    """The face in an open picture."""
    from PIL import Image as Pillow

    if frame.bottom:  # before all else: smoothing reads beyond the edge of what it is given
        image = image.crop((0, 0, image.width, max(1, image.height - frame.bottom)))
    transparent = image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info
    grey = image.mode in _GREY
    crop, area = square(image.width, image.height, frame)
    lost = crop not in ("landmarks", "box") and not (frame.points is None and frame.box is None)
    plain = _eight_bits(image).convert("L" if grey else "RGB")  # a third of the work where grey
    if crop != "whole" or image.size != (size, size):
        plain = plain.resize((size, size), Pillow.Resampling.BILINEAR, box=area)
    pixels = np.asarray(plain)
    pixels = np.stack([pixels] * 3) if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))
    grey = grey or bool((pixels[0] == pixels[1:]).all())
    blank = bool((pixels[0] == pixels[0, 0, 0]).all()) and bool((pixels == pixels[:, :1, :1]).all())
    return Cut(pixels, crop, grey, transparent, blank, lost)


def _eight_bits(image: Image) -> Image:
    """Sixteen bits to eight: Pillow would cut off what lies above 255."""
    from PIL import Image as Pillow

    if not image.mode.startswith("I"):
        return image
    deep = np.asarray(image)
    return Pillow.fromarray((deep >> 8 if deep.max(initial=0) > 255 else deep).astype(np.uint8))


def square(width: int, height: int, frame: Frame) -> tuple[str, Box]:
    """What is cut out, inside the picture, and by what.

    Landmarks or a box that lie outside of it, or are smaller than a pixel, tell nothing: the
    picture is cut as without them.
    """
    crop, (x, y), side = _meant(frame)
    far = side / 2
    if crop and side >= 1 and -far < x < width + far and -far < y < height + far:
        return crop, _around((x, y), side, width, height)
    if width == height:
        return "whole", (0.0, 0.0, float(width), float(height))
    return "centre", _around((width / 2, height / 2), min(width, height), width, height)


def _meant(frame: Frame) -> tuple[str, tuple[float, float], float]:
    """By what a face is cut out, its middle and its side; "" where nothing is known."""
    if frame.points is not None:
        low, high = frame.points.min(0), frame.points.max(0)
        (x, y), side = (low + high) / 2, float((high - low).max()) * (1 + 2 * frame.margin)
        return "landmarks", (float(x), float(y)), side
    if frame.box is not None:
        left, top, right, bottom = frame.box
        middle = ((left + right) / 2, (top + bottom) / 2)
        return "box", middle, max(right - left, bottom - top)
    return "", (0.0, 0.0), 0.0


def _around(middle: Sequence[float] | Array, side: float, width: int, height: int) -> Box:
    """A square moved into the picture, no larger than it."""
    side = min(side, width, height)
    left = min(max(float(middle[0]) - side / 2, 0.0), width - side)
    top = min(max(float(middle[1]) - side / 2, 0.0), height - side)
    return left, top, left + side, top + side
