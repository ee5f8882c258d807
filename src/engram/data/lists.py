"""Text files beside the pictures of a set: what they say is checked before it is used."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath

from engram.errors import bad

_FEW = 1000  # entries of a folder that are looked at


def text_of(file: Path) -> str:
    """The text of a file in UTF-8, or the reason why it has none."""
    with readable(file):
        return file.read_text(encoding="utf-8-sig")


@contextmanager
def readable(file: Path) -> Iterator[None]:
    r"""Names the file in complaints about its encoding or its quotes.

    Examples
    --------
    >>> with readable(Path("list.csv")):
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


def inside(where: str, name: str) -> str:
    r"""The path that a list has for a picture, with slashes; none that leads out of the set.

    Examples
    --------
    >>> inside("list.txt, line 1", "a\\b.jpg")
    'a/b.jpg'
    >>> inside("list.txt, line 2", "../b.jpg")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: list.txt, line 2: expected a file inside the data set, got '../b.jpg'
    """
    found = PurePosixPath(PureWindowsPath(name).as_posix())
    if not name.strip() or "\0" in name or found.is_absolute() or ".." in found.parts:
        raise bad(where, "a file inside the data set", name)
    return str(found)


def below(base: Path, name: str) -> Path:
    """What lies at a relative path, whatever the case of its letters; ``base / name`` if nothing.

    Folders of thousands of files are not searched: those that are looked for lie in small ones.

    Examples
    --------
    >>> import tempfile
    >>> base = Path(tempfile.mkdtemp())
    >>> (base / "emotion" / "S005").mkdir(parents=True)
    >>> below(base, "Emotion/s005").relative_to(base).as_posix()
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
