"""Tables in files: CSV, TSV and Parquet."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from engram.data.checked_files import check_size
from engram.data.dataset import Data
from engram.errors import EngramError, bad

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def is_csv(path: Path) -> bool:
    """Whether a file is called as tables in text files are."""
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


def load_csv(
    path: Path,
    *,
    label: str | Sequence[str] | None = None,
    test: str | None = None,
    valid: str | None = None,
    split: str | None = None,
    categories: Sequence[str] = (),
    missing: str | float = "error",
    drop: str | Sequence[str] = (),
    separator: str | None = None,
    series: str | None = None,
    time: str | None = None,
    pad: str = "back",
    delimiter: str | None = None,
    header: bool = True,
    name: str | None = None,
) -> Data:
    """A table from a CSV file; `test` and `valid` are further files, found from here or beside it.

    `delimiter` is what stands between columns (a comma, semicolon or tab is noticed by itself).
    Without a `header` the columns are called 0, 1, ... For the others see `Data.from_frame`.
    """
    read = partial(read_csv, delimiter=delimiter, header=header)
    more = read_further_files(path, read, test=test, valid=valid)
    return Data.from_frame(
        read(path), **more, label=label, split=split, categories=categories, missing=missing,
        drop=drop, separator=separator, series=series, time=time, pad=pad,
        name=name or path.name.split(".")[0],
    )  # fmt: skip


def read_further_files(
    path: Path, read: Callable[[Path], Any], **names: str | None
) -> dict[str, Any]:
    """Tables of further files, by argument, of those that are given."""
    return {
        part: read(find_beside(path, part, name))
        for part, name in names.items()
        if name is not None
    }


def find_beside(path: Path, argument: str, other: str) -> Path:
    """A further file: as it is written, or in the folder of the first one."""
    for one in (Path(other).expanduser(), path.parent / other):
        if one.is_file():
            return one
    raise bad(argument, f"a file, here or in {path.parent}", other)


def read_csv(path: Path, delimiter: str | None = None, header: bool = True) -> Any:
    """The table of a text file, or the reason why it is none."""
    try:
        if delimiter is None:
            delimiter = _guess_delimiter(path)
        found = pd.read_csv(
            path,
            sep=delimiter,
            header=0 if header else None,
            low_memory=False,
            skipinitialspace=True,
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, OSError) as error:
        raise bad(str(path), "a table in a text file (CSV)", str(error).splitlines()[0]) from None
    if header and all(_is_number(column) for column in found.columns):
        expected = "a first line with column names (header=False if there is none)"
        raise bad(str(path), expected, list(found.columns)[:4])
    return found.set_axis([str(column).strip() for column in found.columns], axis=1)


def _guess_delimiter(path: Path) -> str:
    """What stands between columns, by the first line."""
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as stream:
        line = stream.readline()
    return max(",;\t", key=line.count)


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# ------------------------------------------------------------------------------------------------
# Tables in Parquet files.


def load_parquet(
    path: Path,
    *,
    label: str | Sequence[str] | None = None,
    test: str | None = None,
    valid: str | None = None,
    split: str | None = None,
    categories: Sequence[str] = (),
    missing: str | float = "error",
    drop: str | Sequence[str] = (),
    separator: str | None = None,
    series: str | None = None,
    time: str | None = None,
    pad: str = "back",
    name: str | None = None,
) -> Data:
    """A table from a Parquet file; `test` and `valid` are further files. See `Data.from_frame`."""
    more = read_further_files(path, read_parquet, test=test, valid=valid)
    return Data.from_frame(
        read_parquet(path), **more, label=label, split=split, categories=categories,
        missing=missing, drop=drop, separator=separator, series=series, time=time, pad=pad,
        name=name or path.stem,
    )  # fmt: skip


def read_parquet(path: Path) -> Any:
    """The table of a Parquet file, or the reason why it is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        told = pq.read_metadata(path)
        check_size(str(path), told.num_rows * told.num_columns * 8, path.stat().st_size)
        table = pq.read_table(path)
        table.validate(full=True)
        return table.to_pandas()
    except EngramError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise bad(str(path), "a Parquet file", str(error).splitlines()[0]) from None
