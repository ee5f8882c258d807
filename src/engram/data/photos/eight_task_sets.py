"""The eight sets of the Eight-Task sequence (flowers, scenes, birds, cars, aircraft, actions,
letters, digits), each alone and all as one.
"""

from __future__ import annotations

import hashlib
import os
import string
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch

from engram.data.checked_files import check_numbers, read_matlab
from engram.data.conversion import Array
from engram.data.dataset import Data
from engram.data.faces.face_images import Face, Frame, refuse_too_many
from engram.data.image_folder import list_images
from engram.data.memory_maps import MappedWriter, is_mapped, read_mapped
from engram.data.named_sets import NAMED_SETS
from engram.data.packed import add_npz_suffix, load_packed, pack_arrays
from engram.data.photos.photo_lists import (
    SIZE,
    make_photo,
    read_lines,
    read_numbered_lines,
    read_photos,
)
from engram.data.resized_images import resized
from engram.errors import bad, check_choice, check_int, plural

# ------------------------------------------------------------------------------------------------
# FGVC-Aircraft in the official form: data/images and the lists of variants.


_LEVELS = {"variant": "variants.txt", "family": "families.txt", "manufacturer": "manufacturers.txt"}
_AIRCRAFT_PARTS = {"train": "train", "val": "valid", "test": "test"}
_BANNER = 20  # rows of pixels at the lower edge that name the photographer


def is_aircraft(path: Path) -> bool:
    """Whether a folder, or its folder data, has the images and lists."""
    base = _aircraft_folder(path)
    return (base / "images_variant_train.txt").is_file() and (base / "images").is_dir()


def load_aircraft(
    path: Path,
    *,
    level: str = "variant",
    size: int = SIZE,
    broken: str = "error",
    packed: str | os.PathLike[str] | None = None,
    name: str = "aircraft",
) -> Data:
    """Aircraft with the split of their authors; the banner below each picture is cut off.

    `level`: 100 variants, 70 families or 30 manufacturers. Other options: see `read_photos`.
    """
    check_choice("level", level, _LEVELS)
    base = _aircraft_folder(path)
    listed = [" ".join(words) for _, words in read_lines(base / _LEVELS[level])]
    photos, seen = [], set()
    for word, part in _AIRCRAFT_PARTS.items():
        file = base / f"images_{level}_{word}.txt"
        for number, (image, *words) in read_lines(file):
            title = " ".join(words)  # of several words: "Cessna 172"
            if title not in listed:
                raise bad(f"{file}, line {number}", f"an image and a {level} of "
                          f"{_LEVELS[level]}", " ".join([image, title]))  # fmt: skip
            if image in seen:
                raise bad(f"{file}, line {number}", "images of one part only", image)
            seen.add(image)
            picture = base / "images" / f"{image}.jpg"
            photos.append(make_photo(picture, title, part, Frame(bottom=_BANNER)))
    return read_photos(name, photos, listed, size=size, broken=broken, packed=packed)


def _aircraft_folder(path: Path) -> Path:
    return path / "data" if (path / "data" / "images").is_dir() else path


# ------------------------------------------------------------------------------------------------
# Chars74K in the official form: English/Img (natural images) and English/Fnt (fonts).


# Sample001 is "0", Sample011 "A", Sample037 "a"
_SYMBOLS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_FOLDERS = {"img": "Img/GoodImg/Bmp", "fnt": "Fnt"}
_BAD = "Img/BadImg/Bmp"
_TESTED = 5  # every fifth picture of a class
SYMBOLS = ("letters", "digits", "all")


def is_chars74k(path: Path) -> bool:
    """Whether a folder, or its folder English, has samples of one kind or the other."""
    return any(
        (_letters_folder(path) / inside / "Sample011").is_dir() for inside in _FOLDERS.values()
    )


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
    check_choice("kind", kind, _FOLDERS)
    check_choice("symbols", symbols, SYMBOLS)
    base = _letters_folder(path)
    wanted = {"letters": string.ascii_letters, "digits": string.digits, "all": _SYMBOLS}[symbols]
    folders = [_FOLDERS[kind], *([_BAD] if poor and kind == "img" else [])]
    photos = []
    for number, symbol in enumerate(_SYMBOLS, 1):
        if symbol not in wanted:
            continue
        inside = [base / folder / f"Sample{number:03d}" for folder in folders]
        files = [file for folder in inside if folder.is_dir() for file in list_images(folder)]
        if not files:
            raise bad(str(inside[0]), f"pictures of {symbol!r}", "none")
        # case tells letters apart, also where file systems and readers do not
        title = f"{'small' if symbol.islower() else 'capital'} {symbol}"
        title = symbol if symbol.isdecimal() else title
        photos += [
            make_photo(file, title, "test" if i % _TESTED == _TESTED - 1 else "train")
            for i, file in enumerate(files)
        ]
    classes = list(dict.fromkeys(one.label for one in photos))
    notes = ["no official split: every fifth image of each class is held out for testing"]
    return read_photos(name, photos, classes, size=size, broken=broken, packed=packed, notes=notes)


