"""Oxford's 102 flowers in the official form: jpg, imagelabels.mat, setid.mat."""

from __future__ import annotations

import os
from pathlib import Path

from engram.data.core import Data
from engram.data.matlab import numbers, read_matlab
from engram.data.photos import SIZE, photo, read_photos
from engram.errors import bad
from engram.spelling import plural

_KINDS = 102
_PARTS = {"trnid": "train", "valid": "valid", "tstid": "test"}


def is_flowers(path: Path) -> bool:
    """Whether a folder has the labels and the split."""
    return (path / "imagelabels.mat").is_file() and (path / "setid.mat").is_file()


def load_flowers(
    path: Path,
    *,
    size: int = SIZE,
    broken: str = "error",
    packed: str | os.PathLike[str] | None = None,
    name: str = "flowers102",
) -> Data:
    """The 102 kinds of flowers with the split of their authors: ten of each to train, ten to valid.

    Images and kinds are counted from 1 in the files; kinds have no names there. Options: see
    `read_photos`.
    """
    (given,) = read_matlab(path / "imagelabels.mat", "labels")
    kinds = numbers(path / "imagelabels.mat", "labels", given, 1, _KINDS)
    parts: dict[int, str] = {}
    split = read_matlab(path / "setid.mat", *_PARTS)
    for key, ids in zip(_PARTS, split, strict=True):
        for one in numbers(path / "setid.mat", key, ids, 1, len(kinds)):
            if one in parts:
                raise bad(f"{path / 'setid.mat'}: {key}", "images of one part only", one)
            parts[one] = _PARTS[key]
    photos = [
        photo(path / "jpg" / f"image_{one:05d}.jpg", _title(kinds[one - 1]), parts[one])
        for one in sorted(parts)
    ]
    left = len(kinds) - len(parts)
    notes = [f"{plural(left, 'image')} in no part left out"] if left else []
    classes = [_title(kind) for kind in range(1, _KINDS + 1)]
    return read_photos(name, photos, classes, size=size, broken=broken, packed=packed, notes=notes)


def _title(kind: int) -> str:
    return f"flower {kind:03d}"
