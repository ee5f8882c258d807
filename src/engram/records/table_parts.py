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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.errors import RecordError
from engram.io import list_names, read_json, write_bytes, write_json
from engram.records.journal import (
    RESULTS_PREFIX,
    RecordFile,
    as_record,
    list_journals,
    list_records,
    read_journal,
)
from engram.records.locks import Claims
from engram.records.long_table import COLUMNS, TEXT_COLUMNS, Rows, part_schema
from engram.records.tombstones import MARK_PREFIX, Tombstones

if TYPE_CHECKING:
    import pyarrow as pa

RUN = ("recipe", "seed", "order")
_SUM, _NO_SUM = "engram-crc32", "00000000"  # an entry of a part file's footer
_PAUSE = 2  # bytes
_DENSE = 50  # rows per byte: more than results ever compress to
STREAM_SUFFIX = ".arrow"
RESULTS_SUFFIXES = (".parquet", STREAM_SUFFIX)
SMALL = 20_000  # rows; below this, compression costs more time than it saves space


def write_part(
    path: str | os.PathLike[str], rows: Rows | pa.Table, facts: Mapping[str, str] | None = None
) -> Path:
    """Write rows as one part file atomically, with facts in its footer."""
    return write_bytes(path, pack_part(rows, facts))


def pack_part(rows: Rows | pa.Table, facts: Mapping[str, str] | None = None) -> bytes:
    """Return rows as the content of a parquet file, with facts in its footer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = rows.arrow() if isinstance(rows, Rows) else rows
    compression = "none" if len(table) < SMALL else "zstd"
    sink = pa.BufferOutputStream()
    # nobody asks for the least and the largest value of a column
    how = {"compression": compression, "write_statistics": False}
    with pq.ParquetWriter(sink, table.schema, **how) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({**(facts or {}), _SUM: _NO_SUM})
    return _insert_checksum(sink.getvalue())


def pack_record(name: str, table: pa.Table) -> tuple[str, bytes]:
    """Return the name and the content of the record of a part's results.

    Up to `SMALL` rows it is an Arrow stream with its checksum behind it, which takes a quarter of
    the time of a parquet file to write and a tenth to read; beyond, parquet for its compression.
    """
    import pyarrow as pa

    if len(table) >= SMALL:
        return f"{name}.parquet", pack_part(table)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return f"{name}{STREAM_SUFFIX}", content + f"{zlib.crc32(content):08x}".encode()


def _insert_checksum(content: pa.Buffer) -> bytes:
    """Replace the zeros reserved in a parquet file by the checksum of its bytes."""
    sealed = bytearray(content)
    place = _find_checksum(memoryview(sealed))
    assert place is not None
    sealed[place : place + len(_NO_SUM)] = _compute_checksum(memoryview(sealed), place)
    return bytes(sealed)


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
    """A file that could not be used, and why; one in a journal as if this were a folder."""

    file: str
    reason: str

    @classmethod
    def of(cls, file: object, error: RecordError) -> Problem:
        """Make a problem of an error that begins with the name of the file."""
        return cls(str(file), str(error).removeprefix(f"{file}: "))

    @property
    def is_there(self) -> bool:
        """Whether the file exists still: it may have been merged before it was read."""
        path = Path(self.file)
        return path.exists() or path.parent.is_file()

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
    files: tuple[RecordFile, ...]
    problems: tuple[Problem, ...] = field(default=())
    superseded: pa.Table | None = None


Reduce = Callable[["pa.Table"], "pa.Table"]  # chooses the rows of a table that a reader needs


def read_part(file: str | os.PathLike[str] | RecordFile, reduce: Reduce | None = None) -> pa.Table:
    """Read one part file; raises `RecordError` if it is truncated or damaged.

    `reduce` is applied to portions of the file, so that rows that are not needed never are in
    memory together.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = file if isinstance(file, RecordFile) else RecordFile(Path(file))
    if path.name.endswith(STREAM_SUFFIX):
        table = _check_columns(path, _read_stream(path))
        return table if reduce is None else reduce(table)
    try:
        # Small files are read at once: mapping each of thousands costs more than copying it.
        size = os.path.getsize(path.path) if path.size is None else path.size
        whole = (
            path.read() if size < 2**20 else pa.memory_map(str(path.path)).read_at(size, path.start)
        )
        source = pa.BufferReader(whole)
        content = memoryview(whole)
        place = _find_checksum(content)
        if place is not None and content[place : place + 8] != _compute_checksum(content, place):
            raise RecordError(f"{path}: is damaged (checksum mismatch)")
        parquet = pq.ParquetFile(source)
        if parquet.metadata.num_rows > _DENSE * len(content) + SMALL:
            rows = f"{parquet.metadata.num_rows} rows in {len(content)} bytes"
            raise RecordError(f"{path}: not a results file ({rows})")
        if reduce is None:
            table = parquet.reader.read_all(use_threads=False)
            table.validate(full=True)  # invalid text would fail much later
        else:
            table = _read_reduced(parquet, reduce)
    except RecordError:
        raise
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise RecordError(f"{path}: not a valid results file ({problem})") from problem
    table = _check_columns(path, table)
    if place is None:
        raise RecordError(f"{path}: not a valid results file (no checksum in its footer)")
    return table


