"""Files written atomically (bytes, text, JSON, YAML, tensors with checksums) and read strictly,
with errors that name the file.
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
from math import inf
from pathlib import Path
from typing import Any

from engram.errors import BadArgument, RecordError, bad

_batch = threading.local()  # files that are to appear at once
_counter = itertools.count()  # two threads of one process may write the same name

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
    """The disk cannot take what is to be written.

    Examples
    --------
    >>> raise DiskError(OSError(errno.ENOSPC, "No space left on device"), "runs")
    Traceback (most recent call last):
    ...
    engram.io.DiskError: runs: the disk is full; everything written before is kept
    """

    def __init__(self, cause: OSError, path: str | os.PathLike[str], why: str = "") -> None:
        usual = _DISK_MESSAGES.get(cause.errno or 0) or cause.strerror or str(cause)
        said = why or f"{usual}; everything written before is kept"
        super().__init__(f"{os.fspath(path)}: {said}")
        self.errno = cause.errno


def check_folder_path(argument: str, value: object) -> Path:
    """The path of a folder; what is none, or empty, is refused.

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
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path to write to; on success it takes the place of `path` at once.

    The content is on disk before the name is, so a reader never meets half a file, not even after
    a power cut. If the block raises, `path` stays as it was.

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
        sync(temporary)
        os.replace(temporary, target)
    except BaseException as problem:
        _remove(temporary)
        if isinstance(problem, OSError) and not isinstance(problem, DiskError):
            raise DiskError(problem, target) from problem
        raise
    sync(target.parent)


@contextmanager
def write_together() -> Iterator[None]:
    """While this lasts, files of this thread are written, and appear together at its end.

    Many small files wait for the disk little longer than one. If the block raises, none appears.

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


def list_names(folder: Path, prefix: str | tuple[str, ...], end: str) -> list[str]:
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
    engram.io.DiskError: .../note/runs: cannot create a folder there: .../note is a file
    """
    target = Path(path)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise DiskError(problem, target, _describe_obstacle(problem, target)) from problem
    return target


def check_writable(path: str | os.PathLike[str]) -> None:
    """Complain now if a file that is to be written after long work could not be written."""
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
    return machine == _machine_id() and number.isdigit() and not is_alive(int(number))


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
def _machine_id() -> str:
    """A few letters that tell this machine, since it was started, from others; not its name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    spaces = "/proc/self/ns/pid"  # containers number their processes for themselves
    space = os.readlink(spaces) if os.path.islink(spaces) else ""
    return hashlib.blake2b(f"{platform.node()} {boot} {space}".encode(), digest_size=4).hexdigest()


# ------------------------------------------------------------------------------------------------
# Texts, JSON and YAML that appear whole or not at all; readers name the file that is broken.


MAX_INDENTED = 100  # entries of a list in a JSON file


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
    found = to_plain(content)
    # indented text is made by slow code: for people where it is short, compact where it is long
    several = isinstance(found, dict) and any(
        isinstance(part, list) and len(part) > MAX_INDENTED for part in found.values()
    )
    return write_text(path, json.dumps(found, indent=None if several else 1) + "\n")


def write_yaml(path: str | os.PathLike[str], content: Any) -> Path:
    """Write YAML atomically, keys in the order given."""
    return write_text(path, dump_yaml(to_plain(content)))


def to_plain(value: Any) -> Any:
    """The same value made of dict, list, str, int, float, bool and None only.

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
    """The content of a file; `RecordError` with its name if it cannot be read."""
    try:
        if not Path(path).is_file() and Path(path).exists():  # a pipe would be waited for, for ever
            raise RecordError(f"{path}: is not a regular file")
        return Path(path).read_bytes()
    except OSError as problem:
        raise RecordError(f"{path}: cannot be read ({problem.strerror or problem})") from problem


