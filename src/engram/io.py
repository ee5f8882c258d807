"""Files: atomic writing and strict reading of bytes, text, JSON, YAML and tensors with checksums;
all errors name the file.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import json
import os
import platform
import re
import threading
import time
import zlib
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from math import inf, prod
from pathlib import Path
from typing import Any

from engram.errors import BadArgument, RecordError, bad

_batch = threading.local()  # files of `write_together` in this thread
_counter = itertools.count()  # distinguishes threads of one process that write the same file

_DISK_MESSAGES = {
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
_MISSING_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


class DiskError(RecordError, OSError):
    """A file cannot be written to the disk.

    Examples
    --------
    >>> raise DiskError(OSError(errno.ENOSPC, "No space left on device"), "runs")
    Traceback (most recent call last):
    ...
    engram.io.DiskError: runs: the disk is full; everything written before is kept
    """

    def __init__(self, cause: OSError, path: str | os.PathLike[str], why: str = "") -> None:
        usual = _DISK_MESSAGES.get(cause.errno or 0) or cause.strerror or str(cause)
        reason = why or f"{usual}; everything written before is kept"
        super().__init__(f"{os.fspath(path)}: {reason}")
        self.errno = cause.errno


def check_folder_path(argument: str, value: object) -> Path:
    """Return the path of a folder; refuse empty paths and other types.

    Examples
    --------
    >>> check_folder_path("out", "")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: out: expected the path of a folder, got ''
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if isinstance(text, str) and text:  # an empty one would be the working directory
        return Path(text)
    raise bad(argument, "the path of a folder", value)


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, synced: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to; on success it replaces `path` atomically.

    The content is synced to disk before the rename, so that a reader never sees a partial file, not
    even after a power failure; without `synced` a kill leaves no partial file, a power failure may.
    If the block raises, `path` is unchanged.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_write(folder / "note.txt") as temporary:
    ...     _ = temporary.write_text("whole")
    >>> [p.name for p in folder.iterdir()]
    ['note.txt']
    """
    target = Path(path)
    temporary = target.with_name(
        f".{target.name}.tmp-{_machine_id()}-{os.getpid()}-{next(_counter)}"
    )
    try:
        yield temporary
        if (later := getattr(_batch, "files", None)) is not None:
            later[target] = temporary
            return
        if synced:
            sync(temporary)
        os.replace(temporary, target)
    except BaseException as problem:
        _remove(temporary)
        if isinstance(problem, OSError) and not isinstance(problem, DiskError):
            raise DiskError(problem, target) from problem
        raise
    if synced:
        sync(target.parent)


@contextmanager
def write_together() -> Iterator[None]:
    """Collect the files that this thread writes inside the context, and publish them at its end.

    Syncing many small files together takes little longer than one. If the block raises, none of
    them appears.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with write_together():
    ...     with atomic_write(folder / "note.txt") as temporary:
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
    _move_into_place(files)


def _move_into_place(files: dict[Path, Path]) -> None:
    """Replace the targets by temporary files, once all of these are on disk."""
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
    with suppress(OSError):  # a disk that has just failed may fail again
        path.unlink()


