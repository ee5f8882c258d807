"""`LineJournal`: lines of JSON, appended by any number of threads and processes, and bounded."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from engram.io import DiskError, list_names, make_folders, sync

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # not POSIX: one process at a time
    fcntl = None

_NAME = "{prefix}-{number:010d}.jsonl"


@dataclass
class _FilePart:
    """What has been read of a file so far."""

    size: int = 0  # bytes
    items: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)


class LineJournal:
    """Records in files of a folder, each a line; when `append` returns, they are on disk.

    A line that a killed process left half written does not count. If the files hold more than
    `most` items, the oldest files are removed; the newest `most` items are always there.

    Parameters
    ----------
    prefix
        How the names of the files begin.
    most
        Number of items (rows, not lines) that are kept at least; up to a quarter more are.
    synced
        Whether `append` waits for the disk. Without, a crash of the machine may lose the last
        lines; a crash of the process loses none.

    Examples
    --------
    >>> import tempfile
    >>> journal = LineJournal(Path(tempfile.mkdtemp()), "lines", most=8)
    >>> for k in range(20):
    ...     journal.append({"k": k}, items=1)
    >>> [line["k"] for line in journal.read()]
    [12, 13, 14, 15, 16, 17, 18, 19]
    """

    def __init__(self, folder: Path, prefix: str, *, most: int, synced: bool = True) -> None:
        self.folder, self.prefix, self.most, self.synced = folder, prefix, most, synced
        self.damaged = 0  # lines that were no JSON, of those read so far
        self._thread = threading.RLock()
        self._read: dict[str, _FilePart] = {}

    def append(self, record: Mapping[str, Any], *, items: int) -> None:
        """Append a record that stands for a number of items."""
        line = json.dumps({**record, "items": items}, separators=(",", ":"), allow_nan=False)
        make_folders(self.folder)
        with self.locked():
            names = self._names()
            name = names[-1] if names else _NAME.format(prefix=self.prefix, number=1)
            if self._count(name) >= max(1, self.most // 4):
                number = int(name.removesuffix(".jsonl").rpartition("-")[2]) + 1
                name = _NAME.format(prefix=self.prefix, number=number)
                names.append(name)
            self._write(self.folder / name, line.encode() + b"\n")
            self._remove_oldest(names)

    def read(self) -> Iterator[dict[str, Any]]:
        """Read all records, the oldest first."""
        with self._thread:
            names = self._names()
            for name in set(self._read) - set(names):
                del self._read[name]
            found = [line for name in names for line in self._lines(name)]
        yield from found

    @property
    def is_cut(self) -> bool:
        """Whether old files were removed."""
        names = self._names()
        return bool(names) and names[0] != _NAME.format(prefix=self.prefix, number=1)

    # -- inside ------------------------------------------------------------------------------------
    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process and thread that writes here."""
        with self._thread:
            handle = os.open(self.folder / f".{self.prefix}.lock", os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if fcntl is not None:
                    fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                os.close(handle)  # which unlocks

    def _names(self) -> list[str]:
        return list_names(self.folder, f"{self.prefix}-", ".jsonl") if self.folder.is_dir() else []

    def _lines(self, name: str) -> list[dict[str, Any]]:
        """The whole lines of a file; those read before are not read again."""
        part = self._read.setdefault(name, _FilePart())
        try:
            with open(self.folder / name, "rb") as file:
                file.seek(part.size)
                fresh = file.read()
        except FileNotFoundError:  # just removed, or not there yet
            return []
        whole = fresh.rfind(b"\n") + 1
        for line in fresh[:whole].split(b"\n")[:-1]:
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if isinstance(record, dict) and "items" in record:
                part.lines.append(record)
                part.items += int(record["items"])
            elif line:
                self.damaged += 1
        part.size += whole
        return part.lines

    def _count(self, name: str) -> int:
        self._lines(name)
        return self._read[name].items

    def _write(self, path: Path, line: bytes) -> None:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                begun = os.fstat(handle).st_size
                torn = begun and os.pread(handle, 1, begun - 1) != b"\n"  # by a killed process
                rest = memoryview(b"\n" * bool(torn) + line)
                try:
                    while rest:
                        rest = rest[os.write(handle, rest) :]
                    if self.synced:
                        os.fsync(handle)
                except BaseException:
                    os.ftruncate(handle, begun)
                    raise
            finally:
                os.close(handle)
            if not begun and self.synced:
                sync(path.parent)
        except OSError as problem:
            raise DiskError(problem, path) from problem

    def _remove_oldest(self, names: list[str]) -> None:
        counts = [self._count(name) for name in names]
        while len(names) > 1 and sum(counts[1:]) >= self.most:
            (self.folder / names.pop(0)).unlink(missing_ok=True)
            counts.pop(0)