def _letters_folder(path: Path) -> Path:
    return path / "English" if (path / "English").is_dir() else path


# ------------------------------------------------------------------------------------------------
# CUB-200-2011 in the official form: images.txt, classes.txt and the lists beside them.


_BIRD_LISTS = ("images.txt", "classes.txt", "image_class_labels.txt", "train_test_split.txt")
_BIRD_PARTS = {"1": "train", "0": "test"}


def is_cub200(path: Path) -> bool:
    """Whether a folder has the lists."""
    return all((path / name).is_file() for name in _BIRD_LISTS)


def load_cub200(
    path: Path,
    *,
    box: bool = False,
    size: int = SIZE,
    broken: str = "error",
    packed: str | os.PathLike[str] | None = None,
    name: str = "cub200",
) -> Data:
    """200 kinds of birds with the split of their authors.

    ``box=True`` cuts birds out by bounding_boxes.txt (left, top, width, height). Other options: see
    `read_photos`.
    """
    images, kinds, labels, parts = (
        read_numbered_lines(path / file, "a number and a value", 2) for file in _BIRD_LISTS
    )
    wanted = "a number, left, top, width, height"
    boxes = read_numbered_lines(path / "bounding_boxes.txt", wanted, 5) if box else {}
    titles = {str(kind): words[0] for kind, words in kinds.items()}
    photos = []
    for one, (file,) in images.items():
        kind, part = (table.get(one, [""])[0] for table in (labels, parts))
        if kind not in titles:
            raise bad(str(path / _BIRD_LISTS[2]), f"a class of classes.txt for image {one}", kind)
        if part not in _BIRD_PARTS:
            raise bad(str(path / _BIRD_LISTS[3]), f"1 (train) or 0 (test) for image {one}", part)
        frame = _frame(path, one, boxes.get(one)) if box else None
        photos.append(make_photo(path / "images" / file, titles[kind], _BIRD_PARTS[part], frame))
    classes = [titles[kind] for kind in sorted(titles, key=int)]
    return read_photos(name, photos, classes, size=size, broken=broken, packed=packed)


def _frame(path: Path, image: int, words: list[str] | None) -> Frame:
    try:
        left, top, width, height = map(float, words or ())
    except ValueError:
        wanted = f"left, top, width, height of image {image}"
        raise bad(str(path / "bounding_boxes.txt"), wanted, words) from None
    return Frame(box=(left, top, left + width, top + height))


# ------------------------------------------------------------------------------------------------
# Oxford's 102 flowers in the official form: jpg, imagelabels.mat, setid.mat.


_KINDS = 102
_FLOWER_PARTS = {"trnid": "train", "valid": "valid", "tstid": "test"}


def is_flowers(path: Path) -> bool:
    """Whether a folder has the labels and the split."""
    return (path / "imagelabels.mat").is_file() and (path / "setid.mat").is_file()


def load_flowers(
    path: Path,
    *,
    size: int = SIZE,
    broken: str = "error",
    packed: str | os.PathLike[str] | None = None,
    name: str = "flowers102",
) -> Data:
    """The 102 kinds of flowers with the split of their authors: ten of each to train, ten to valid.

    Images and kinds are counted from 1 in the files; kinds have no names there. Options: see
    `read_photos`.
    """
    (given,) = read_matlab(path / "imagelabels.mat", "labels")
    kinds = check_numbers(path / "imagelabels.mat", "labels", given, 1, _KINDS)
    parts: dict[int, str] = {}
    split = read_matlab(path / "setid.mat", *_FLOWER_PARTS)
    for key, ids in zip(_FLOWER_PARTS, split, strict=True):
        for one in check_numbers(path / "setid.mat", key, ids, 1, len(kinds)):
            if one in parts:
                raise bad(f"{path / 'setid.mat'}: {key}", "images of one part only", one)
            parts[one] = _FLOWER_PARTS[key]
    photos = [
        make_photo(path / "jpg" / f"image_{one:05d}.jpg", _title(kinds[one - 1]), parts[one])
        for one in sorted(parts)
    ]
    left = len(kinds) - len(parts)
    notes = [f"{plural(left, 'image')} in no part left out"] if left else []
    classes = [_title(kind) for kind in range(1, _KINDS + 1)]
    return read_photos(name, photos, classes, size=size, broken=broken, packed=packed, notes=notes)


