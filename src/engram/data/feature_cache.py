"""Features of frozen networks on disk, so that a second study on them need not compute them again.

An entry is two files: the features as an ``.npy`` file, which is mapped into memory, and a JSON
file with what they are of and their checksum, which appears last.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.data.lazy_rows import parse_bytes
from engram.errors import bad, plural

PLACE_VARIABLE, SIZE_VARIABLE = "ENGRAM_CACHE", "ENGRAM_CACHE_SIZE"
DEFAULT_SIZE = "20GB"
OFF = "off"
WORTH_KEEPING = 5.0  # seconds of a pass whose features are kept where nobody named a place
_FORM = 1  # of an entry; others are not read
_CHUNK = 1 << 24


@dataclass(frozen=True)
class CacheEntry:
    """Features on disk: of which data and network, how many, and when they were used last."""

    name: str
    facts: Mapping[str, Any]
    nbytes: int
    used: float


class FeatureCache:
    """A folder of features, of at most `limit` bytes: what was used least recently goes first.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = FeatureCache(Path(folder))
    ...     cache.put("digits by net", torch.ones(3, 2), about={"data": "digits"})
    ...     found = cache.get("digits by net")
    ...     found.tolist(), cache.get("others"), [one.facts["data"] for one in cache.entries()]
    ([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], None, ['digits'])
    """

    def __init__(self, folder: Path, limit: int | str | None = None) -> None:
        self.folder = folder / "features"
        given = os.environ.get(SIZE_VARIABLE, DEFAULT_SIZE) if limit is None else limit
        self.limit = parse_bytes(SIZE_VARIABLE, given, of_memory=False)

    def get(self, key: str) -> Tensor | None:
        """Return features as a map of their file; None if there are none, or damaged ones."""
        name = _name(key)
        described, file = self._files(name)
        if not described.is_file():
            return None
        facts = _read_facts(described)
        found = None if facts is None or facts.get("key") != key else _read_map(file, facts)
        if found is None:
            words = f"features in {file} are damaged; they are computed again"
            warnings.warn(words, stacklevel=2)
            self.remove(name)
            return None
        with suppress(OSError):  # a folder that is only read has no times of use
            os.utime(described)
        return torch.from_numpy(found)

    def put(self, key: str, features: Tensor, about: Mapping[str, Any]) -> None:
        """Write features [N, F]; whoever reads meanwhile sees all of them or none."""
        array = features.detach().cpu().contiguous().numpy()
        if array.nbytes > self.limit:
            return
        name = _name(key)
        described, file = self._files(name)
        self.folder.mkdir(parents=True, exist_ok=True)
        mark = f".{os.getpid()}"
        unfinished = file.with_name(f".{file.name}{mark}")
        try:
            with unfinished.open("wb") as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)
                stream.flush()
                os.fsync(stream.fileno())
            facts = {
                **about, "form": _FORM, "key": key, "shape": list(array.shape),
                "dtype": array.dtype.name, "sum": _sum(array),
            }  # fmt: skip
            described.unlink(missing_ok=True)  # never describes features that it is not of
            unfinished.replace(file)
            text = described.with_name(f".{described.name}{mark}")
            text.write_text(json.dumps(facts, indent=1), encoding="utf-8")
            text.replace(described)
        finally:
            unfinished.unlink(missing_ok=True)
        self._make_room(name)

    def entries(self) -> list[CacheEntry]:
        """List the entries, the most recently used first."""
        found = []
        for described in self.folder.glob("*.json"):
            facts, file = _read_facts(described), self._files(described.stem)[1]
            with suppress(OSError):
                size, used = file.stat().st_size, described.stat().st_mtime
                found.append(CacheEntry(described.stem, facts or {}, size, used))
        return sorted(found, key=lambda one: (-one.used, one.name))

    def remove(self, name: str) -> None:
        """Remove an entry."""
        for file in self._files(name):
            with suppress(OSError):
                file.unlink()

    def clear(self) -> int:
        """Remove all entries, and what killed processes left; return the number of entries."""
        names = [one.stem for one in self.folder.glob("*.json")]
        for name in names:
            self.remove(name)
        for file in (*self.folder.glob("*.npy"), *self.folder.glob(".*.npy.*")):
            with suppress(OSError):
                file.unlink()
        return len(names)

    def _files(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"{name}.json", self.folder / f"{name}.npy"

    def _make_room(self, keep: str) -> None:
        known = self.entries()
        total = sum(one.nbytes for one in known)
        for one in reversed(known):
            if total <= self.limit:
                return
            if one.name != keep:
                self.remove(one.name)
                total -= one.nbytes


@dataclass(frozen=True)
class CachePlace:
    """Where features are kept, and whether somebody named that place; None for nowhere.

    Examples
    --------
    >>> CachePlace.find("/tmp/kept")
    CachePlace(folder=PosixPath('/tmp/kept'), named=True)
    >>> CachePlace.find(False) is None
    True
    """

    folder: Path
    named: bool

    @classmethod
    def find(cls, option: Any = None) -> CachePlace | None:
        """Find the place by an option, else by ENGRAM_CACHE, else in the user's cache folder."""
        if option is False:
            return None
        if option is not None and option is not True:
            if not isinstance(option, str | os.PathLike) or not str(option):
                raise bad("model.freeze.cache", "a folder, true or false", option)
            return cls(Path(option).expanduser(), named=True)
        given = os.environ.get(PLACE_VARIABLE, "")
        if given.lower() == OFF:
            return None
        if given:
            return cls(Path(given).expanduser(), named=True)
        usual = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return cls(Path(usual).expanduser() / "engram", named=option is True)


