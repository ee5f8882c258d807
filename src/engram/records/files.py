"""Files that appear whole or not at all, and readers that name the file that is broken."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engram.errors import BadArgument, RecordError
from engram.yaml_text import dump_yaml, parse_yaml

MOST_INDENTED = 100  # entries of a list in a JSON file
_counter = itertools.count()  # two threads of one process may write the same name


@contextmanager
def appearing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path to write to; on success it takes the place of `path` at once.

    The content is on disk before the name is, so a reader never meets half a file, not even after
    a power cut. If the block raises, `path` stays as it was.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with appearing(folder / "note.txt") as temporary:
    ...     _ = temporary.write_text("whole")
    >>> [p.name for p in folder.iterdir()]
    ['note.txt']
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}-{next(_counter)}")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(target.parent)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # a platform that cannot open directories has no such sync either
        if path.is_dir():
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write bytes atomically and return the path."""
    with appearing(path) as temporary:
        temporary.write_bytes(content)
    return Path(path)


def write_text(path: str | os.PathLike[str], content: str) -> Path:
    """Write UTF-8 text atomically and return the path."""
    return write_bytes(path, content.encode("utf-8"))


def write_json(path: str | os.PathLike[str], content: Any) -> Path:
    """Write JSON atomically; numpy numbers, tuples and paths become plain values first."""
    found = plain(content)
    # indented text is made by slow code: for people where it is short, compact where it is long
    several = isinstance(found, dict) and any(
        isinstance(part, list) and len(part) > MOST_INDENTED for part in found.values()
    )
    return write_text(path, json.dumps(found, indent=None if several else 1) + "\n")


def write_yaml(path: str | os.PathLike[str], content: Any) -> Path:
    """Write YAML atomically, keys in the order given."""
    return write_text(path, dump_yaml(plain(content)))


def plain(value: Any) -> Any:
    """The same value made of dict, list, str, int, float, bool and None only.

    Examples
    --------
    >>> import numpy as np
    >>> plain({"lr": np.float32(0.5), "sizes": (np.int64(3), 4)})
    {'lr': 0.5, 'sizes': [3, 4]}
    """
    if value is None or type(value) in (str, bool, int, float):
        return value
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        return [plain(inner) for inner in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays, tensors
        return plain(value.tolist())
    for kind in (bool, int, float):  # subclasses, such as enumerations of numbers
        if isinstance(value, kind):
            return kind(value)
    return str(value)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of a file; `RecordError` with its name if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        raise RecordError(f"{path}: cannot be read ({problem.strerror or problem})") from problem


def read_text(path: str | os.PathLike[str]) -> str:
    """The UTF-8 text of a file; `RecordError` with its name if it is not text."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise RecordError(f"{path}: is not UTF-8 text ({problem})") from problem


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value in a JSON file; `RecordError` with its name if it is garbled or cut off."""
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        raise RecordError(f"{path}: is not whole JSON ({problem})") from problem


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """The value in a YAML file; `RecordError` with its name if it is garbled."""
    text = read_text(path)
    try:
        return parse_yaml(str(path), text)
    except BadArgument as problem:
        raise RecordError(f"{problem}") from problem


def remove_leftovers(folder: str | os.PathLike[str], *, older_than: float = 86_400.0) -> list[Path]:
    """Delete temporary files that killed writers left behind more than `older_than` seconds ago."""
    limit = time.time() - older_than
    removed = []
    for path in Path(folder).glob(".*.tmp-*"):
        try:
            if path.stat().st_mtime <= limit:
                path.unlink()
                removed.append(path)
        except FileNotFoundError:  # its writer was alive after all and finished it
            continue
    return removed
