"""FER-2013 as one CSV file or as folders, and its pictures resized to faces of one size."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from engram.data.checked_files import name_file_in_errors
from engram.data.conversion import Array
from engram.data.dataset import Data
from engram.data.faces.expressions import expression_ids, find_expression
from engram.data.image_folder import is_hidden, list_class_folders, list_images
from engram.data.images import decode, describe_images, describe_kinds, refuse_broken
from engram.data.packed import load_packed
from engram.data.picture_sets import BROKEN, Frame, crop_image, crop_square
from engram.errors import BadArgument, bad, check_choice, check_int, plural, unknown

CLASSES = ("angry", "disgusted", "fearful", "happy", "neutral", "sad", "surprised")
TESTS = ("private", "public")
_SIDE = 48
# the file counts emotions in an order of its own
_EMOTION = (0, 1, 2, 3, 5, 6, 4)
_USAGE = ("Training", "PublicTest", "PrivateTest")
_FOLDERS = {"train": 0, "training": 0, "valid": 1, "val": 1, "validation": 1, "publictest": 1,
            "test": 2, "privatetest": 2}  # fmt: skip


def is_fer(path: Path) -> bool:
    """Whether a file starts as the official CSV does."""
    if not path.is_file() or path.suffix.lower() != ".csv":
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        return stream.readline().lower().replace(" ", "").startswith("emotion,")


def is_fer_folder(path: Path) -> bool:
    """Whether a folder has a folder for training whose sub-folders are expressions, most of them.

    Those that are none, misspelt ones say, are refused by name when the set is loaded.
    """
    parts = _parts(path) if path.is_dir() else {}
    inside = [
        name for folder, part in parts.items() if part == 0 for name in list_class_folders(folder)
    ]
    known = sum(_class(name) is not None for name in inside)
    return known > 1 and 2 * known > len(inside)


def load_fer(
    path: Path, *, name: str = "fer2013", size: int | None = None, test: str = "private"
) -> Data:
    """FER-2013 from fer2013.csv (emotion, pixels, Usage), uint8 [N, 1, 48, 48].

    PublicTest is for validation, PrivateTest for testing; with `test` ``public`` the other way
    round. With a `size`, RGB images of that height and width, and the names of `EXPRESSIONS`, as
    other sets of faces have them.
    """
    x, y, usage = [], [], []
    with path.open(encoding="utf-8-sig", newline="") as stream, name_file_in_errors(path):
        reader = csv.DictReader(stream, skipinitialspace=True)
        reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
        for line, row in enumerate(reader, start=2):
            picture, emotion, part = _read_line(f"{path}, line {line}", row)
            x.append(picture)
            y.append(_EMOTION[emotion])
            usage.append(part)
    if not x:
        raise bad(str(path), "at least one picture", "none")
    pixels = torch.from_numpy(np.stack(x).reshape(-1, 1, _SIDE, _SIDE))
    return convert_to_faces(choose_test_part(_build_data(pixels, y, usage, name), test), size)


def _read_line(where: str, row: Mapping[str, str | None]) -> tuple[Array, int, int]:
    """The picture, the emotion as the file counts it, and the part of a line."""
    texts = {key: (row.get(key) or "").strip() for key in ("emotion", "pixels", "usage")}
    if texts["emotion"] not in map(str, range(len(_EMOTION))):
        raise bad(where, f"emotion 0 to {len(_EMOTION) - 1}", texts["emotion"])
    if texts["usage"] not in _USAGE:
        raise unknown(f"{where}: Usage", texts["usage"], _USAGE)
    try:
        picture = np.array(texts["pixels"].split(), np.uint8)
    except (ValueError, OverflowError) as problem:
        raise bad(where, "pixels 0 to 255", str(problem)) from None
    if len(picture) != _SIDE * _SIDE:
        raise bad(where, f"{_SIDE * _SIDE} pixels", len(picture))
    return picture, int(texts["emotion"]), _USAGE.index(texts["usage"])


def load_fer_folder(
    path: Path, *, name: str = "fer2013", size: int | None = None, test: str = "private",
    broken: str = "error",
) -> Data:  # fmt: skip
    """FER-2013 from folders train and test with one sub-folder per expression.

    Files of the test folder whose names begin with PublicTest are for validation; without such
    names, all are for testing. So are those of a folder for validation where there is no other.
    ``broken="drop"`` leaves images out that cannot be read, and counts them.
    """
    check_choice("broken", broken, BROKEN)
    files, y, usage = _list_files(path)
    problems: dict[int, BadArgument] = {}
    x = decode(files, label=lambda i: str(files[i]), broken=problems)
    if broken == "error":
        refuse_broken(problems, 'broken="drop" leaves such images out')
    kept = [i for i in range(len(files)) if i not in problems]
    if not kept:
        raise bad(str(path), "at least one image that can be read", "none")
    part = np.array(usage)[kept]
    notes = list(describe_images([files[i] for i in kept], x[kept]))
    if size is not None:
        notes = [one for one in notes if "blank" not in one]  # those are told of below
    if problems:
        notes.append(f"{plural(len(problems), 'image')} left out that cannot be read")
    if 2 not in part and 1 in part:
        part = np.where(part == 1, 2, part)
        notes.append("images for validation are for testing, because there are no others")
    data = _build_data(torch.from_numpy(x[kept]), [y[i] for i in kept], part.tolist(), name)
    return convert_to_faces(choose_test_part(replace(data, notes=tuple(notes)), test), size)


def _list_files(path: Path) -> tuple[list[Path], list[int], list[int]]:
    """All files, with the number of their class and of their part."""
    files: list[Path] = []
    y: list[int] = []
    usage: list[int] = []
    parts = _parts(path)
    _refuse_twice(path, parts)
    for folder, part in sorted(parts.items(), key=lambda pair: pair[1]):
        inside = (one.name for one in folder.iterdir() if one.is_dir())
        known: dict[int, str] = {}
        for label in sorted(one for one in inside if not is_hidden(one)):
            number = _class(label)
            if number is None:
                raise unknown(f"{folder}: class folder", label, CLASSES)
            if number in known:
                raise bad(str(folder), "one folder for each expression", [known[number], label])
            known[number] = label
            found = list_images(folder / label)
            if not found:
                raise bad(str(folder / label), "images", "none")
            files += found
            y += [number] * len(found)
            usage += [1 if part == 2 and one.name.startswith("PublicTest") else part
                      for one in found]  # fmt: skip
    return files, y, usage


def load_packed_faces(
    files: Sequence[Path], *, name: str | None = None, size: int | None = None,
    test: str = "private",
) -> Data:  # fmt: skip
    """A packed set of faces; with a `size`, RGB of that size with the names of `EXPRESSIONS`.

    With `test` ``public``, validation rows take the place of test rows: FER-2013's PublicTest.
    """
    return convert_to_faces(choose_test_part(load_packed(files, name=name), test), size)


def choose_test_part(data: Data, test: str) -> Data:
    """The same rows, tested on the ``private`` or the ``public`` part of the challenge.

    Examples
    --------
    >>> parts = {"test": ([[3.0]], [0]), "valid": ([[4.0]], [0])}
    >>> data = Data.from_arrays([[1.0], [2.0]], [0, 1], **parts)
    >>> choose_test_part(data, "public").test.equal(data.valid)
    True
    """
    if check_choice("test", test, TESTS) == "private":
        return data
    if not len(data.valid):
        raise bad("test", "private: there are no other rows to test on", test)
    return replace(data, test=data.valid, valid=data.test)


def _parts(path: Path) -> dict[Path, int]:
    return {one: _FOLDERS[one.name.lower()] for one in sorted(path.iterdir())
            if one.is_dir() and one.name.lower() in _FOLDERS}  # fmt: skip


def _refuse_twice(path: Path, parts: dict[Path, int]) -> None:
    for one, other in combinations(parts, 2):
        if parts[one] == parts[other]:
            raise bad(str(path), "one folder for each part", [one.name, other.name])


def _class(folder: str) -> int | None:
    """The class of a folder, named by a word or by the number that the CSV uses."""
    if folder.isdecimal():
        return _EMOTION[int(folder)] if int(folder) < len(_EMOTION) else None
    meant = {find_expression(word): i for i, word in enumerate(CLASSES)}
    found = find_expression(folder)
    return None if found is None else meant.get(found)


def _build_data(x: torch.Tensor, y: list[int], usage: list[int], name: str) -> Data:
    part = torch.tensor(usage)
    train, valid, test = ((part == i).nonzero()[:, 0] for i in range(3))
    return Data(
        x=x, y=torch.tensor(y)[:, None], train=train, valid=valid, test=test, classes=CLASSES,
        name=name,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------
# Images in memory as faces: RGB of one size, classes by the names of the expressions

_CHUNK = 256  # pictures smoothed at once: more would leave the caches of a processor


def convert_to_faces(data: Data, size: int | None) -> Data:
    """The same rows as uint8 [N, 3, size, size] with `EXPRESSIONS` as classes; None: as they are.

    Examples
    --------
    >>> x = torch.arange(5 * 16, dtype=torch.uint8).reshape(5, 1, 4, 4)
    >>> data = convert_to_faces(Data.from_arrays(x, ["sad", "neutral", "sad", "sad", "sad"]), 8)
    >>> data.sample_shape, data.classes, data.labels.tolist()
    ((3, 8, 8), ('Neutral', 'Sadness'), [1, 0, 1, 1, 1])
    """
    if size is None:
        return data
    check_int("size", size, low=8)
    if data.x.dtype not in (torch.uint8, np.uint8) or len(data.sample_shape) != 3:
        raise bad("size", "None, since these are no images of whole numbers", size)
    classes, place = expression_ids(f"classes of {data.name}", data.classes)
    y = torch.where(data.y >= 0, torch.from_numpy(place)[data.y.clamp(min=0)], -1)
    if data.sample_shape == (3, size, size):
        return replace(data, y=y, classes=classes)
    x = np.empty((len(data), 3, size, size), np.uint8)
    blank = 0
    for start in range(0, len(data), _CHUNK):
        faces = resize_like_pillow(np.asarray(data.x[start : start + _CHUNK]), size)
        x[start : start + len(faces)] = faces  # grey ones thrice
        blank += int((faces == faces[..., :1, :1]).all((1, 2, 3)).sum())
    notes = (*data.notes, *describe_kinds(blank=blank))
    return replace(data, x=torch.from_numpy(x), y=y, classes=classes, notes=notes)


def resize_like_pillow(pictures: Array, size: int) -> Array:
    """uint8 [N, C, size, size] of pictures [N, C, H, W], cut to a square in the middle.

    As `crop_image` does it, bit by bit, but all pictures at once where that can be.

    Examples
    --------
    >>> resize_like_pillow(np.full((2, 1, 4, 6), 7, np.uint8), 8).shape
    (2, 1, 8, 8)
    """
    high, wide = pictures.shape[2:]
    if _rows_first(high, wide, size):
        return _resize_all(pictures, size)
    flat = pictures.reshape(-1, high, wide)
    return np.stack([_resize_one(one, size) for one in flat]).reshape(
        *pictures.shape[:2], size, size
    )


@lru_cache
def _rows_first(high: int, wide: int, size: int) -> bool:
    """Whether Pillow smooths such pictures along rows before columns; it does what is cheaper."""
    noise = np.random.default_rng(0).integers(0, 256, (1, 1, high, wide), np.uint8)
    return bool((_resize_all(noise, size)[0, 0] == _resize_one(noise[0, 0], size)).all())


def _resize_one(picture: Array, size: int) -> Array:
    from PIL import Image

    found: Array = crop_image(Image.fromarray(picture), size, Frame()).pixels[0]
    return found


def _resize_all(pictures: Array, size: int) -> Array:
    """Along rows, then along columns: those of all pictures, as one tall picture."""
    _, (left, top, right, bottom) = crop_square(pictures.shape[3], pictures.shape[2], Frame())
    wide = _resize_rows(pictures, size, left, right)  # [N, C, H, size]
    lying = _resize_rows(wide.swapaxes(2, 3), size, top, bottom)
    return np.ascontiguousarray(lying.swapaxes(2, 3))


def _resize_rows(pictures: Array, size: int, first: float, last: float) -> Array:
    """[N, C, H, size] what lies between two columns of pictures [N, C, H, W]."""
    from PIL import Image

    shape = pictures.shape
    tall = Image.fromarray(np.ascontiguousarray(pictures).reshape(-1, shape[3]))
    area = (first, 0, last, tall.height)
    found = tall.resize((size, tall.height), Image.Resampling.BILINEAR, box=area)
    return np.asarray(found).reshape(*shape[:3], size)
