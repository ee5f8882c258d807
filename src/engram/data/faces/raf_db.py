"""RAF-DB (basic emotions) in the official form: EmoLabel, aligned images, manual annotation."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from engram.data.checked_files import find_below, path_inside, read_text_file
from engram.data.dataset import Data
from engram.data.faces.face_images import Face, FaceOptions, Frame, read_faces
from engram.errors import bad, check_choice, plural

_LISTS = tuple(
    f"{base}EmoLabel/{name}" for base in ("basic/", "")
    for name in ("list_patition_label.txt", "list_partition_label.txt")  # the first by its authors
)  # fmt: skip
_LABELS = ("Surprised", "Fearful", "Disgust", "Happiness", "Sadness", "Anger", "Neutral")  # from 1
GROUPS = {
    "gender": ("male", "female", "unsure"),
    "race": ("Caucasian", "African-American", "Asian"),
    "age": ("0-3", "4-19", "20-39", "40-69", "70+"),
}
IMAGES = ("aligned", "original")
_EYES_TO_MOUTH = 5  # points of a manual annotation
_MARGIN = 0.75  # they lie well inside of the face


def is_raf_db(path: Path) -> bool:
    """Whether a folder, or its folder basic, has the list of labels."""
    return _list(path) is not None


def load_raf_db(
    path: Path,
    *,
    size: int = 100,
    images: str = "aligned",
    broken: str = "error",
    packed: str | os.PathLike[str] | None = None,
    name: str = "raf_db",
) -> Data:
    """RAF-DB with the split of its authors; gender, race and age are attributes.

    Parameters
    ----------
    size, broken, packed
        See `FaceOptions`.
    images
        ``aligned``: those of Image/aligned, taken whole. ``original``: those of Image/original, cut
        by the face box of Annotation/boundingbox, else by the five manual landmarks.
    """
    check_choice("images", images, IMAGES)
    options = FaceOptions(size=size, broken=broken, packed=packed)
    listed = _list(path)
    if listed is None:
        raise bad(str(path), "EmoLabel/list_patition_label.txt", "no such file")
    base = listed.parent.parent
    pictures, manual = find_below(base, f"Image/{images}"), find_below(base, "Annotation/manual")
    boxes = find_below(base, "Annotation/boundingbox")
    faces, without = [], 0
    for number, line in enumerate(read_text_file(listed).splitlines(), 1):
        if not line.strip():
            continue
        stem, label, part = _entry(listed, number, line)
        points, facts = _read_manual(manual / f"{stem}_manu_attri.txt")
        without += not facts
        faces.append(Face(_picture(pictures, stem, images), label, part,
                          _frame(boxes, stem, points) if images == "original" else None,
                          facts))  # fmt: skip
    if without == len(faces):
        notes = ["no manual annotation: gender, race and age are not known"]
    else:
        notes = [f"{plural(without, 'image')} without gender, race and age"] if without else []
    return read_faces(name, faces, options, notes=notes, names=GROUPS)


def _list(path: Path) -> Path | None:
    """The list of labels, in the folder or in its folder basic."""
    return next((file for one in _LISTS if (file := find_below(path, one)).is_file()), None)


def _entry(file: Path, number: int, line: str) -> tuple[str, str, str]:
    """File name without its ending, expression and part of a line."""
    words = line.split()
    part = words[0].split("_")[0]
    good = len(words) == 2 and part in ("train", "test") and words[1].isdecimal()
    if not good or not 1 <= int(words[1]) <= len(_LABELS):
        wanted = f"train_NUMBER.jpg or test_NUMBER.jpg and a label from 1 to {len(_LABELS)}"
        raise bad(f"{file}, line {number}", wanted, line)
    return (
        path_inside(f"{file}, line {number}", words[0]).rsplit(".", 1)[0],
        _LABELS[int(words[1]) - 1],
        part,
    )


def _picture(folder: Path, stem: str, images: str) -> Path:
    end = "_aligned" if images == "aligned" else ""
    for suffix in (".jpg", ".JPG", ".png", ".jpeg"):
        if (folder / f"{stem}{end}{suffix}").is_file():
            return folder / f"{stem}{end}{suffix}"
    return folder / f"{stem}{end}.jpg"  # missing: refused or counted where pictures are read


def _read_manual(file: Path) -> tuple[np.ndarray | None, dict[str, str]]:
    """The five landmarks and gender, race and age; nothing where the file is missing."""
    if not file.is_file():
        return None, {}
    words = read_text_file(file).split()
    try:
        points = np.array(words[: 2 * _EYES_TO_MOUTH], np.float64).reshape(_EYES_TO_MOUTH, 2)
        codes = [int(word) for word in words[2 * _EYES_TO_MOUTH :]]
        pairs = zip(GROUPS.items(), codes, strict=True)
        facts = {key: values[code] for (key, values), code in pairs if code >= 0}
    except (ValueError, IndexError):
        wanted = "five landmarks, then gender 0 to 2, race 0 to 2, age 0 to 4"
        raise bad(str(file), wanted, " ".join(words)) from None
    return points, facts


def _frame(folder: Path, stem: str, points: np.ndarray | None) -> Frame:
    file = folder / f"{stem}_boundingbox.txt"
    if not file.is_file():
        return Frame(points=points, margin=_MARGIN)
    words = read_text_file(file).split()
    try:
        left, top, right, bottom = map(float, words)
    except ValueError:
        raise bad(str(file), "left, top, right and bottom of a face", " ".join(words)) from None
    return Frame(box=(left, top, right, bottom))
