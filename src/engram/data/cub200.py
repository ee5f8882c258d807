"""CUB-200-2011 in the official form: images.txt, classes.txt and the lists beside them."""

from __future__ import annotations

import os
from pathlib import Path

from engram.data.core import Data
from engram.data.crops import Frame
from engram.data.photos import SIZE, numbered, photo, read_photos
from engram.errors import bad

_LISTS = ("images.txt", "classes.txt", "image_class_labels.txt", "train_test_split.txt")
_PARTS = {"1": "train", "0": "test"}


def is_cub200(path: Path) -> bool:
    """Whether a folder has the lists."""
    return all((path / name).is_file() for name in _LISTS)


def load_cub200(
    path: Path,
    *,
    box: bool = False,
    size: int = SIZE,
    broken: str = "error",
    packed: str | os.PathLike[str] | None = None,
    name: str = "cub200",
) -> Data:
    """200 kinds of birds with the split of their authors.

    ``box=True`` cuts birds out by bounding_boxes.txt (left, top, width, height). Other options: see
    `read_photos`.
    """
    images, kinds, labels, parts = (
        numbered(path / file, "a number and a value", 2) for file in _LISTS
    )
    wanted = "a number, left, top, width, height"
    boxes = numbered(path / "bounding_boxes.txt", wanted, 5) if box else {}
    titles = {str(kind): words[0] for kind, words in kinds.items()}
    photos = []
    for one, (file,) in images.items():
        kind, part = (table.get(one, [""])[0] for table in (labels, parts))
        if kind not in titles:
            raise bad(str(path / _LISTS[2]), f"a class of classes.txt for image {one}", kind)
        if part not in _PARTS:
            raise bad(str(path / _LISTS[3]), f"1 (train) or 0 (test) for image {one}", part)
        frame = _frame(path, one, boxes.get(one)) if box else None
        photos.append(photo(path / "images" / file, titles[kind], _PARTS[part], frame))
    classes = [titles[kind] for kind in sorted(titles, key=int)]
    return read_photos(name, photos, classes, size=size, broken=broken, packed=packed)


def _frame(path: Path, image: int, words: list[str] | None) -> Frame:
    try:
        left, top, width, height = map(float, words or ())
    except ValueError:
        wanted = f"left, top, width, height of image {image}"
        raise bad(str(path / "bounding_boxes.txt"), wanted, words) from None
    return Frame(box=(left, top, left + width, top + height))
