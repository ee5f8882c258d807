"""The eight sets of the Eight-Task sequence (flowers, scenes, birds, cars, aircraft, actions,
letters, digits), each alone and all as one.

`EIGHT_SETS` says how each is recognised and who reads it. What differs between the readers is how
their official files name pictures, classes and parts.
"""

from __future__ import annotations

import hashlib
import os
import string
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch

from engram.data.checked_files import (
    check_numbers,
    has_files,
    parse_numbers,
    read_lines,
    read_matlab,
)
from engram.data.conversion import Array
from engram.data.dataset import Data
from engram.data.image_folder import list_images
from engram.data.images import count_notes
from engram.data.memory_maps import MappedWriter, is_mapped, read_mapped
from engram.data.named_sets import NAMED_SETS
from engram.data.packed import add_npz_suffix, load_packed, pack_arrays
from engram.data.picture_sets import (
    Frame,
    Picture,
    PictureList,
    blank_pictures,
    picture_reader,
    refuse_too_many,
)
from engram.data.resized_images import resized
from engram.errors import bad, check_choice, check_int

SIZE = 64  # the benchmark of eight sets takes 256, and cuts 224 out of that
_photo_reader = partial(picture_reader, size=SIZE, noun="pictures")


@_photo_reader("flowers102")
def load_flowers(path: Path) -> PictureList:
    """The 102 kinds of flowers with the split of their authors: ten of each to train, ten to valid.

    Images and kinds are counted from 1 in the files; kinds have no names there.
    """
    (given,) = read_matlab(path / "imagelabels.mat", "labels")
    kinds = check_numbers(path / "imagelabels.mat", "labels", given, 1, 102)
    classes = [f"flower {kind:03d}" for kind in range(1, 102 + 1)]
    keys = {"trnid": "train", "valid": "valid", "tstid": "test"}
    parts: dict[int, str] = {}
    for key, ids in zip(keys, read_matlab(path / "setid.mat", *keys), strict=True):
        for one in check_numbers(path / "setid.mat", key, ids, 1, len(kinds)):
            _note_part(parts, f"{path / 'setid.mat'}: {key}", one, keys[key])
    pictures = [
        Picture(path / "jpg" / f"image_{one:05d}.jpg", classes[kinds[one - 1] - 1], parts[one])
        for one in sorted(parts)
    ]
    notes = count_notes((len(kinds) - len(parts), "image", " in no part left out"))
    return PictureList(pictures, notes, classes)


@_photo_reader("mit67")
def load_mit67(path: Path) -> PictureList:
    """Indoor scenes with the split of their authors: 80 of each to train, 20 to test.

    Images that no list names are left out, as the authors do.
    """
    pictures = []
    parts: dict[str, str] = {}
    lists = {"TrainImages.txt": "train", "TestImages.txt": "test"}
    for where, entry, part in _read_part_lists(path, lists):  # names of files have blanks
        scene, slash, picture = entry.replace("\\", "/").partition("/")
        if not slash or not picture:
            raise bad(where, "SCENE/IMAGE.jpg", entry)
        _note_part(parts, where, entry, part)
        pictures.append(Picture(path / "Images" / scene / picture, scene, part))
    return PictureList(pictures, classes=sorted({one.label for one in pictures}))


_BIRD_LISTS = ("images.txt", "classes.txt", "image_class_labels.txt", "train_test_split.txt")


@_photo_reader("cub200")
def load_cub200(path: Path, *, box: bool = False) -> PictureList:
    """200 kinds of birds with the split of their authors.

    ``box=True`` cuts birds out by bounding_boxes.txt (left, top, width, height).
    """
    images, kinds, labels, parts = (
        _read_numbered_lines(path / file, "a number and a value", 2) for file in _BIRD_LISTS
    )
    boxes: dict[int, list[str]] = {}
    if box:
        wanted = "a number, left, top, width, height"
        boxes = _read_numbered_lines(path / "bounding_boxes.txt", wanted, 5)
    titles = {str(kind): words[0] for kind, words in kinds.items()}
    part_names = {"1": "train", "0": "test"}
    pictures = []
    for image, (file,) in images.items():
        kind, part = (table.get(image, [""])[0] for table in (labels, parts))
        if kind not in titles:
            raise bad(str(path / _BIRD_LISTS[2]), f"a class of classes.txt for image {image}", kind)
        if part not in part_names:
            raise bad(str(path / _BIRD_LISTS[3]), f"1 (train) or 0 (test) for image {image}", part)
        frame = None
        if box:
            wanted = f"left, top, width, height of image {image}"
            left, top, width, height = parse_numbers(
                str(path / "bounding_boxes.txt"), wanted, boxes.get(image, []), 4
            )
            frame = Frame(box=(left, top, left + width, top + height))
        picture = Picture(path / "images" / file, titles[kind], part_names[part], frame)
        pictures.append(picture)
    return PictureList(pictures, classes=[titles[kind] for kind in sorted(titles, key=int)])


