"""Tables in files: CSV, TSV and Parquet."""

from __future__ import annotations

import gzip
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from engram.data.checked_files import check_size
from engram.data.dataset import Data
from engram.errors import EngramError, bad

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def is_csv(path: Path) -> bool:
    """Whether a file is called as tables in text files are."""
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


def find_beside(path: Path, argument: str, other: str) -> Path:
    """A further file: as it is written, or in the folder of the first one."""
    for one in (Path(other).expanduser(), path.parent / other):
        if one.is_file():
            return one
    raise bad(argument, f"a file, here or in {path.parent}", other)


def read_csv(path: Path, *, delimiter: str | None = None, header: bool = True) -> Any:
    """The table of a text file, or the reason why it is none.

    `delimiter` is what stands between columns (a comma, semicolon or tab is noticed by itself).
    Without a `header` the columns are called 0, 1, ...
    """
    import pandas as pd  # half a second, for whoever reads a table

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


def _make_reader(
    read: Callable[..., Any], name_of: Callable[[Path], str], described: str
) -> Callable[..., Data]:
    """A reader of data with the options of a reader of tables and those of `Data.from_frame`."""
    own = _options_of(read)

    def load(
        path: Path, *, test: str | None = None, valid: str | None = None, name: str | None = None,
        **options: Any,
    ) -> Data:  # fmt: skip
        read_one = partial(read, **{key: options.pop(key) for key in own if key in options})
        others = {"test": test, "valid": valid}
        more = {
            part: read_one(find_beside(path, part, other))
            for part, other in others.items()
            if other is not None
        }
        return Data.from_frame(read_one(path), **more, name=name or name_of(path), **options)

    every = {**_options_of(Data.from_frame), **own}
    load.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("path", inspect.Parameter.POSITIONAL_ONLY), *every.values()]
    )
    load.__doc__ = described
    return load


def _options_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    given = inspect.signature(function).parameters
    return {key: one for key, one in given.items() if one.kind is one.KEYWORD_ONLY}


load_csv = _make_reader(
    read_csv,
    lambda path: path.name.split(".")[0],
    "A table from a CSV file; `test` and `valid` are further files, found from here or beside it.",
)
load_parquet = _make_reader(
    read_parquet,
    lambda path: path.stem,
    "A table from a Parquet file; `test` and `valid` are further files.",
)
