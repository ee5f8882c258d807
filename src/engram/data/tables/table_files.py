"""Tables in files: CSV, TSV and Parquet."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from engram.data.dataset import Data
from engram.data.tables.table_rows import guess_delimiter, read_csv_texts, read_parquet_table
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
            delimiter = guess_delimiter(path)
        names = list(read_csv_texts(path, delimiter=delimiter, rows=1).columns) if header else []
        found = pd.read_csv(
            path,
            sep=delimiter,
            header=0 if header else None,
            low_memory=False,
            skipinitialspace=True,
        )
    except EngramError:
        raise
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, OSError) as error:
        raise bad(str(path), "a table in a text file (CSV)", str(error).splitlines()[0]) from None
    if header and all(_is_number(column) for column in found.columns):
        expected = "a first line with column names (header=False if there is none)"
        raise bad(str(path), expected, list(found.columns)[:4])
    if not isinstance(found.index, pd.RangeIndex):  # pandas takes the first field for a name
        raise bad(str(path), f"rows of {found.shape[1]} fields, as the first one", "longer ones")
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise bad(f"columns of {path}", "names that differ", twice)
    return found.set_axis([str(column).strip() for column in found.columns], axis=1)


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
    read_parquet_table,
    lambda path: path.stem,
    "A table from a Parquet file; `test` and `valid` are further files.",
)
