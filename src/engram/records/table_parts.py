"""Part files of the long table, which many processes write side by side: write, read, and merge
many small ones into few.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engram.errors import RecordError
from engram.io import atomic_write, list_names, read_json, write_json
from engram.records.locks import Claims
from engram.records.long_table import COLUMNS, TEXT_COLUMNS, Rows, part_schema
from engram.records.tombstones import MARK_PREFIX, Tombstones

if TYPE_CHECKING:
    import pyarrow as pa

RUN = ("recipe", "seed", "order")
_SUM, _NO_SUM = "engram-crc32", "00000000"  # an entry of a part file's footer
_PAUSE = 2  # bytes
_DENSE = 50  # rows per byte: more than results ever compress to
_SMALL = 20_000  # rows; below this, compression costs more time than it saves space


def write_part(
    path: str | os.PathLike[str], rows: Rows | pa.Table, facts: Mapping[str, str] | None = None
) -> Path:
    """Write rows as one part file atomically, with facts in its footer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = rows.arrow() if isinstance(rows, Rows) else rows
    compression = "none" if len(table) < _SMALL else "zstd"
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression=compression) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({**(facts or {}), _SUM: _NO_SUM})
    with atomic_write(path) as temporary:
        temporary.write_bytes(_insert_checksum(sink.getvalue()))
    return Path(path)


def _insert_checksum(content: pa.Buffer) -> bytearray:
    """Replace the zeros reserved in a parquet file by the checksum of its bytes."""
    sealed = bytearray(content)
    place = _find_checksum(memoryview(sealed))
    assert place is not None
    sealed[place : place + len(_NO_SUM)] = _compute_checksum(memoryview(sealed), place)
    return sealed


def _find_checksum(content: memoryview) -> int | None:
    """Find the offset of the checksum in the footer of a parquet file; None if there is none."""
    footer = int.from_bytes(content[-8:-4], "little") + 8
    start = max(len(content) - footer, 0)
    end = bytes(content[start:])
    found = end.rfind(_SUM.encode())
    # between name and value, the format encodes the value's kind and length
    return None if found < 0 else start + found + len(_SUM) + _PAUSE


def _compute_checksum(content: memoryview, place: int) -> bytes:
    """Compute the checksum of all bytes, with zeros in place of the checksum itself."""
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
class PartContents:
    """Contents of the part files of a directory.

    `part` is the number of the file (an index into `files`) that each row of `table` came from.
    `superseded` are rows of runs that were run again since.
    """

    table: pa.Table
    part: npt.NDArray[np.int32]
    files: tuple[Path, ...]
    problems: tuple[Problem, ...] = field(default=())
    superseded: pa.Table | None = None


Reduce = Callable[["pa.Table"], "pa.Table"]  # chooses the rows of a table that a reader needs


