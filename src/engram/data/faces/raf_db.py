"""RAF-DB (basic emotions) in the official form: EmoLabel, aligned images, manual annotation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engram.data.checked_files import (
    find_below,
    find_first,
    parse_numbers,
    path_inside,
    read_lines,
    read_text_file,
)
from engram.data.images import count_notes
from engram.data.picture_sets import Frame, Picture, PictureList, picture_reader
from engram.errors import bad, check_choice

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
    return find_first(path, _LISTS) is not None


@picture_reader("raf_db")
def load_raf_db(path: Path, *, images: str = "aligned") -> PictureList:
    """RAF-DB with the split of its authors; gender, race and age are attributes.

    `images`: the ``aligned`` ones of Image/aligned, taken whole, or the ``original`` ones of
    Image/original, cut by the face box of Annotation/boundingbox, else by the five manual
    landmarks.
    """
    check_choice("images", images, IMAGES)
    listed = find_first(path, _LISTS)
    if listed is None:
        raise bad(str(path), "EmoLabel/list_patition_label.txt", "no such file")
    base = listed.parent.parent
    pictures, manual = find_below(base, f"Image/{images}"), find_below(base, "Annotation/manual")
    boxes = find_below(base, "Annotation/boundingbox")
    faces, without = [], 0
    for where, line in read_lines(listed):
        stem, label, part = _parse_entry(where, line)
        points, facts = _read_manual(manual / f"{stem}_manu_attri.txt")
        without += not facts
        frame = _frame(boxes / f"{stem}_boundingbox.txt", points) if images == "original" else None
        faces.append(Picture(_picture(pictures, stem, images), label, part, frame, facts))
    notes = count_notes((without, "image", " without gender, race and age"))
    if without == len(faces):
        notes = ["no manual annotation: gender, race and age are not known"]
    return PictureList(faces, notes, names=GROUPS)


def _parse_entry(where: str, line: str) -> tuple[str, str, str]:
    """File name without its ending, expression and part of a line."""
    words = line.split()
    part = words[0].split("_")[0]
    good = len(words) == 2 and part in ("train", "test") and words[1].isdecimal()
    if not good or not 1 <= int(words[1]) <= len(_LABELS):
        wanted = f"train_NUMBER.jpg or test_NUMBER.jpg and a label from 1 to {len(_LABELS)}"
        raise bad(where, wanted, line)
    return path_inside(where, words[0]).rsplit(".", 1)[0], _LABELS[int(words[1]) - 1], part


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


def _frame(file: Path, points: np.ndarray | None) -> Frame:
    if not file.is_file():
        return Frame(points=points, margin=_MARGIN)
    wanted = "left, top, right and bottom of a face"
    left, top, right, bottom = parse_numbers(str(file), wanted, read_text_file(file).split(), 4)
    return Frame(box=(left, top, right, bottom))
