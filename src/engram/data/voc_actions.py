"""Actions of VOC2012 in the official form: persons cut out of JPEGImages, labels in Annotations."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

from engram.data.core import Data
from engram.data.crops import Frame
from engram.data.photos import SIZE, lines, photo, read_photos
from engram.errors import bad, choose
from engram.spelling import plural

ACTIONS = (
    "jumping", "phoning", "playinginstrument", "reading", "ridingbike", "ridinghorse", "running",
    "takingphoto", "usingcomputer", "walking", "other",
)  # fmt: skip
SEVERAL = ("drop", "first")
_SETS = "ImageSets/Action"
_PARTS = {"train": "train", "val": "test"}  # labels of the official test part are not public
_SIDES = ("xmin", "ymin", "xmax", "ymax")


def is_voc_actions(path: Path) -> bool:
    """Whether a folder has the lists of persons with actions."""
    return all((path / _SETS / f"{word}.txt").is_file() for word in _PARTS)


def load_voc_actions(
    path: Path,
    *,
    several: str = "drop",
    size: int = SIZE,
    broken: str = "error",
    packed: str | os.PathLike[str] | None = None,
    name: str = "voc_actions",
) -> Data:
    """Persons, each in a square around its box, by what they do; the part val is tested.

    `several`: persons that do more than one thing are left out and counted, or get the ``first`` of
    their actions. Other options: see `read_photos`.
    """
    choose("several", several, SEVERAL)
    photos, more, none = [], 0, 0
    for word, part in _PARTS.items():
        file = path / _SETS / f"{word}.txt"
        for number, words in lines(file):
            if len(words) != 2 or not words[1].isdecimal():
                raise bad(f"{file}, line {number}", "an image and a person", " ".join(words))
            done, frame = _person(path / "Annotations" / f"{words[0]}.xml", int(words[1]))
            more, none = more + (len(done) > 1), none + (not done)
            if done and (len(done) == 1 or several == "first"):
                picture = path / "JPEGImages" / f"{words[0]}.jpg"
                photos.append(photo(picture, done[0], part, frame))
    told = {"drop": "left out", "first": "with the first of them"}[several]
    notes = [f"{plural(more, 'person')} with several actions, {told}"] if more else []
    notes += [f"{plural(none, 'person')} without an action left out"] if none else []
    return read_photos(name, photos, ACTIONS, size=size, broken=broken, packed=packed, notes=notes)


def _person(file: Path, number: int) -> tuple[list[str], Frame]:
    """What an object, counted from 1, does and where it is."""
    try:
        objects = ElementTree.parse(file).getroot().findall("object")
    except (OSError, ElementTree.ParseError) as problem:
        raise bad(str(file), "a readable annotation", str(problem)) from None
    if not 1 <= number <= len(objects):
        raise bad(str(file), f"object {number}, which a list names", f"{len(objects)} objects")
    one = objects[number - 1]
    given = {action.tag: (action.text or "").strip() for action in one.findall("actions/*")}
    strange = sorted(set(given) - set(ACTIONS))
    if strange or one.findtext("name") != "person":
        raise bad(f"{file}, object {number}", "a person with actions of VOC2012",
                  strange or one.findtext("name"))  # fmt: skip
    try:
        # as text: some are fractions of pixels
        left, top, right, bottom = (float(one.findtext(f"bndbox/{side}") or "") for side in _SIDES)
    except ValueError:
        raise bad(f"{file}, object {number}", f"a bndbox of {', '.join(_SIDES)}", None) from None
    # pixels are counted from 1, and both sides belong to the box
    return [action for action in ACTIONS if given.get(action) == "1"], Frame(
        box=(left - 1, top - 1, right, bottom)
    )