def compute_or_read(
    place: CachePlace | None, key: str, compute: Any, about: Mapping[str, Any]
) -> Tensor:
    """Return the features of a key from the cache, or compute and keep them.

    Where nobody named a place, features that took less than `WORTH_KEEPING` seconds are not kept.
    """
    if place is None:
        made: Tensor = compute()
        return made
    cache = FeatureCache(place.folder)
    found = cache.get(key)
    if found is not None:
        return found
    start = time.perf_counter()
    made = compute()
    seconds = time.perf_counter() - start
    if place.named or seconds >= WORTH_KEEPING:
        try:
            cache.put(key, made, {**about, "seconds": round(seconds, 1)})
        except OSError as error:  # a full disk need not end a study
            words = f"features could not be kept in {place.folder}: {error}"
            warnings.warn(words, stacklevel=2)
    return made


def describe_cache(cache: FeatureCache) -> str:
    """Describe a cache in a line.

    Examples
    --------
    >>> describe_cache(FeatureCache(Path("/nowhere"), "1GB"))
    '0 tables, 0.0 of 1.0 GB in /nowhere'
    """
    known = cache.entries()
    total = sum(one.nbytes for one in known) / 1e9
    count = plural(len(known), "table")
    return f"{count}, {total:.1f} of {cache.limit / 1e9:.1f} GB in {cache.folder.parent}"


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:24]


def _read_facts(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("form") == _FORM else None


def _read_map(file: Path, facts: Mapping[str, Any]) -> np.ndarray[Any, Any] | None:
    """Map features into memory after their checksum was found to be right."""
    try:
        # copied as it is written to, which never happens; torch warns of arrays that it must not
        found = np.load(file, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    alike = list(found.shape) == facts.get("shape") and found.dtype.name == facts.get("dtype")
    return found if alike and _sum(found) == facts.get("sum") else None


def _sum(array: np.ndarray[Any, Any]) -> int:
    raw, total = array.reshape(-1).view(np.uint8), 0
    for start in range(0, len(raw), _CHUNK):
        total = zlib.crc32(raw[start : start + _CHUNK].data, total)
    return total