def read_text(path: str | os.PathLike[str]) -> str:
    """The UTF-8 text of a file; `RecordError` with its name if it is not text."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise RecordError(f"{path}: is not UTF-8 text ({problem})") from problem


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value in a JSON file; `RecordError` with its name if it is garbled or cut off."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise RecordError(f"{path}: is not valid JSON ({problem})") from problem


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """The value in a YAML file; `RecordError` with its name if it is garbled."""
    text = read_text(path)
    try:
        return parse_yaml(str(path), text)
    except BadArgument as problem:
        raise RecordError(f"{problem}") from problem


# ------------------------------------------------------------------------------------------------
# Tensors in a file with checksums: a bit that flips on the disk is noticed, not computed with.
#
# The files are plain safetensors; sums stand in the header beside the facts, one for each tensor,
# so that a reader of one tensor checks just that.


CHECKSUMS_KEY = "checksums"  # in the header
_HEADER_CHECKSUM_KEY = "checksum"  # of the header's other entries


def save_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Any], facts: Mapping[str, str]
) -> Path:
    """Write tensors, or arrays, by name, and facts beside them, as one file that appears whole.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> path = save_tensors(tempfile.mkdtemp() + "/a.safetensors", {"x": np.ones(2)}, {"of": "me"})
    >>> file = TensorFile(path)
    >>> file.facts["of"], file.get("x").tolist()
    ('me', [1.0, 1.0])
    """
    sums = json.dumps({name: checksum(name, one) for name, one in tensors.items()})
    header = {**facts, CHECKSUMS_KEY: sums}
    header[_HEADER_CHECKSUM_KEY] = _header_sum(header)
    with atomic_write(path) as temporary:
        _save_file(dict(tensors), temporary, header)
    return Path(path)


def _save_file(tensors: dict[str, Any], path: Path, header: dict[str, str]) -> None:
    from safetensors import SafetensorError

    first = next(iter(tensors.values()), None)
    try:
        if hasattr(first, "detach"):
            from safetensors.torch import save_file as save_torch

            save_torch(tensors, path, metadata=header)
        else:
            from safetensors.numpy import save_file

            save_file(tensors, str(path), metadata=header)
    except SafetensorError as problem:  # it tells of the disk in words only
        number = re.search(r"(?:code: |os error )(\d+)", str(problem))
        if number is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code)) from problem


def checksum(name: str, tensor: Any) -> int:
    """A sum over the name, the kind and the bytes of a tensor or an array."""
    kind = f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    if 0 in tensor.shape:  # without numbers there may be no stride by which to read bytes
        return zlib.crc32(kind.encode())
    if hasattr(tensor, "detach"):  # numpy knows no bfloat16
        import torch

        tensor = tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy()
    return zlib.crc32(tensor.reshape(-1).data, zlib.crc32(kind.encode()))


def _header_sum(header: Mapping[str, str]) -> str:
    entries = sorted((k, v) for k, v in header.items() if k != _HEADER_CHECKSUM_KEY)
    return str(zlib.crc32(json.dumps(entries).encode()))


class TensorFile:
    """A file of tensors, open for reading; what is read is checked.

    Parameters
    ----------
    what
        What the file should be, for the error that names it.
    framework
        ``np`` for arrays, ``pt`` for tensors.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, what: str = "file of tensors", framework: str = "np"
    ) -> None:
        from safetensors import SafetensorError, safe_open

        self.path, self.what = Path(path), what
        if not self.path.is_file():
            found = "is not a regular file" if self.path.exists() else "does not exist"
            raise RecordError(f"{path}: {found}, expected a {what}")
        try:
            file: Any = safe_open(str(path), framework=framework)
            self.facts: dict[str, str] = file.metadata() or {}
            self._sums = json.loads(self.facts.get(CHECKSUMS_KEY, "null"))
        except (SafetensorError, OSError, ValueError) as problem:
            raise RecordError(f"{path}: is not a valid {what} ({problem})") from problem
        self._file = file
        if not isinstance(self._sums, dict):
            raise RecordError(f"{path}: is not a valid {what} (no checksums in its header)")
        if self.facts.get(_HEADER_CHECKSUM_KEY) != _header_sum(self.facts):
            raise self._damaged("its header")

    def keys(self) -> list[str]:
        """Names of the tensors."""
        return list(self._file.keys())

    def get(self, name: str) -> Any:
        """One tensor; `RecordError` with the file's name where it is not as it was written."""
        from safetensors import SafetensorError

        try:
            found = self._file.get_tensor(name)
        except (SafetensorError, OSError, ValueError) as problem:
            raise RecordError(f"{self.path}: is not a valid {self.what} ({problem})") from problem
        if self._sums.get(name) != checksum(name, found):
            raise self._damaged(repr(name))
        return found

    def _damaged(self, part: str) -> RecordError:
        return RecordError(f"{self.path}: is damaged (checksum mismatch in {part})")


# ------------------------------------------------------------------------------------------------
# YAML, read strictly: a key that is given twice, or anything unreadable, is one clear error.


