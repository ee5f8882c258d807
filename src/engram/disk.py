"""Files that appear whole or not at all, and words for disks that are full, read-only or gone."""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engram.errors import RecordError, bad

_batch = threading.local()  # files that are to appear at once
_counter = itertools.count()  # two threads of one process may write the same name

_WORDS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is exceeded",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "no permission to write there",
    errno.EPERM: "no permission to write there",
    errno.ENOENT: "the directory no longer exists",
    errno.ENOTDIR: "the directory no longer exists",
    errno.ESTALE: "the directory no longer exists",
    errno.EFBIG: "the file exceeds the size limit of this disk or process",
    errno.EIO: "the disk is failing (input/output error)",
}
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


class DiskError(RecordError, OSError):
    """The disk cannot take what is to be written.

    Examples
    --------
    >>> raise DiskError(OSError(errno.ENOSPC, "No space left on device"), "runs")
    Traceback (most recent call last):
    ...
    engram.disk.DiskError: runs: the disk is full; everything written before is kept
    """

    def __init__(self, cause: OSError, path: str | os.PathLike[str], why: str = "") -> None:
        usual = _WORDS.get(cause.errno or 0) or cause.strerror or str(cause)
        said = why or f"{usual}; everything written before is kept"
        super().__init__(f"{os.fspath(path)}: {said}")
        self.errno = cause.errno


