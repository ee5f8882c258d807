"""Images larger than memory: one ``.npz`` whose inputs, not compressed, can be mapped."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

import numpy as np

from engram.data.checked_files import check_arrays, read_array_header
from engram.data.conversion import Array
from engram.data.fingerprint import ContentSums, RunningSums, hash_rows
from engram.errors import BadArgument, bad, wrap_read_errors

_HEADER = 30  # bytes of a local zip header, before the name and the extra field
_INPUTS = "x.npy"
_CHUNK = 1024  # rows read at a time


class DescribedData(Protocol):
    """What a writer asks of the data whose inputs it has written."""

    def facts(self) -> tuple[Any, ...]: ...

    def parts(self) -> list[Any]: ...


class SummedMap(np.memmap[Any, np.dtype[Any]]):
    """A memory map whose file says by what its rows are known, so that nobody has to read them."""

    sums: ContentSums | None = None  # of all rows; parts of the map have none
    hashes: Array | None = None  # [N] of each row

    @property
    def identity(self) -> str:
        """A sum of the inputs, written with them."""
        return "" if self.sums is None else self.sums.inputs


class MappedWriter:
    """Writes uint8 inputs chunk by chunk; the file appears once it is complete.

    `facts` are those of the data that it will be (`Data.facts`), as far as they are known before.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "small.npz"
    ...     with MappedWriter(file, (4, 1, 2, 2)) as writer:
    ...         for k in range(2):
    ...             writer.write(np.full((2, 1, 2, 2), k, np.uint8))
    ...         writer.finish(label=np.arange(4))
    ...     x, rest = read_mapped(file)
    ...     x[:, 0, 0, 0].tolist(), rest["label"].tolist(), np.load(file)["x"].shape
    ([0, 0, 1, 1], [0, 1, 2, 3], (4, 1, 2, 2))
    """

    def __init__(self, path: Path, shape: tuple[int, ...], facts: Any = None) -> None:
        self.path, self.shape = path, shape
        self._summing = RunningSums(facts, shape, np.uint8)
        self._hashes: list[Array] = []
        self._unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        self._rows = 0

    def __enter__(self) -> MappedWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._zip = zipfile.ZipFile(self._unfinished, "w", zipfile.ZIP_STORED, allowZip64=True)
        self._stream: IO[bytes] | None = self._zip.open(_INPUTS, "w", force_zip64=True)
        facts = {"descr": "|u1", "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(self._stream, facts)
        return self

    def write(self, chunk: Array) -> None:
        """The next rows."""
        if chunk.dtype != np.uint8 or chunk.shape[1:] != self.shape[1:]:
            raise bad("chunk", f"uint8 rows of shape {self.shape[1:]}", (chunk.dtype, chunk.shape))
        if self._stream is None:
            raise bad("chunk", "rows before the file is finished", len(chunk))
        self._rows += len(chunk)
        self._stream.write(np.ascontiguousarray(chunk).data)
        self._summing.add(chunk)
        self._hashes.append(hash_rows(np.asarray(chunk)))

    def finish(self, data: DescribedData | None = None, **arrays: Array) -> None:
        """Write all other arrays behind the rows, and that the rows are to be mapped.

        With `data`, whose inputs these rows are, its fingerprint is written, too.
        """
        if self._stream is None or self._rows != self.shape[0]:
            raise bad("rows", f"{self.shape[0]}, as announced", self._rows)
        self._stream.close()
        self._stream = None
        facts, parts = (None, []) if data is None else (data.facts(), data.parts()[1:])
        own = {"sums": np.array(self._summing.sums(facts, parts)), "mapped": np.array(True),
               "hashes": np.concatenate(self._hashes or [np.zeros(0, np.uint64)])}  # fmt: skip
        for key, array in {**arrays, **own}.items():
            with self._zip.open(f"{key}.npy", "w") as stream:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)

    def __exit__(
        self, kind: type[BaseException] | None, value: Any, trace: TracebackType | None
    ) -> None:
        done = kind is None and self._stream is None
        if self._stream is not None:
            self._stream.close()
        self._zip.close()
        if done:
            self._unfinished.replace(self.path)
        self._unfinished.unlink(missing_ok=True)


def sum_inputs(x: SummedMap) -> str:
    """The sum of all inputs, read again: what `SummedMap.identity` should be."""
    summing = RunningSums(None, x.shape, x.dtype)
    for start in range(0, len(x), _CHUNK):
        summing.add(x[start : start + _CHUNK])
    return summing.sums(None, []).inputs


def is_mapped(file: Path) -> bool:
    """Whether a packed file says that its inputs are to be mapped."""
    with wrap_read_errors(file, "npz file", BadArgument):
        return zipfile.is_zipfile(file) and "mapped.npy" in zipfile.ZipFile(file).namelist()


def read_mapped(file: Path) -> tuple[SummedMap, dict[str, Array]]:
    """The inputs as a memory map, and all other arrays; refuses compressed and pickled ones."""
    try:
        with wrap_read_errors(file, "npz file", BadArgument):
            return _read_mapped(file)
    except OSError as problem:
        raise bad(str(file), "a complete npz file", str(problem)) from None


def _read_mapped(file: Path) -> tuple[SummedMap, dict[str, Array]]:
    with zipfile.ZipFile(file) as archive:
        if _INPUTS not in archive.namelist():
            raise bad(str(file), "inputs under the key x", archive.namelist())
        member = archive.getinfo(_INPUTS)
        if member.compress_type != zipfile.ZIP_STORED:
            raise bad(str(file), "inputs that are not compressed", "compressed ones")
        check_arrays(file, archive, (one for one in archive.infolist() if one is not member))
        with archive.open(_INPUTS) as stream:
            shape, fortran, dtype, header = read_array_header(stream, member.file_size, str(file))
    if dtype.kind not in "biuf" or not dtype.isnative or fortran:
        raise bad(str(file), "plain numbers, row by row", f"{dtype}, fortran_order={fortran}")
    with file.open("rb") as raw:
        raw.seek(member.header_offset)
        name, extra = struct.unpack("<HH", raw.read(_HEADER)[26:])
    start = member.header_offset + _HEADER + name + extra + header
    x = np.memmap(file, dtype, "r", start, shape).view(SummedMap)
    with np.load(file, allow_pickle=False) as archive_:
        rest = {key: archive_[key] for key in archive_.files if key != "x"}
    sums, hashes = rest.pop("sums", None), rest.pop("hashes", None)
    if sums is not None and sums.shape == (len(ContentSums._fields),):
        x.sums = ContentSums(*map(str, sums))
    if hashes is not None and hashes.shape == (len(x),) and hashes.dtype == np.uint64:
        x.hashes = hashes
    return x, rest
