"""CK+ (Extended Cohn-Kanade) in the official form: frames, Emotion and Landmarks files."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np

from engram.data.attributes import draw_held_out_units
from engram.data.checked_files import find_below, find_first, read_text_file
from engram.data.conversion import Array
from engram.data.faces.expressions import EXPRESSIONS
from engram.data.image_folder import is_hidden, list_images
from engram.data.images import count_notes
from engram.data.picture_sets import Frame, Picture, PictureList, picture_reader
from engram.errors import bad, check_int

# The Emotion files count the expressions as EXPRESSIONS does: 0 neutral, 1 anger, 2 contempt, ...
_IMAGES = ("cohn-kanade-images/", "extended-cohn-kanade-images/cohn-kanade-images/")
_EMOTION = ("Emotion/", "Emotion_labels/Emotion/", "Emotion_labels/")
_LANDMARKS = ("Landmarks/", "Landmarks/Landmarks/")
_LABELLED = "_emotion.txt"  # the end of the name of a label
_POINTS = 68
_NUMBER = re.compile(r"(\d+)\D*$")


def is_ck_plus(path: Path) -> bool:
    """Whether a folder holds the frames and the Emotion files."""
    return find_first(path, _IMAGES) is not None and find_first(path, _EMOTION) is not None


@picture_reader("ck_plus")
def load_ck_plus(
    path: Path, *, peak: int = 3, test_share: float = 37 / 123, seed: int = 0
) -> PictureList:
    """CK+: the last frames of each labelled sequence as its expression, the first as Neutral.

    Faces are cut by their 68 landmarks.

    Parameters
    ----------
    peak
        Frames taken from the end of a sequence.
    test_share, seed
        Share of the subjects that is for testing, and how they are drawn; 37 of 123, so that
        every expression has about that share. No subject is in both parts.
    """
    check_int("peak", peak, low=1)
    images, emotions = find_first(path, _IMAGES), find_first(path, _EMOTION)
    if images is None or emotions is None:
        raise bad(str(path), "the folders cohn-kanade-images and Emotion", "others")
    subjects = _folders(images)
    found: list[tuple[Path, str, str]] = []
    unlabelled = short = told = 0
    for subject in subjects:
        for session in _folders(subject):
            label, last = _label(find_below(emotions, f"{subject.name}/{session.name}"))
            frames = _sort_frames(session)
            told += label is not None
            if label is None:
                unlabelled += 1
            elif frames and _frame_number(frames[-1]) < last:
                wanted = f"frame {last}, of which its emotion was told"
                raise bad(str(session), wanted, f"{frames[-1].name} as the last one")
            elif len(frames) < 2:
                short += 1
            else:
                found.append((frames[0], "Neutral", subject.name))
                found += [(one, label, subject.name) for one in frames[1:][-peak:]]
    if not found:
        raise bad(str(emotions), "files *_emotion.txt of the sequences", "none")
    units, labels = [one[2] for one in found], [one[1] for one in found]
    everyone = [subject.name for subject in subjects]
    held = draw_held_out_units(units, labels, test_share, seed=seed, everyone=everyone)
    landmarks = find_first(path, _LANDMARKS)
    faces = [
        Picture(
            file, label, "test" if subject in held else "train",
            _frame(file, images, landmarks), {"subject": subject},
        )
        for file, label, subject in found
    ]  # fmt: skip
    notes = [f"{len(subjects) - len(held)} subjects for training, {len(held)} for testing"]
    alone = sum(len(_emotion_files(one)) for one in emotions.rglob("*") if one.is_dir()) - told
    notes += count_notes(
        (unlabelled, "sequence", " without an emotion left out"),
        (short, "sequence", " of fewer than two frames left out"),
        (alone, "emotion file", " of sequences that are not there"),
    )
    return PictureList(faces, notes)


def _folders(path: Path) -> list[Path]:
    return sorted(one for one in path.iterdir() if one.is_dir() and not is_hidden(one.name))


def _frame_number(file: Path) -> int:
    found = _NUMBER.search(file.stem)
    return int(found[1]) if found else 0


def _sort_frames(session: Path) -> list[Path]:
    """The frames of a sequence by their numbers, which no two may share."""
    frames = sorted(list_images(session), key=_frame_number)
    for one, other in pairwise(frames):
        if _frame_number(one) == _frame_number(other):
            raise bad(str(session), "each frame once", [one.name, other.name])
    return frames


def _label(folder: Path) -> tuple[str | None, int]:
    """The emotion of a sequence, of which most have none, and the number of its last frame."""
    files = _emotion_files(folder) if folder.is_dir() else []
    if not files:
        return None, 0
    if len(files) > 1:
        raise bad(str(folder), "one emotion file", [one.name for one in files])
    text = read_text_file(files[0]).split()
    try:
        number = float(text[0]) if len(text) == 1 else -1.0
    except ValueError:
        number = -1.0
    if number not in range(len(EXPRESSIONS)):
        raise bad(str(files[0]), "an emotion from 0 to 7", " ".join(text))
    last = files[0].with_name(files[0].name[: -len(_LABELLED)])
    return EXPRESSIONS[int(number)], _frame_number(last)


def _emotion_files(folder: Path) -> list[Path]:
    names = (one for one in folder.iterdir() if one.name.lower().endswith(_LABELLED))
    return sorted(one for one in names if not is_hidden(one.name))


def _frame(file: Path, images: Path, landmarks: Path | None) -> Frame:
    if landmarks is None:
        return Frame()
    place = landmarks / file.relative_to(images).with_name(f"{file.stem}_landmarks.txt")
    return Frame(points=_points(place)) if place.is_file() else Frame()


def _points(file: Path) -> Array:
    try:
        points = np.array(file.read_text(encoding="utf-8-sig").split(), np.float64).reshape(-1, 2)
    except ValueError:
        points = np.empty((0, 2))
    if points.shape != (_POINTS, 2) or not np.isfinite(points).all():
        raise bad(str(file), f"{_POINTS} points, each x and y", points.shape)
    return points
