"""BAUM-1: clips of spontaneous expressions as folders of frames, and the frames of a video."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engram.data.attributes import draw_held_out_units
from engram.data.checked_files import name_file_in_errors, read_text_file
from engram.data.faces.expressions import find_expression
from engram.data.faces.face_boxes import FaceBoxes, add_face_boxes
from engram.data.image_folder import list_images
from engram.data.images import count_notes
from engram.data.picture_sets import Picture, PictureList, picture_reader
from engram.errors import BadArgument, bad, check_choice, check_int

# States of the spontaneous part by their code, from 1; what is no expression is left out.
_STATES = (
    "anger", "boredom", "bothered", "concentrating", "contempt", "disgust", "fear", "happiness",
    "neutral", "sadness", "surprise", "thinking", "unsure",
)  # fmt: skip
_STATE_OF_WORD = {
    **{state: state for state in _STATES}, "angry": "anger", "disgusted": "disgust",
    "fearful": "fear", "happy": "happiness", "sad": "sadness", "surprised": "surprise",
}  # fmt: skip
_CLIP = re.compile(r"(S\d+)_\d+", re.IGNORECASE)
_GENDERS = {"f": "female", "female": "female", "m": "male", "male": "male"}
SPLITS = ("subject", "clip", "frame")


@dataclass(frozen=True)
class _Clip:
    """One line of the list: the label is an expression, or "" for another state."""

    name: str
    label: str
    facts: Mapping[str, str]


def is_baum1(path: Path) -> bool:
    """Whether a folder has a list of clips."""
    return _list(path) is not None


@picture_reader("baum1")
def load_baum1(
    path: Path,
    *,
    split: str = "subject",
    test_share: float = 0.3,
    every: int = 1,
    frames: str | os.PathLike[str] | None = None,
    boxes: FaceBoxes | None = None,
    seed: int = 0,
) -> PictureList:
    """BAUM-1: every frame of a clip has the clip's label; subject, clip and gender are attributes.

    The list is ``Annotations_BAUM1s.csv`` (or .tsv, .txt: the official sheet, saved as text), with
    clip names such as S001_001 and an emotion or its code. The frames of a clip lie in a folder of
    its name, anywhere below. Clips of other states (boredom, thinking, ...) are left out.

    Parameters
    ----------
    split, test_share, seed
        What is held out for testing: whole subjects, whole clips or single frames, drawn by the
        seed so that every expression has about that share. Frames of one clip are almost alike,
        so the last of these tests what was trained.
    every
        Take each so-many-th frame of a clip.
    frames
        A folder into which videos are unpacked where there are no frames; needs the extra
        ``engram-cl[video]``.
    boxes
        A table of face boxes, or a function that finds a face; without, and where there is none,
        frames are cut at their centre.
    """
    check_choice("split", split, SPLITS)
    check_int("every", every, low=1)
    listed = _list(path)
    if listed is None:
        raise bad(str(path), "a list of clips such as Annotations_BAUM1s.csv", "none")
    clips, notes = _read(listed)
    files = _frames(path, clips, None if frames is None else Path(frames))
    rows = [(clip, file) for clip in clips for file in files.get(clip.name, ())[::every]]
    absent = sum(clip.name not in files for clip in clips)
    notes += count_notes((absent, "clip", " without frames left out"))
    units = [_unit(split, clip, file) for clip, file in rows]
    labels = [clip.label for clip, _ in rows]
    held = draw_held_out_units(units, labels, test_share, seed=seed)
    faces = [
        Picture(file, clip.label, "test" if unit in held else "train", facts=clip.facts)
        for (clip, file), unit in zip(rows, units, strict=True)
    ]
    faces, told = add_face_boxes(faces, path, boxes)
    return PictureList(faces, [*notes, *told])


def _unit(split: str, clip: _Clip, file: Path) -> str:
    return {"subject": clip.facts["subject"], "clip": clip.name, "frame": str(file)}[split]


def _list(path: Path) -> Path | None:
    files = sorted(path.iterdir()) if path.is_dir() else []
    named = [
        one
        for one in files
        if one.is_file() and re.match(r"annotations?_?baum[-_]?1", one.name.lower())
    ]
    texts = [one for one in named if one.suffix.lower() in (".csv", ".tsv", ".txt")]
    if texts:
        spontaneous = [one for one in texts if "baum1s" in one.name.lower().replace("-", "")]
        return (spontaneous or texts)[0]
    return named[0] if named else None


def _read(file: Path) -> tuple[list[_Clip], list[str]]:
    if file.suffix.lower() not in (".csv", ".tsv", ".txt"):
        raise bad(str(file), "the list saved as text (.csv, .tsv or .txt)", file.name)
    text = read_text_file(file)
    comma = next((one for one in "\t;," if one in text.split("\n")[0]), ",")
    with name_file_in_errors(file):
        rows = list(csv.reader(text.splitlines(), delimiter=comma))
    lines = [[cell.strip() for cell in row] for row in rows]
    head = next((row for row in lines if any("emotion" in cell.lower() for cell in row)), [])
    clips: dict[str, _Clip] = {}
    told: set[str] = set()
    others: Counter[str] = Counter()
    unclear = 0
    for number, row in enumerate(lines, 1):
        clip = next((cell for cell in row if _CLIP.fullmatch(cell)), None)
        if clip is None:
            if any(row) and row != head:
                raise bad(f"{file}, line {number}", "a clip such as S001_001", comma.join(row))
            continue
        if clip.upper() in told:
            raise bad(f"{file}, line {number}", "every clip once", clip)
        told.add(clip.upper())
        state = _state(f"{file}, line {number}", row, head)
        if state is None:
            unclear += 1
        elif find_expression(state) is None:
            others[state] += 1
        else:
            facts = {"subject": clip.upper().split("_")[0], "clip": clip.upper(), **_gender(row)}
            clips[clip.upper()] = _Clip(clip.upper(), find_expression(state) or "", facts)
    notes = count_notes(
        (others.total(), "clip", f" of other states ({', '.join(sorted(others))}) left out"),
        (unclear, "clip", " whose emotion and code differ left out"),
    )
    if not told:
        raise bad(str(file), "clips such as S001_001", "none")
    return list(clips.values()), notes


def _state(where: str, row: list[str], head: list[str]) -> str | None:
    """The state of a clip by its name or code; None where the two contradict each other."""
    words = {_STATE_OF_WORD[cell.lower()] for cell in row if cell.lower() in _STATE_OF_WORD}
    columns = [i for i, cell in enumerate(head) if "code" in cell.lower()]
    codes = [row[i] for i in columns if i < len(row) and row[i].isdecimal()]
    if not columns and not words:  # no head line: the code is the last whole number
        codes = [cell for cell in row if cell.isdecimal()][-1:]
    if codes and not 1 <= int(codes[0]) <= len(_STATES):
        raise bad(where, f"an emotion code from 1 to {len(_STATES)}", codes[0])
    words |= {_STATES[int(codes[0]) - 1]} if codes else set()
    if not words:
        raise bad(where, f"an emotion ({', '.join(_STATES)}) or its code", row)
    return words.pop() if len(words) == 1 else None


def _gender(row: list[str]) -> dict[str, str]:
    found = [_GENDERS[cell.lower()] for cell in row if cell.lower() in _GENDERS]
    return {"gender": found[0]} if found else {}


def _frames(path: Path, clips: list[_Clip], unpacked: Path | None) -> dict[str, list[Path]]:
    """The frames of each clip, in order."""
    wanted = {clip.name for clip in clips}
    found: dict[str, list[Path]] = {}
    for base in (path, *([unpacked] if unpacked is not None and unpacked.is_dir() else [])):
        for folder in sorted(one for one in base.rglob("*") if one.is_dir()):
            pictures = list_images(folder) if folder.name.upper() in wanted else []
            before = found.get(folder.name.upper(), [folder])[0]
            if pictures and before.resolve() not in (folder.resolve(), pictures[0].resolve()):
                raise bad(str(path), f"one folder of frames for the clip {folder.name}",
                          [str(before.parent), str(folder)])  # fmt: skip
            if pictures:
                found[folder.name.upper()] = sorted(pictures, key=_number)
    missing = wanted - found.keys()
    below = (one for one in sorted(path.rglob("*")) if one.suffix.lower() in VIDEOS)
    videos = [one for one in below if one.stem.upper() in missing]
    if videos and unpacked is None:
        raise bad(str(path), "frames of the clips in folders of their names (or frames=FOLDER, "
                  "into which the videos are unpacked by the extra engram-cl[video])",
                  f"{len(videos)} videos without frames, first {videos[0].name}")  # fmt: skip
    for video in videos:
        folder = extract_frames(video, Path(unpacked or path) / video.stem)
        found[video.stem.upper()] = sorted(list_images(folder), key=_number)
    if not found:
        raise bad(str(path), "folders of frames named as the clips", "none")
    return found


def _number(file: Path) -> tuple[int, str]:
    digits = re.findall(r"\d+", file.stem)
    return (int(digits[-1]) if digits else 0, file.name)


# ------------------------------------------------------------------------------------------------
# Videos as folders of frames, by the extra engram-cl[video]

VIDEOS = (".mp4", ".avi", ".mov", ".mkv")


def extract_frames(video: Path, folder: Path) -> Path:
    """Write every frame of a video into `folder`, which appears once it is complete; returns it."""
    if folder.is_dir():
        return folder
    try:
        import av
    except ImportError:
        raise BadArgument(
            f"{video}: videos need PyAV: pip install 'engram-cl[video]', or unpack frames into a "
            f"folder named {video.stem}"
        ) from None
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        with av.open(str(video)) as container:
            for number, frame in enumerate(container.decode(video=0)):
                frame.to_image().save(unfinished / f"{number:06d}.png")
    except (OSError, ValueError) as problem:  # PyAV's errors are of these kinds
        shutil.rmtree(unfinished, ignore_errors=True)
        raise bad(str(video), "a readable video", str(problem)) from None
    unfinished.replace(folder)
    return folder
