"""Files from elsewhere, checked before they are read: sizes, archives, arrays (npy, npz, MATLAB)
and text lists.
"""

from __future__ import annotations

import csv
import io
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, NamedTuple

import numpy as np

from engram.data.conversion import Array
from engram.errors import BadArgument, bad, wrap_read_errors

MAX_COMPRESSION = 300  # times smaller than its content: no data set is, if it is large
LARGE_FILE = 1 << 30
MAX_HEADER = 16384  # bytes; numpy reads no more than 10,000


def total_memory() -> int:
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
    if size > total_memory():
        raise bad(label, f"what fits into memory ({total_memory()} bytes)", size)
    if size > LARGE_FILE and size > MAX_COMPRESSION * max(packed, 1):
        raise bad(
            label, f"data, at most {MAX_COMPRESSION} times as large as its file", f"{size} bytes"
        )


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
                read_array_header(stream, one.file_size, f"{file}: {one.filename}")


def check_npy(file: Path) -> None:
    """Refuse an array that says more than its file holds."""
    with file.open("rb") as stream:
        if stream.read(6) == np.lib.format.MAGIC_PREFIX:
            stream.seek(0)
            read_array_header(stream, file.stat().st_size, str(file))


class ArrayHeader(NamedTuple):
    """What stands before the numbers of an array, and where they begin."""

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]
    start: int


def read_array_header(file: IO[bytes], size: int, label: str) -> ArrayHeader:
    """The header of an array of `size` bytes in all, which may not say that there are more."""
    stream = io.BytesIO(file.read(MAX_HEADER))  # it may claim to be of gigabytes itself
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


# ------------------------------------------------------------------------------------------------
# Text files, and the paths that they name

_FEW = 1000  # entries of a folder that are looked at


def read_text_file(file: Path) -> str:
    """The text of a file in UTF-8, or the reason why it has none."""
    with name_file_in_errors(file):
        return file.read_text(encoding="utf-8-sig")


def read_lines(file: Path) -> Iterator[tuple[str, str]]:
    r"""(place for errors, line) of the lines of a list that are not blank.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "list.txt"
    ...     _ = file.write_bytes(b"1 a b\r\n\r\n2 c \r\n")
    ...     [(where.partition(", ")[2], line) for where, line in read_lines(file)]
    [('line 1', '1 a b'), ('line 3', '2 c')]
    """
    if not file.is_file():
        raise bad(str(file), "a list that the official archive has", "no such file")
    for number, line in enumerate(read_text_file(file).splitlines(), 1):
        if line.strip():
            yield f"{file}, line {number}", line.strip()


def parse_numbers(where: str, wanted: str, words: Sequence[str], count: int) -> list[float]:
    """So many numbers from words, or an error that says what is `wanted`.

    Examples
    --------
    >>> parse_numbers("box.txt", "left and right", ["1", "2.5"], 2)
    [1.0, 2.5]
    """
    try:
        found = list(map(float, words))
    except ValueError:
        found = []
    if len(found) != count:
        raise bad(where, wanted, words)
    return found


@contextmanager
def name_file_in_errors(file: Path) -> Iterator[None]:
    r"""Names the file in complaints about its encoding or its quotes.

    Examples
    --------
    >>> with name_file_in_errors(Path("list.csv")):
    ...     b"\xff".decode()
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: list.csv: expected text in UTF-8, got "'utf-8' codec can't decode ...
    """
    try:
        yield
    except UnicodeDecodeError as problem:
        raise bad(str(file), "text in UTF-8", str(problem)) from None
    except csv.Error as problem:
        raise bad(str(file), "lines of a table", str(problem)) from None


def path_inside(where: str, name: str) -> str:
    r"""The path that a list has for a picture, with slashes; none that leads out of the set.

    Examples
    --------
    >>> path_inside("list.txt, line 1", "a\\b.jpg")
    'a/b.jpg'
    >>> path_inside("list.txt, line 2", "../b.jpg")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: list.txt, line 2: expected a file inside the data set, got '../b.jpg'
    """
    found = PurePosixPath(PureWindowsPath(name).as_posix())
    if not name.strip() or "\0" in name or found.is_absolute() or ".." in found.parts:
        raise bad(where, "a file inside the data set", name)
    return str(found)


