"""Rows with named columns in any form (a pandas table, records, columns by name, Arrow), and the
texts of a CSV file as they are written.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engram.data.checked_files import check_size
from engram.errors import EngramError, bad

NO_TABLE = "a table: a pandas.DataFrame, records [{...}, ...] or columns {'name': [...], ...}"


def is_table(x: Any) -> bool:
    """Whether inputs are rows with named columns.

    Examples
    --------
    >>> is_table([{"size": 1.5}]), is_table({"size": [1.5]}), is_table([[1.5]]), is_table([])
    (True, True, False, False)
    """
    if isinstance(x, (list, tuple)):
        return bool(x) and any(isinstance(one, Mapping) for one in x)
    if hasattr(x, "tocsr"):  # a sparse matrix of scipy, one kind of which is a mapping
        return False
    return isinstance(x, Mapping) or (hasattr(x, "columns") and hasattr(x, "iloc")) or (
        hasattr(x, "to_pandas") and hasattr(x, "columns")  # Arrow, polars
    )  # fmt: skip


def to_frame(x: Any, name: str = "x") -> Any:
    """Rows with named columns as a pandas table; the values of records stay as they are.

    Examples
    --------
    >>> to_frame([{"size": 1, "hue": "red"}, {"hue": None}]).to_dict("list")
    {'size': [1, None], 'hue': ['red', None]}
    """
    import pandas as pd

    if hasattr(x, "to_pandas"):
        x = x.to_pandas()
    if isinstance(x, pd.DataFrame):
        return x
    if isinstance(x, Mapping):
        return _join_columns({column: _list_column(x, column, name) for column in x}, name)
    if not isinstance(x, (list, tuple)) or not x:
        raise bad(name, NO_TABLE, type(x).__name__)
    for row, one in enumerate(x):
        if not isinstance(one, Mapping):
            raise bad(f"{name}[{row}]", "a record {'column': value}, as the others", one)
    names = dict.fromkeys(column for one in x for column in one)
    return _join_columns({column: [one.get(column) for one in x] for column in names}, name)


def _list_column(x: Mapping[Any, Any], column: Any, name: str) -> list[Any]:
    values = x[column]
    if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__len__"):
        expected = "a list of values for each column (one row: a list of one record, [{...}])"
        raise bad(f"{name}[{column!r}]", expected, values)
    return list(values)


def _join_columns(columns: Mapping[Any, list[Any]], name: str) -> Any:
    """A table of columns of Python's own values, so that no number changes its type."""
    import numpy as np
    import pandas as pd

    counts = {column: len(values) for column, values in columns.items()}
    if len(set(counts.values())) > 1:
        raise bad(name, "columns of equal length", dict(list(counts.items())[:5]))
    made = np.empty((max(counts.values(), default=0), len(columns)), object)
    for place, values in enumerate(columns.values()):
        for row, one in enumerate(values):  # a list in a cell stays one value
            made[row, place] = one
    names = pd.Index([str(one) for one in columns], dtype=object)
    return pd.DataFrame(made, columns=names, dtype=object)


def read_csv_texts(
    source: Path | bytes, *, delimiter: str | None = None, rows: int | None = None
) -> Any:
    r"""A table of the texts of a CSV file as they are written; empty fields are missing.

    A schema says what they mean, so that no column changes its type from week to week.

    Examples
    --------
    >>> read_csv_texts(b"zip;hue\n08001;NA\n").to_dict("list")
    {'zip': ['08001'], 'hue': ['NA']}
    """
    import pandas as pd

    name = str(source) if isinstance(source, Path) else "CSV"
    try:
        if delimiter is None:
            delimiter = guess_delimiter(source)
        read = pd.read_csv(
            source if isinstance(source, Path) else io.BytesIO(source), sep=delimiter, header=None,
            dtype=str, keep_default_na=False, na_values=[""], skipinitialspace=True,
            nrows=rows,
        )  # fmt: skip
    except (ValueError, OSError) as error:  # pandas' own errors are among them
        raise bad(name, "a table in a text file (CSV)", str(error).splitlines()[0]) from None
    names = [f"Unnamed: {place}" if pd.isna(one) else str(one).strip()
             for place, one in enumerate(read.iloc[0])]  # fmt: skip
    return read.iloc[1:].reset_index(drop=True).set_axis(names, axis=1)


def guess_delimiter(source: Path | bytes) -> str:
    """What stands between columns, by the first line.

    Examples
    --------
    >>> guess_delimiter(b"size;hue")
    ';'
    """
    if isinstance(source, bytes):
        line = source.partition(b"\n")[0].decode("utf-8")
    else:
        opened = gzip.open if source.suffix.lower() == ".gz" else open
        with opened(source, "rt", encoding="utf-8") as stream:
            line = stream.readline()
    return max(",;\t", key=line.count)


def read_parquet_table(source: Path | bytes) -> Any:
    """The table of a Parquet file, or the reason why it is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = str(source) if isinstance(source, Path) else "Parquet"
    size = source.stat().st_size if isinstance(source, Path) else len(source)
    try:
        file = pa.BufferReader(source) if isinstance(source, bytes) else source
        told = pq.read_metadata(file)
        check_size(name, told.num_rows * told.num_columns * 8, size)
        file = pa.BufferReader(source) if isinstance(source, bytes) else source
        table = pq.read_table(file)
        table.validate(full=True)
        return table.to_pandas()
    except EngramError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise bad(name, "a Parquet file", str(error).splitlines()[0]) from None
