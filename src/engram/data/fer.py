"""FER-2013 in its official forms: one CSV file with a picture per line, or folders of pictures."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from engram.data.core import Data
from engram.data.expressions import expression
from engram.data.folder import class_folders, images_in, is_hidden
from engram.data.images import decode, told
from engram.data.packed import load_packed
from engram.data.resized import as_faces
from engram.errors import bad, choose, unknown, whole

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
    if not path.is_file() or path.suffix != ".csv":
        return False
    with path.open(encoding="utf-8", errors="replace") as stream:
        return stream.readline().lower().replace(" ", "").startswith("emotion,")


def is_fer_folder(path: Path) -> bool:
    """Whether a folder has a folder for training with one sub-folder per expression."""
    parts = _parts(path) if path.is_dir() else {}
    inside = [name for folder, part in parts.items() if part == 0 for name in class_folders(folder)]
    return len(inside) > 1 and all(_class(name) is not None for name in inside)


def load_fer(
    path: Path, *, name: str = "fer2013", size: int | None = None, test: str = "private"
) -> Data:
    """FER-2013 from fer2013.csv (emotion, pixels, Usage), uint8 [N, 1, 48, 48].

    PublicTest is for validation, PrivateTest for testing; with `test` ``public`` the other way
    round. With a `size`, RGB images of that height and width, and the names of `EXPRESSIONS`, as
    other sets of faces have them.
    """
    x, y, usage = [], [], []
    with path.open(encoding="utf-8", newline="") as stream:
        for line, row in enumerate(csv.DictReader(stream, skipinitialspace=True), start=2):
            try:
                picture = np.array(row["pixels"].split(), np.uint8)
                y.append(_EMOTION[whole("emotion", int(row["emotion"]))])
                usage.append(_USAGE.index(row["Usage"]))
            except (KeyError, ValueError, IndexError, AttributeError, OverflowError):
                wanted = "emotion 0 to 6, pixels 0 to 255, Usage"
                raise bad(f"{path}, line {line}", wanted, str(row)[:80]) from None
            if len(picture) != _SIDE * _SIDE:
                raise bad(f"{path}, line {line}", f"{_SIDE * _SIDE} pixels", len(picture))
            x.append(picture)
    if not x:
        raise bad(str(path), "at least one picture", "none")
    pixels = torch.from_numpy(np.stack(x).reshape(-1, 1, _SIDE, _SIDE))
    return as_faces(with_test_part(_data(pixels, y, usage, name), test), size)


def load_fer_folder(
    path: Path, *, name: str = "fer2013", size: int | None = None, test: str = "private"
) -> Data:
    """FER-2013 from folders train and test with one sub-folder per expression.

    Files of the test folder whose names begin with PublicTest are for validation; without such
    names, all are for testing.
    """
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
            found = images_in(folder / label)
            if not found:
                raise bad(str(folder / label), "images", "none")
            files += found
            y += [number] * len(found)
            usage += [1 if part == 2 and one.name.startswith("PublicTest") else part
                      for one in found]  # fmt: skip
    x = torch.from_numpy(decode(files, label=lambda i: str(files[i])))
    notes = [one for one in told(files, x.numpy()) if size is None or "blank" not in one]
    data = replace(_data(x, y, usage, name), notes=tuple(notes))  # blank ones are told of below
    return as_faces(with_test_part(data, test), size)


def load_packed_faces(
    files: Sequence[Path], *, name: str | None = None, size: int | None = None,
    test: str = "private",
) -> Data:  # fmt: skip
    """A packed set of faces; with a `size`, RGB of that size with the names of `EXPRESSIONS`.

    With `test` ``public``, validation rows take the place of test rows: FER-2013's PublicTest.
    """
    return as_faces(with_test_part(load_packed(files, name=name), test), size)


def with_test_part(data: Data, test: str) -> Data:
    """The same rows, tested on the ``private`` or the ``public`` part of the challenge.

    Examples
    --------
    >>> parts = {"test": ([[3.0]], [0]), "valid": ([[4.0]], [0])}
    >>> data = Data.from_arrays([[1.0], [2.0]], [0, 1], **parts)
    >>> with_test_part(data, "public").test.equal(data.valid)
    True
    """
    if choose("test", test, TESTS) == "private":
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
    meant = {expression(word): i for i, word in enumerate(CLASSES)}
    found = expression(folder)
    return None if found is None else meant.get(found)


def _data(x: torch.Tensor, y: list[int], usage: list[int], name: str) -> Data:
    part = torch.tensor(usage)
    train, valid, test = ((part == i).nonzero()[:, 0] for i in range(3))
    return Data(
        x=x, y=torch.tensor(y)[:, None], train=train, valid=valid, test=test, classes=CLASSES,
        name=name,
    )  # fmt: skip