@_photo_reader("stanford_cars")
def load_stanford_cars(path: Path, *, box: bool = False) -> PictureList:
    """196 models of cars with the split of their authors.

    Models and pixels are counted from 1 in the files. The devkit itself has no labels of the test
    part: they are in cars_test_annos_withlabels.mat, given out later, beside the devkit or in it.
    ``box=True`` cuts cars out by their boxes.
    """
    devkit = path / "devkit"
    (titles,) = read_matlab(devkit / "cars_meta.mat", "class_names")
    classes = [str(title) for title in np.atleast_1d(titles)]
    if len(set(classes)) < len(classes):
        raise bad(str(devkit / "cars_meta.mat"), "every model once", len(classes))
    places = [folder / "cars_test_annos_withlabels.mat" for folder in (devkit, path)]
    tested = next((file for file in places if file.is_file()), places[0])
    pictures = []
    for file, part in ((devkit / "cars_train_annos.mat", "train"), (tested, "test")):
        (given,) = read_matlab(file, "annotations")
        rows = np.atleast_1d(given)
        sides = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2") if box else ()
        missing = {"class", "fname", *sides} - set(rows.dtype.names or ())
        if missing:
            raise bad(f"{file}: annotations", f"the fields {sorted(missing)}", rows.dtype.names)
        for row in rows:
            (kind,) = check_numbers(file, "class", int(row["class"]), 1, len(classes))
            frame = _frame_from_one([float(row[side]) for side in sides]) if box else None
            picture = path / f"cars_{part}" / str(row["fname"])
            pictures.append(Picture(picture, classes[kind - 1], part, frame))
    return PictureList(pictures, classes=classes)


_LEVELS = {"variant": "variants.txt", "family": "families.txt", "manufacturer": "manufacturers.txt"}
_BANNER = 20  # rows of pixels at the lower edge that name the photographer


@_photo_reader("aircraft")
def load_aircraft(path: Path, *, level: str = "variant") -> PictureList:
    """Aircraft with the split of their authors; the banner below each picture is cut off.

    `level`: 100 variants, 70 families or 30 manufacturers.
    """
    check_choice("level", level, _LEVELS)
    base = path / "data" if (path / "data" / "images").is_dir() else path
    listed = [" ".join(line.split()) for _, line in read_lines(base / _LEVELS[level])]
    pictures = []
    parts: dict[str, str] = {}
    words = {"train": "train", "val": "valid", "test": "test"}
    lists = {f"images_{level}_{word}.txt": part for word, part in words.items()}
    for where, line, part in _read_part_lists(base, lists):
        image, *words_of_title = line.split()
        title = " ".join(words_of_title)  # of several words: "Cessna 172"
        if title not in listed:
            raise bad(where, f"an image and a {level} of {_LEVELS[level]}", f"{image} {title}")
        _note_part(parts, where, image, part)
        picture = base / "images" / f"{image}.jpg"
        pictures.append(Picture(picture, title, part, Frame(bottom=_BANNER)))
    return PictureList(pictures, classes=listed)


ACTIONS = (
    "jumping", "phoning", "playinginstrument", "reading", "ridingbike", "ridinghorse", "running",
    "takingphoto", "usingcomputer", "walking", "other",
)  # fmt: skip
SEVERAL = ("drop", "first")


@_photo_reader("voc_actions")
def load_voc_actions(path: Path, *, several: str = "drop") -> PictureList:
    """Persons, each in a square around its box, by what they do; the part val is tested.

    `several`: persons that do more than one thing are left out and counted, or get the ``first`` of
    their actions.
    """
    check_choice("several", several, SEVERAL)
    pictures, more, none = [], 0, 0
    # labels of the official test part are not public
    lists = {"train.txt": "train", "val.txt": "test"}
    for where, line, part in _read_part_lists(path / "ImageSets" / "Action", lists):
        words = line.split()
        if len(words) != 2 or not words[1].isdecimal():
            raise bad(where, "an image and a person", line)
        done, frame = _read_person(path / "Annotations" / f"{words[0]}.xml", int(words[1]))
        more, none = more + (len(done) > 1), none + (not done)
        if done and (len(done) == 1 or several == "first"):
            picture = path / "JPEGImages" / f"{words[0]}.jpg"
            pictures.append(Picture(picture, done[0], part, frame))
    told = {"drop": "left out", "first": "with the first of them"}[several]
    notes = count_notes(
        (more, "person", f" with several actions, {told}"),
        (none, "person", " without an action left out"),
    )
    return PictureList(pictures, notes, ACTIONS)


