"""Images in many files as rows that are decoded when they are asked for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from engram.data.arrays import Array
from engram.data.images import head, kinds_in_words, pixels, refuse_broken, tried
from engram.data.index import SUM_BYTES, Index, known_from, write_index
from engram.data.lazy import CACHE, LazyRows
from engram.data.threads import Threads
from engram.errors import BadArgument, bad

GREY, CLEAR = 1, 2  # kinds of images, added up: one channel; with transparency
Decode = Callable[[Any, str], Array]  # from an open file and its name to uint8 [C, H, W]


@dataclass(frozen=True, kw_only=True)
class LazyOptions:
    """How images are read that stay on disk.

    Parameters
    ----------
    cache
        Bytes of decoded images kept in memory, as a number or as text such as "2GB".
    threads
        Threads that decode; None: one for each processor, 16 at most.
    index
        A file for the index. The first call reads every image once and keeps headers and sums of
        the contents there; later ones read only what is new or changed. The data is then known by
        those sums, without it by the times of the last change.
    """

    cache: int | str = CACHE
    threads: int | None = None
    index: str | os.PathLike[str] | None = None


def lazy_options(
    lazy: bool, cache: int | str | None, threads: int | None,
    index: str | os.PathLike[str] | None,
) -> LazyOptions | None:  # fmt: skip
    """The options of images that stay on disk; None, and none of them, for images in memory.

    Examples
    --------
    >>> lazy_options(False, "2GB", None, None)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: cache: expected None unless lazy=True, got '2GB'
    """
    if not isinstance(lazy, bool):
        raise bad("lazy", "True or False", lazy)
    for name, value in {"cache": cache, "threads": threads, "index": index}.items():
        if not lazy and value is not None:
            raise bad(name, "None unless lazy=True", value)
    if not lazy:
        return None
    return LazyOptions(cache=CACHE if cache is None else cache, threads=threads, index=index)


@dataclass(frozen=True)
class Stretched:
    """Decodes whole images to one mode and size."""

    mode: str  # L or RGB
    size: tuple[int, int]  # width, height

    def __call__(self, source: Any, label: str) -> Array:
        return pixels(source, self.mode, self.size, label)


class ImageFiles(LazyRows):
    """uint8 [N, C, H, W] of the files of an index."""

    def __init__(
        self, index: Index, sample: tuple[int, ...], decode: Decode, options: LazyOptions
    ) -> None:
        super().__init__(
            (len(index), *sample), cache=options.cache, threads=options.threads
        )  # fmt: skip
        self.index, self.decode = index, decode
        self.identity = index.identity((decode, sample))

    def read(self, row: int) -> Array:
        label = self.index.path(row)
        try:
            with open(label, "rb") as stream:
                self.index.check(row, os.fstat(stream.fileno()))
                return self.decode(stream, label)
        except OSError as problem:
            raise bad(label, "a file that still exists", problem.strerror or str(problem)) from None

    @property
    def hashes(self) -> Array | None:
        """[N] 64 bits of each file's sum, where the index has sums."""
        if not self.index.summed:
            return None
        return np.ascontiguousarray(self.index.sums[:, :8]).view(np.uint64)[:, 0]


def indexed(index: Index, options: LazyOptions, heads: bool = True) -> Index:
    """An index of images with their `heads`, heights, widths and kinds, where these are wanted.

    With a file for the index, contents are summed in the same pass and kept.
    """
    index = replace(index, heads=np.zeros((len(index), 3), np.int32))
    if options.index is None:
        if not heads:
            return replace(index, heads=index.heads[:0])
        _look(index, np.arange(len(index)), options, summed=False)
        return index
    file = Path(options.index).expanduser()
    index = replace(index, sums=np.zeros((len(index), SUM_BYTES), np.uint8))
    unknown = np.arange(len(index))
    if file.exists():
        index, unknown = known_from(index, file)
    if len(unknown):
        _look(index, unknown, options, summed=True)
        write_index(index, file)
    return index


def _look(index: Index, rows: Array, options: LazyOptions, summed: bool) -> None:
    """Fill in headers, and sums of the contents, of some rows; names all that are bad."""
    problems: dict[int, BadArgument] = {}

    def one(row: int) -> None:
        label = index.path(row)
        source: Any = Path(label)
        if summed:
            source = _contents(label)
            found = hashlib.blake2b(source, digest_size=SUM_BYTES).digest()
            index.sums[row] = np.frombuffer(found, np.uint8)
        wide, high, grey, clear = head(source, label)
        index.heads[row] = high, wide, GREY * grey + CLEAR * clear

    def some(places: Array) -> None:
        for row in places.tolist():
            tried(problems, row, one, row)

    Threads(options.threads).each(some, rows)
    refuse_broken(dict(sorted(problems.items())))


def _contents(label: str) -> bytes:
    try:
        return Path(label).read_bytes()
    except OSError as problem:
        raise bad(label, "a readable image", str(problem)) from None


def image_files(index: Index, resize: tuple[int, int] | None, options: LazyOptions) -> ImageFiles:
    """Whole images, of one size or resized; grey ones stay grey where all of them are."""
    sizes, kinds = index.heads[:, :2], index.heads[:, 2]
    height, width = resize or map(int, sizes[0])
    other = (sizes != sizes[0]).any(1)
    if resize is None and other.any():
        row = int(other.argmax())
        first = f"{height}x{width} pixels as {index.path(0)} (or give resize=(h, w))"
        raise bad(index.path(row), first, f"{sizes[row][0]}x{sizes[row][1]}")
    grey = bool((kinds & GREY).all())
    how = Stretched("L" if grey else "RGB", (width, height))
    return ImageFiles(index, (1 if grey else 3, height, width), how, options)


def told_of(x: ImageFiles) -> tuple[str, ...]:
    """What a reader of results must know of these images, as far as headers tell it."""
    kinds = x.index.heads[:, 2]
    grey, clear = (int((kinds & kind > 0).sum()) for kind in (GREY, CLEAR))
    return kinds_in_words(grey=grey if x.shape[1] == 3 else 0, clear=clear) + known_by(x)


def known_by(x: ImageFiles) -> tuple[str, ...]:
    """How the data is identified, for its notes."""
    by = "sums of their contents" if x.index.summed else "times of the last change"
    text = f"{len(x):,} files, decoded as needed, known by their names, sizes and {by}"
    more = () if x.index.summed else ("samples that occur twice are not looked for (index=FILE)",)
    return (text, *more)