def _title(kind: int) -> str:
    return f"flower {kind:03d}"


# ------------------------------------------------------------------------------------------------
# MIT's 67 indoor scenes in the official form: Images, TrainImages.txt, TestImages.txt.


_SCENE_LISTS = {"train": "TrainImages.txt", "test": "TestImages.txt"}


def is_mit67(path: Path) -> bool:
    """Whether a folder has both lists and the images."""
    lists = all((path / name).is_file() for name in _SCENE_LISTS.values())
    return lists and (path / "Images").is_dir()


def load_mit67(
    path: Path,
    *,
    size: int = SIZE,
    broken: str = "error",
    packed: str | os.PathLike[str] | None = None,
    name: str = "mit67",
) -> Data:
    """Indoor scenes with the split of their authors: 80 of each to train, 20 to test.

    Images that no list names are left out, as the authors do. Options: see `read_photos`.
    """
    photos, seen = [], set()
    for part, file in _SCENE_LISTS.items():
        text = (path / file).read_text(encoding="utf-8-sig").splitlines()
        for number, line in enumerate(text, 1):
            entry = line.strip()  # names of files have blanks
            if not entry:
                continue
            scene, slash, picture = entry.replace("\\", "/").partition("/")
            if not slash or not picture:
                raise bad(f"{path / file}, line {number}", "SCENE/IMAGE.jpg", line)
            if entry in seen:
                raise bad(f"{path / file}, line {number}", "images of one part only", entry)
            seen.add(entry)
            photos.append(make_photo(path / "Images" / scene / picture, scene, part))
    classes = sorted({one.label for one in photos})
    return read_photos(name, photos, classes, size=size, broken=broken, packed=packed)


# ------------------------------------------------------------------------------------------------
# Stanford Cars in the official form: cars_train, cars_test and the devkit.


_META, _TRAIN = "devkit/cars_meta.mat", "devkit/cars_train_annos.mat"
_LABELLED = "cars_test_annos_withlabels.mat"  # given out later than the devkit, beside it or in it
_CAR_SIDES = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")


def is_stanford_cars(path: Path) -> bool:
    """Whether a folder has the devkit."""
    return (path / _META).is_file() and (path / _TRAIN).is_file()


def load_stanford_cars(
    path: Path,
    *,
    box: bool = False,
    size: int = SIZE,
    broken: str = "error",
    packed: str | os.PathLike[str] | None = None,
    name: str = "stanford_cars",
) -> Data:
    """196 models of cars with the split of their authors.

    Models and pixels are counted from 1 in the files. The devkit itself has no labels of the test
    part: they are in cars_test_annos_withlabels.mat. ``box=True`` cuts cars out by their boxes.
    Other options: see `read_photos`.
    """
    (titles,) = read_matlab(path / _META, "class_names")
    classes = [str(title) for title in np.atleast_1d(titles)]
    if len(set(classes)) < len(classes):
        raise bad(str(path / _META), "every model once", len(classes))
    labelled = next((p for p in (path / "devkit" / _LABELLED, path / _LABELLED) if p.is_file()),
                    path / "devkit" / _LABELLED)  # fmt: skip
    photos = [
        *_photos(path / _TRAIN, path / "cars_train", "train", classes, box),
        *_photos(labelled, path / "cars_test", "test", classes, box),
    ]
    return read_photos(name, photos, classes, size=size, broken=broken, packed=packed)


def _photos(file: Path, folder: Path, part: str, classes: list[str], box: bool) -> Iterator[Face]:
    (given,) = read_matlab(file, "annotations")
    rows = np.atleast_1d(given)
    missing = {"class", "fname", *(_CAR_SIDES if box else ())} - set(rows.dtype.names or ())
    if missing:
        raise bad(f"{file}: annotations", f"the fields {sorted(missing)}", rows.dtype.names)
    for row in rows:
        (kind,) = check_numbers(file, "class", int(row["class"]), 1, len(classes))
        # pixels are counted from 1, and both sides belong to the box
        left, top, right, bottom = (
            (float(row[side]) for side in _CAR_SIDES) if box else (0, 0, 0, 0)
        )
        frame = Frame(box=(left - 1, top - 1, right, bottom)) if box else None
        yield make_photo(folder / str(row["fname"]), classes[kind - 1], part, frame)


# ------------------------------------------------------------------------------------------------
# SVHN (cropped digits) in the official form: train_32x32.mat and test_32x32.mat.


