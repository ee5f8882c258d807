"""Many small results files become few large ones, while others read and write.

A merged file says which parts it holds. From the moment it appears, readers pass those over, so
that no number counts twice; they are removed only later, when nobody can be in the middle of
reading them any more.
"""

from __future__ import annotations

import base64
import functools
import json
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from engram.disk import names
from engram.errors import RecordError
from engram.records.claims import Claims
from engram.records.files import read_json, write_json
from engram.records.parts import read_parts, write_part
from engram.records.superseded import PREFIX

MERGED = "-merged"
MANY = 256  # results files in a directory before some are merged
LATER = 300.0  # seconds for which parts stay after they have been merged
LISTS = 64  # files of lists of recipes before they become one
_PARTS = b"engram-parts"


def result_files(folder: Path, listed: Sequence[str] | None = None) -> list[Path]:
    """The results files that count, oldest first: without those that a merged one holds.

    `listed` are the names of files of the folder, where they are known.
    """
    found = names(folder, "results-", ".parquet") if listed is None else listed
    files = [folder / name for name in found if name.startswith("results-")]
    held = [_parts_of(path, _stamp(path)) for path in files if path.stem.endswith(MERGED)]
    return [path for path in files if not any(part_of(path) in parts for parts in held)]


def part_of(path: Path) -> str:
    """The id of the part that a results file is."""
    return path.stem.removeprefix("results-")


def parts_in(files: Iterable[Path]) -> set[str]:
    """Every part that some merged file among these holds."""
    merged = [path for path in files if path.stem.endswith(MERGED)]
    return {part for path in merged for part in _parts_of(path, _stamp(path))}


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # removed by now; whoever reads it says so
        return 0


@functools.lru_cache(maxsize=1024)
def _parts_of(path: Path, stamp: int) -> frozenset[str]:
    """The parts in one merged file; none if it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        facts = pq.read_metadata(path).metadata or {}
        text = zlib.decompress(base64.b64decode(facts[_PARTS]))
        return frozenset(json.loads(text))
    except (pa.ArrowException, OSError, ValueError, KeyError, zlib.error):
        return frozenset()


def merge(folder: Path, *, least: int = 2, later: float = LATER) -> int:
    """Merge results files where there are at least `least`; how many were merged.

    Files that are larger than all that came after them stay, so that no number is copied more often
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
        return _merge(folder, _newest(files, sparing=least > 2))
    finally:
        claims.close()


def _newest(files: list[Path], *, sparing: bool) -> list[Path]:
    """The files to merge: the newest ones, up to one that is larger than all of them."""
    if not sparing:
        return files
    chosen: list[Path] = []
    total = 0
    for path in reversed(files):
        size = path.stat().st_size
        if path.stem.endswith(MERGED) and size > total:
            break
        chosen.append(path)
        total += size
    return chosen


def _merge(folder: Path, files: list[Path]) -> int:
    parts = read_parts(files)
    if len(parts.files) < 2:
        return 0
    # Named after the newest part: ids of parts written meanwhile still sort after it.
    newest = max(path.stem for path in parts.files).removesuffix(MERGED)
    target = folder / f"{newest}{MERGED}.parquet"
    if parts.superseded is not None and len(parts.superseded):
        write_part(folder / f"{newest.replace('results-', PREFIX)}.parquet", parts.superseded)
    held = {part_of(path) for path in parts.files if path != target} | parts_in(parts.files)
    text = base64.b64encode(zlib.compress(json.dumps(sorted(held)).encode())).decode()
    write_part(target, parts.table, {_PARTS.decode(): text})
    return len(parts.files)


def _remove_merged(folder: Path, later: float) -> None:
    """Remove parts that have been in a merged file for a while; broken ones were never merged."""
    limit = time.time() - later
    files = [folder / name for name in names(folder, "results-", ".parquet")]
    old = [path for path in files if path.stem.endswith(MERGED) and _stamp(path) / 1e9 <= limit]
    gone = parts_in(old)
    for path in files:
        if part_of(path) in gone:
            path.unlink(missing_ok=True)


def _merge_lists(folder: Path) -> None:
    """One list of recipes in place of many, under the oldest one's name."""
    files = [folder / name for name in names(folder, "listed-", ".json")]
    if len(files) < LISTS:
        return
    try:
        every = dict.fromkeys(str(one) for path in files for one in read_json(path))
    except RecordError:  # whoever reads the list says what is broken
        return
    write_json(files[0], list(every))
    for path in files[1:]:
        path.unlink(missing_ok=True)
