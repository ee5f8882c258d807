"""An index of files: what is where, how large and how old, and the sums of their contents."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from engram.data.arrays import Array
from engram.data.npz import read_npz
from engram.errors import bad

SUM_BYTES = 16
_FORM = 1


@dataclass(frozen=True, eq=False)
class Index:
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


def index_of(
    root: str | Path, names: Sequence[str], sizes: Sequence[int], mtimes: Sequence[int]
) -> Index:
    """The index of files by their names below a root, sizes and times of the last change."""
    raw = [os.fsencode(name) for name in names]
    return Index(
        root=str(root), text=np.frombuffer(b"".join(raw), np.uint8),
        ends=np.cumsum([len(one) for one in raw], dtype=np.int64),
        size=np.array(sizes, np.int64), mtime=np.array(mtimes, np.int64),
        sums=np.zeros((0, SUM_BYTES), np.uint8), heads=np.zeros((0, 3), np.int32),
    )  # fmt: skip


def write_index(index: Index, file: Path) -> None:
    """Keep an index, to be found by `read_index`; it appears once it is complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    names = ("text", "ends", "size", "mtime", "sums", "heads")
    try:
        with unfinished.open("wb") as stream:
            np.savez(stream, index=np.array(_FORM), **{key: getattr(index, key) for key in names})
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def known_from(index: Index, file: Path) -> tuple[Index, Array]:
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
    before = Index(root=index.root, **{key: kept[key] for key in ("text", *shapes)})
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
