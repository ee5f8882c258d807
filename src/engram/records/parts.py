"""Part files of the long table, which many processes write side by side."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engram.disk import appearing
from engram.errors import RecordError
from engram.records.superseded import Marks
from engram.records.table import COLUMNS, NAMES, Rows, schema

if TYPE_CHECKING:
    import pyarrow as pa

RUN = ("recipe", "seed", "order")
_SUM, _NO_SUM = "engram-crc32", "00000000"  # an entry of a part file's footer
_BETWEEN = 2  # bytes
_DENSE = 50  # rows in a byte: more than results ever have, however alike
_SMALL = 20_000  # rows; below this, compression costs more time than it saves space


def write_part(
    path: str | os.PathLike[str], rows: Rows | pa.Table, facts: Mapping[str, str] | None = None
) -> Path:
    """Write rows as one part file, atomically, with facts in its footer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = rows.arrow() if isinstance(rows, Rows) else rows
    compression = "none" if len(table) < _SMALL else "zstd"
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression=compression) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({**(facts or {}), _SUM: _NO_SUM})
    with appearing(path) as temporary:
        temporary.write_bytes(_sealed(sink.getvalue()))
    return Path(path)


def _sealed(content: pa.Buffer) -> bytearray:
    """The bytes of a parquet file with their checksum where zeros keep the place for it."""
    sealed = bytearray(content)
    place = _place_of_sum(memoryview(sealed))
    assert place is not None
    sealed[place : place + len(_NO_SUM)] = _sum_around(memoryview(sealed), place)
    return sealed


def _place_of_sum(content: memoryview) -> int | None:
    """Where the checksum of a parquet file stands in its footer; None if there is none."""
    footer = int.from_bytes(content[-8:-4], "little") + 8
    start = max(len(content) - footer, 0)
    end = bytes(content[start:])
    found = end.rfind(_SUM.encode())
    # between the name and the value: what the format says about the value's kind and length
    return None if found < 0 else start + found + len(_SUM) + _BETWEEN


def _sum_around(content: memoryview, place: int) -> bytes:
    """The checksum of all bytes, zeros in its own place."""
    value = zlib.crc32(content[:place])
    value = zlib.crc32(_NO_SUM.encode(), value)
    return f"{zlib.crc32(content[place + len(_NO_SUM) :], value):08x}".encode()


@dataclass(frozen=True)
class Problem:
    """A file that could not be used, and why."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


@dataclass(frozen=True)
class Parts:
    """What the part files of a directory hold.

    `part` is the number of the file (an index into `files`) that each row of `table` came from.
    `superseded` are rows of runs that were run anew since.
    """

    table: pa.Table
    part: npt.NDArray[np.int32]
    files: tuple[Path, ...]
    problems: tuple[Problem, ...] = field(default=())
    superseded: pa.Table | None = None


def read_part(path: str | os.PathLike[str]) -> pa.Table:
    """Read one part file; `RecordError` with its name if it is cut off or garbled."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Small files are read at once: mapping each of thousands costs more than copying it.
        small = os.path.getsize(path) < 2**20
        source = pa.BufferReader(Path(path).read_bytes()) if small else pa.memory_map(str(path))
        content = memoryview(source.read_buffer())
        place = _place_of_sum(content)
        if place is not None and content[place : place + 8] != _sum_around(content, place):
            raise RecordError(f"{path}: is damaged (checksum mismatch)")
        source.seek(0)
        file = pq.ParquetFile(source)
        if file.metadata.num_rows > _DENSE * len(content) + _SMALL:
            rows = f"{file.metadata.num_rows} rows in {len(content)} bytes"
            raise RecordError(f"{path}: is not a results file ({rows})")
        table = file.reader.read_all(use_threads=False)
        table.validate(full=True)  # text that is none would fail in whoever takes it for text
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise RecordError(f"{path}: is not a valid results file ({problem})") from problem
    if not table.schema.equals(schema(), check_metadata=False):
        raise RecordError(f"{path}: does not have the columns of a results file")
    if place is None:
        raise RecordError(f"{path}: is not a valid results file (no checksum in its footer)")
    return table


def read_parts(paths: Sequence[Path]) -> Parts:
    """Read part files, oldest first; broken ones are listed in `problems`, the rest is kept."""
    from concurrent.futures import ThreadPoolExecutor

    def attempt(path: Path) -> Any:
        try:
            return read_part(path)
        except RecordError as problem:
            return Problem(str(path), str(problem).removeprefix(f"{path}: "))

    ordered = sorted(paths, key=lambda p: p.name)
    workers = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:  # the reading itself does not hold the lock
        read = list(pool.map(attempt, ordered))
    good = [(p, t) for p, t in zip(ordered, read, strict=True) if not isinstance(t, Problem)]
    problems = tuple(t for t in read if isinstance(t, Problem))
    return _joined([p for p, _ in good], [t for _, t in good], problems)


