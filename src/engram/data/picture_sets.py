"""Data from lists of pictures of any size, faces above all: each is cropped (by landmarks, by a box
or at its centre) and resized to one size.

A reader of such a set lists its pictures (`PictureList`); `picture_reader` does the rest.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from engram.data.checked_files import check_regular, total_memory
from engram.data.conversion import Array
from engram.data.dataset import Data
from engram.data.faces.expressions import EXPRESSIONS
from engram.data.images import count_notes, describe_kinds
from engram.data.memory_maps import MappedWriter, is_mapped, read_mapped
from engram.data.packed import add_npz_suffix, load_packed, pack_arrays
from engram.errors import BadArgument, bad, check_choice, check_int

if TYPE_CHECKING:
    from PIL.Image import Image

BROKEN = ("error", "drop")
_CHUNK = 512  # pictures decoded before they are stored
_SIDES = (8, 1024)


@dataclass(frozen=True)
class Picture:
    """One picture: `part` is train, valid or test; `facts` are its attributes, in words."""

    file: Path
    label: str
    part: str
    frame: Frame | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


class PictureList(NamedTuple):
    """All pictures of a set: what a reader finds out before any of them is opened.

    `classes` are in their order, as far as they occur; `names` has the values of an attribute in
    their order, where that is not the alphabetical one.
    """

    pictures: Sequence[Picture]
    notes: Sequence[str] = ()
    classes: Sequence[str] = EXPRESSIONS
    names: Mapping[str, Sequence[str]] | None = None


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """What all readers of pictures understand.

    Parameters
    ----------
    size
        Height and width of the pictures.
    broken
        ``error`` refuses pictures that cannot be read, ``drop`` leaves them out and counts them.
    packed
        A file for the pictures: written by the first call, and mapped instead of read into memory
        by that and all later ones. For sets larger than memory.
    """

    size: int = 100
    broken: str = "error"
    packed: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_int("size", self.size, low=_SIDES[0])
        if self.size > _SIDES[1]:
            raise bad("size", f"at most {_SIDES[1]}", self.size)
        check_choice("broken", self.broken, BROKEN)


def picture_reader(
    set_name: str, *, size: int = PictureOptions.size, noun: str = "faces"
) -> Callable[[Callable[..., PictureList]], Callable[..., Data]]:
    """Make the reader of a data set from a function that lists its pictures.

    The reader has the options of that function, `PictureOptions` and the name of the data.

    Examples
    --------
    >>> @picture_reader("none", size=16)
    ... def read_nothing(path: Path, *, level: int = 0) -> PictureList:
    ...     return PictureList([])
    >>> print(", ".join(inspect.signature(read_nothing).parameters))
    path, level, size, broken, packed, name
    """

    def make(list_pictures: Callable[..., PictureList]) -> Callable[..., Data]:
        @functools.wraps(list_pictures)
        def read(
            path: Path, *, size: int = size, broken: str = "error",
            packed: str | os.PathLike[str] | None = None, name: str = set_name, **own: Any,
        ) -> Data:  # fmt: skip
            options = PictureOptions(size=size, broken=broken, packed=packed)
            found = list_pictures(path, **own)
            return read_pictures(
                name, found.pictures, options, notes=found.notes, names=found.names,
                classes=found.classes, noun=noun,
            )  # fmt: skip

        own = inspect.signature(list_pictures).parameters.values()
        _, *shared, _ = inspect.signature(read, follow_wrapped=False).parameters.values()
        read.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        return read

    return make


@dataclass
class _Counts:
    """What is told about the pictures of a set."""

    noun: str = "faces"
    crops: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    broken: list[int] = field(default_factory=list)

    def add(self, row: int, cut: CroppedPicture | None) -> None:
        if cut is None:
            self.broken.append(row)
            return
        self.crops[cut.crop] += 1
        kinds = ("grey", "transparent", "blank", "lost")
        self.kinds.update(kind for kind in kinds if getattr(cut, kind))

    def finish(self, data: Data) -> Data:
        """The data without the rows that cannot be read, and with what was counted."""
        lost = torch.tensor(self.broken, dtype=torch.long)
        train, test, valid = (
            rows[~torch.isin(rows, lost)] for rows in (data.train, data.test, data.valid)
        )
        notes = (*data.notes, *self.notes())
        return replace(data, train=train, test=test, valid=valid, notes=notes)

    def notes(self) -> tuple[str, ...]:
        box = "cut by a face box" if self.noun == "faces" else "cut by a box"
        words = {"landmarks": "cut by landmarks", "box": box,
                 "centre": "cut at the centre", "whole": "square as they are"}  # fmt: skip
        crops = [f"{self.crops[one]:,} {words[one]}" for one in CROPS if self.crops[one]]
        found = [f"{self.noun}: {', '.join(crops)}"] if crops else []
        kinds = self.kinds
        found += describe_kinds(
            grey=kinds["grey"], clear=kinds["transparent"], blank=kinds["blank"]
        )
        if kinds["lost"]:
            found.append(f"{kinds['lost']:,} boxes or landmarks that are no part of their image")
        found += count_notes((len(self.broken), "image", " left out that cannot be read"))
        return tuple(found)


def read_pictures(
    name: str,
    pictures: Sequence[Picture],
    options: PictureOptions,
    *,
    notes: Sequence[str] = (),
    names: Mapping[str, Sequence[str]] | None = None,
    classes: Sequence[str] = EXPRESSIONS,
    noun: str = "faces",
) -> Data:
    """Data of all pictures, uint8 [N, 3, size, size], with the expressions that occur as classes.

    Row i is picture i. Pictures that are left out keep their row, black and in no part. `names` are
    the values of an attribute in their order; without them, those that occur, sorted. Other things
    than faces have other `classes`, and are called by `noun`.
    """
    if not pictures:
        raise bad(name, "at least one picture with a label", "none")
    data = _describe_rows(name, pictures, options.size, names or {}, classes)
    notes = (*notes, *_check_shared_subjects(pictures), *_check_listed_twice(pictures))
    data = replace(data, notes=notes)
    if options.packed is None:
        refuse_too_many(name, noun, len(pictures), options.size)
        x, counts = np.zeros(data.x.shape, np.uint8), _Counts(noun)
        for start, chunk in _chunks(pictures, options, counts):
            x[start : start + len(chunk)] = chunk
        data = counts.finish(replace(data, x=torch.from_numpy(x)))
    else:
        data = _write_mapped(Path(options.packed), pictures, options, data, noun)
    if not len(data.train):
        raise bad(
            name, f"{noun} to train on", f"none of {len(pictures):,}, see {'; '.join(data.notes)}"
        )
    return data


def _describe_rows(
    name: str,
    pictures: Sequence[Picture],
    size: int,
    given: Mapping[str, Sequence[str]],
    known: Sequence[str],
) -> Data:
    """All that is known of the data before a picture is opened; the inputs are blank."""
    present = {picture.label for picture in pictures}
    classes = tuple(one for one in known if one in present)
    if len(classes) < len(present):
        raise bad(name, f"the labels {', '.join(known)}", sorted(present - set(known)))
    place_of = {label: i for i, label in enumerate(classes)}
    attributes, titles = {}, {}
    for key in dict.fromkeys(key for picture in pictures for key in picture.facts):
        found = [picture.facts.get(key, "unknown") for picture in pictures]
        values = list(given.get(key, sorted(set(found) - {"unknown"})))
        values += ["unknown"] if "unknown" in found and "unknown" not in values else []
        place = {value: i for i, value in enumerate(values)}
        attributes[key] = torch.tensor([place[one] for one in found])
        titles[key] = tuple(values)
    train, test, valid = (
        torch.tensor([row for row, picture in enumerate(pictures) if picture.part == part]).long()
        for part in ("train", "test", "valid")
    )
    return Data(
        x=blank_pictures(len(pictures), size),
        y=torch.tensor([place_of[picture.label] for picture in pictures])[:, None], classes=classes,
        train=train, test=test, valid=valid, name=name, attributes=attributes,
        attribute_names=titles,
    )  # fmt: skip


def blank_pictures(count: int, size: int) -> torch.Tensor:
    """Inputs [N, 3, size, size] that take no memory, until there are others."""
    return torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(count, 3, size, size)


def _stamp(pictures: Sequence[Picture], size: int) -> str:
    """What tells one list of pictures from another, without reading a picture."""
    digest = hashlib.blake2b(str(size).encode(), digest_size=8)
    for picture in pictures:
        frame = picture.frame or Frame()
        points = () if frame.points is None else frame.points.tolist()
        facts = (str(picture.file), picture.label, picture.part, tuple(picture.facts.items()))
        more: tuple[object, ...] = (frame.bottom,) if frame.bottom else ()
        more += () if frame.detector is None else (repr(frame.detector),)
        digest.update(repr((facts, frame.box, frame.margin, points, *more)).encode())
    return digest.hexdigest()


def _write_mapped(
    path: Path, pictures: Sequence[Picture], options: PictureOptions, blank: Data, noun: str
) -> Data:
    path, stamp = add_npz_suffix(path), _stamp(pictures, options.size)
    if not path.exists():
        counts = _Counts(noun)
        with MappedWriter(path, tuple(blank.x.shape), blank.facts()) as writer:
            for _, chunk in _chunks(pictures, options, counts):
                writer.write(chunk)
            data = counts.finish(blank)
            writer.finish(data, stamp=np.array(stamp), **pack_arrays(data))
    if not is_mapped(path) or str(read_mapped(path)[1].get("stamp")) != stamp:
        raise bad("packed", f"a new file, or one with these {noun} of {blank.name} at this size",
                  f"{path}, which holds others")  # fmt: skip
    return load_packed([path], name=blank.name)


def _chunks(
    pictures: Sequence[Picture], options: PictureOptions, counts: _Counts
) -> Iterator[tuple[int, Array]]:
    """(first row, uint8 [n, 3, size, size]) of all pictures; decoded by some threads, in order."""

    def cut(picture: Picture) -> CroppedPicture | None:
        try:
            return crop_picture(picture.file, options.size, picture.frame)
        except BadArgument as problem:
            if options.broken == "drop" and problem.kind == "broken":
                return None
            if problem.kind == "broken":
                raise BadArgument(f'{problem} (broken="drop" leaves such images out)') from None
            raise

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(pictures), _CHUNK):
            some = list(pool.map(cut, islice(pictures, start, start + _CHUNK)))
            chunk = np.zeros((len(some), 3, options.size, options.size), np.uint8)
            for i, one in enumerate(some):
                counts.add(start + i, one)
                if one is not None:
                    chunk[i] = one.pixels
            yield start, chunk


def refuse_too_many(name: str, noun: str, count: int, size: int) -> None:
    """Refuse pictures that would fill more than half of the memory."""
    needed, memory = count * 3 * size * size, total_memory()
    if needed > memory // 2:
        raise bad(name, f"{noun} of at most {memory // 2:,} bytes, half of the memory (give "
                  'packed="FILE.npz", and they are kept there)', f"{needed:,} bytes")  # fmt: skip


def _check_listed_twice(pictures: Sequence[Picture]) -> list[str]:
    """Complains of pictures with two labels, and counts those that are there twice with one."""
    known: dict[object, str] = {}
    for picture in pictures:
        # there may be several faces in a picture
        what = picture.file, picture.frame and picture.frame.box
        if known.setdefault(what, picture.label) != picture.label:
            raise bad(str(picture.file), "one label", sorted({known[what], picture.label}))
    return count_notes((len(pictures) - len(known), "image", " listed more than once"))


def _check_shared_subjects(pictures: Sequence[Picture]) -> tuple[str, ...]:
    parts: dict[str, set[str]] = {"train": set(), "valid": set(), "test": set()}
    for picture in pictures:
        if "subject" in picture.facts:
            parts[picture.part].add(picture.facts["subject"])
    shared = parts["train"] & parts["test"]
    if not shared:
        return ()
    return (f"{len(shared)} of {len(parts['test'])} test subjects are training subjects as well",)


# ------------------------------------------------------------------------------------------------
# From a picture to one of a size: what is cut out of it, and how it got its colours

CROPS = ("landmarks", "box", "centre", "whole")
_GREY = ("1", "L", "LA", "I", "I;16", "F")
Box = tuple[float, float, float, float]  # left, top, right, bottom


class CroppedPicture(NamedTuple):
    """A cut picture: uint8 [3, size, size], and what is to be counted about it."""

    pixels: Array
    crop: str  # one of CROPS
    grey: bool
    transparent: bool
    blank: bool
    lost: bool = False  # whether its box, or its landmarks, are no part of the picture


@dataclass(frozen=True)
class Frame:
    """What of a picture is wanted: landmarks [n, 2] (x, y), a box, or neither.

    `margin` is added around the landmarks on every side, as a part of their extent: those of a
    whole face end at the brows. `bottom` rows of pixels at the lower edge are no part of the
    picture. A `detector` gets the pixels, uint8 [height, width, 3], and gives the box, or None.
    """

    points: Array | None = None
    box: Box | None = None
    detector: Callable[[Array], Box | None] | None = None
    margin: float = 0.15
    bottom: int = 0


def crop_picture(
    source: bytes | Path, size: int, frame: Frame | None = None, label: str = ""
) -> CroppedPicture:
    """What is cut out of a picture, as RGB; a broken one is a `BadArgument` of the kind "broken".

    Examples
    --------
    >>> from PIL import Image
    >>> stream = io.BytesIO()
    >>> Image.new("L", (30, 20), 7).save(stream, "png")
    >>> cut = crop_picture(stream.getvalue(), 8)
    >>> cut.pixels.shape, cut.crop, cut.grey, cut.blank
    ((3, 8, 8), 'centre', True, True)
    """
    from PIL import Image

    where = label or (str(source) if isinstance(source, Path) else "image")
    try:
        if isinstance(source, Path):
            check_regular(source)
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            image.load()
            return crop_image(image, size, frame or Frame())
    except (OSError, SyntaxError, Image.DecompressionBombError) as problem:
        raise bad(where, "a readable, complete image", str(problem)).with_kind("broken") from None


def crop_image(image: Image, size: int, frame: Frame) -> CroppedPicture:
    """What is cut out of an open picture."""
    from PIL import Image as Pillow

    if frame.bottom:  # before all else: smoothing reads beyond the edge of what it is given
        image = image.crop((0, 0, image.width, max(1, image.height - frame.bottom)))
    transparent = image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info
    grey = image.mode in _GREY
    if frame.detector is not None:
        pixels = np.asarray(_to_eight_bits(image).convert("RGB"))
        frame = replace(frame, box=frame.detector(pixels))
    crop, area = crop_square(image.width, image.height, frame)
    lost = crop not in ("landmarks", "box") and not (frame.points is None and frame.box is None)
    plain = _to_eight_bits(image).convert("L" if grey else "RGB")  # a third of the work where grey
    if crop != "whole" or image.size != (size, size):
        plain = plain.resize((size, size), Pillow.Resampling.BILINEAR, box=area)
    pixels = np.asarray(plain)
    pixels = np.stack([pixels] * 3) if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))
    grey = grey or bool((pixels[0] == pixels[1:]).all())
    blank = bool((pixels[0] == pixels[0, 0, 0]).all()) and bool((pixels == pixels[:, :1, :1]).all())
    return CroppedPicture(pixels, crop, grey, transparent, blank, lost)


def _to_eight_bits(image: Image) -> Image:
    """Sixteen bits to eight: Pillow would cut off what lies above 255."""
    from PIL import Image as Pillow

    if not image.mode.startswith("I"):
        return image
    deep = np.asarray(image)
    return Pillow.fromarray((deep >> 8 if deep.max(initial=0) > 255 else deep).astype(np.uint8))


def crop_square(width: int, height: int, frame: Frame) -> tuple[str, Box]:
    """What is cut out, inside the picture, and by what.

    Landmarks or a box that lie outside of it, or are smaller than a pixel, tell nothing: the
    picture is cut as without them.
    """
    crop, (x, y), side = _crop_hint(frame)
    far = side / 2
    if crop and side >= 1 and -far < x < width + far and -far < y < height + far:
        return crop, _fit_square((x, y), side, width, height)
    if width == height:
        return "whole", (0.0, 0.0, float(width), float(height))
    return "centre", _fit_square((width / 2, height / 2), min(width, height), width, height)


def _crop_hint(frame: Frame) -> tuple[str, tuple[float, float], float]:
    """By what a square is cut out, its middle and its side; "" where nothing is known."""
    if frame.points is not None:
        low, high = frame.points.min(0), frame.points.max(0)
        (x, y), side = (low + high) / 2, float((high - low).max()) * (1 + 2 * frame.margin)
        return "landmarks", (float(x), float(y)), side
    if frame.box is not None:
        left, top, right, bottom = frame.box
        middle = ((left + right) / 2, (top + bottom) / 2)
        return "box", middle, max(right - left, bottom - top)
    return "", (0.0, 0.0), 0.0


def _fit_square(middle: Sequence[float] | Array, side: float, width: int, height: int) -> Box:
    """A square moved into the picture, no larger than it."""
    side = min(side, width, height)
    left = min(max(float(middle[0]) - side / 2, 0.0), width - side)
    top = min(max(float(middle[1]) - side / 2, 0.0), height - side)
    return left, top, left + side, top + side
