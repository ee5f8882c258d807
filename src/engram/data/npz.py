"""Plain arrays from an ``.npz`` file."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from engram.data.arrays import Array
from engram.data.limits import check_npz
from engram.errors import bad


def read_npz(file: Path) -> dict[str, Array]:
    """All arrays of a file; refuses pickled ones."""
    try:
        if zipfile.is_zipfile(file):
            check_npz(file)
        with np.load(file, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise bad(str(file), "an npz file", "a single array")
            return {key: archive[key] for key in archive.files}
    except (zipfile.BadZipFile, OSError, EOFError) as problem:
        raise bad(str(file), "a complete npz file", str(problem)) from None
    except ValueError as problem:
        if "pickle" in str(problem):
            raise bad(str(file), "plain arrays only", "pickled objects") from None
        raise