def read_part(path: str | os.PathLike[str], reduce: Reduce | None = None) -> pa.Table:
    """Read one part file; raises `RecordError` if it is truncated or damaged.

    `reduce` is applied to portions of the file, so that rows that are not needed never are in
    memory together.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Small files are read at once: mapping each of thousands costs more than copying it.
        small = os.path.getsize(path) < 2**20
        source = pa.BufferReader(Path(path).read_bytes()) if small else pa.memory_map(str(path))
        content = memoryview(source.read_buffer())
        place = _find_checksum(content)
        if place is not None and content[place : place + 8] != _compute_checksum(content, place):
            raise RecordError(f"{path}: is damaged (checksum mismatch)")
        source.seek(0)
        file = pq.ParquetFile(source)
        if file.metadata.num_rows > _DENSE * len(content) + _SMALL:
            rows = f"{file.metadata.num_rows} rows in {len(content)} bytes"
            raise RecordError(f"{path}: not a results file ({rows})")
        if reduce is None:
            table = file.reader.read_all(use_threads=False)
            table.validate(full=True)  # invalid text would fail much later
        else:
            table = _read_reduced(file, reduce)
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise RecordError(f"{path}: not a valid results file ({problem})") from problem
    if not table.schema.equals(part_schema(), check_metadata=False):
        raise RecordError(f"{path}: not a results file (other columns)")
    if place is None:
        raise RecordError(f"{path}: not a valid results file (no checksum in its footer)")
    return table


def _read_reduced(file: Any, reduce: Reduce) -> pa.Table:
    import pyarrow as pa

    found = [file.schema_arrow.empty_table()]
    for number in range(file.num_row_groups):
        portion = file.read_row_group(number, use_threads=False)
        portion.validate(full=True)
        if not portion.schema.equals(part_schema(), check_metadata=False):
            break  # which the caller refuses
        found.append(reduce(portion))
    return pa.concat_tables(found).unify_dictionaries()


def keep_metrics(wanted: Callable[[str], bool]) -> Reduce:
    """Return a `Reduce` that keeps the rows of the metrics of which `wanted` is true."""

    def reduce(table: pa.Table) -> pa.Table:
        codes, words = _encode_metrics(table)
        chosen = np.array([wanted(word) for word in words], np.bool_)
        return table if chosen.all() else table.take(np.flatnonzero(chosen[codes]))

    return reduce


def keep_stage_ends(table: pa.Table) -> pa.Table:
    """Keep one row of each finished stage of each run, and what says that a run diverged."""
    import pandas as pd

    stage, step = table.column("stage").to_numpy(), table.column("step").to_numpy()
    table = table.take(np.flatnonzero((step == -1) & (stage >= 0)))
    codes, words = _encode_metrics(table)
    lost = np.array([word == "diverged" for word in words], np.bool_)
    first = ~pd.Series(encode_columns(table, (*RUN, "stage"))).duplicated().to_numpy()
    return table.take(np.flatnonzero(first | (lost[codes] if len(words) else first)))


def _encode_metrics(table: pa.Table) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the metric of each row as a place in a list of words."""
    metric = table.column("metric").unify_dictionaries().combine_chunks()
    return encode_column(table, "metric"), metric.dictionary.to_pylist()


def read_parts(paths: Sequence[Path], reduce: Reduce | None = None) -> PartContents:
    """Read part files, oldest first; broken ones are listed in `problems`."""
    from concurrent.futures import ThreadPoolExecutor

    def attempt(path: Path) -> Any:
        try:
            return read_part(path, reduce)
        except RecordError as problem:
            return Problem(str(path), str(problem).removeprefix(f"{path}: "))

    ordered = sorted(paths, key=lambda p: p.name)
    workers = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:  # reading releases the interpreter lock
        read = list(pool.map(attempt, ordered))
    problems = tuple(t for t in read if isinstance(t, Problem))
    good = [p for p, t in zip(ordered, read, strict=True) if not isinstance(t, Problem)]
    tables = [t for t in read if not isinstance(t, Problem)]
    del read  # so that the parts are freed once they are joined
    lengths = [len(t) for t in tables]
    part = np.repeat(np.arange(len(tables), dtype=np.int32), lengths)
    table = _join_tables(tables)
    return drop_repeats(drop_superseded(PartContents(table, part, tuple(good), problems)))


def read_folders(
    folders: Sequence[Path],
    listing: Callable[[Path], Iterable[Path]],
    reduce: Reduce | None = None,
) -> PartContents:
    """Read the part files of some directories, even while parts are being merged there.

    `listing` lists the files of a directory.
    """
    for _ in range(5):
        files = [path for folder in folders for path in listing(folder)]
        parts = read_parts(files, reduce)
        if all(Path(problem.file).exists() for problem in parts.problems):
            return parts  # otherwise a merge removed a file: list again
    return parts


def _join_tables(tables: list[pa.Table]) -> pa.Table:
    """Join tables, column by column; the list is emptied, so that each is in memory once."""
    import pyarrow as pa

    whole = pa.concat_tables(tables) if tables else part_schema().empty_table()
    tables.clear()
    whole = whole.unify_dictionaries()
    for place, name in enumerate(whole.column_names):
        column = whole.column(name).combine_chunks()
        whole = whole.set_column(place, whole.schema.field(name), column)
    return whole


def encode_column(table: pa.Table, column: str) -> npt.NDArray[np.int64]:
    """Encode the values of a text or integer column as whole numbers from 0, [rows]."""
    chunked = table.column(column)
    if column in TEXT_COLUMNS:
        joined = chunked.unify_dictionaries().combine_chunks()
        joined = joined.chunk(0) if hasattr(joined, "chunk") else joined
        return np.asarray(joined.indices.to_numpy(zero_copy_only=False)).astype(np.int64)
    values = chunked.to_numpy().astype(np.int64)
    return np.asarray(values - values.min(initial=0))


