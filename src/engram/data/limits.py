"""What may be read: sizes are looked at before memory is asked for, and only files are opened."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from engram.errors import bad

DENSE = 300  # times smaller than its content: no data set is, if it is large
LARGE = 1 << 30
MOST_HEADER = 16384  # bytes; numpy reads no more than 10,000


def memory() -> int:
    """Bytes of memory that this machine has; plenty where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 1 << 40


def check_size(label: str, size: int, packed: int) -> None:
    """Refuse content of `size` bytes, packed into fewer, that cannot be read or is no data.

    Examples
    --------
    >>> check_size("zeros.npz", 10**14, 10**11)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: zeros.npz: expected what fits into memory ... bytes), got 1000...
    """
    if size > memory():
        raise bad(label, f"what fits into memory ({memory()} bytes)", size)
    if size > LARGE and size > DENSE * max(packed, 1):
        raise bad(label, f"data, at most {DENSE} times as large as its file", f"{size} bytes")


def check_npz(file: Path) -> None:
    """Refuse an archive of arrays that says more than it holds, or holds more than can be read."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        check_size(str(file), sum(one.file_size for one in members), file.stat().st_size)
        check_arrays(file, archive, members)


def check_arrays(file: Path, archive: zipfile.ZipFile, members: Iterable[zipfile.ZipInfo]) -> None:
    """Refuse arrays that say more than they hold."""
    for one in members:
        if one.filename.endswith(".npy"):
            with archive.open(one) as stream:
                array_header(stream, one.file_size, f"{file}: {one.filename}")


def check_npy(file: Path) -> None:
    """Refuse an array that says more than its file holds."""
    with file.open("rb") as stream:
        if stream.read(6) == np.lib.format.MAGIC_PREFIX:
            stream.seek(0)
            array_header(stream, file.stat().st_size, str(file))


class ArrayHeader(NamedTuple):
    """What stands before the numbers of an array, and where they begin."""

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]
    start: int


def array_header(file: IO[bytes], size: int, label: str) -> ArrayHeader:
    """The header of an array of `size` bytes in all, which may not say that there are more."""
    stream = io.BytesIO(file.read(MOST_HEADER))  # it may claim to be of gigabytes itself
    version = np.lib.format.read_magic(stream)
    read = (np.lib.format.read_array_header_1_0 if version == (1, 0)
            else np.lib.format.read_array_header_2_0)  # fmt: skip
    shape, by_columns, dtype = read(stream)
    said = math.prod(shape) * dtype.itemsize + stream.tell()
    if not dtype.hasobject and (said > size or min(shape, default=0) < 0):
        raise bad(label, f"{said} bytes for {shape} of {dtype}", f"{size} bytes")
    return ArrayHeader(shape, by_columns, dtype, stream.tell())


def check_regular(file: Path) -> None:
    """Refuse what is not a file: to open a pipe would be to wait for ever."""
    if file.exists() and not file.is_file():
        raise OSError(f"{file} is not a regular file")
