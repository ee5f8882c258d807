"""Stanford Cars in the official form: cars_train, cars_test and the devkit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from engram.data.core import Data
from engram.data.crops import Frame
from engram.data.faces import Face
from engram.data.matlab import numbers, read_matlab
from engram.data.photos import SIZE, photo, read_photos
from engram.errors import bad

_META, _TRAIN = "devkit/cars_meta.mat", "devkit/cars_train_annos.mat"
_LABELLED = "cars_test_annos_withlabels.mat"  # given out later than the devkit, beside it or in it
_SIDES = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")


def is_stanford_cars(path: Path) -> bool:
    """Whether a folder has the devkit."""
    return (path / _META).is_file() and (path / _TRAIN).is_file()


def load_stanford_cars(
    path: Path,
    *,
    box: bool = False,
    size: int = SIZE,
    broken: str = "error",
    packed: str | os.PathLike[str] | None = None,
    name: str = "stanford_cars",
) -> Data:
    """196 models of cars with the split of their authors.

    Models and pixels are counted from 1 in the files. The devkit itself has no labels of the test
    part: they are in cars_test_annos_withlabels.mat. ``box=True`` cuts cars out by their boxes.
    Other options: see `read_photos`.
    """
    (titles,) = read_matlab(path / _META, "class_names")
    classes = [str(title) for title in np.atleast_1d(titles)]
    if len(set(classes)) < len(classes):
        raise bad(str(path / _META), "every model once", len(classes))
    labelled = next((p for p in (path / "devkit" / _LABELLED, path / _LABELLED) if p.is_file()),
                    path / "devkit" / _LABELLED)  # fmt: skip
    photos = [
        *_photos(path / _TRAIN, path / "cars_train", "train", classes, box),
        *_photos(labelled, path / "cars_test", "test", classes, box),
    ]
    return read_photos(name, photos, classes, size=size, broken=broken, packed=packed)


def _photos(file: Path, folder: Path, part: str, classes: list[str], box: bool) -> Iterator[Face]:
    (given,) = read_matlab(file, "annotations")
    rows = np.atleast_1d(given)
    missing = {"class", "fname", *(_SIDES if box else ())} - set(rows.dtype.names or ())
    if missing:
        raise bad(f"{file}: annotations", f"the fields {sorted(missing)}", rows.dtype.names)
    for row in rows:
        (kind,) = numbers(file, "class", int(row["class"]), 1, len(classes))
        # pixels are counted from 1, and both sides belong to the box
        left, top, right, bottom = (float(row[side]) for side in _SIDES) if box else (0, 0, 0, 0)
        frame = Frame(box=(left - 1, top - 1, right, bottom)) if box else None
        yield photo(folder / str(row["fname"]), classes[kind - 1], part, frame)
