"""Chars74K in the official form: English/Img (natural images) and English/Fnt (fonts)."""

from __future__ import annotations

import os
import string
from pathlib import Path

from engram.data.core import Data
from engram.data.folder import images_in
from engram.data.photos import SIZE, photo, read_photos
from engram.errors import bad, choose

# Sample001 is "0", Sample011 "A", Sample037 "a"
_SYMBOLS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_FOLDERS = {"img": "Img/GoodImg/Bmp", "fnt": "Fnt"}
_BAD = "Img/BadImg/Bmp"
_TESTED = 5  # every fifth picture of a class
SYMBOLS = ("letters", "digits", "all")


def is_chars74k(path: Path) -> bool:
    """Whether a folder, or its folder English, has samples of one kind or the other."""
    return any((_base(path) / inside / "Sample011").is_dir() for inside in _FOLDERS.values())


def load_chars74k(
    path: Path,
    *,
    kind: str = "img",
    symbols: str = "letters",
    poor: bool = False,
    size: int = SIZE,
    broken: str = "error",
    packed: str | os.PathLike[str] | None = None,
    name: str = "chars74k",
) -> Data:
    """Letters (and digits) in photographs, or drawn by fonts; every fifth of a class is tested.

    Parameters
    ----------
    kind
        ``img`` or ``fnt``.
    symbols
        The 52 ``letters``, the ten ``digits`` or ``all`` 62.
    poor
        Also the photographs that the authors found to be poor (BadImg).
    size, broken, packed
        See `read_photos`.
    """
    choose("kind", kind, _FOLDERS)
    choose("symbols", symbols, SYMBOLS)
    base = _base(path)
    wanted = {"letters": string.ascii_letters, "digits": string.digits, "all": _SYMBOLS}[symbols]
    folders = [_FOLDERS[kind], *([_BAD] if poor and kind == "img" else [])]
    photos = []
    for number, symbol in enumerate(_SYMBOLS, 1):
        if symbol not in wanted:
            continue
        inside = [base / folder / f"Sample{number:03d}" for folder in folders]
        files = [file for folder in inside if folder.is_dir() for file in images_in(folder)]
        if not files:
            raise bad(str(inside[0]), f"pictures of {symbol!r}", "none")
        # case tells letters apart, also where file systems and readers do not
        title = f"{'small' if symbol.islower() else 'capital'} {symbol}"
        title = symbol if symbol.isdecimal() else title
        photos += [
            photo(file, title, "test" if i % _TESTED == _TESTED - 1 else "train")
            for i, file in enumerate(files)
        ]
    classes = list(dict.fromkeys(one.label for one in photos))
    notes = ["no official split: every fifth image of each class is held out for testing"]
    return read_photos(name, photos, classes, size=size, broken=broken, packed=packed, notes=notes)


def _base(path: Path) -> Path:
    return path / "English" if (path / "English").is_dir() else path
