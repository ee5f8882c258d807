"""Encoded images to uint8 arrays, channels first."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engram.data.arrays import Array
from engram.data.limits import check_regular
from engram.errors import bad

_GREY = ("1", "L", "I;16")
_CLEAR = ("RGBA", "LA", "PA", "La", "RGBa")
Source = bytes | Path


def decode(
    sources: Sequence[Source],
    *,
    resize: tuple[int, int] | None = None,
    label: Callable[[int], str] = "image {}".format,
) -> Array:
    """uint8 [N, C, H, W] from files or encoded bytes; headers are checked before any decoding.

    Parameters
    ----------
    resize
        (height, width); without it all images must have one size.
    label
        Names image i in complaints.
    """
    heads = [_head(source, label(i)) for i, source in enumerate(sources)]
    height, width = resize or (heads[0][1], heads[0][0])
    for i, (wide, high, _) in enumerate(heads):
        if resize is None and (high, wide) != (height, width):
            raise bad(
                label(i), f"{height}x{width} pixels as {label(0)} (or give resize=(h, w))",
                f"{high}x{wide}",
            )  # fmt: skip
    grey = all(mode in _GREY for _, _, mode in heads)
    out = np.empty((len(sources), 1 if grey else 3, height, width), np.uint8)
    for i, source in enumerate(sources):
        out[i] = _pixels(source, "L" if grey else "RGB", (width, height), label(i))
    return out


def told(sources: Sequence[Source], decoded: Array) -> tuple[str, ...]:
    """What a reader of results must know of images: colours that were made or lost, blank ones."""
    grey = clear = 0
    for source in sources:
        with _open(source) as image:
            grey += image.mode in _GREY and decoded.shape[1] == 3
            clear += image.mode in _CLEAR or "transparency" in image.info
    blank = sum(bool((one == one[:, :1, :1]).all()) for one in decoded)
    words = {"grey images, made RGB": grey, "images whose transparency is left out": clear,
             "blank images of one colour, kept": blank}  # fmt: skip
    return tuple(f"{count:,} {text}" for text, count in words.items() if count)


def _open(source: Source) -> Any:
    from PIL import Image

    if isinstance(source, bytes):
        return Image.open(io.BytesIO(source))
    check_regular(source)
    try:
        return Image.open(source)
    except Image.DecompressionBombError as problem:
        raise OSError(str(problem)) from None


def _head(source: Source, label: str) -> tuple[int, int, str]:
    try:
        with _open(source) as image:
            return image.width, image.height, image.mode
    except OSError as problem:
        raise bad(label, "a readable image", str(problem)) from None


def _pixels(source: Source, mode: str, size: tuple[int, int], label: str) -> Array:
    from PIL import Image

    try:
        with _open(source) as image:
            whole = image.convert(mode)
    except (OSError, SyntaxError) as problem:  # Pillow's word for a broken PNG
        raise bad(label, "a complete image", str(problem)) from None
    if whole.size != size:
        whole = whole.resize(size, Image.Resampling.BILINEAR)
    array = np.asarray(whole)
    return array[None] if mode == "L" else array.transpose(2, 0, 1)


def cut_sheets(sheets: Sequence[bytes], *, tile: int = 32, per_row: int = 25) -> Array:
    """uint8 [N, 3, tile, tile] from sheets of square tiles, laid out row by row."""
    out = []
    for i, sheet in enumerate(sheets):
        pixels = decode([sheet], label=lambda _, i=i: f"sheet {i}")[0]  # type: ignore[misc]
        channels, high, wide = pixels.shape
        if wide != tile * per_row or high % tile:
            raise bad(f"sheet {i}", f"a width of {tile * per_row} and whole rows", (high, wide))
        grid = pixels.reshape(channels, high // tile, tile, per_row, tile)
        out.append(grid.transpose(1, 3, 0, 2, 4).reshape(-1, channels, tile, tile))
    return np.concatenate(out)
