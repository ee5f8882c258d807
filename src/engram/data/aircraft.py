"""FGVC-Aircraft in the official form: data/images and the lists of variants."""

from __future__ import annotations

import os
from pathlib import Path

from engram.data.core import Data
from engram.data.crops import Frame
from engram.data.photos import SIZE, lines, photo, read_photos
from engram.errors import bad, choose

_LEVELS = {"variant": "variants.txt", "family": "families.txt", "manufacturer": "manufacturers.txt"}
_PARTS = {"train": "train", "val": "valid", "test": "test"}
_BANNER = 20  # rows of pixels at the lower edge that name the photographer


def is_aircraft(path: Path) -> bool:
    """Whether a folder, or its folder data, has the images and lists."""
    base = _base(path)
    return (base / "images_variant_train.txt").is_file() and (base / "images").is_dir()


def load_aircraft(
    path: Path,
    *,
    level: str = "variant",
    size: int = SIZE,
    broken: str = "error",
    packed: str | os.PathLike[str] | None = None,
    name: str = "aircraft",
) -> Data:
    """Aircraft with the split of their authors; the banner below each picture is cut off.

    `level`: 100 variants, 70 families or 30 manufacturers. Other options: see `read_photos`.
    """
    choose("level", level, _LEVELS)
    base = _base(path)
    listed = [" ".join(words) for _, words in lines(base / _LEVELS[level])]
    photos, seen = [], set()
    for word, part in _PARTS.items():
        file = base / f"images_{level}_{word}.txt"
        for number, (image, *words) in lines(file):
            title = " ".join(words)  # of several words: "Cessna 172"
            if title not in listed:
                raise bad(f"{file}, line {number}", f"an image and a {level} of "
                          f"{_LEVELS[level]}", " ".join([image, title]))  # fmt: skip
            if image in seen:
                raise bad(f"{file}, line {number}", "images of one part only", image)
            seen.add(image)
            picture = base / "images" / f"{image}.jpg"
            photos.append(photo(picture, title, part, Frame(bottom=_BANNER)))
    return read_photos(name, photos, listed, size=size, broken=broken, packed=packed)


def _base(path: Path) -> Path:
    return path / "data" if (path / "data" / "images").is_dir() else path