def _check_columns(path: RecordFile, table: pa.Table) -> pa.Table:
    if not table.schema.equals(part_schema(), check_metadata=False):
        raise RecordError(f"{path}: not a results file (other columns)")
    return table


def _read_stream(path: RecordFile) -> pa.Table:
    import pyarrow as pa

    content = path.read()
    rows, told = content[:-8], content[-8:]
    if told != f"{zlib.crc32(rows):08x}".encode():
        raise RecordError(f"{path}: is damaged (checksum mismatch)")
    try:
        table = pa.ipc.open_stream(rows).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise RecordError(f"{path}: not a valid results file ({problem})") from problem
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


def read_parts(files: Iterable[Path | RecordFile], reduce: Reduce | None = None) -> PartContents:
    """Read part files, oldest first; broken ones are listed in `problems`."""
    from concurrent.futures import ThreadPoolExecutor

    def attempt(file: RecordFile) -> Any:
        try:
            return read_part(file, reduce)
        except RecordError as problem:
            return Problem.of(file, problem)

    ordered = sorted(map(as_record, files), key=lambda one: one.name)
    workers = min(8, os.cpu_count() or 1)
    if len(ordered) > 1:
        with ThreadPoolExecutor(workers) as pool:  # reading releases the interpreter lock
            read = list(pool.map(attempt, ordered))
    else:
        read = [attempt(file) for file in ordered]
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
    listing: Callable[[Path], Iterable[RecordFile]],
    reduce: Reduce | None = None,
) -> PartContents:
    """Read the part files of some directories, even while parts are being merged there.

    `listing` lists the files of a directory.
    """
    for _ in range(5):
        files = [file for folder in folders for file in listing(folder)]
        parts = read_parts(files, reduce)
        if all(problem.is_there for problem in parts.problems):
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


class EndedStages(NamedTuple):
    """Stages of runs (recipe, seed, order) with end-of-stage rows, and runs that diverged."""

    stages: dict[tuple[str, int, str], set[int]]
    diverged: set[tuple[str, int, str]]


def list_ended_stages(table: pa.Table) -> EndedStages:
    """List the stages that are finished according to the rows of a long table.

    Examples
    --------
    >>> rows = Rows(recipe="r", seed=3)
    >>> rows.add_array("accuracy", [0.9, 0.8], stage=[0, 1], task=0)
    >>> list_ended_stages(rows.arrow())
    EndedStages(stages={('r', 3, ''): {0, 1}}, diverged=set())
    """
    found = EndedStages({}, set())
    stage = table.column("stage").to_numpy()
    ended = np.flatnonzero((stage >= 0) & (table.column("step").to_numpy() == -1))
    if not len(ended):
        return found
    value = table.column("value").to_numpy()
    words = {name: _words(table, name) for name in (*RUN[::2], "metric")}
    codes = {name: encode_column(table, name)[ended] for name in (*RUN, "metric")}
    lost = words["metric"].index("diverged") if "diverged" in words["metric"] else -1
    over = (codes["metric"] == lost) & (value[ended] > 0)
    key = stage[ended].astype(np.int64)
    for name in RUN:
        key = key * (int(codes[name].max()) + 1) + codes[name]
    first = np.unique(key * 2 + over, return_index=True)[1]
    seeds = table.column("seed").to_numpy()[ended[first]].tolist()
    for place, seed in zip(first.tolist(), seeds, strict=True):
        recipe, order = (words[name][codes[name][place]] for name in RUN[::2])
        found.stages.setdefault((recipe, seed, order), set()).add(int(stage[ended[place]]))
        if over[place]:
            found.diverged.add((recipe, seed, order))
    return found


def _words(table: pa.Table, column: str) -> list[str]:
    joined = table.column(column).combine_chunks()
    words: list[str] = (
        joined.chunk(0) if hasattr(joined, "chunk") else joined
    ).dictionary.to_pylist()
    return words


def drop_superseded(parts: PartContents) -> PartContents:
    """Move the rows of runs that were run again to `superseded`."""
    folders = list(dict.fromkeys(file.path.parent for file in parts.files))
    marks = [Tombstones.read(folder) for folder in folders]
    if not any(marks):
        return parts
    names = [file.part for file in parts.files]
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

    folder = np.array([folders.index(file.path.parent) for file in parts.files], np.int64)
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
_PARTS, _JOURNALS = b"engram-parts", b"engram-journals"


