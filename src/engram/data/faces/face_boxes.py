"""Face boxes for sets that come without: from a table, or from a detector given as a function."""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from threading import Lock
from typing import Any

from engram.data.checked_files import (
    name_file_in_errors,
    parse_numbers,
    path_inside,
    read_text_file,
)
from engram.data.conversion import Array
from engram.data.picture_sets import Box, Frame, Picture
from engram.errors import bad, plural
from engram.plugins import load_user_object

FaceBoxes = str | os.PathLike[str] | Callable[[Array], Sequence[float] | None]
_COLUMNS = ("image", "left", "top", "right", "bottom")


def add_face_boxes(
    pictures: Sequence[Picture], path: Path, boxes: FaceBoxes | None
) -> tuple[list[Picture], list[str]]:
    """Pictures of a set below `path` with the boxes that they are cut by, and what is to be told.

    Parameters
    ----------
    boxes
        A table (.csv) with the columns image, left, top, right and bottom: the image is the end of
        a path, as long as it takes to fit one picture; four empty cells say that no face was found.
        Or a function that gets a picture as uint8 [height, width, 3] and returns left, top, right
        and bottom in pixels, None where it finds no face; or its name, ``module:name``. Pictures
        without a box are cut at their centre.

    Examples
    --------
    >>> import numpy as np
    >>> pictures = [Picture(Path("set/S001_001/1.jpg"), "Anger", "train")]
    >>> found, _ = add_face_boxes(pictures, Path("set"), lambda pixels: (4, 2, 12, 10))
    >>> found[0].frame.detector(np.zeros((16, 16, 3), np.uint8))
    (4.0, 2.0, 12.0, 10.0)
    """
    if boxes is None:
        return list(pictures), []
    if isinstance(boxes, str) and ":" in boxes and not Path(boxes).exists():
        return _find_in_pictures(pictures, load_user_object(boxes, what="boxes"), boxes), []
    if isinstance(boxes, (str, os.PathLike)):
        return _add_listed(pictures, path, Path(boxes))
    return _find_in_pictures(pictures, boxes, ""), []


# -- a detector ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FaceDetector:
    """A function that finds the face of a picture; threads that decode pictures call it in turn."""

    find: Callable[[Array], Sequence[float] | None] = field(repr=False)
    name: str  # tells packed files of one detector from those of another
    lock: Any = field(default_factory=Lock, repr=False, compare=False)

    def __call__(self, pixels: Array) -> Box | None:
        with self.lock:
            try:
                found = self.find(pixels)
            except (OSError, SyntaxError) as problem:  # as broken pictures raise them
                raise bad("boxes", f"a detector ({self.name}) that works", repr(problem)) from None
        if found is None:
            return None
        try:
            left, top, right, bottom = map(float, found)
        except (TypeError, ValueError):
            wanted = f"left, top, right and bottom, or None, from {self.name}"
            raise bad("boxes", wanted, found) from None
        return left, top, right, bottom


def _find_in_pictures(pictures: Sequence[Picture], find: Any, name: str) -> list[Picture]:
    if not callable(find):
        raise bad("boxes", "a table (.csv), or a function of the pixels of a picture", find)
    where = name or f"{getattr(find, '__module__', '')}:{getattr(find, '__qualname__', find)}"
    detector = FaceDetector(find, where)
    return [replace(one, frame=Frame(detector=detector)) for one in pictures]


# -- a table ---------------------------------------------------------------------------------------
def _add_listed(
    pictures: Sequence[Picture], path: Path, file: Path
) -> tuple[list[Picture], list[str]]:
    known = _read_boxes(file)
    met: dict[tuple[str, ...], list[Path]] = defaultdict(list)
    found = []
    for picture in pictures:
        name = next((end for end in _ends(path, picture.file) if end in known), None)
        if name is not None:
            met[name].append(picture.file)
        box = known[name][1] if name is not None else None
        found.append(picture if box is None else replace(picture, frame=Frame(box=box)))
    for name, files in met.items():
        one, other = files[0], next((more for more in files if more != files[0]), files[0])
        if one != other:
            expected = "a path that is long enough to fit one image"
            raise bad(known[name][0], expected, f"{'/'.join(name)}, which fits {one} and {other}")
    if not met:
        wanted = "/".join(pictures[0].file.parts[-2:]) if pictures else "images of the set"
        raise bad(str(file), f"boxes of images such as {wanted}", "none of them")
    others = len(known) - len(met)
    return found, [f"{plural(others, 'line')} of {file.name} without an image"] if others else []


def _ends(path: Path, file: Path) -> list[tuple[str, ...]]:
    """The ends of a file's path, the longest first: it begins below the folder of the set."""
    inside: PurePath = file.relative_to(path) if file.is_relative_to(path) else file
    parts = tuple(part.lower() for part in inside.parts)
    return [parts[start:] for start in range(len(parts))]


def _read_boxes(file: Path) -> dict[tuple[str, ...], tuple[str, Box | None]]:
    """Where a line stands and its box, by the parts of its image's path."""
    if not file.is_file():
        raise bad("boxes", "a table (.csv) that exists", str(file))
    found: dict[tuple[str, ...], tuple[str, Box | None]] = {}
    with name_file_in_errors(file):
        rows = list(csv.reader(read_text_file(file).splitlines()))
    for number, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (number == 1 and tuple(map(str.lower, cells)) == _COLUMNS):
            continue
        where = f"{file}, line {number}"
        name = tuple(path_inside(where, cells[0]).lower().split("/"))
        if name in found:
            raise bad(where, "one box for each image", cells[0])
        found[name] = where, _parse_box(where, cells)
    return found


def _parse_box(where: str, cells: Sequence[str]) -> Box | None:
    wanted = f"the columns {', '.join(_COLUMNS)}"
    if len(cells) != len(_COLUMNS):
        raise bad(where, wanted, ",".join(cells))
    if not any(cells[1:]):
        return None
    left, top, right, bottom = parse_numbers(where, wanted, cells[1:], 4)
    if not (left < right and top < bottom):
        raise bad(where, "left below right and top below bottom", ",".join(cells))
    return left, top, right, bottom
