"""Sets of faces: a list of pictures with labels, parts and facts becomes Data of one size."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engram.data.arrays import Array
from engram.data.core import Data
from engram.data.crops import CROPS, Cut, Frame, cut_face
from engram.data.expressions import EXPRESSIONS
from engram.data.images import kinds_in_words
from engram.data.mapped import MappedWriter, is_mapped, read_mapped
from engram.data.packed import load_packed
from engram.data.packing import arrays_of, with_suffix
from engram.errors import BadArgument, bad, choose, whole
from engram.spelling import plural

BROKEN = ("error", "drop")
_CHUNK = 512  # pictures decoded before they are stored
_SIDES = (8, 1024)


@dataclass(frozen=True)
class Face:
    """One picture: `part` is train, valid or test; `facts` are its attributes, in words."""

    file: Path
    label: str
    part: str
    frame: Frame | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FaceOptions:
    """What all loaders of faces understand.

    Parameters
    ----------
    size
        Height and width of the faces.
    broken
        ``error`` refuses pictures that cannot be read, ``drop`` leaves them out and counts them.
    packed
        A file for the faces: written by the first call, and mapped instead of read into memory
        by that and all later ones. For sets larger than memory.
    """

    size: int = 100
    broken: str = "error"
    packed: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        whole("size", self.size, low=_SIDES[0])
        if self.size > _SIDES[1]:
            raise bad("size", f"at most {_SIDES[1]}", self.size)
        choose("broken", self.broken, BROKEN)


@dataclass
class _Counts:
    """What is told about the pictures of a set."""

    noun: str = "faces"
    crops: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    broken: list[int] = field(default_factory=list)

    def add(self, row: int, cut: Cut | None) -> None:
        if cut is None:
            self.broken.append(row)
            return
        self.crops[cut.crop] += 1
        kinds = ("grey", "transparent", "blank", "lost")
        self.kinds.update(kind for kind in kinds if getattr(cut, kind))

    def notes(self) -> tuple[str, ...]:
        box = "cut by a face box" if self.noun == "faces" else "cut by a box"
        words = {"landmarks": "cut by landmarks", "box": box,
                 "centre": "cut at the centre", "whole": "square as they are"}  # fmt: skip
        crops = [f"{self.crops[one]:,} {words[one]}" for one in CROPS if self.crops[one]]
        found = [f"{self.noun}: {', '.join(crops)}"] if crops else []
        kinds = self.kinds
        found += kinds_in_words(
            grey=kinds["grey"], clear=kinds["transparent"], blank=kinds["blank"]
        )
        if kinds["lost"]:
            found.append(f"{kinds['lost']:,} boxes or landmarks that are no part of their image")
        if self.broken:
            found.append(f"{plural(len(self.broken), 'image')} left out that cannot be read")
        return tuple(found)


def read_faces(
    name: str,
    faces: Sequence[Face],
    options: FaceOptions,
    *,
    notes: Sequence[str] = (),
    names: Mapping[str, Sequence[str]] | None = None,
    classes: Sequence[str] = EXPRESSIONS,
    noun: str = "faces",
) -> Data:
    """Data of all faces, uint8 [N, 3, size, size], with the expressions that occur as classes.

    Row i is face i. Pictures that are left out keep their row, black and in no part. `names` are
    the values of an attribute in their order; without them, those that occur, sorted. Other things
    than faces have other `classes`, and are called by `noun`.
    """
    if not faces:
        raise bad(name, "at least one picture with a label", "none")
    facts = _facts(name, faces, options.size, names or {}, classes)
    notes = (*notes, *_shared_subjects(faces), *_listed_twice(faces))
    if options.packed is None:
        refuse_too_many(name, noun, len(faces), options.size)
        x = np.zeros((len(faces), 3, options.size, options.size), np.uint8)
        counts = _Counts(noun)
        for start, chunk in _chunks(faces, options, counts):
            x[start : start + len(chunk)] = chunk
        data = _data(torch.from_numpy(x), facts, counts.broken, (*notes, *counts.notes()))
    else:
        data = _mapped(Path(options.packed), faces, options, facts, notes, noun)
    if not len(data.train):
        raise bad(
            name, f"{noun} to train on", f"none of {len(faces):,}, see {'; '.join(data.notes)}"
        )
    return data


@dataclass(frozen=True)
class _Facts:
    """All of a Data but its inputs."""

    name: str
    classes: tuple[str, ...]
    label: Array
    part: Array  # 0 train, 1 test, 2 valid: the codes of packed files
    attributes: Mapping[str, Array]
    names: Mapping[str, tuple[str, ...]]
    stamp: str


def _facts(
    name: str,
    faces: Sequence[Face],
    size: int,
    given: Mapping[str, Sequence[str]],
    known: Sequence[str],
) -> _Facts:
    present = {face.label for face in faces}
    classes = tuple(one for one in known if one in present)
    if len(classes) < len(present):
        raise bad(name, f"the labels {', '.join(known)}", sorted(present - set(known)))
    place_of = {name: i for i, name in enumerate(classes)}
    attributes, titles = {}, {}
    for key in dict.fromkeys(key for face in faces for key in face.facts):
        found = [face.facts.get(key, "unknown") for face in faces]
        values = list(given.get(key, sorted(set(found) - {"unknown"})))
        values += ["unknown"] if "unknown" in found and "unknown" not in values else []
        place = {value: i for i, value in enumerate(values)}
        attributes[key] = np.array([place[one] for one in found], np.int64)
        titles[key] = tuple(values)
    return _Facts(
        name, classes, np.array([place_of[face.label] for face in faces], np.int64),
        np.array([("train", "test", "valid").index(face.part) for face in faces], np.uint8),
        attributes, titles, _stamp(faces, size),
    )  # fmt: skip


def _stamp(faces: Sequence[Face], size: int) -> str:
    """What tells one list of faces from another, without reading a picture."""
    digest = hashlib.blake2b(str(size).encode(), digest_size=8)
    for face in faces:
        frame = face.frame or Frame()
        points = () if frame.points is None else frame.points.tolist()
        facts = (str(face.file), face.label, face.part, tuple(face.facts.items()))
        more = (frame.bottom,) if frame.bottom else ()
        digest.update(repr((facts, frame.box, frame.margin, points, *more)).encode())
    return digest.hexdigest()


def _data(x: Tensor, facts: _Facts, broken: Sequence[int], notes: Sequence[str]) -> Data:
    part = torch.from_numpy(facts.part.astype(np.int64))
    part[list(broken)] = 255
    train, test, valid = ((part == code).nonzero()[:, 0] for code in range(3))
    return Data(
        x=x, y=torch.from_numpy(facts.label)[:, None], train=train, test=test, valid=valid,
        classes=facts.classes, name=facts.name,
        attributes={key: torch.from_numpy(value) for key, value in facts.attributes.items()},
        attribute_names=facts.names, notes=tuple(notes),
    )  # fmt: skip


def _mapped(
    path: Path,
    faces: Sequence[Face],
    options: FaceOptions,
    facts: _Facts,
    notes: Sequence[str],
    noun: str,
) -> Data:
    path = with_suffix(path)
    if not path.exists():
        counts = _Counts(noun)
        shape = (len(faces), 3, options.size, options.size)
        nothing = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(shape)
        with MappedWriter(path, shape, _data(nothing, facts, (), ()).facts()) as writer:
            for _, chunk in _chunks(faces, options, counts):
                writer.write(chunk)
            whole_set = _data(nothing, facts, counts.broken, (*notes, *counts.notes()))
            writer.finish(whole_set, stamp=np.array(facts.stamp), **arrays_of(whole_set))
    if not is_mapped(path) or str(read_mapped(path)[1].get("stamp")) != facts.stamp:
        raise bad("packed", f"a new file, or one with these {noun} of {facts.name} at this size",
                  f"{path}, which holds others")  # fmt: skip
    return load_packed([path], name=facts.name)


def _chunks(
    faces: Sequence[Face], options: FaceOptions, counts: _Counts
) -> Iterator[tuple[int, Array]]:
    """(first row, uint8 [n, 3, size, size]) of all faces; decoded by some threads, in order."""

    def cut(face: Face) -> Cut | None:
        try:
            return cut_face(face.file, options.size, face.frame)
        except BadArgument as problem:
            if options.broken == "drop" and problem.kind == "broken":
                return None
            if problem.kind == "broken":
                raise BadArgument(f'{problem} (broken="drop" leaves such images out)') from None
            raise

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(faces), _CHUNK):
            some = list(pool.map(cut, islice(faces, start, start + _CHUNK)))
            chunk = np.zeros((len(some), 3, options.size, options.size), np.uint8)
            for i, one in enumerate(some):
                counts.add(start + i, one)
                if one is not None:
                    chunk[i] = one.pixels
            yield start, chunk


def refuse_too_many(name: str, noun: str, count: int, size: int) -> None:
    """Refuse pictures that would fill more than half of the memory."""
    needed = count * 3 * size * size
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory // 2:
        raise bad(name, f"{noun} of at most {memory // 2:,} bytes, half of the memory (give "
                  'packed="FILE.npz", and they are kept there)', f"{needed:,} bytes")  # fmt: skip


def _listed_twice(faces: Sequence[Face]) -> tuple[str, ...]:
    """Complains of faces with two labels, and counts those that are there twice with one."""
    known: dict[object, str] = {}
    for face in faces:
        what = face.file, face.frame and face.frame.box  # there may be several in a picture
        if known.setdefault(what, face.label) != face.label:
            raise bad(str(face.file), "one label", sorted({known[what], face.label}))
    twice = len(faces) - len(known)
    return (f"{plural(twice, 'image')} listed more than once",) if twice else ()


def _shared_subjects(faces: Sequence[Face]) -> tuple[str, ...]:
    parts: dict[str, set[str]] = {"train": set(), "valid": set(), "test": set()}
    for face in faces:
        if "subject" in face.facts:
            parts[face.part].add(face.facts["subject"])
    shared = parts["train"] & parts["test"]
    if not shared:
        return ()
    return (f"{len(shared)} of {len(parts['test'])} test subjects are training subjects as well",)