def _read_person(file: Path, number: int) -> tuple[list[str], Frame]:
    """What an object, counted from 1, does and where it is."""
    try:
        objects = ElementTree.parse(file).getroot().findall("object")
    except (OSError, ElementTree.ParseError) as problem:
        raise bad(str(file), "a readable annotation", str(problem)) from None
    if not 1 <= number <= len(objects):
        raise bad(str(file), f"object {number}, which a list names", f"{len(objects)} objects")
    where, one = f"{file}, object {number}", objects[number - 1]
    given = {action.tag: (action.text or "").strip() for action in one.findall("actions/*")}
    strange = sorted(set(given) - set(ACTIONS))
    if strange or one.findtext("name") != "person":
        got = strange or one.findtext("name")
        raise bad(where, "a person with actions of VOC2012", got)
    names = ("xmin", "ymin", "xmax", "ymax")
    # as text: some are fractions of pixels
    sides = [one.findtext(f"bndbox/{side}") or "" for side in names]
    frame = _frame_from_one(parse_numbers(where, f"a bndbox of {', '.join(names)}", sides, 4))
    return [action for action in ACTIONS if given.get(action) == "1"], frame


# Sample001 is "0", Sample011 "A", Sample037 "a"
_SYMBOLS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_CHOSEN = {"letters": string.ascii_letters, "digits": string.digits, "all": _SYMBOLS}
_KINDS = {"img": "Img/GoodImg/Bmp", "fnt": "Fnt"}
_POOR = "Img/BadImg/Bmp"
_TESTED = 5  # every fifth picture of a class


@_photo_reader("chars74k")
def load_chars74k(
    path: Path, *, kind: str = "img", symbols: str = "letters", poor: bool = False
) -> PictureList:
    """Letters (and digits) in photographs, or drawn by fonts; every fifth of a class is tested.

    Parameters
    ----------
    kind
        ``img`` or ``fnt``.
    symbols
        The 52 ``letters``, the ten ``digits`` or ``all`` 62.
    poor
        Also the photographs that the authors found to be poor (BadImg).
    """
    check_choice("kind", kind, _KINDS)
    check_choice("symbols", symbols, _CHOSEN)
    base = path / "English" if (path / "English").is_dir() else path
    folders = [_KINDS[kind], *([_POOR] if poor and kind == "img" else [])]
    pictures = []
    for number, symbol in enumerate(_SYMBOLS, 1):
        if symbol not in _CHOSEN[symbols]:
            continue
        inside = [base / folder / f"Sample{number:03d}" for folder in folders]
        files = [file for folder in inside if folder.is_dir() for file in list_images(folder)]
        if not files:
            raise bad(str(inside[0]), f"pictures of {symbol!r}", "none")
        # case tells letters apart, also where file systems and readers do not
        title = f"{'small' if symbol.islower() else 'capital'} {symbol}"
        title = symbol if symbol.isdecimal() else title
        pictures += [
            Picture(file, title, "test" if i % _TESTED == _TESTED - 1 else "train")
            for i, file in enumerate(files)
        ]
    classes = list(dict.fromkeys(one.label for one in pictures))
    notes = ["no official split: every fifth image of each class is held out for testing"]
    return PictureList(pictures, notes, classes)


def load_svhn(path: Path, *, extra: bool = False, name: str = "svhn") -> Data:
    """Digits of house numbers as uint8 [N, 3, 32, 32].

    Files count them from 1 to 10, where 10 is the digit 0. ``extra=True`` also trains on those of
    extra_32x32.mat.
    """
    parts = ("train", "test", *(["extra"] if extra else []))
    (x, y), test, *more = (_read_cropped_digits(path / f"{part}_32x32.mat") for part in parts)
    for one in more:
        x, y = np.concatenate([x, one[0]]), np.concatenate([y, one[1]])
    return Data.from_arrays(x, y, test=test, classes=list(string.digits), name=name)


