"""Images that stay in their files: rows decoded when they are asked for, and the index that
knows the files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from engram.data.checked_files import read_npz
from engram.data.conversion import Array
from engram.data.images import (
    describe_kinds,
    read_image_header,
    read_pixels,
    refuse_broken,
    try_read,
)
from engram.data.lazy_rows import DEFAULT_CACHE, LazyRows, WorkerThreads
from engram.errors import BadArgument, bad
from engram.io import atomic_write

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

    cache: int | str = DEFAULT_CACHE
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
    return LazyOptions(
        cache=DEFAULT_CACHE if cache is None else cache, threads=threads, index=index
    )


@dataclass(frozen=True)
class Stretched:
    """Decodes whole images to one mode and size."""

    mode: str  # L or RGB
    size: tuple[int, int]  # width, height

    def __call__(self, source: Any, label: str) -> Array:
        return read_pixels(source, self.mode, self.size, label)


class ImageFiles(LazyRows):
    """uint8 [N, C, H, W] of the files of an index."""

    def __init__(
        self, index: FileIndex, sample: tuple[int, ...], decode: Decode, options: LazyOptions
    ) -> None:
        super().__init__((len(index), *sample), cache=options.cache, threads=options.threads)
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


def read_image_index(index: FileIndex, options: LazyOptions, heads: bool = True) -> FileIndex:
    """An index of images with their `heads`, heights, widths and kinds, where these are wanted.

    With a file for the index, contents are summed in the same pass and kept.
    """
    index = replace(index, heads=np.zeros((len(index), 3), np.int32))
    if options.index is None:
        if not heads:
            return replace(index, heads=index.heads[:0])
        _read_headers(index, np.arange(len(index)), options, summed=False)
        return index
    file = Path(options.index).expanduser()
    index = replace(index, sums=np.zeros((len(index), SUM_BYTES), np.uint8))
    unknown = np.arange(len(index))
    if file.exists():
        index, unknown = reuse_index(index, file)
    if len(unknown):
        _read_headers(index, unknown, options, summed=True)
        write_index(index, file)
    return index


def _read_headers(index: FileIndex, rows: Array, options: LazyOptions, summed: bool) -> None:
    """Fill in headers, and sums of the contents, of some rows; names all that are bad."""
    problems: dict[int, BadArgument] = {}

    def one(row: int) -> None:
        label = index.path(row)
        source: Any = Path(label)
        if summed:
            source = _contents(label)
            found = hashlib.blake2b(source, digest_size=SUM_BYTES).digest()
            index.sums[row] = np.frombuffer(found, np.uint8)
        wide, high, grey, clear = read_image_header(source, label)
        index.heads[row] = high, wide, GREY * grey + CLEAR * clear

    def some(places: Array) -> None:
        for row in places.tolist():
            try_read(problems, row, one, row)

    WorkerThreads(options.threads).each(some, rows)
    refuse_broken(dict(sorted(problems.items())))


def _contents(label: str) -> bytes:
    try:
        return Path(label).read_bytes()
    except OSError as problem:
        raise bad(label, "a readable image", str(problem)) from None


def image_files(
    index: FileIndex, resize: tuple[int, int] | None, options: LazyOptions
) -> ImageFiles:
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


def image_file_notes(x: ImageFiles) -> tuple[str, ...]:
    """What a reader of results must know of these images, as far as headers tell it."""
    kinds = x.index.heads[:, 2]
    grey, clear = (int((kinds & kind > 0).sum()) for kind in (GREY, CLEAR))
    return describe_kinds(grey=grey if x.shape[1] == 3 else 0, clear=clear) + identity_note(x)


def identity_note(x: ImageFiles) -> tuple[str, ...]:
    """How the data is identified, for its notes."""
    by = "sums of their contents" if x.index.summed else "times of the last change"
    text = f"{len(x):,} files, decoded as needed, known by their names, sizes and {by}"
    more = () if x.index.summed else ("samples that occur twice are not looked for (index=FILE)",)
    return (text, *more)


# ------------------------------------------------------------------------------------------------
# The index: what lies where, how large and how old it is, and sums of the contents

SUM_BYTES = 16
_FORM = 1


@dataclass(frozen=True, eq=False)
class FileIndex:
    """N files below a folder; about 60 bytes for each, names included.

    Parameters
    ----------
    root
        The folder.
    text, ends
        Names relative to it, end to end as bytes [T], and where each ends [N].
    size, mtime
        [N] bytes, and nanoseconds of the last change.
    sums
        [N, 16] of the contents, or [0, 16] where they are not known.
    heads
        [N, 3] height, width and kind of the images, or [0, 3].
    """

    root: str
    text: Array
    ends: Array
    size: Array
    mtime: Array
    sums: Array
    heads: Array

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def summed(self) -> bool:
        """Whether the contents are known by their sums."""
        return len(self.sums) == len(self) > 0

    def name(self, row: int) -> str:
        """The file's path below the root."""
        start = int(self.ends[row - 1]) if row else 0
        return os.fsdecode(self.text[start : int(self.ends[row])].tobytes())

    def path(self, row: int) -> str:
        """The file's whole path."""
        return os.path.join(self.root, self.name(row))

    def identity(self, how: Any) -> str:
        """By what these files, read in a certain way, are known.

        Names, sizes and sums; where there are no sums, times of the last change. The folder itself
        may be elsewhere.
        """
        digest = hashlib.blake2b(repr((how, self.summed)).encode(), digest_size=SUM_BYTES)
        for part in (self.text, self.ends, self.size, self.sums if self.summed else self.mtime):
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def check(self, row: int, found: os.stat_result) -> None:
        """Refuse a file that is not any more what the index says."""
        if (found.st_size, found.st_mtime_ns) != (int(self.size[row]), int(self.mtime[row])):
            was = f"{self.size[row]} bytes, changed at {self.mtime[row]} ns, as it was indexed"
            now = f"{found.st_size} bytes, changed at {found.st_mtime_ns} ns"
            raise bad(self.path(row), was, now)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        parts = (self.text, self.ends, self.size, self.mtime, self.sums, self.heads)
        return sum(part.nbytes for part in parts)


