"""Arrays from files of MATLAB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engram.errors import bad


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


def numbers(file: Path, name: str, values: Any, low: int, high: int) -> list[int]:
    """A list of whole numbers from `low` to `high`, or an error that says where they are wrong."""
    import numpy as np

    array = np.atleast_1d(values)
    good = array.ndim == 1 and array.dtype.kind in "iuf" and bool((array == array.round()).all())
    if not good or (len(array) and not low <= array.min() <= array.max() <= high):
        shown = array.tolist()[:5] if array.ndim == 1 else array.shape
        raise bad(f"{file}: {name}", f"whole numbers from {low} to {high}", shown)
    return [int(one) for one in array]
