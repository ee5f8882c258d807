"""MIT's 67 indoor scenes in the official form: Images, TrainImages.txt, TestImages.txt."""

from __future__ import annotations

import os
from pathlib import Path

from engram.data.core import Data
from engram.data.photos import SIZE, photo, read_photos
from engram.errors import bad

_LISTS = {"train": "TrainImages.txt", "test": "TestImages.txt"}


def is_mit67(path: Path) -> bool:
    """Whether a folder has both lists and the images."""
    lists = all((path / name).is_file() for name in _LISTS.values())
    return lists and (path / "Images").is_dir()


def load_mit67(
    path: Path,
    *,
    size: int = SIZE,
    broken: str = "error",
    packed: str | os.PathLike[str] | None = None,
    name: str = "mit67",
) -> Data:
    """Indoor scenes with the split of their authors: 80 of each to train, 20 to test.

    Images that no list names are left out, as the authors do. Options: see `read_photos`.
    """
    photos, seen = [], set()
    for part, file in _LISTS.items():
        text = (path / file).read_text(encoding="utf-8-sig").splitlines()
        for number, line in enumerate(text, 1):
            entry = line.strip()  # names of files have blanks
            if not entry:
                continue
            scene, slash, picture = entry.replace("\\", "/").partition("/")
            if not slash or not picture:
                raise bad(f"{path / file}, line {number}", "SCENE/IMAGE.jpg", line)
            if entry in seen:
                raise bad(f"{path / file}, line {number}", "images of one part only", entry)
            seen.add(entry)
            photos.append(photo(path / "Images" / scene / picture, scene, part))
    classes = sorted({one.label for one in photos})
    return read_photos(name, photos, classes, size=size, broken=broken, packed=packed)