def folder_path(argument: str, value: object) -> Path:
    """The path of a folder; what is none, or empty, is refused.

    Examples
    --------
    >>> folder_path("out", "")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: out: expected the path of a folder, got ''
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if isinstance(text, str) and text:  # an empty one would be the working directory
        return Path(text)
    raise bad(argument, "the path of a folder", value)


@contextmanager
def appearing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path to write to; on success it takes the place of `path` at once.

    The content is on disk before the name is, so a reader never meets half a file, not even after
    a power cut. If the block raises, `path` stays as it was.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with appearing(folder / "note.txt") as temporary:
    ...     _ = temporary.write_text("whole")
    >>> [p.name for p in folder.iterdir()]
    ['note.txt']
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.tmp-{_machine()}-{os.getpid()}-{next(_counter)}")
    try:
        yield temporary
        if (later := getattr(_batch, "files", None)) is not None:
            later[target] = temporary
            return
        sync(temporary)
        os.replace(temporary, target)
    except BaseException as problem:
        _remove(temporary)
        if isinstance(problem, OSError) and not isinstance(problem, DiskError):
            raise DiskError(problem, target) from problem
        raise
    sync(target.parent)


@contextmanager
def all_at_once() -> Iterator[None]:
    """While this lasts, files of this thread are written, and appear together at its end.

    Many small files wait for the disk little longer than one. If the block raises, none appears.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with all_at_once():
    ...     with appearing(folder / "note.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     print((folder / "note.txt").exists())
    False
    >>> (folder / "note.txt").read_text()
    'whole'
    """
    files: dict[Path, Path] = {}
    _batch.files = files
    try:
        yield
    except BaseException:
        for temporary in files.values():
            _remove(temporary)
        raise
    finally:
        _batch.files = None
    _appear(files)


def _appear(files: dict[Path, Path]) -> None:
    """Let temporary files take the place of their targets, once all are on disk."""
    left = dict(files)
    try:
        for temporary in files.values():
            sync(temporary)
        for target, temporary in files.items():
            os.replace(temporary, target)
            del left[target]
    except BaseException as problem:
        for temporary in left.values():
            _remove(temporary)
        if isinstance(problem, OSError):
            raise DiskError(problem, next(iter(left)).parent) from problem
        raise
    for folder in dict.fromkeys(target.parent for target in files):
        sync(folder)


def _remove(path: Path) -> None:
    with suppress(OSError):  # the disk that has just failed may not let go either
        path.unlink()


def names(folder: Path, prefix: str | tuple[str, ...], end: str) -> list[str]:
    """Names of files with a beginning and an end, sorted: the quick way through a large folder."""
    with os.scandir(folder) as entries:
        return sorted(
            one.name
            for one in entries
            if one.name.startswith(prefix) and one.name.endswith(end) and one.is_file()
        )


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # a platform that cannot open directories has no such sync either
        if path.is_dir():
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folders(path: str | os.PathLike[str]) -> Path:
    """Make a folder that a user has named, and those above it; what stands in the way is named.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> make_folders(folder / "runs" / "first").is_dir()
    True
    >>> _ = (folder / "note").write_text("")
    >>> make_folders(folder / "note" / "runs")
    Traceback (most recent call last):
    ...
    engram.disk.DiskError: .../note/runs: cannot create a folder there: .../note is a file
    """
    target = Path(path)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise DiskError(problem, target, _in_the_way(problem, target)) from problem
    return target


def check_writable(path: str | os.PathLike[str]) -> None:
    """Complain now if a file that is to be written after long work could not be written."""
    target = Path(path)
    if target.is_dir():
        raise bad("path", "the name of a file", f"the folder {str(target)!r}")
    probe = make_folders(target.parent) / f".{target.name}.tmp-{_machine()}-{os.getpid()}-try"
    try:
        probe.touch()
    except OSError as problem:
        raise DiskError(problem, target) from problem
    finally:
        _remove(probe)


def _in_the_way(problem: OSError, target: Path) -> str:
    files = (one for one in (target, *target.parents) if os.path.lexists(one) and not one.is_dir())
    if file := next(files, None):
        same = "is a file, not a folder"
        return same if file == target else f"cannot create a folder there: {file} is a file"
    known = None if problem.errno in _GONE else _WORDS.get(problem.errno or 0)
    return f"cannot create a folder there: {known or problem.strerror or problem}"


def make_folder(path: Path, inside: Path) -> None:
    """Make a folder that lies inside another one, which must be there; the names are on disk.

    A parent that was deleted meanwhile stays deleted: `DiskError`.
    """
    if path.is_dir():
        return
    missing = [one for one in (path, *path.parents) if one.is_relative_to(inside) and one != inside]
    for one in reversed(missing):
        try:
            os.mkdir(one)
        except FileExistsError:  # another process was faster, or it has been there
            continue
        except OSError as problem:
            raise DiskError(problem, one) from problem
        sync(one.parent)


def remove_leftovers(folder: str | os.PathLike[str], *, older_than: float = 86_400.0) -> list[Path]:
    """Delete temporary files of writers that were killed.

    A writer of this machine is known to be gone by its process number; those of others are given
    `older_than` seconds.
    """
    limit = time.time() - older_than
    removed = []
    for path in Path(folder).glob(".*.tmp-*"):
        try:
            if path.stat().st_mtime <= limit or _is_orphan(path.name):
                path.unlink()
                removed.append(path)
        except FileNotFoundError:  # its writer was alive after all and finished it
            continue
    return removed


def _is_orphan(name: str) -> bool:
    """Whether the process of this machine that wrote a temporary file is no more."""
    machine, _, rest = name.rpartition(".tmp-")[2].partition("-")
    number = rest.partition("-")[0]
    return machine == _machine() and number.isdigit() and not is_alive(int(number))


def is_alive(process: int) -> bool:
    """Whether a process of this machine is there.

    Examples
    --------
    >>> is_alive(os.getpid())
    True
    """
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # there, but another user's
        return True
    return True


@functools.cache
def _machine() -> str:
    """A few letters that tell this machine, since it was started, from others; not its name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    spaces = "/proc/self/ns/pid"  # containers number their processes for themselves
    space = os.readlink(spaces) if os.path.islink(spaces) else ""
    return hashlib.blake2b(f"{platform.node()} {boot} {space}".encode(), digest_size=4).hexdigest()