def result_files(folder: Path) -> list[RecordFile]:
    """List the results files that count, oldest first: without those in a merged one."""
    held, journals = merged_parts(_merged_files(folder))
    fresh = [path for path in list_journals(folder) if path.name not in journals]
    return [file for file in list_records(folder, "results", fresh) if file.part not in held]


def journal_problems(folder: Path) -> list[Problem]:
    """List the places in journals that are damaged."""
    problems = []
    for path in list_journals(folder):
        try:
            places = read_journal(path).damaged
        except RecordError as problem:
            problems.append(Problem.of(path, problem))
        else:
            told = ", ".join(map(str, places))
            problems += [Problem(str(path), f"is damaged at byte {told}")] if places else []
    return problems


def _merged_files(folder: Path) -> list[Path]:
    return [
        folder / name for name in list_names(folder, RESULTS_PREFIX, f"{MERGED_SUFFIX}.parquet")
    ]


def merged_parts(merged: Iterable[Path]) -> tuple[set[str], set[str]]:
    """Return the ids of all parts in some merged files, and the journals that are in them whole."""
    found: tuple[set[str], set[str]] = set(), set()
    for path in merged:
        for every, some in zip(found, _read_merged_ids(path, _stamp(path)), strict=True):
            every |= some
    return found


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # removed by now, which the reader reports
        return 0


@functools.lru_cache(maxsize=1024)
def _read_merged_ids(path: Path, stamp: int) -> tuple[frozenset[str], frozenset[str]]:
    """Read the ids of the parts, and the journals, in a merged file; empty if it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        facts = pq.read_metadata(path).metadata or {}
        return _unpack_names(facts[_PARTS]), _unpack_names(facts.get(_JOURNALS))
    except (pa.ArrowException, OSError, ValueError, KeyError, zlib.error):
        return frozenset(), frozenset()


def _pack_names(names: Iterable[str]) -> str:
    return base64.b64encode(zlib.compress(json.dumps(sorted(names)).encode())).decode()


def _unpack_names(packed: bytes | None) -> frozenset[str]:
    if packed is None:  # written by an older version
        return frozenset()
    return frozenset(map(str, json.loads(zlib.decompress(base64.b64decode(packed)))))


def merge_parts(
    folder: Path, *, least: int = 2, later: float = REMOVE_AFTER, sealed: Collection[str] = ()
) -> int:
    """Merge results files if there are at least `least`, and return how many were merged.

    `sealed` are journals to which nothing will be appended: once they are merged, results are read
    without a look into them.

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
        return _merge_files(folder, _choose_files(files, sparing=least > 2), sealed)
    finally:
        claims.close()


def _choose_files(files: list[RecordFile], *, sparing: bool) -> list[RecordFile]:
    """Choose the newest files, up to one that is larger than all of them."""
    if not sparing:
        return files
    chosen: list[RecordFile] = []
    total = 0
    for file in reversed(files):
        size = file.path.stat().st_size if file.size is None else file.size
        if file.part.endswith(MERGED_SUFFIX) and size > total:
            break
        chosen.append(file)
        total += size
    return chosen


def _merge_files(folder: Path, files: list[RecordFile], sealed: Collection[str]) -> int:
    parts = read_parts(files)
    if len(parts.files) < 2:
        return 0
    # Named after the newest part: ids of parts written meanwhile still sort after it.
    newest = max(file.part for file in parts.files).removesuffix(MERGED_SUFFIX)
    target = folder / f"{RESULTS_PREFIX}{newest}{MERGED_SUFFIX}.parquet"
    if parts.superseded is not None and len(parts.superseded):
        write_part(folder / f"{MARK_PREFIX}{newest}.parquet", parts.superseded)
    held, journals = merged_parts(
        one.path for one in parts.files if one.part.endswith(MERGED_SUFFIX)
    )
    held |= {file.part for file in parts.files if file.path != target}
    for path in {
        one.path for one in parts.files if one.size is not None and one.path.name in sealed
    }:
        found = read_journal(path)
        own = {one.part for one in found.files if one.kind == "results"}
        journals |= {path.name} if own <= held and not found.damaged else set()
    facts = {_PARTS: _pack_names(held), _JOURNALS: _pack_names(journals)}
    write_part(target, parts.table, {name.decode(): text for name, text in facts.items()})
    return len(parts.files)


def _remove_merged(folder: Path, later: float) -> None:
    """Remove loose parts that were merged a while ago; broken ones were never merged."""
    limit = time.time() - later
    old = [path for path in _merged_files(folder) if _stamp(path) / 1e9 <= limit]
    gone, _ = merged_parts(old)
    for name in list_names(folder, RESULTS_PREFIX, RESULTS_SUFFIXES) if gone else ():
        if RecordFile(folder / name).part in gone:
            (folder / name).unlink(missing_ok=True)


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