MAX_YAML_VALUES = 1_000_000  # references within references grow without bound
MAX_YAML_LEVELS = 2000  # of a nested text that libyaml gets to see

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def parse_yaml(argument: str, text: str) -> Any:
    r"""The plain value of a YAML text; `argument` names it in complaints.

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
    except (
        ValueError,
        OverflowError,
        RecursionError,
    ) as problem:  # dates that are none
        why = "nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        raise bad(argument, "YAML", _Unquoted(f"{_shorten(text)} ({why})")) from None
    if values > MAX_YAML_VALUES:
        expected = f"at most {MAX_YAML_VALUES} values, none of which contains itself"
        raise bad(argument, expected, _Unquoted(_shorten(text)))
    return value


def parse_value(argument: str, text: str) -> Any:
    """As `parse_yaml`, for one value on a command line: 1e-3 is a number there.

    Examples
    --------
    >>> parse_value("--set lr", "1e-3"), parse_value("--set lr", "'1e-3'")
    (0.001, '1e-3')
    """
    value = parse_yaml(argument, text)
    # YAML wants a point in it; without one it reads a word.
    return float(text) if isinstance(value, str) and _EXPONENT.fullmatch(text.strip()) else value


def parse_key_value(text: str, option: str = "--set") -> tuple[str, Any]:
    """Key and value of ``key=value`` on a command line; `option` names it in complaints.

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
    """Key and values of ``key=value,value,...``.

    Examples
    --------
    >>> parse_key_values("lr=0.1,0.01")
    ('lr', [0.1, 0.01])
    """
    key, values = _split_key_value(text, option, "key=value,value,...")
    found: list[Any] = parse_yaml(f"{option} {key}", f"[{values}]")
    if not found:
        raise bad(option, "key=value,value,...", text)
    return key, found


def _split_key_value(text: str, option: str, form: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise bad(option, form, text)
    return key, value


def read_yaml_file(argument: str, path: str | Path) -> Any:
    """The plain value in a YAML file, which must exist and be UTF-8 text."""
    path = Path(path)
    if not path.is_file():
        raise bad(argument, "an existing YAML file", str(path))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise bad(f"{argument} {path}", "UTF-8 text", _Unquoted(problem)) from None
    return parse_yaml(f"{argument} {path}", text)


class _Unquoted(str):
    """Text that an error shows without quotes."""

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
    """Where YAML stopped making sense, in one line."""
    mark, why = getattr(problem, "problem_mark", None), getattr(problem, "problem", None)
    if mark is None or why is None:
        return f"{_shorten(text)} ({problem})"
    place = f"line {mark.line + 1}, " if "\n" in text.strip() else ""
    return f"{_shorten(text)} ({place}column {mark.column + 1}: {why})"


def dump_yaml(value: Any) -> str:
    """A plain value as YAML text, keys in the order given.

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
    """The value of a text, by libyaml where both are sure to agree: it is ten times as fast.

    To the loader written in Python are left: tabs, tags and blocks of text, where libyaml takes
    what YAML refuses; deep nesting, to which libyaml knows no end; and the words for what is wrong.
    """
    import yaml

    levels = sum(text.count(sign) for sign in "[{-?:")  # no text is nested more deeply
    if yaml.__with_libyaml__ and levels < MAX_YAML_LEVELS and not set("\t!|>") & set(text):
        with suppress(yaml.YAMLError):
            return yaml.load(text, Loader=_make_loader("CSafeLoader"))
    return yaml.load(text, Loader=_make_loader("SafeLoader"))


@cache
def _make_loader(base: str) -> Any:
    import yaml

    class Strict(getattr(yaml, base)):  # type: ignore[misc]
        """The safe loader, which takes the last of equal keys; this one takes none."""

        def flatten_mapping(self, node: Any) -> None:
            # Before `<<` is resolved: what a mapping adds to the merged one may well override.
            lines: dict[Hashable, int] = {}
            for key_node, _ in node.value:
                if key_node.tag == "tag:yaml.org,2002:merge":
                    continue
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, Hashable):
                    continue  # the loader's own error is about to follow
                here = key_node.start_mark.line + 1
                if key in lines:
                    first = lines[key]
                    lines_of = f"lines {first} and {here}" if first != here else f"line {here}"
                    raise _DuplicateKey(f"{key!r} twice, in {lines_of}")
                lines[key] = here
            super().flatten_mapping(node)

    return Strict


def _count_values(value: Any, known: dict[int, float]) -> float:
    """Values inside a value, as often as they are referred to; infinite where it holds itself."""
    if not isinstance(value, (Mapping, list)):
        return 1.0
    if id(value) not in known:
        known[id(value)] = inf  # until it is counted: who comes back here goes in a circle
        inner = value.values() if isinstance(value, Mapping) else value
        known[id(value)] = 1.0 + sum(_count_values(one, known) for one in inner)
    return known[id(value)]
