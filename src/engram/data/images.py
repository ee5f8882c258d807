"""Encoded images to uint8 arrays, channels first."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np

from engram.data.checked_files import check_regular
from engram.data.conversion import Array
from engram.errors import BadArgument, bad, check_int, plural

_GREY = ("1", "L", "I;16")
_CLEAR = ("RGBA", "LA", "PA", "La", "RGBa")
ImageSource = bytes | Path | IO[bytes]
T = TypeVar("T")
_SHOWN = 10  # bad images in an error


def decode(
    sources: Sequence[ImageSource],
    *,
    resize: tuple[int, int] | None = None,
    label: Callable[[int], str] = "image {}".format,
    broken: dict[int, BadArgument] | None = None,
    grey: bool | None = None,
) -> Array:
    """uint8 [N, C, H, W] from files or encoded bytes; headers are checked before any decoding.

    Parameters
    ----------
    resize
        (height, width); without it all images must have one size.
    label
        Names image i in complaints.
    broken
        Where to note images that cannot be read, whose rows are then left black, in place of an
        error that names all of them.
    grey
        Whether all become grey (one channel) or coloured (three); by default, grey if all are.
    """
    problems: dict[int, BadArgument] = {}
    heads = [
        try_read(problems, i, read_image_header, source, label(i))
        for i, source in enumerate(sources)
    ]
    read = [(i, head) for i, head in enumerate(heads) if head is not None]
    if grey is None:
        grey = all(head.grey for _, head in read)
    height, width = resize or ((read[0][1].height, read[0][1].width) if read else (1, 1))
    if resize is None:
        _refuse_sizes(read, (height, width), label)
    out = np.zeros((len(sources), 1 if grey else 3, height, width), np.uint8)
    for i, _ in read:
        mode, size = "L" if grey else "RGB", (width, height)
        found = try_read(problems, i, read_pixels, sources[i], mode, size, label(i))
        if found is not None:
            out[i] = found
    if broken is None:
        refuse_broken(problems)
    else:
        broken |= problems
    return out


def try_read(
    problems: dict[int, BadArgument], i: int, read: Callable[..., T], *args: Any
) -> T | None:
    """What a reader gives; None where it complains of image i, which is noted."""
    try:
        return read(*args)
    except BadArgument as error:
        problems[i] = error
        return None


def refuse_broken(problems: Mapping[int, BadArgument], remedy: str = "") -> None:
    """One error for all images that cannot be read."""
    found = list(problems.values())
    if not found:
        return
    hint = f" ({remedy})" if remedy else ""
    if len(found) == 1:
        raise BadArgument(f"{found[0]}{hint}")
    shown = "; ".join(str(one) for one in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    raise BadArgument(f"{len(found):,} images cannot be read{hint}: {shown}{more}")


def _refuse_sizes(
    heads: Sequence[tuple[int, ImageHeader]], size: tuple[int, int], label: Callable[[int], str]
) -> None:
    """Refuse images of another size than the first one, all at once."""
    odd = [(i, one.height, one.width) for i, one in heads if (one.height, one.width) != size]
    if not odd:
        return
    i, high, wide = odd[0]
    more = f" and {len(odd) - 1:,} more of other sizes" if len(odd) > 1 else ""
    raise bad(
        label(i), f"{size[0]}x{size[1]} pixels as {label(heads[0][0])} (or give resize=(h, w), on "
        "the command line --set resize=32)", f"{high}x{wide}{more}",
    )  # fmt: skip


def check_sides(argument: str, value: Any) -> tuple[int, int]:
    """(height, width) from two numbers, or from one for a square.

    Examples
    --------
    >>> check_sides("crop", 56), check_sides("resize", [48, 64])
    ((56, 56), (48, 64))
    """
    pair = value if isinstance(value, Sequence) and not isinstance(value, str) else (value, value)
    good = [one for one in pair if isinstance(one, int) and not isinstance(one, bool) and one > 0]
    if len(pair) != 2 or len(good) != 2:
        raise bad(argument, "a number of pixels, or a height and a width", value)
    return check_int(argument, pair[0], 1), check_int(argument, pair[1], 1)


def describe_images(sources: Sequence[ImageSource], decoded: Array) -> tuple[str, ...]:
    """What a reader of results must know of images: colours that were made or lost, blank ones."""
    grey = clear = 0
    for source in sources:
        with _open(source) as image:
            grey += image.mode in _GREY and decoded.shape[1] == 3
            clear += image.mode in _CLEAR or "transparency" in image.info
    blank = sum(bool((one == one[:, :1, :1]).all()) for one in decoded)
    return describe_kinds(grey=grey, clear=clear, blank=blank)


def describe_kinds(*, grey: int = 0, clear: int = 0, blank: int = 0) -> tuple[str, ...]:
    """Notes on how many images are of some kinds.

    Examples
    --------
    >>> describe_kinds(grey=1, clear=2)
    ('1 grey image, made RGB', '2 images whose transparency is left out')
    """
    kinds = (
        (grey, "grey image", ", made RGB"), (clear, "image", " whose transparency is left out"),
        (blank, "blank image", " of one colour, kept"),
    )  # fmt: skip
    return tuple(count_notes(*kinds))


def count_notes(*counts: tuple[int, str, str]) -> list[str]:
    """A note for each count above 0: of what it is, and what became of that.

    Examples
    --------
    >>> count_notes((2, "clip", " left out"), (0, "clip", " lost"))
    ['2 clips left out']
    """
    return [plural(count, noun) + rest for count, noun, rest in counts if count]


def _open(source: ImageSource) -> Any:
    from PIL import Image

    if isinstance(source, bytes):
        source = io.BytesIO(source)
    elif isinstance(source, Path):
        check_regular(source)
    try:
        return Image.open(source)
    except Image.DecompressionBombError as problem:
        raise OSError(str(problem)) from None


class ImageHeader(NamedTuple):
    """What an image says of itself before its pixels; `clear`: it has transparency."""

    width: int
    height: int
    grey: bool
    clear: bool


def read_image_header(source: ImageSource, label: str) -> ImageHeader:
    """The size and kind of an image, without decoding it."""
    try:
        with _open(source) as image:
            clear = image.mode in _CLEAR or "transparency" in image.info
            return ImageHeader(image.width, image.height, image.mode in _GREY, clear)
    except OSError as problem:
        raise bad(label, "a readable image", str(problem)) from None


def read_pixels(source: ImageSource, mode: str, size: tuple[int, int], label: str) -> Array:
    """uint8 [C, H, W] of one image in a mode (L or RGB) and size (width, height); opened once."""
    from PIL import Image

    try:
        with _open(source) as image:
            image.load()
            picture = image if image.mode == mode else image.convert(mode)
        if picture.size != size:
            picture = picture.resize(size, Image.Resampling.BILINEAR)
    except (OSError, SyntaxError, MemoryError) as problem:  # Pillow's words for a broken PNG
        raise bad(label, "a complete image", str(problem) or type(problem).__name__) from None
    array = np.asarray(picture)
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
