"""Text files beside the pictures of a set: what they say is checked before it is used."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath

from engram.errors import bad


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