def find_below(base: Path, name: str) -> Path:
    """What lies at a relative path, whatever the case of its letters; ``base / name`` if nothing.

    Folders of thousands of files are not searched: those that are looked for lie in small ones.

    Examples
    --------
    >>> import tempfile
    >>> base = Path(tempfile.mkdtemp())
    >>> (base / "emotion" / "S005").mkdir(parents=True)
    >>> find_below(base, "Emotion/s005").relative_to(base).as_posix()
    'emotion/S005'
    """
    place = base
    for part in PurePosixPath(name).parts:
        found = place / part
        if not found.exists() and place.is_dir():
            with os.scandir(place) as entries:
                names = [one.name for one in islice(entries, _FEW)]
            alike = sorted(one for one in names if one.lower() == part.lower())
            found = place / alike[0] if alike else found
        place = found
    return place


def find_first(base: Path, names: Iterable[str]) -> Path | None:
    """The first file of some relative paths (folder, where a path ends in a slash) that is there.

    The case of letters does not matter, see `find_below`.
    """
    for name in names:
        place = find_below(base, name)
        if place.is_dir() if name.endswith("/") else place.is_file():
            return place
    return None


def has_files(folder: Path, *names: str) -> bool:
    """Whether a folder has all of some files (folders, where a name ends in a slash).

    Examples
    --------
    >>> has_files(Path("/"), "etc/"), has_files(Path("/"), "etc")
    (True, False)
    """
    return all(
        (folder / name).is_dir() if name.endswith("/") else (folder / name).is_file()
        for name in names
    )


# ------------------------------------------------------------------------------------------------
# Arrays in .npz files


def read_npz(file: Path) -> dict[str, Array]:
    """All arrays of a file; refuses pickled ones."""
    with wrap_read_errors(file, "npz file", BadArgument):
        return _read(file)


def _read(file: Path) -> dict[str, Array]:
    try:
        if zipfile.is_zipfile(file):
            check_npz(file)
        with np.load(file, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise bad(str(file), "an npz file", "a single array")
            return {key: _plain(file, archive, key) for key in archive.files}
    except (zipfile.BadZipFile, OSError, EOFError) as problem:
        raise bad(str(file), "a complete npz file", str(problem)) from None


def _plain(file: Path, archive: Any, key: str) -> Array:
    try:
        found: Array = archive[key]
    except ValueError as problem:
        if "pickle" in str(problem):
            raise bad(str(file), "plain arrays only", "pickled objects") from None
        raise
    if not isinstance(found, np.ndarray):  # numpy gives the bytes of what is no array
        raise bad(f"{file}: {key}", "an array", "something else")
    return found


# ------------------------------------------------------------------------------------------------
# Arrays in MATLAB files


def read_matlab(file: Path, *wanted: str) -> list[Any]:
    """The arrays of these names, axes of length 1 taken out."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    if not file.is_file():
        raise bad(str(file), "a file that the official archive has", "no such file")
    try:
        found = loadmat(file, squeeze_me=True, chars_as_strings=True)
    except (MatReadError, ValueError, TypeError, OSError, NotImplementedError) as problem:
        raise bad(str(file), "a complete MATLAB file, version 7 or before", str(problem)) from None
    missing = [name for name in wanted if name not in found]
    if missing:
        there = sorted(name for name in found if not name.startswith("__"))
        raise bad(str(file), f"arrays called {', '.join(missing)}", there)
    return [found[name] for name in wanted]


def check_numbers(file: Path, name: str, values: Any, low: int, high: int) -> list[int]:
    """A list of whole numbers from `low` to `high`, or an error that says where they are wrong."""
    array = np.atleast_1d(values)
    good = array.ndim == 1 and array.dtype.kind in "iuf" and bool((array == array.round()).all())
    if not good or (len(array) and not low <= array.min() <= array.max() <= high):
        shown = array.tolist()[:5] if array.ndim == 1 else array.shape
        raise bad(f"{file}: {name}", f"whole numbers from {low} to {high}", shown)
    return [int(one) for one in array]