def read_folders(folders: Sequence[Path], listing: Callable[[Path], Iterable[Path]]) -> Parts:
    """Read the part files of some directories, also while parts are being merged there.

    `listing` says which there are.
    """
    for _ in range(5):
        files = [path for folder in folders for path in listing(folder)]
        parts = read_parts(files)
        if all(Path(problem.file).exists() for problem in parts.problems):
            return parts  # otherwise a merge took a file away: look again
    return parts


def _joined(files: list[Path], tables: list[Any], problems: tuple[Problem, ...]) -> Parts:
    import pyarrow as pa

    whole = pa.concat_tables(tables) if tables else schema().empty_table()
    table = whole.unify_dictionaries().combine_chunks()
    lengths = [len(t) for t in tables]
    part = np.repeat(np.arange(len(tables), dtype=np.int32), lengths)
    return without_repeats(without_superseded(Parts(table, part, tuple(files), problems)))


def codes(table: pa.Table, column: str) -> npt.NDArray[np.int64]:
    """Whole numbers from 0 that tell the values of a text or integer column apart, [rows]."""
    chunked = table.column(column)
    if column in NAMES:
        joined = chunked.combine_chunks()
        joined = joined.chunk(0) if hasattr(joined, "chunk") else joined
        return np.asarray(joined.indices.to_numpy(zero_copy_only=False)).astype(np.int64)
    values = chunked.to_numpy().astype(np.int64)
    return np.asarray(values - values.min(initial=0))


def together(table: pa.Table, columns: Sequence[str]) -> npt.NDArray[np.int64]:
    """One whole number per row that tells combinations of columns apart, in order of appearance."""
    import pandas as pd

    key, size = np.zeros(len(table), np.int64), 1
    for name in columns:
        code = codes(table, name)
        span = int(code.max(initial=0)) + 1
        if size * span >= 2**62:  # renumber, so that the product stays within 64 bits
            key, found = pd.factorize(key)
            size = len(found)
        key, size = key * span + code, size * span
    return np.asarray(pd.factorize(key)[0], dtype=np.int64)


def without_superseded(parts: Parts) -> Parts:
    """The rows that count: those of runs that were run anew are put aside."""
    folders = list(dict.fromkeys(path.parent for path in parts.files))
    marks = [Marks.read(folder) for folder in folders]
    if not any(marks):
        return parts
    names = [path.stem.removeprefix("results-") for path in parts.files]
    marked = {part for one in marks for part in one.parts}
    place = {name: i for i, name in enumerate(sorted({*names, *marked}))}
    run = together(parts.table, RUN)
    _, first = np.unique(run, return_index=True)
    columns = [parts.table.column(name).take(first).to_pylist() for name in RUN]
    runs = list(zip(*columns, strict=True))

    def marks_of(which: Sequence[Mapping[Any, str]]) -> npt.NDArray[np.int64]:
        """[folders, runs] the newest mark, -1 if there is none."""
        found = [[place.get(one.get(key, ""), -1) for key in runs] for one in which]
        return np.array(found, np.int64).reshape(len(which), len(runs))

    folder = np.array([folders.index(path.parent) for path in parts.files], np.int64)
    written = np.array([place[name] for name in names], np.int64)
    where = folder[parts.part], run
    old = written[parts.part] < marks_of([one.newest for one in marks])[where]
    for prefix in sorted({prefix for one in marks for prefix in one.metrics}):
        newest = marks_of([one.metrics.get(prefix, {}) for one in marks])
        old |= _begins(parts.table, prefix) & (written[parts.part] < newest[where])
    keep, aside = np.flatnonzero(~old), np.flatnonzero(old)
    return replace(
        parts, table=parts.table.take(keep), part=parts.part[keep],
        superseded=parts.table.take(aside),
    )  # fmt: skip


def _begins(table: pa.Table, prefix: str) -> npt.NDArray[np.bool_]:
    """[rows] whether the metric begins so."""
    metric = table.column("metric").combine_chunks()
    words = metric.dictionary.to_pylist()
    chosen = np.array([word.startswith(prefix) for word in words], np.bool_)
    return np.asarray(chosen[codes(table, "metric")])


def without_repeats(parts: Parts) -> Parts:
    """Where two parts hold the same number of the same run and stage, the later part counts.

    That happens when two workers took the same run, or when a merge of parts was interrupted.
    """
    import pandas as pd

    if len(parts.files) < 2:
        return parts
    stage = together(parts.table, (*RUN, "stage"))
    pair = pd.unique(stage * len(parts.files) + parts.part)
    holders = np.bincount(pair // len(parts.files))  # parts per (run, stage)
    doubtful = holders[stage] > 1
    if not doubtful.any():
        return parts
    key = together(parts.table, [c for c in COLUMNS if c not in ("value", "label")])
    repeated = pd.Series(key).duplicated(keep="last").to_numpy() & doubtful
    keep = np.flatnonzero(~repeated)
    return replace(parts, table=parts.table.take(keep), part=parts.part[keep])
