"""Record files of a run directory: loose, as older versions wrote them, or appended to a journal.

A journal is a plain tar file, to which one process appends: the files of a part one after the
other, that with the results last. What a killed process left at the end of it does not count.
"""

from __future__ import annotations

import functools
import os
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engram.errors import RecordError
from engram.io import DiskError, TensorFile, list_names, read_bytes, sync

RESULTS_PREFIX = "results-"
JOURNAL_SUFFIX = ".tar"
SETTLED = 100_000_000  # ns after which a time stamp surely shows the last change
_BLOCK = tarfile.BLOCKSIZE
_NOTHING = bytes(_BLOCK)


@dataclass(frozen=True)
class RecordFile:
    """One record file: a whole file, or `size` bytes of a journal from `start` on.

    Examples
    --------
    >>> RecordFile(Path("out/results-7.parquet")).part
    '7'
    """

    path: Path
    name: str = ""
    start: int = 0
    size: int | None = None  # None: the whole file

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.path.name)

    def __str__(self) -> str:
        """Return the path, as if the journal were a folder."""
        return str(self.path if self.size is None else self.path / self.name)

    @property
    def kind(self) -> str:
        """What it holds: ``results``, ``predictions`` and so on."""
        return self.name.partition("-")[0]

    @property
    def part(self) -> str:
        """The id of the part that it belongs to."""
        return self.name.rpartition(".")[0].partition("-")[2]

    @property
    def is_there(self) -> bool:
        """Whether the file still exists: loose parts are removed after a merge."""
        return self.path.exists()

    def read(self) -> bytes:
        """Read the content; raise `RecordError` if it cannot be read."""
        if self.size is None:
            return read_bytes(self.path)
        try:
            with open(self.path, "rb") as file:
                file.seek(self.start)
                return file.read(self.size)
        except OSError as problem:
            why = problem.strerror or problem
            raise RecordError(f"{self}: cannot be read ({why})") from problem

    def tensors(self, what: str) -> TensorFile:
        """Open it as a file of arrays; `what` names its kind in messages."""
        if self.size is None:
            return TensorFile(self.path, what=what)
        return TensorFile(self.path, what=what, inside=(self.start, self.size), name=str(self))


def as_record(file: Path | RecordFile) -> RecordFile:
    """Return a path as a record file."""
    return file if isinstance(file, RecordFile) else RecordFile(file)


# Writing.


class Journal:
    """A journal of this process, made by the first `append`.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> journal = Journal(folder / "results-1.tar")
    >>> journal.append({"ledger-1.json": b"{}", "results-1.parquet": b"..."})
    range(0, 2048)
    >>> [one.name for one in list_records(folder, "ledger")]
    ['ledger-1.json']
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process = os.getpid()  # a fork must write to a journal of its own

    def append(self, files: Mapping[str, bytes]) -> range:
        """Append some files, and return where they are.

        They are on disk when this returns; if it fails, none is there.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        begun, block = 0, pack_members(files)
        try:
            handle = os.open(self.path, flags, 0o666)
            try:
                begun = os.fstat(handle).st_size
                write_block(handle, block)
                os.fsync(handle)
            except BaseException:
                os.ftruncate(handle, begun)
                raise
            finally:
                os.close(handle)
            if not begun:
                sync(self.path.parent)
        except BaseException as problem:
            if not begun:
                with suppress(OSError):  # a disk that has just failed may fail again
                    self.path.unlink()
            if isinstance(problem, OSError):
                raise DiskError(problem, self.path) from problem
            raise
        return range(begun, begun + len(block))


def pack_members(files: Mapping[str, bytes]) -> bytes:
    """Pack files as members of a tar file, without the blocks that end it."""
    packed, now = [], int(time.time())
    for name, content in files.items():
        header = tarfile.TarInfo(name)
        header.size, header.mtime = len(content), now
        padding = bytes(-len(content) % _BLOCK)
        packed += [header.tobuf(tarfile.USTAR_FORMAT, "utf-8"), content, padding]
    return b"".join(packed)


def copy_to_journal(path: Path, start: int, content: bytes) -> None:
    """Write a piece of another process's journal, from `start` on, to a copy of it."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            os.lseek(handle, start, os.SEEK_SET)
            write_block(handle, content)
            os.fsync(handle)
        finally:
            os.close(handle)
        if not start:
            sync(path.parent)
    except OSError as problem:
        raise DiskError(problem, path) from problem


def write_block(handle: int, content: bytes) -> None:
    """Write all of `content`, of which a disk may take a part at a time."""
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


# Reading.


class JournalContents(NamedTuple):
    """The files of a journal in the order in which they were appended, and offsets of damage."""

    files: tuple[RecordFile, ...]
    damaged: tuple[int, ...]


def read_journal(path: Path) -> JournalContents:
    """List the files in a journal; raise `RecordError` if it cannot be read.

    A file that is incomplete at the end is not listed: its writer was killed, or is writing.
    """
    try:
        found = os.stat(path)
        stamp = found.st_mtime_ns
        settled = time.time_ns() - stamp > SETTLED
        read = _read_journal if settled else _read_journal.__wrapped__
        return read(path, found.st_size, stamp)
    except OSError as problem:
        raise RecordError(f"{path}: cannot be read ({problem.strerror or problem})") from problem


@functools.lru_cache(maxsize=4096)
def _read_journal(path: Path, size: int, stamp: int) -> JournalContents:
    files: list[RecordFile] = []
    damaged: list[int] = []
    place, lost = 0, False
    with open(path, "rb", buffering=0) as file:
        while place + _BLOCK <= size:
            file.seek(place)
            block = file.read(_BLOCK)
            if block == _NOTHING and not lost:  # what a disk without power grew but never wrote
                break
            member = _read_header(block)
            if member is None:
                damaged += [] if lost else [place]
                place, lost = place + _BLOCK, True  # look for the next file
                continue
            place, lost = place + _BLOCK, False
            if place + member.size > size:  # being written, or its writer was killed
                break
            files.append(RecordFile(path, member.name, place, member.size))
            place += -(-member.size // _BLOCK) * _BLOCK
    return JournalContents(tuple(files), tuple(damaged))


def _read_header(block: bytes) -> tarfile.TarInfo | None:
    try:
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return None
    return member if member.isreg() and member.size >= 0 else None


def list_journals(folder: Path) -> list[Path]:
    """List the journals of a run directory, oldest first."""
    return [folder / name for name in list_names(folder, RESULTS_PREFIX, JOURNAL_SUFFIX)]


def list_records(
    folder: Path, kind: str, journals: Iterable[Path] | None = None
) -> list[RecordFile]:
    """List the record files of a kind, oldest first; of those of one name, the last."""
    loose = [
        RecordFile(folder / name)
        for name in list_names(folder, f"{kind}-", "", any_kind=kind != "results")
    ]
    found = {one.name: one for one in loose if not one.name.endswith(JOURNAL_SUFFIX)}
    for path in list_journals(folder) if journals is None else journals:
        found |= {one.name: one for one in _files_of(path) if one.kind == kind}
    return [found[name] for name in sorted(found)]


def _files_of(path: Path) -> Iterator[RecordFile]:
    with suppress(RecordError):  # reported by `journal_problems`
        yield from read_journal(path).files
