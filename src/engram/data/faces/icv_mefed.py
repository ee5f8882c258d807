"""iCV-MEFED: compound expressions of 125 subjects, of which the dominant one is the class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from engram.data.checked_files import find_first, path_inside, read_lines
from engram.data.faces.face_boxes import FaceBoxes, add_face_boxes
from engram.data.image_folder import IMAGE_SUFFIXES, is_hidden
from engram.data.picture_sets import Picture, PictureList, picture_reader
from engram.errors import bad

# A label A_B names the complementary (A) and the dominant expression (B).
_CODES = {
    "1": "Anger", "2": "Contempt", "3": "Disgust", "4": "Fearful", "5": "Happiness",
    "6": "Sadness", "7": "Surprised", "N": "Neutral", "0": "Neutral",
}  # fmt: skip
_PARTS = {
    "train": ("training", "train"), "valid": ("validation", "valid", "val"),
    "test": ("testing", "test"),
}  # fmt: skip
_ENTRY = re.compile(r"(.*[^\s,;])[\s,;]+([^\s,;]+)")
_LABEL = re.compile(r"(?:^|[_\-. ])([0-7N])_([0-7N])$", re.IGNORECASE)


def is_icv_mefed(path: Path) -> bool:
    """Whether a folder has lists or folders of both parts, labelled in the form A_B."""
    found: set[str] = set()
    try:
        return any(len(found := found | {part}) > 1 for part, _, _ in _entries(path))
    except ValueError:
        return True  # it does, but something is wrong with them, which loading will tell


@picture_reader("icv_mefed")
def load_icv_mefed(path: Path, *, boxes: FaceBoxes | None = None) -> PictureList:
    """iCV-MEFED with the split of its authors; subject and complementary expression are attributes.

    Each part is a list ``training.txt``, ``validation.txt``, ``testing.txt`` of lines
    ``IMAGE LABEL``, or a folder of that name whose images lie in folders called by their labels
    (``training/017/1_7/0003.JPG``) or end in them (``training/017/0003_1_7.JPG``).

    Parameters
    ----------
    boxes
        A table of face boxes, or a function that finds a face; without, and where there is none,
        images are cut at their centre.
    """
    faces = [
        Picture(file, _CODES[dominant.upper()], part,
             facts={**_subject(path, file), "complementary": _CODES[other.upper()]})
        for part, file, (other, dominant) in _entries(path)
    ]  # fmt: skip
    if not {"train", "test"} <= {face.part for face in faces}:
        raise bad(str(path), "lists or folders training and testing with labels A_B",
                  sorted({face.part for face in faces}) or "none")  # fmt: skip
    return PictureList(*add_face_boxes(faces, path, boxes))


def _entries(path: Path) -> Iterator[tuple[str, Path, tuple[str, str]]]:
    """(part, image, label) of all images, part by part."""
    for part, names in _PARTS.items():
        listed = find_first(path, [one + end for one in names for end in (".txt", ".csv")])
        folder = find_first(path, [f"{one}/" for one in names])
        if listed is not None:
            yield from ((part, *entry) for entry in _read_list(path, listed, folder))
        elif folder is not None:
            yield from ((part, *entry) for entry in _walk_folders(folder))


def _read_list(
    path: Path, file: Path, folder: Path | None
) -> Iterator[tuple[Path, tuple[str, str]]]:
    for number, (where, line) in enumerate(read_lines(file)):
        entry = _ENTRY.fullmatch(line)  # names of images may have blanks
        label = None if entry is None else _LABEL.fullmatch(entry[2])
        if entry is None or label is None:
            if number == 0 and not any(one in line.lower() for one in IMAGE_SUFFIXES):
                continue  # a head line
            raise bad(where, "an image and a label such as 1_7 or N_N", line)
        image = path_inside(where, entry[1])
        places = [path / image, *([folder / image] if folder else [])]
        yield next((one for one in places if one.is_file()), places[-1]), (label[1], label[2])


def _walk_folders(folder: Path) -> Iterator[tuple[Path, tuple[str, str]]]:
    for file in sorted(folder.rglob("*")):
        below = file.relative_to(folder)
        hidden = any(map(is_hidden, below.parts))
        if hidden or file.suffix.lower() not in IMAGE_SUFFIXES or not file.is_file():
            continue
        names = [file.stem, *reversed(below.parts[:-1])]
        found = [(one[1].upper(), one[2].upper()) for one in map(_LABEL.search, names) if one]
        if not found:
            raise bad(str(file), "a label such as 1_7 or N_N in its name or folder", file.name)
        if len(set(found)) > 1:
            raise bad(str(file), "one label", " and ".join("_".join(one) for one in found))
        yield file, found[0]


def _subject(path: Path, file: Path) -> dict[str, str]:
    """The subject: the folder that is no part and no label, or what the file name begins with."""
    parts = {one for names in _PARTS.values() for one in names}
    folders = [one for one in file.relative_to(path).parts[:-1]
               if one.lower() not in parts and not _LABEL.fullmatch(one)]  # fmt: skip
    if folders:
        return {"subject": folders[0]}
    head, *rest = re.split(r"[_\-]", file.stem)
    return {"subject": head} if rest and not _LABEL.fullmatch(file.stem) else {}
