"""SVHN (cropped digits) in the official form: train_32x32.mat and test_32x32.mat."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engram.data.arrays import Array
from engram.data.core import Data
from engram.data.matlab import numbers, read_matlab
from engram.errors import bad

_SIDE = 32
_TEN = 10  # how the files write the digit 0


def is_svhn(path: Path) -> bool:
    """Whether a folder has both parts."""
    return all((path / f"{part}_32x32.mat").is_file() for part in ("train", "test"))


def load_svhn(path: Path, *, extra: bool = False, name: str = "svhn") -> Data:
    """Digits of house numbers as uint8 [N, 3, 32, 32].

    Files count them from 1 to 10, where 10 is the digit 0. ``extra=True`` also trains on those of
    extra_32x32.mat.
    """
    parts = {part: _part(path / f"{part}_32x32.mat")
             for part in ("train", "test", *(["extra"] if extra else []))}  # fmt: skip
    trained = [parts["train"], *([parts["extra"]] if extra else [])]
    x, y = (np.concatenate([one[i] for one in trained]) for i in range(2))
    names = [str(digit) for digit in range(10)]
    return Data.from_arrays(x, y, test=parts["test"], classes=names, name=name)


def _part(file: Path) -> tuple[Array, Array]:
    x, y = read_matlab(file, "X", "y")
    labels = np.array(numbers(file, "y", y, 0, _TEN)) % _TEN
    x = x[..., None] if x.ndim == 3 else x  # of a single picture
    if x.shape != (_SIDE, _SIDE, 3, len(labels)) or x.dtype != np.uint8:
        wanted = f"bytes [{_SIDE}, {_SIDE}, 3, {len(labels)}], a picture for each label"
        raise bad(f"{file}: X", wanted, (x.shape, str(x.dtype)))
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), labels