_SIDE = 32
_TEN = 10  # how the files write the digit 0


def is_svhn(path: Path) -> bool:
    """Whether a folder has both parts."""
    return all((path / f"{part}_32x32.mat").is_file() for part in ("train", "test"))


def load_svhn(path: Path, *, extra: bool = False, name: str = "svhn") -> Data:
    """Digits of house numbers as uint8 [N, 3, 32, 32].

    Files count them from 1 to 10, where 10 is the digit 0. ``extra=True`` also trains on those of
    extra_32x32.mat.
    """
    parts = {part: _part(path / f"{part}_32x32.mat")
             for part in ("train", "test", *(["extra"] if extra else []))}  # fmt: skip
    trained = [parts["train"], *([parts["extra"]] if extra else [])]
    x, y = (np.concatenate([one[i] for one in trained]) for i in range(2))
    names = [str(digit) for digit in range(10)]
    return Data.from_arrays(x, y, test=parts["test"], classes=names, name=name)


def _part(file: Path) -> tuple[Array, Array]:
    x, y = read_matlab(file, "X", "y")
    labels = np.array(check_numbers(file, "y", y, 0, _TEN)) % _TEN
    x = x[..., None] if x.ndim == 3 else x  # of a single picture
    if x.shape != (_SIDE, _SIDE, 3, len(labels)) or x.dtype != np.uint8:
        wanted = f"bytes [{_SIDE}, {_SIDE}, 3, {len(labels)}], a picture for each label"
        raise bad(f"{file}: X", wanted, (x.shape, str(x.dtype)))
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), labels


# ------------------------------------------------------------------------------------------------
# Actions of VOC2012 in the official form: persons cut out of JPEGImages, labels in Annotations.


ACTIONS = (
    "jumping", "phoning", "playinginstrument", "reading", "ridingbike", "ridinghorse", "running",
    "takingphoto", "usingcomputer", "walking", "other",
)  # fmt: skip
SEVERAL = ("drop", "first")
_SETS = "ImageSets/Action"
_ACTION_PARTS = {"train": "train", "val": "test"}  # labels of the official test part are not public
_ACTION_SIDES = ("xmin", "ymin", "xmax", "ymax")


def is_voc_actions(path: Path) -> bool:
    """Whether a folder has the lists of persons with actions."""
    return all((path / _SETS / f"{word}.txt").is_file() for word in _ACTION_PARTS)


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
    check_choice("several", several, SEVERAL)
    photos, more, none = [], 0, 0
    for word, part in _ACTION_PARTS.items():
        file = path / _SETS / f"{word}.txt"
        for number, words in read_lines(file):
            if len(words) != 2 or not words[1].isdecimal():
                raise bad(f"{file}, line {number}", "an image and a person", " ".join(words))
            done, frame = _person(path / "Annotations" / f"{words[0]}.xml", int(words[1]))
            more, none = more + (len(done) > 1), none + (not done)
            if done and (len(done) == 1 or several == "first"):
                picture = path / "JPEGImages" / f"{words[0]}.jpg"
                photos.append(make_photo(picture, done[0], part, frame))
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
        left, top, right, bottom = (
            float(one.findtext(f"bndbox/{side}") or "") for side in _ACTION_SIDES
        )
    except ValueError:
        raise bad(
            f"{file}, object {number}", f"a bndbox of {', '.join(_ACTION_SIDES)}", None
        ) from None
    # pixels are counted from 1, and both sides belong to the box
    return [action for action in ACTIONS if given.get(action) == "1"], Frame(
        box=(left - 1, top - 1, right, bottom)
    )


class Member(NamedTuple):
    """One of the eight sets: its name, whether a folder has its form, and who reads that."""

    name: str
    fits: Callable[[Path], bool]
    read: Callable[..., Data]