def encode_columns(table: pa.Table, columns: Sequence[str]) -> npt.NDArray[np.int64]:
    """Encode combinations of columns as whole numbers in order of appearance, [rows]."""
    import pandas as pd

    key, size = np.zeros(len(table), np.int64), 1
    for name in columns:
        code = encode_column(table, name)
        span = int(code.max(initial=0)) + 1
        if size * span >= 2**62:  # renumber, so that the product stays within 64 bits
            key, found = pd.factorize(key)
            size = len(found)
        key, size = key * span + code, size * span
    return np.asarray(pd.factorize(key)[0], dtype=np.int64)


def drop_superseded(parts: PartContents) -> PartContents:
    """Move the rows of runs that were run again to `superseded`."""
    folders = list(dict.fromkeys(path.parent for path in parts.files))
    marks = [Tombstones.read(folder) for folder in folders]
    if not any(marks):
        return parts
    names = [path.stem.removeprefix("results-") for path in parts.files]
    marked = {part for one in marks for part in one.parts}
    place = {name: i for i, name in enumerate(sorted({*names, *marked}))}
    run = encode_columns(parts.table, RUN)
    _, first = np.unique(run, return_index=True)
    columns = [parts.table.column(name).take(first).to_pylist() for name in RUN]
    runs = list(zip(*columns, strict=True))

    def marks_of(which: Sequence[Mapping[Any, str]]) -> npt.NDArray[np.int64]:
        """Find the newest mark, [folders, runs]; -1 if there is none."""
        found = [[place.get(one.get(key, ""), -1) for key in runs] for one in which]
        return np.array(found, np.int64).reshape(len(which), len(runs))

    folder = np.array([folders.index(path.parent) for path in parts.files], np.int64)
    written = np.array([place[name] for name in names], np.int64)
    where = folder[parts.part], run
    old = written[parts.part] < marks_of([one.newest for one in marks])[where]
    for prefix in sorted({prefix for one in marks for prefix in one.metrics}):
        newest = marks_of([one.metrics.get(prefix, {}) for one in marks])
        old |= _starts_with(parts.table, prefix) & (written[parts.part] < newest[where])
    keep, aside = np.flatnonzero(~old), np.flatnonzero(old)
    return replace(
        parts, table=parts.table.take(keep), part=parts.part[keep],
        superseded=parts.table.take(aside),
    )  # fmt: skip


def _starts_with(table: pa.Table, prefix: str) -> npt.NDArray[np.bool_]:
    """Mark the rows whose metric begins with `prefix`, [rows]."""
    codes, words = _encode_metrics(table)
    return np.asarray(np.array([word.startswith(prefix) for word in words], np.bool_)[codes])


