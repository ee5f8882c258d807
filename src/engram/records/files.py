"""Texts, JSON and YAML that appear whole or not at all; readers name the file that is broken."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from engram.disk import appearing
from engram.errors import BadArgument, RecordError
from engram.yaml_text import dump_yaml, parse_yaml

MOST_INDENTED = 100  # entries of a list in a JSON file


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
        if not Path(path).is_file() and Path(path).exists():  # a pipe would be waited for, for ever
            raise RecordError(f"{path}: is not a regular file")
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
    except (ValueError, RecursionError) as problem:
        raise RecordError(f"{path}: is not valid JSON ({problem})") from problem


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """The value in a YAML file; `RecordError` with its name if it is garbled."""
    text = read_text(path)
    try:
        return parse_yaml(str(path), text)
    except BadArgument as problem:
        raise RecordError(f"{problem}") from problem