# In the order of the benchmark, by what a task shows.
SETS = {
    "flowers": Member("flowers102", is_flowers, load_flowers),
    "scenes": Member("mit67", is_mit67, load_mit67),
    "birds": Member("cub200", is_cub200, load_cub200),
    "cars": Member("stanford_cars", is_stanford_cars, load_stanford_cars),
    "aircraft": Member("aircraft", is_aircraft, load_aircraft),
    "actions": Member("voc_actions", is_voc_actions, load_voc_actions),
    "letters": Member("chars74k", is_chars74k, load_chars74k),
    "digits": Member("svhn", is_svhn, load_svhn),
}
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
        See `read_photos`. All eight at 256 are 33 GB: give a file for them.
    """
    check_int("size", size, low=8)
    places = _wanted(path, sets)
    parts = _Parts(name)
    if packed is None:
        chunks: list[Array] = []
        for kind in places:
            chunks += parts.read(kind, places[kind], size, broken)
            refuse_too_many(name, "pictures", parts.rows, size)
        return parts.data(torch.from_numpy(np.concatenate(chunks)))
    file = add_npz_suffix(Path(packed))
    stamp = _stamp(places, size)
    if not file.exists():
        _write(file, places, parts, size, broken, stamp)
    if not is_mapped(file) or str(read_mapped(file)[1].get("stamp")) != stamp:
        raise bad("packed", f"a new file, or one with these sets at size {size}", str(file))
    return load_packed([file], name=name)


@dataclass
class _Parts:
    """What is known of the pictures read so far, set after set."""

    name: str
    classes: list[str] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    domains: list[Any] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    train: list[Any] = field(default_factory=list)
    test: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows: int = 0

    def read(self, kind: str, place: Path, size: int, broken: str) -> Iterator[Array]:
        """All pictures of one set, some at a time."""
        options = {} if kind == "digits" else {"size": size, "broken": broken}
        data = SETS[kind].read(place, **options)
        self._add(kind, data)
        for start in range(0, len(data), _CHUNK):
            some = torch.arange(start, min(start + _CHUNK, len(data)))
            part = Data(x=data.stored(some), y=data.y[some], train=some[:0], test=some[:0],
                        classes=data.classes)  # fmt: skip
            yield np.asarray(resized(part, (size, size)).x)

    def _add(self, kind: str, data: Data) -> None:
        self.labels.append(data.labels + len(self.classes))
        self.domains.append(torch.full((len(data),), len(self.kinds)))
        self.train.append(torch.cat([data.train, data.valid]).sort().values + self.rows)
        self.test.append(data.test + self.rows)
        self.classes += [f"{kind}/{one}" for one in data.classes]
        self.notes += [f"{kind}: {note}" for note in data.notes]
        self.kinds.append(kind)
        self.rows += len(data)

    def data(self, x: Any) -> Data:
        missing = [kind for kind in SETS if kind not in self.kinds]
        told = [f"only {len(self.kinds)} of the eight sets, without {', '.join(missing)}"]
        return Data(
            x=x, y=torch.cat(self.labels)[:, None], train=torch.cat(self.train),
            test=torch.cat(self.test), classes=tuple(self.classes), name=self.name,
            attributes={"domain": torch.cat(self.domains)},
            attribute_names={"domain": tuple(self.kinds)},
            notes=(*(told if missing else ()), *self.notes),
        )  # fmt: skip


def _write(
    file: Path, places: dict[str, Path], parts: _Parts, size: int, broken: str, stamp: str
) -> None:
    """Read all sets one after the other into a file that can be mapped."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=file.parent) as raw:  # until it is known how many there are
        for kind in places:
            for chunk in parts.read(kind, places[kind], size, broken):
                raw.write(np.ascontiguousarray(chunk).data)
        raw.flush()
        shape = (parts.rows, 3, size, size)
        nothing = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(shape)
        data = parts.data(nothing)
        with MappedWriter(file, shape, data.facts()) as writer:
            pixels = np.memmap(raw, np.uint8, "r", shape=shape)
            for start in range(0, parts.rows, _CHUNK):
                writer.write(pixels[start : start + _CHUNK])
            writer.finish(data, stamp=np.array(stamp), **pack_arrays(data))


def _places(path: Path) -> dict[str, Path]:
    """Where each of the sets lies that are under a folder."""
    found = {}
    for kind, one in SETS.items():
        here = [path / place for place in NAMED_SETS[one.name].places if one.fits(path / place)]
        if here:
            found[kind] = here[0]
    return found


def _wanted(path: Path, sets: Sequence[str] | None) -> dict[str, Path]:
    if sets is not None and (isinstance(sets, str) or not len(sets)):
        raise bad("sets", f"a list of {', '.join(SETS)}", sets)
    kinds = list(SETS) if sets is None else [check_choice("sets", one, SETS) for one in sets]
    here = _places(path)
    missing = [f"{kind} ({SETS[kind].name})" for kind in SETS if kind in kinds and kind not in here]
    if missing:
        way_out = f" (or sets={list(here)}, which are here)" if sets is None else ""
        raise bad("data", f"the sets {', '.join(missing)} under {path}{way_out}", "none of them")
    return {kind: here[kind] for kind in SETS if kind in kinds}


def _stamp(places: dict[str, Path], size: int) -> str:
    told = repr((size, [(kind, str(place.resolve())) for kind, place in places.items()]))
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()