def list_names(
    folder: Path,
    prefix: str | tuple[str, ...],
    end: str | tuple[str, ...],
    *,
    any_kind: bool = False,
) -> list[str]:
    """List the files with a given prefix and ending, sorted; fast in large folders.

    With `any_kind` also pipes and folders of such names, which reading will report.
    """
    with os.scandir(folder) as entries:
        return sorted(
            one.name
            for one in entries
            if one.name.startswith(prefix)
            and one.name.endswith(end)
            and (any_kind or one.is_file())
        )


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # platforms that cannot open directories cannot sync them either
        if path.is_dir():
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folders(path: str | os.PathLike[str]) -> Path:
    """Create a folder named by the user and its parents; errors say what is in the way.

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
    engram.io.DiskError: .../note/runs: cannot create a folder there: .../note is a file
    """
    target = Path(path)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise DiskError(problem, target, _describe_obstacle(problem, target)) from problem
    return target


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise now if a file that is to be written later cannot be written."""
    target = Path(path)
    if target.is_dir():
        raise bad("path", "the name of a file", f"the folder {str(target)!r}")
    probe = make_folders(target.parent) / f".{target.name}.tmp-{_machine_id()}-{os.getpid()}-try"
    try:
        probe.touch()
    except OSError as problem:
        raise DiskError(problem, target) from problem
    finally:
        _remove(probe)


def _describe_obstacle(problem: OSError, target: Path) -> str:
    files = (one for one in (target, *target.parents) if os.path.lexists(one) and not one.is_dir())
    if file := next(files, None):
        same = "is a file, not a folder"
        return same if file == target else f"cannot create a folder there: {file} is a file"
    known = None if problem.errno in _MISSING_ERRNOS else _DISK_MESSAGES.get(problem.errno or 0)
    return f"cannot create a folder there: {known or problem.strerror or problem}"


def make_folder(path: Path, inside: Path, *, synced: bool = True) -> None:
    """Create a folder inside an existing one and, with `synced`, sync the names to disk.

    If the outer folder has been deleted, it is not created again: `DiskError`.
    """
    chain = [one for one in (path, *path.parents) if one.is_relative_to(inside) and one != inside]
    for one in () if path.is_dir() else reversed(chain):
        try:
            os.mkdir(one)
        except FileExistsError:  # it existed already, or another process was faster
            continue
        except OSError as problem:
            raise DiskError(problem, one) from problem
    for one in chain if synced else ():  # folders may have been made without
        sync(one.parent)


def remove_leftovers(folder: str | os.PathLike[str], *, older_than: float = 86_400.0) -> list[Path]:
    """Delete temporary files of writers that were killed.

    Writers on this machine are recognised by their process id; temporary files of other machines
    are deleted after `older_than` seconds.
    """
    limit = time.time() - older_than
    removed = []
    try:
        with os.scandir(folder) as entries:
            names = [one.name for one in entries if one.name[0] == "." and ".tmp-" in one.name]
    except (FileNotFoundError, NotADirectoryError):
        return []
    for path in (Path(folder, name) for name in names):
        try:
            if path.stat().st_mtime <= limit or _is_orphan(path.name):
                path.unlink()
                removed.append(path)
        except FileNotFoundError:  # its writer is alive and finished it
            continue
    return removed


def _is_orphan(name: str) -> bool:
    """Whether a temporary file was written by a process of this machine that has ended."""
    machine, _, rest = name.rpartition(".tmp-")[2].partition("-")
    number = rest.partition("-")[0]
    return machine == _machine_id() and number.isdigit() and not is_alive(int(number))


def is_alive(process: int) -> bool:
    """Whether a process of this machine exists.

    Examples
    --------
    >>> is_alive(os.getpid())
    True
    """
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it exists, but belongs to another user
        return True
    return True


@functools.cache
def _machine_id() -> str:
    """Return a short id of this machine since its last boot, which does not reveal its name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    spaces = "/proc/self/ns/pid"  # each container has its own process ids
    space = os.readlink(spaces) if os.path.islink(spaces) else ""
    return hashlib.blake2b(f"{platform.node()} {boot} {space}".encode(), digest_size=4).hexdigest()


# -- bytes, text, JSON and YAML, written atomically ------------------------------------------------

MAX_INDENTED = 100  # JSON with longer lists is written without indentation