def _read_cropped_digits(file: Path) -> tuple[Array, Array]:
    x, y = read_matlab(file, "X", "y")
    labels = np.array(check_numbers(file, "y", y, 0, 10)) % 10
    x = x[..., None] if x.ndim == 3 else x  # of a single picture
    if x.shape != (32, 32, 3, len(labels)) or x.dtype != np.uint8:
        wanted = f"bytes [32, 32, 3, {len(labels)}], a picture for each label"
        raise bad(f"{file}: X", wanted, (x.shape, str(x.dtype)))
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), labels


def _read_part_lists(base: Path, lists: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(place for errors, line, part) of the lists of a folder, each of which is one part."""
    for name, part in lists.items():
        for where, line in read_lines(base / name):
            yield where, line, part


def _note_part(parts: dict[Any, str], where: str, image: Any, part: str) -> None:
    """Note the part of an image, which may be in one only."""
    if image in parts:
        raise bad(where, "images of one part only", image)
    parts[image] = part


def _read_numbered_lines(file: Path, wanted: str, columns: int) -> dict[int, list[str]]:
    """The rest of each line by the whole number that it begins with, each number once."""
    found: dict[int, list[str]] = {}
    for where, line in read_lines(file):
        words = line.split()
        if len(words) != columns or not words[0].isdecimal():
            raise bad(where, wanted, line)
        if int(words[0]) in found:
            raise bad(where, "every number once", words[0])
        found[int(words[0])] = words[1:]
    return found


def _frame_from_one(sides: Sequence[float]) -> Frame:
    """The box of sides whose pixels are counted from 1; both ends belong to it."""
    left, top, right, bottom = sides
    return Frame(box=(left - 1, top - 1, right, bottom))


# ------------------------------------------------------------------------------------------------
# The eight sets together


class EightTaskMember(NamedTuple):
    """One of the eight sets: its name, that of its form, how it is recognised, and its reader.

    Each of `marks` names files, and folders with a slash, that are together in one place only.
    """

    name: str
    form: str
    read: Callable[..., Data]
    marks: tuple[str, ...]

    def fits(self, path: Path) -> bool:
        """Whether a folder has this form."""
        return any(has_files(path, *mark.split()) for mark in self.marks)


# In the order of the benchmark, by what a task shows.
EIGHT_SETS = {
    "flowers": EightTaskMember(
        "flowers102", "Flowers", load_flowers, ("imagelabels.mat setid.mat",)
    ),
    "scenes": EightTaskMember(
        "mit67", "MIT-67", load_mit67, ("Images/ TrainImages.txt TestImages.txt",)
    ),
    "birds": EightTaskMember("cub200", "CUB-200", load_cub200, (" ".join(_BIRD_LISTS),)),
    "cars": EightTaskMember(
        "stanford_cars", "Stanford Cars", load_stanford_cars,
        ("devkit/cars_meta.mat devkit/cars_train_annos.mat",),
    ),
    "aircraft": EightTaskMember(
        "aircraft", "FGVC-Aircraft", load_aircraft,
        ("data/images/ data/images_variant_train.txt", "images/ images_variant_train.txt"),
    ),
    "actions": EightTaskMember(
        "voc_actions", "VOC actions", load_voc_actions,
        ("ImageSets/Action/train.txt ImageSets/Action/val.txt",),
    ),
    "letters": EightTaskMember(
        "chars74k", "Chars74K", load_chars74k,
        tuple(f"{base}{kind}/Sample011/" for base in ("English/", "") for kind in _KINDS.values()),
    ),
    "digits": EightTaskMember("svhn", "SVHN", load_svhn, ("train_32x32.mat test_32x32.mat",)),
}  # fmt: skip
_CHUNK = 1024  # pictures made larger at a time


def is_eight_sets(path: Path) -> bool:
    """Whether a folder has some of the eight sets."""
    return bool(_places(path))


def load_eight_sets(
    path: Path,
    *,
    sets: Sequence[str] | None = None,
    size: int = SIZE,
    broken: str = "error",
    packed: str | os.PathLike[str] | None = None,
    name: str = "eight_task",
) -> Data:
    """Flowers, scenes, birds, cars, aircraft, actions, letters and digits from one folder.

    Official validation rows are training rows, as in the benchmark, which draws its own. The
    attribute ``domain`` tells the set of a row.

    Parameters
    ----------
    sets
        Those to take, where not all are here: of flowers, scenes, birds, ...
    size
        Height and width of all pictures; 256 in the benchmark, with ``crop=224``.
    broken, packed
        See `PictureOptions`. All eight at 256 are 33 GB: give a file for them.
    """
    check_int("size", size, low=8)
    places = _wanted(path, sets)
    members = _Members(name)
    if packed is None:
        chunks: list[Array] = []
        for kind in places:
            chunks += members.read(kind, places[kind], size, broken)
            refuse_too_many(name, "pictures", members.rows, size)
        return members.join(torch.from_numpy(np.concatenate(chunks)))
    file = add_npz_suffix(Path(packed))
    stamp = _stamp(places, size)
    if not file.exists():
        _write(file, places, members, size, broken, stamp)
    if not is_mapped(file) or str(read_mapped(file)[1].get("stamp")) != stamp:
        raise bad("packed", f"a new file, or one with these sets at size {size}", str(file))
    return load_packed([file], name=name)


@dataclass
class _Members:
    """The sets read so far, each with blank inputs: the pictures are kept elsewhere."""

    name: str
    found: dict[str, Data] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(map(len, self.found.values()))

    def read(self, kind: str, place: Path, size: int, broken: str) -> Iterator[Array]:
        """All pictures of one set, some at a time."""
        options = {} if kind == "digits" else {"size": size, "broken": broken}
        data = EIGHT_SETS[kind].read(place, **options)
        self.found[kind] = replace(data, x=blank_pictures(len(data), size))
        for start in range(0, len(data), _CHUNK):
            some = torch.arange(start, min(start + _CHUNK, len(data)))
            part = Data(x=data.stored(some), y=data.y[some], train=some[:0], test=some[:0],
                        classes=data.classes)  # fmt: skip
            yield np.asarray(resized(part, (size, size)).x)

    def join(self, x: Any) -> Data:
        """One set after the other, with all their pictures `x`."""
        labels, domains, train, test = [], [], [], []
        classes: list[str] = []
        missing = [kind for kind in EIGHT_SETS if kind not in self.found]
        notes = [f"only {len(self.found)} of the eight sets, without {', '.join(missing)}"]
        notes = notes if missing else []
        start = 0
        for place, (kind, data) in enumerate(self.found.items()):
            labels.append(data.labels + len(classes))
            domains.append(torch.full((len(data),), place))
            train.append(torch.cat([data.train, data.valid]).sort().values + start)
            test.append(data.test + start)
            classes += [f"{kind}/{one}" for one in data.classes]
            notes += [f"{kind}: {note}" for note in data.notes]
            start += len(data)
        return Data(
            x=x, y=torch.cat(labels)[:, None], train=torch.cat(train), test=torch.cat(test),
            classes=tuple(classes), name=self.name, attributes={"domain": torch.cat(domains)},
            attribute_names={"domain": tuple(self.found)}, notes=tuple(notes),
        )  # fmt: skip


def _write(
    file: Path, places: dict[str, Path], members: _Members, size: int, broken: str, stamp: str
) -> None:
    """Read all sets one after the other into a file that can be mapped."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=file.parent) as raw:  # until it is known how many there are
        for kind in places:
            for chunk in members.read(kind, places[kind], size, broken):
                raw.write(np.ascontiguousarray(chunk).data)
        raw.flush()
        data = members.join(blank_pictures(members.rows, size))
        shape = tuple(data.x.shape)
        with MappedWriter(file, shape, data.facts()) as writer:
            pixels = np.memmap(raw, np.uint8, "r", shape=shape)
            for start in range(0, members.rows, _CHUNK):
                writer.write(pixels[start : start + _CHUNK])
            writer.finish(data, stamp=np.array(stamp), **pack_arrays(data))


def _places(path: Path) -> dict[str, Path]:
    """Where each of the sets lies that are under a folder."""
    found = {}
    for kind, one in EIGHT_SETS.items():
        here = [path / place for place in NAMED_SETS[one.name].places if one.fits(path / place)]
        if here:
            found[kind] = here[0]
    return found


def _wanted(path: Path, sets: Sequence[str] | None) -> dict[str, Path]:
    if sets is not None and (isinstance(sets, str) or not len(sets)):
        raise bad("sets", f"a list of {', '.join(EIGHT_SETS)}", sets)
    chosen = {check_choice("sets", one, EIGHT_SETS) for one in sets or EIGHT_SETS}
    kinds = [kind for kind in EIGHT_SETS if kind in chosen]
    here = _places(path)
    missing = [f"{kind} ({EIGHT_SETS[kind].name})" for kind in kinds if kind not in here]
    if missing:
        way_out = f" (or sets={list(here)}, which are here)" if sets is None else ""
        raise bad("data", f"the sets {', '.join(missing)} under {path}{way_out}", "none of them")
    return {kind: here[kind] for kind in kinds}


def _stamp(places: dict[str, Path], size: int) -> str:
    told = repr((size, [(kind, str(place.resolve())) for kind, place in places.items()]))
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()
