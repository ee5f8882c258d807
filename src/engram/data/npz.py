"""Plain arrays from an ``.npz`` file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from engram.data.arrays import Array
from engram.data.limits import check_npz
from engram.errors import BadArgument, bad, read_as


def read_npz(file: Path) -> dict[str, Array]:
    """All arrays of a file; refuses pickled ones."""
    with read_as(file, "npz file", BadArgument):
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
