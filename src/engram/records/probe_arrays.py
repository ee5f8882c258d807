"""Arrays stored by probes for each run and stage, such as the pictures that generators drew."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.errors import RecordError, wrap_read_errors
from engram.io import pack_tensors
from engram.records.journal import RecordFile
from engram.records.predictions import PartFiles, RunName, StageKey, stage_key
from engram.records.tombstones import Tombstones

if TYPE_CHECKING:
    from engram.records.result import Result

_FORMAT = "engram-arrays-1"


@dataclass(frozen=True, eq=False)
class StoredArrays:
    """Arrays of one probe, run and stage; `probe` is the probe's key, ``name@version``."""

    key: StageKey
    probe: str
    arrays: Mapping[str, npt.NDArray[Any]]

    @property
    def place(self) -> tuple[StageKey, str]:
        """Return the stage key and the probe's name, which all versions of the probe share."""
        return self.key, self.probe.rpartition("@")[0] or self.probe


def pack_arrays(stored: Sequence[StoredArrays], *, alone: bool = False) -> bytes:
    """Return the content of a part file; `alone` if no results belong to it."""
    named = {
        f"{i}/{name}": np.ascontiguousarray(value)
        for i, one in enumerate(stored)
        for name, value in one.arrays.items()
    }
    places = [[*one.key, one.probe] for one in stored]
    facts = {"format": _FORMAT, "places": json.dumps(places), "alone": json.dumps(alone)}
    return pack_tensors(named, facts)


class ProbeArrays(PartFiles[tuple[StageKey, str], StoredArrays, tuple[RecordFile, int, str]]):
    """Stored arrays of many runs, read one probe, run and stage at a time; the last part counts.

    Examples
    --------
    >>> key = StageKey("r", 0, "", 2)
    >>> arrays = ProbeArrays(memory=[StoredArrays(key, "softmax@1f", {"scores": np.ones(3)})])
    >>> arrays.get(key, "softmax")["scores"].tolist(), arrays.get(key, "odin")
    ([1.0, 1.0, 1.0], {})
    """

    def __init__(
        self, files: Iterable[Path | RecordFile] = (), *, memory: Iterable[StoredArrays] = (),
        marks: Tombstones | None = None,
    ) -> None:  # fmt: skip
        super().__init__(files, {one.place: one for one in memory}, marks)

    def renamed(self, runs: Mapping[RunName, RunName]) -> ProbeArrays:
        """Return the arrays of some runs under other names, given as {new: old}."""
        found, index = ProbeArrays(), {}
        places: dict[RunName, list[tuple[StageKey, str]]] = {}
        for place in self:
            places.setdefault(place[0][:3], []).append(place)
        for new, old in runs.items():
            for key, probe in places.get(old, ()):
                named = StageKey(*new, key.stage), probe
                if (key, probe) in self._memory:
                    found._memory[named] = replace(self._memory[key, probe], key=named[0])
                else:
                    index[named] = self._places()[key, probe]
        found._index = index
        return found

    def __repr__(self) -> str:
        return f"ProbeArrays({len(self)} of one probe, run and stage)"

    def get(self, key: tuple[str, int, str, int], probe: str) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of a probe by name; empty if it stored none for this stage."""
        found = self.stored(key, probe)
        return {} if found is None else dict(found.arrays)

    def stored(self, key: tuple[str, int, str, int], probe: str) -> StoredArrays | None:
        """Return the arrays together with the probe's key; None if there are none."""
        place = StageKey(*key), probe
        if place in self._memory:
            return self._memory[place]
        where = self._places().get(place)
        return None if where is None else _load(*where, place[0])

    def _held(self, file: RecordFile) -> dict[tuple[StageKey, str], tuple[RecordFile, int, str]]:
        part, marks = file.part, self._marks[file.path.parent]
        found = {}
        for i, (key, probe) in enumerate(_header(file)["places"]):
            place = StoredArrays(key, probe, {}).place
            newest = marks.metrics.get(f"{place[1]}/", {}).get(place[0][:3], "")
            if not marks.hides(place[0][:3], part) and part >= newest:
                found[place] = file, i, probe
        return found


def stands_alone(file: RecordFile) -> bool:
    """Return whether a part file counts without a results file of the same part."""
    try:
        return bool(_header(file)["alone"])
    except RecordError:  # reported as a problem when it is read
        return True


def _header(file: RecordFile) -> dict[str, Any]:
    facts = file.tensors("file of arrays").facts
    if facts.get("format") != _FORMAT:
        raise RecordError(f"{file}: not a file of arrays of this version")
    with wrap_read_errors(file, "file of arrays"):
        places = [(stage_key(*key), str(probe)) for *key, probe in json.loads(facts["places"])]
        return {"places": places, "alone": json.loads(facts["alone"])}


def _load(record: RecordFile, index: int, probe: str, key: StageKey) -> StoredArrays:
    file, start = record.tensors("file of arrays"), f"{index}/"
    names = [name for name in file.keys() if name.startswith(start)]  # noqa: SIM118
    arrays = {name.removeprefix(start): file.get(name) for name in names}
    return StoredArrays(key, probe, arrays)


GENERATED_PROBE = "generated"


class GeneratedPictures(NamedTuple):
    """Samples that a run's generator drew after a stage."""

    recipe: str
    stage: int
    pictures: np.ndarray[Any, Any] | None  # uint8 [count, C, H, W], where samples are images
    classes: np.ndarray[Any, Any] | None  # [count] the network's predictions for them
    drawn: np.ndarray[Any, Any] | None  # [many] predictions for many more samples


def generated_pictures(result: Result) -> list[GeneratedPictures]:
    """Return the samples of the first run of every recipe, stage after stage."""
    first: dict[str, tuple[int, str]] = {}
    stages = sorted(key for key, probe in result.stored if probe == GENERATED_PROBE)
    for recipe, seed, order, _ in stages:
        first.setdefault(recipe, (seed, order))
    found = []
    for key in stages:
        if first[key.recipe] != (key.seed, key.order):
            continue
        arrays = result.stored.get(key, GENERATED_PROBE)
        parts = [arrays.get(name) for name in ("pictures", "classes", "drawn")]
        if any(part is not None for part in parts):
            found.append(GeneratedPictures(key.recipe, key.stage, *parts))
    return found