def write_bytes(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write bytes atomically and return the path."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return Path(path)


def write_text(path: str | os.PathLike[str], content: str) -> Path:
    """Write UTF-8 text atomically and return the path."""
    return write_bytes(path, content.encode("utf-8"))


def write_json(path: str | os.PathLike[str], content: Any) -> Path:
    """Write JSON atomically; numpy numbers, tuples and paths become plain values first."""
    return write_bytes(path, dump_json(content))


def dump_json(content: Any) -> bytes:
    """Format a value as JSON text, as `write_json` does.

    Examples
    --------
    >>> dump_json({"seeds": (0, 1)}).split()
    [b'{', b'"seeds":', b'[', b'0,', b'1', b']', b'}']
    """
    plain = to_plain(content)
    # short content is indented for people; for long content, indentation is slow
    long = isinstance(plain, dict) and any(
        isinstance(part, list) and len(part) > MAX_INDENTED for part in plain.values()
    )
    return (json.dumps(plain, indent=None if long else 1) + "\n").encode()


def write_yaml(path: str | os.PathLike[str], content: Any) -> Path:
    """Write YAML atomically, keys in the order given."""
    return write_text(path, dump_yaml(to_plain(content)))


def to_plain(value: Any) -> Any:
    """Convert a value to dict, list, str, int, float, bool and None only.

    Examples
    --------
    >>> import numpy as np
    >>> to_plain({"lr": np.float32(0.5), "sizes": (np.int64(3), 4)})
    {'lr': 0.5, 'sizes': [3, 4]}
    """
    if value is None or type(value) in (str, bool, int, float):
        return value
    if isinstance(value, dict):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        return [to_plain(inner) for inner in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [to_plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays, tensors
        return to_plain(value.tolist())
    for kind in (bool, int, float):  # subclasses, such as enumerations of numbers
        if isinstance(value, kind):
            return kind(value)
    return str(value)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a file; raise `RecordError` with its name if it cannot be read."""
    try:
        if not Path(path).is_file() and Path(path).exists():  # reading a pipe would block
            raise RecordError(f"{path}: is not a regular file")
        return Path(path).read_bytes()
    except OSError as problem:
        raise RecordError(f"{path}: cannot be read ({problem.strerror or problem})") from problem


def read_text(path: str | os.PathLike[str]) -> str:
    """Read a file as UTF-8 text; raise `RecordError` with its name if it is not text."""
    return _decode(path, read_bytes(path))


def _decode(path: object, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise RecordError(f"{path}: is not UTF-8 text ({problem})") from problem


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file; raise `RecordError` with its name if it is not valid JSON."""
    return parse_json(path, read_bytes(path))


def parse_json(path: object, content: bytes) -> Any:
    """Parse what was read from `path`; raise `RecordError` with its name if it is not JSON."""
    text = _decode(path, content)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise RecordError(f"{path}: is not valid JSON ({problem})") from problem


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Read a YAML file; raise `RecordError` with its name if it is not valid YAML."""
    text = read_text(path)
    try:
        return parse_yaml(str(path), text)
    except BadArgument as problem:
        raise RecordError(f"{problem}") from problem


# -- tensor files with checksums -------------------------------------------------------------------
# The files are plain safetensors. A checksum of each tensor stands in the header next to the facts,
# so that reading one tensor verifies just that one.

CHECKSUMS_KEY = "checksums"  # of the tensors, in the header
_HEADER_CHECKSUM_KEY = "checksum"  # of all other entries of the header


def save_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Any], facts: Mapping[str, str],
    *, synced: bool = True,
) -> Path:  # fmt: skip
    """Write named tensors or arrays, and facts about them, atomically into one file.

    Without `synced` a power failure may damage it (see `atomic_write`), which its checksums tell.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> path = save_tensors(tempfile.mkdtemp() + "/a.safetensors", {"x": np.ones(2)}, {"of": "me"})
    >>> file = TensorFile(path)
    >>> file.facts["of"], file.get("x").tolist()
    ('me', [1.0, 1.0])
    """
    pieces = _format_tensors(tensors, facts)
    with atomic_write(path, synced=synced) as temporary, open(temporary, "wb") as file:
        file.writelines(pieces)
    return Path(path)


def pack_tensors(tensors: Mapping[str, Any], facts: Mapping[str, str]) -> bytes:
    """Return the content of the file that `save_tensors` writes."""
    return b"".join(_format_tensors(tensors, facts))


_TYPE_NAMES = {
    "bool": "BOOL", "bfloat16": "BF16", "complex64": "C64",
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"{sign}int{bits}": f"{sign or 'i'}{bits}".upper()
       for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip


def _format_tensors(
    tensors: Mapping[str, Any], facts: Mapping[str, str]
) -> list[bytes | memoryview]:
    """Format tensors as the pieces of a safetensors file, which are views of their memory.

    The library's own writer takes twice as long for the small states of small runs, since it
    compares the storage of all tensors, and reports errors of the disk only in words.
    """
    views = {name: _view_bytes(one) for name, one in tensors.items()}
    sums = {name: _sum_of(name, one, views[name]) for name, one in tensors.items()}
    entries = {**facts, CHECKSUMS_KEY: json.dumps(sums)}
    entries[_HEADER_CHECKSUM_KEY] = _header_sum(entries)
    header: dict[str, Any] = {"__metadata__": entries}
    end = 0
    for name in sorted(views, key=lambda name: (-tensors[name].dtype.itemsize, name)):  # aligned
        begin, end = end, end + len(views[name])
        kind = _TYPE_NAMES[_type_name(tensors[name])]
        shape = list(tensors[name].shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *(views[name] for name in list(header)[1:])]


def _view_bytes(tensor: Any) -> memoryview:
    """Return the bytes of a tensor or array, without a copy if they are contiguous."""
    if 0 in tensor.shape:  # an empty tensor cannot always be viewed as bytes
        return memoryview(b"")
    if hasattr(tensor, "detach"):  # numpy has no bfloat16
        import torch

        tensor = tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy()
    view: memoryview = tensor.reshape(-1).view("u1").data
    return view


def _type_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def checksum(name: str, tensor: Any) -> int:
    """Compute the CRC-32 of the name, the dtype, the shape and the bytes of a tensor or array."""
    return _sum_of(name, tensor, _view_bytes(tensor))


def _sum_of(name: str, tensor: Any, view: memoryview) -> int:
    kind = f"{name} {_type_name(tensor)} {tuple(tensor.shape)}"
    return zlib.crc32(view, zlib.crc32(kind.encode()))


def _header_sum(header: Mapping[str, str]) -> str:
    entries = sorted((k, v) for k, v in header.items() if k != _HEADER_CHECKSUM_KEY)
    return str(zlib.crc32(json.dumps(entries).encode()))


class TensorFile:
    """A file of tensors opened for reading, with checksums verified.

    Parameters
    ----------
    what
        Kind of the file, for error messages.
    framework
        ``np`` for arrays, ``pt`` for tensors.
    inside
        Offset and size of the content inside a larger file, which is then read as arrays.
    name
        Name for error messages; default: the path.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, what: str = "file of tensors",
        framework: str = "np", inside: tuple[int, int] | None = None, name: str = "",
    ) -> None:  # fmt: skip
        from safetensors import SafetensorError, safe_open

        self.path, self.what, self.name = Path(path), what, name or str(path)
        if not self.path.is_file():
            problem = "is not a regular file" if self.path.exists() else "does not exist"
            raise RecordError(f"{self.name}: {problem}, expected a {what}")
        try:
            file: Any = (
                safe_open(str(path), framework=framework)
                if inside is None
                else _EmbeddedArrays(self.path, *inside)
            )
            self.facts: dict[str, str] = file.metadata() or {}
            self._sums = json.loads(self.facts.get(CHECKSUMS_KEY, "null"))
        except (SafetensorError, OSError, ValueError, RecursionError) as error:
            raise RecordError(f"{self.name}: is not a valid {what} ({error})") from error
        self._file = file
        if not isinstance(self._sums, dict):
            raise RecordError(f"{self.name}: is not a valid {what} (no checksums in its header)")
        if self.facts.get(_HEADER_CHECKSUM_KEY) != _header_sum(self.facts):
            raise self._damaged("its header")

    def keys(self) -> list[str]:
        """List the names of the tensors."""
        return list(self._file.keys())

    def get(self, name: str) -> Any:
        """Read one tensor; raise `RecordError` if its checksum does not match."""
        from safetensors import SafetensorError

        try:
            tensor = self._file.get_tensor(name)
        except (SafetensorError, OSError, ValueError) as problem:
            raise RecordError(f"{self.name}: is not a valid {self.what} ({problem})") from problem
        if self._sums.get(name) != checksum(name, tensor):
            raise self._damaged(repr(name))
        return tensor

    def _damaged(self, part: str) -> RecordError:
        return RecordError(f"{self.name}: is damaged (checksum mismatch in {part})")


_ARRAY_TYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4",
    "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip


class _EmbeddedArrays:
    """Arrays in the safetensors format inside a larger file, which `safe_open` cannot read."""

    def __init__(self, path: Path, start: int, size: int) -> None:
        self._path = path
        with open(path, "rb") as file:
            file.seek(start)
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
        try:
            facts = header.pop("__metadata__", {})
            self._facts = {str(name): str(value) for name, value in facts.items()}
            self._places = {
                str(name): self._find(one, start + 8 + length, size - 8 - length)
                for name, one in header.items()
            }
        except (AttributeError, KeyError, TypeError, OverflowError) as problem:
            raise ValueError(f"a header with {problem!r}") from problem

    def _find(self, one: Any, start: int, size: int) -> tuple[str, tuple[int, ...], int, int]:
        """Return the type, the shape, and where an array begins and ends."""
        kind, shape = _ARRAY_TYPES[one["dtype"]], tuple(int(side) for side in one["shape"])
        begin, end = (int(offset) for offset in one["data_offsets"])
        length = prod(shape) * int(kind[-1].replace("?", "1"))
        if min(shape, default=0) < 0 or not 0 <= begin <= end <= size or end - begin != length:
            raise ValueError(f"an array of shape {shape} in {end - begin} bytes")
        return kind, shape, start + begin, end - begin

    def metadata(self) -> dict[str, str]:
        return self._facts

    def keys(self) -> list[str]:
        return list(self._places)

    def get_tensor(self, name: str) -> Any:
        import numpy as np

        if name not in self._places:
            raise ValueError(f"no array {name!r}")
        kind, shape, start, size = self._places[name]
        with open(self._path, "rb") as file:
            file.seek(start)
            content = bytearray(file.read(size))
        return np.frombuffer(content, kind).reshape(shape)


# -- strict YAML: duplicate keys and unreadable text are one clear error ---------------------------

MAX_YAML_VALUES = 1_000_000  # nested references can grow without bound
MAX_YAML_LEVELS = 2000  # deeper texts are not given to libyaml

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def parse_yaml(argument: str, text: str) -> Any:
    r"""Parse a YAML text into plain values; `argument` names it in error messages.

    Examples
    --------
    >>> parse_yaml("--set", "{lr: 0.1, hidden: [32]}")
    {'lr': 0.1, 'hidden': [32]}
    >>> parse_yaml("recipe", "lr: 0.1\nepochs: 3\nlr: 0.2")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: recipe: expected every key once, got 'lr' twice, in lines 1 and 3
    """
    import yaml

    try:
        value = _load_yaml(text)
        values = _count_values(value, {})
    except _DuplicateKey as found:
        raise bad(argument, "every key once", _Unquoted(found)) from None
    except yaml.YAMLError as problem:
        raise bad(argument, "YAML", _Unquoted(_explain_yaml_error(text, problem))) from None
    except (ValueError, OverflowError, RecursionError) as problem:  # such as an invalid date
        why = "nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        raise bad(argument, "YAML", _Unquoted(f"{_shorten(text)} ({why})")) from None
    if values > MAX_YAML_VALUES:
        expected = f"at most {MAX_YAML_VALUES} values, none of which contains itself"
        raise bad(argument, expected, _Unquoted(_shorten(text)))
    return value


def parse_value(argument: str, text: str) -> Any:
    """Parse one value of a command line: like `parse_yaml`, but 1e-3 is a number.

    Examples
    --------
    >>> parse_value("--set lr", "1e-3"), parse_value("--set lr", "'1e-3'")
    (0.001, '1e-3')
    """
    value = parse_yaml(argument, text)
    # YAML requires a decimal point in such numbers, and reads a string otherwise
    return float(text) if isinstance(value, str) and _EXPONENT.fullmatch(text.strip()) else value


def parse_key_value(text: str, option: str = "--set") -> tuple[str, Any]:
    """Parse ``key=value`` of a command line; `option` names it in error messages.

    Examples
    --------
    >>> parse_key_value("lr=1e-3"), parse_key_value("model.hidden=[32]")
    (('lr', 0.001), ('model.hidden', [32]))
    >>> parse_key_value("lr")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: --set: expected key=value, got 'lr'
    """
    key, value = _split_key_value(text, option, "key=value")
    return key, parse_value(f"{option} {key}", value)


def parse_key_values(text: str, option: str = "--grid") -> tuple[str, list[Any]]:
    """Parse ``key=value,value,...`` into the key and a list of values.

    Examples
    --------
    >>> parse_key_values("lr=0.1,0.01")
    ('lr', [0.1, 0.01])
    """
    key, values = _split_key_value(text, option, "key=value,value,...")
    parsed: list[Any] = parse_yaml(f"{option} {key}", f"[{values}]")
    if not parsed:
        raise bad(option, "key=value,value,...", text)
    return key, parsed


def _split_key_value(text: str, option: str, form: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise bad(option, form, text)
    return key, value


def read_yaml_file(argument: str, path: str | Path) -> Any:
    """Read plain values from a YAML file, which must exist and be UTF-8 text."""
    path = Path(path)
    if not path.is_file():
        raise bad(argument, "an existing YAML file", str(path))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise bad(f"{argument} {path}", "UTF-8 text", _Unquoted(problem)) from None
    return parse_yaml(f"{argument} {path}", text)


class _Unquoted(str):
    """Text that error messages show without quotes."""

    __slots__ = ()

    def __new__(cls, text: object) -> _Unquoted:
        return super().__new__(cls, " ".join(str(text).split()))

    def __repr__(self) -> str:
        return str(self)


class _DuplicateKey(ValueError):
    """A mapping has a key twice."""


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")


def _explain_yaml_error(text: str, problem: Any) -> str:
    """Describe where and why YAML could not be parsed, in one line."""
    mark, why = getattr(problem, "problem_mark", None), getattr(problem, "problem", None)
    if mark is None or why is None:
        return f"{_shorten(text)} ({problem})"
    place = f"line {mark.line + 1}, " if "\n" in text.strip() else ""
    return f"{_shorten(text)} ({place}column {mark.column + 1}: {why})"


def dump_yaml(value: Any) -> str:
    """Format a plain value as YAML text, keys in the order given.

    Examples
    --------
    >>> print(dump_yaml({"lr": 0.1, "hidden": [32, 16]}), end="")
    lr: 0.1
    hidden:
    - 32
    - 16
    """
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text


def _load_yaml(text: str) -> Any:
    """Parse a text, with libyaml if both loaders are known to agree: it is ten times as fast.

    The Python loader is used for tabs, tags and block scalars, where libyaml accepts invalid YAML;
    for deep nesting, which libyaml does not limit; and for error messages.
    """
    import yaml

    levels = sum(text.count(sign) for sign in "[{-?:")  # an upper bound of the nesting depth
    if yaml.__with_libyaml__ and levels < MAX_YAML_LEVELS and not set("\t!|>") & set(text):
        with suppress(yaml.YAMLError):
            return yaml.load(text, Loader=_make_loader("CSafeLoader"))
    return yaml.load(text, Loader=_make_loader("SafeLoader"))


@cache
def _make_loader(base: str) -> Any:
    import yaml

    class Strict(getattr(yaml, base)):  # type: ignore[misc]
        """The safe loader, with an error for duplicate keys."""

        def flatten_mapping(self, node: Any) -> None:
            # before `<<` is resolved, since keys may override those of the merged mapping
            lines: dict[Hashable, int] = {}
            for key_node, _ in node.value:
                if key_node.tag == "tag:yaml.org,2002:merge":
                    continue
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, Hashable):
                    continue  # the loader raises its own error
                here = key_node.start_mark.line + 1
                if key in lines:
                    first = lines[key]
                    lines_of = f"lines {first} and {here}" if first != here else f"line {here}"
                    raise _DuplicateKey(f"{key!r} twice, in {lines_of}")
                lines[key] = here
            super().flatten_mapping(node)

    return Strict


def _count_values(value: Any, known: dict[int, float]) -> float:
    """Count the values inside a value, with repeated references; infinite if it contains itself."""
    if not isinstance(value, (Mapping, list)):
        return 1.0
    if id(value) not in known:
        known[id(value)] = inf  # until it is counted: reached again only if it contains itself
        inner = value.values() if isinstance(value, Mapping) else value
        known[id(value)] = 1.0 + sum(_count_values(one, known) for one in inner)
    return known[id(value)]
