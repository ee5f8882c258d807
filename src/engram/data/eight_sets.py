"""The eight sets of the Eight-Task sequence as one: every picture of one size, classes apart."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from engram.data.aircraft import is_aircraft, load_aircraft
from engram.data.arrays import Array
from engram.data.chars74k import is_chars74k, load_chars74k
from engram.data.core import Data
from engram.data.cub200 import is_cub200, load_cub200
from engram.data.faces import refuse_too_many
from engram.data.flowers102 import is_flowers, load_flowers
from engram.data.known import KNOWN
from engram.data.mapped import MappedWriter, is_mapped, read_mapped
from engram.data.mit67 import is_mit67, load_mit67
from engram.data.packed import load_packed
from engram.data.packing import arrays_of, with_suffix
from engram.data.photos import SIZE
from engram.data.pictures import resized
from engram.data.stanford_cars import is_stanford_cars, load_stanford_cars
from engram.data.svhn import is_svhn, load_svhn
from engram.data.voc_actions import is_voc_actions, load_voc_actions
from engram.errors import bad, choose, whole


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
    whole("size", size, low=8)
    places = _wanted(path, sets)
    parts = _Parts(name)
    if packed is None:
        chunks: list[Array] = []
        for kind in places:
            chunks += parts.read(kind, places[kind], size, broken)
            refuse_too_many(name, "pictures", parts.rows, size)
        return parts.data(torch.from_numpy(np.concatenate(chunks)))
    file = with_suffix(Path(packed))
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
            writer.finish(data, stamp=np.array(stamp), **arrays_of(data))


def _places(path: Path) -> dict[str, Path]:
    """Where each of the sets lies that are under a folder."""
    found = {}
    for kind, one in SETS.items():
        here = [path / place for place in KNOWN[one.name].places if one.fits(path / place)]
        if here:
            found[kind] = here[0]
    return found


def _wanted(path: Path, sets: Sequence[str] | None) -> dict[str, Path]:
    if sets is not None and (isinstance(sets, str) or not len(sets)):
        raise bad("sets", f"a list of {', '.join(SETS)}", sets)
    kinds = list(SETS) if sets is None else [choose("sets", one, SETS) for one in sets]
    here = _places(path)
    missing = [f"{kind} ({SETS[kind].name})" for kind in SETS if kind in kinds and kind not in here]
    if missing:
        way_out = f" (or sets={list(here)}, which are here)" if sets is None else ""
        raise bad("data", f"the sets {', '.join(missing)} under {path}{way_out}", "none of them")
    return {kind: here[kind] for kind in SETS if kind in kinds}


def _stamp(places: dict[str, Path], size: int) -> str:
    told = repr((size, [(kind, str(place.resolve())) for kind, place in places.items()]))
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()
