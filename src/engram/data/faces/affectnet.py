"""AffectNet in both official forms: lists with face boxes, and folders with npy annotations."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from engram import keys
from engram.data.checked_files import (
    find_below,
    find_first,
    name_file_in_errors,
    parse_numbers,
    path_inside,
)
from engram.data.image_folder import IMAGE_SUFFIXES, is_hidden, list_images
from engram.data.images import count_notes
from engram.data.npy_files import read_npy
from engram.data.picture_sets import Frame, Picture, PictureList, picture_reader
from engram.errors import bad, check_int

_LABELS = (
    "Neutral", "Happiness", "Sadness", "Surprised", "Fearful", "Disgust", "Anger", "Contempt",
)  # fmt: skip
_OTHERS = ("none", "uncertain", "no face")  # 8, 9 and 10: no expressions
_ALONE = "annotations"  # without an image
_LISTS = ("", "Manually_Annotated_file_lists", "Manually_Annotated/Manually_Annotated_file_lists")
_PICTURES = (
    "Manually_Annotated/Manually_Annotated_Images/", "Manually_Annotated_Images/",
    "Manually_Annotated/", "./",
)  # fmt: skip
_FILES = {"train": "training.csv", "test": "validation.csv"}
_SETS = {"train": ("train_set", "train"), "test": ("val_set", "val", "valid")}
_COLUMNS = ("subDirectory_filePath", "face_x", "face_y", "face_width", "face_height",
            "facial_landmarks", "expression", "valence", "arousal")  # fmt: skip


def is_affectnet(path: Path) -> bool:
    """Whether a folder has the lists, or the folders with annotations."""
    return _lists(path) is not None or _sets(path) is not None


@picture_reader("affectnet")
def load_affectnet(path: Path, *, per_class: int | None = None, seed: int = 0) -> PictureList:
    """AffectNet, manually labelled: training and, for testing, validation part of its authors.

    Images without an expression (none, uncertain, no face) are left out. Lists give a face box, by
    which the images are cut; images of the folders with annotations are faces already. The whole
    set takes 9 GB at size 100: give `packed`.

    Parameters
    ----------
    per_class, seed
        At most so many training images of each expression, drawn by the seed; the down-sampled
        form of the authors has 15000.
    """
    lists, sets = _lists(path), _sets(path)
    if lists is None and sets is None:
        raise bad(str(path), f"{_FILES['train']} and {_FILES['test']}, or train_set and val_set "
                  "with images and annotations", "others")  # fmt: skip
    others: Counter[str] = Counter()
    found = _read_lists(path, lists, others) if lists else _read_annotations(sets or {}, others)
    faces = list(found)
    alone = others.pop(_ALONE, 0)
    notes = count_notes(
        *((count, "image", f" labelled {kind} left out") for kind, count in others.items()),
        (alone, "annotation", " without an image"),
    )
    if per_class is not None:
        faces, left = _limit_per_class(faces, check_int("per_class", per_class, low=1), seed)
        notes.append(f"at most {per_class:,} training images per class, {left:,} left out")
    return PictureList(faces, notes)


def _lists(path: Path) -> dict[str, Path] | None:
    for folder in _LISTS:
        files = {part: find_below(path, f"{folder}/{file}") for part, file in _FILES.items()}
        if all(file.is_file() for file in files.values()) and _is_list(files["train"]):
            return files
    return None


def _is_list(file: Path) -> bool:
    with file.open(encoding="utf-8-sig", errors="replace") as stream:
        first = stream.readline().split(",")
    name = first[0].strip(' "')
    picture = Path(name).suffix.lower() in IMAGE_SUFFIXES  # not every copy has a head line
    return len(first) > _COLUMNS.index("expression") and (picture or _is_head(name))


def _is_head(name: str) -> bool:
    return name.strip().lower() == _COLUMNS[0].lower()


def _sets(path: Path) -> dict[str, Path] | None:
    sets = {}
    for part, names in _SETS.items():
        annotations = find_first(path, [f"{one}/annotations/" for one in names])
        if annotations is None:
            return None
        sets[part] = annotations.parent
    return sets


def _read_lists(path: Path, lists: dict[str, Path], others: Counter[str]) -> Iterator[Picture]:
    base = find_first(path, _PICTURES) or path
    for part, file in lists.items():
        with file.open(encoding="utf-8-sig", newline="") as stream, name_file_in_errors(file):
            for number, row in enumerate(csv.reader(stream), 1):
                if not row or _is_head(row[0]):
                    continue
                where = f"{file}, line {number}"
                if len(row) < len(_COLUMNS) - 2:
                    raise bad(where, f"the columns {', '.join(_COLUMNS)}", ",".join(row)[:80])
                label = _label(where, row[_COLUMNS.index("expression")], others)
                if label is not None:
                    place = base / path_inside(where, row[0])
                    yield Picture(place, label, part, Frame(box=_box(where, row[1:5])))


def _box(where: str, words: list[str]) -> tuple[float, float, float, float] | None:
    """The face box; None where the list has none (NULL, or a width of 0)."""
    if any(word.strip().upper() in ("", "NULL", "NAN") for word in words):
        return None
    wanted = "face_x, face_y, face_width, face_height"
    left, top, width, height = parse_numbers(where, wanted, words, 4)
    return (left, top, left + width, top + height) if width > 0 and height > 0 else None


def _read_annotations(sets: dict[str, Path], others: Counter[str]) -> Iterator[Picture]:
    for part, folder in sets.items():
        images, annotations = find_below(folder, "images"), find_below(folder, "annotations")
        pictures = list_images(images) if images.is_dir() else []
        if not pictures:
            raise bad(str(images), "images", "none")
        pictures.sort(key=lambda one: (len(one.stem), one.stem))  # 2 before 10
        for one, other in pairwise(pictures):
            if one.stem == other.stem:
                raise bad(str(images), "one image per annotation", [one.name, other.name])
        told = [one.name for one in annotations.iterdir() if one.name.endswith("_exp.npy")]
        others[_ALONE] += max(0, sum(not is_hidden(one) for one in told) - len(pictures))
        for picture in pictures:
            file = annotations / f"{picture.stem}_exp.npy"
            label = _label(str(file), _read_npy_scalar(file), others)
            if label is not None:
                yield Picture(picture, label, part)


def _read_npy_scalar(file: Path) -> str:
    """The one number or text of a file; pickled objects are never unpickled."""
    if not file.is_file():
        raise bad(str(file), "an annotation for each image", "no such file")
    wanted = "a plain array of one label"
    value = read_npy(file, wanted=wanted)
    if value.size != 1 or value.dtype.kind not in "iufUS":
        raise bad(str(file), wanted, f"{value.shape} of {value.dtype}")
    one = value.ravel()[0]
    return one.decode("ascii", "replace") if isinstance(one, bytes) else str(one)


def _label(where: str, text: str, others: Counter[str]) -> str | None:
    """The expression of a code; None and one more of the `others` where it is none."""
    words = [*_LABELS, *_OTHERS]
    if not re.fullmatch(r"\s*\d+(\.0*)?\s*", text) or int(float(text)) >= len(words):
        raise bad(where, f"an expression from 0 to {len(words) - 1}", text)
    word = words[int(float(text))]
    if word in _OTHERS:
        others[word] += 1
        return None
    return word


def _limit_per_class(faces: list[Picture], limit: int, seed: int) -> tuple[list[Picture], int]:
    """At most `limit` training faces of each class, in the order in which they were."""
    keep: set[int] = set()
    for k, label in enumerate(_LABELS):
        mine = [i for i, face in enumerate(faces) if face.part == "train" and face.label == label]
        key = keys.fold(check_int("seed", seed), "per class", k)
        keep.update(mine[j] for j in keys.permutation(key, len(mine), len(mine))[:limit].tolist())
    kept = [face for i, face in enumerate(faces) if face.part != "train" or i in keep]
    return kept, len(faces) - len(kept)