def drop_repeats(parts: PartContents) -> PartContents:
    """Drop repeated numbers: if two parts hold the same run and stage, the later part counts.

    That happens when two workers took the same run, or when a merge of parts was interrupted.
    """
    import pandas as pd

    if len(parts.files) < 2:
        return parts
    stage = encode_columns(parts.table, (*RUN, "stage"))
    pair = pd.unique(stage * len(parts.files) + parts.part)
    holders = np.bincount(pair // len(parts.files))  # parts per (run, stage)
    doubtful = holders[stage] > 1
    if not doubtful.any():
        return parts
    key = encode_columns(parts.table, [c for c in COLUMNS if c not in ("value", "label")])
    repeated = pd.Series(key).duplicated(keep="last").to_numpy() & doubtful
    keep = np.flatnonzero(~repeated)
    return replace(parts, table=parts.table.take(keep), part=parts.part[keep])


# Merging, while others read and write. A merged file lists the parts it holds. Once it exists,
# readers skip those parts, so that no number counts twice; they are removed later, when no process
# can still be reading them.


MERGED_SUFFIX = "-merged"
MANY_FILES = 256  # results files in a directory from which on some are merged
REMOVE_AFTER = 300.0  # seconds before merged parts are removed
MANY_LISTS = 64  # lists of recipes from which on they are merged
_PARTS = b"engram-parts"


def result_files(folder: Path, listed: Sequence[str] | None = None) -> list[Path]:
    """List the results files that count, oldest first: without those in a merged one.

    `listed` are the names of the files in the folder, if known.
    """
    found = list_names(folder, "results-", ".parquet") if listed is None else listed
    files = [folder / name for name in found if name.startswith("results-")]
    held = [
        _read_merged_ids(path, _stamp(path)) for path in files if path.stem.endswith(MERGED_SUFFIX)
    ]
    return [path for path in files if not any(part_id(path) in parts for parts in held)]


def part_id(path: Path) -> str:
    """Return the part id of a results file."""
    return path.stem.removeprefix("results-")


def merged_part_ids(files: Iterable[Path]) -> set[str]:
    """Return the ids of all parts in the merged files among these."""
    merged = [path for path in files if path.stem.endswith(MERGED_SUFFIX)]
    return {part for path in merged for part in _read_merged_ids(path, _stamp(path))}


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # removed by now, which the reader reports
        return 0


@functools.lru_cache(maxsize=1024)
def _read_merged_ids(path: Path, stamp: int) -> frozenset[str]:
    """Read the ids of the parts in one merged file; empty if it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        facts = pq.read_metadata(path).metadata or {}
        text = zlib.decompress(base64.b64decode(facts[_PARTS]))
        return frozenset(json.loads(text))
    except (pa.ArrowException, OSError, ValueError, KeyError, zlib.error):
        return frozenset()


def merge_parts(folder: Path, *, least: int = 2, later: float = REMOVE_AFTER) -> int:
    """Merge results files if there are at least `least`, and return how many were merged.

    Files larger than all later ones together stay, so that no number is copied more often
    than the logarithm of their count. One process merges at a time; others go on meanwhile.
    """
    claims = Claims(folder)
    try:
        if not claims.take("merging"):
            return 0
        _remove_merged(folder, later)
        _merge_lists(folder)
        files = result_files(folder)
        if len(files) < least:
            return 0
        return _merge_files(folder, _choose_files(files, sparing=least > 2))
    finally:
        claims.close()


def _choose_files(files: list[Path], *, sparing: bool) -> list[Path]:
    """Choose the newest files, up to one that is larger than all of them."""
    if not sparing:
        return files
    chosen: list[Path] = []
    total = 0
    for path in reversed(files):
        size = path.stat().st_size
        if path.stem.endswith(MERGED_SUFFIX) and size > total:
            break
        chosen.append(path)
        total += size
    return chosen


def _merge_files(folder: Path, files: list[Path]) -> int:
    parts = read_parts(files)
    if len(parts.files) < 2:
        return 0
    # Named after the newest part: ids of parts written meanwhile still sort after it.
    newest = max(path.stem for path in parts.files).removesuffix(MERGED_SUFFIX)
    target = folder / f"{newest}{MERGED_SUFFIX}.parquet"
    if parts.superseded is not None and len(parts.superseded):
        write_part(folder / f"{newest.replace('results-', MARK_PREFIX)}.parquet", parts.superseded)
    held = {part_id(path) for path in parts.files if path != target} | merged_part_ids(parts.files)
    text = base64.b64encode(zlib.compress(json.dumps(sorted(held)).encode())).decode()
    write_part(target, parts.table, {_PARTS.decode(): text})
    return len(parts.files)


def _remove_merged(folder: Path, later: float) -> None:
    """Remove parts that were merged a while ago; broken ones were never merged."""
    limit = time.time() - later
    files = [folder / name for name in list_names(folder, "results-", ".parquet")]
    old = [
        path for path in files if path.stem.endswith(MERGED_SUFFIX) and _stamp(path) / 1e9 <= limit
    ]
    gone = merged_part_ids(old)
    for path in files:
        if part_id(path) in gone:
            path.unlink(missing_ok=True)


def _merge_lists(folder: Path) -> None:
    """Merge many lists of recipes into one, under the name of the oldest."""
    files = [folder / name for name in list_names(folder, "listed-", ".json")]
    if len(files) < MANY_LISTS:
        return
    try:
        every = dict.fromkeys(str(one) for path in files for one in read_json(path))
    except RecordError:  # the reader of the list reports it
        return
    write_json(files[0], list(every))
    for path in files[1:]:
        path.unlink(missing_ok=True)
