"""Sets of photographs of any kind, read as faces are: a list with labels and parts, one size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from engram.data.dataset import Data
from engram.data.faces.face_images import Face, FaceOptions, Frame, read_faces
from engram.errors import bad

SIZE = 64  # the benchmark of eight sets takes 256, and cuts 224 out of that


def make_photo(file: Path, label: str, part: str, frame: Frame | None = None) -> Face:
    """One photograph; `part` is train, valid or test."""
    return Face(file, label, part, frame)


def read_photos(
    name: str,
    photos: Sequence[Face],
    classes: Sequence[str],
    *,
    size: int,
    broken: str,
    packed: str | os.PathLike[str] | None,
    notes: Sequence[str] = (),
) -> Data:
    """uint8 [N, 3, size, size]: the middle square of each photograph, or the one around its box.

    ``broken="drop"`` leaves out what cannot be read and counts it. ``packed`` names a file that the
    first call writes and later ones map, for sets larger than memory.
    """
    options = FaceOptions(size=size, broken=broken, packed=packed)
    return read_faces(name, photos, options, classes=classes, notes=notes, noun="pictures")


def read_lines(file: Path) -> list[tuple[int, list[str]]]:
    r"""(line number, words) of all lines of a list that are not blank.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "list.txt"
    ...     _ = file.write_bytes(b"1 a b\r\n\r\n2 c\r\n")
    ...     read_lines(file)
    [(1, ['1', 'a', 'b']), (3, ['2', 'c'])]
    """
    if not file.is_file():
        raise bad(str(file), "a list that the official archive has", "no such file")
    text = file.read_text(encoding="utf-8-sig").splitlines()
    return [(number, words) for number, line in enumerate(text, 1) if (words := line.split())]


def read_numbered_lines(file: Path, wanted: str, columns: int) -> dict[int, list[str]]:
    """The rest of each line by the whole number that it begins with, each number once."""
    found: dict[int, list[str]] = {}
    for number, words in read_lines(file):
        if len(words) != columns or not words[0].isdecimal():
            raise bad(f"{file}, line {number}", wanted, " ".join(words))
        if int(words[0]) in found:
            raise bad(f"{file}, line {number}", "every number once", words[0])
        found[int(words[0])] = words[1:]
    return found