def make_index(
    root: str | Path, names: Sequence[str], sizes: Sequence[int], mtimes: Sequence[int]
) -> FileIndex:
    """The index of files by their names below a root, sizes and times of the last change."""
    raw = [os.fsencode(name) for name in names]
    return FileIndex(
        root=str(root), text=np.frombuffer(b"".join(raw), np.uint8),
        ends=np.cumsum([len(one) for one in raw], dtype=np.int64),
        size=np.array(sizes, np.int64), mtime=np.array(mtimes, np.int64),
        sums=np.zeros((0, SUM_BYTES), np.uint8), heads=np.zeros((0, 3), np.int32),
    )  # fmt: skip


def write_index(index: FileIndex, file: Path) -> None:
    """Keep an index, to be found by `read_index`; it appears once it is complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    names = ("text", "ends", "size", "mtime", "sums", "heads")
    with atomic_write(file) as unfinished, unfinished.open("wb") as stream:
        np.savez(stream, index=np.array(_FORM), **{key: getattr(index, key) for key in names})


def reuse_index(index: FileIndex, file: Path) -> tuple[FileIndex, Array]:
    """An index with what a kept one knows of the same files, and which of them it does not know.

    A file is the same while its name, size and time of the last change are.
    """
    kept = read_npz(file)
    rows = len(kept.get("ends", ()))
    shapes = {"ends": (rows,), "size": (rows,), "mtime": (rows,), "heads": (rows, 3),
              "sums": (rows, SUM_BYTES)}  # fmt: skip
    good = all(key in kept and kept[key].shape == shape for key, shape in shapes.items())
    if "index" not in kept or int(kept["index"]) != _FORM or not good or "text" not in kept:
        raise bad("index", "a file that was written as an index of files", str(file))
    before = FileIndex(root=index.root, **{key: kept[key] for key in ("text", *shapes)})
    sums = np.zeros((len(index), SUM_BYTES), np.uint8)
    heads = np.zeros((len(index), 3), np.int32)
    if before.text.tobytes() == index.text.tobytes() and np.array_equal(before.ends, index.ends):
        place = np.arange(len(index))
    else:
        where = {before.name(row): row for row in range(len(before))}
        place = np.array([where.get(index.name(row), -1) for row in range(len(index))], np.int64)
    same = place >= 0
    for key in ("size", "mtime"):
        same[same] &= getattr(before, key)[place[same]] == getattr(index, key)[same]
    sums[same], heads[same] = before.sums[place[same]], before.heads[place[same]]
    return replace(index, sums=sums, heads=heads), np.flatnonzero(~same)
