"""Tables in Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engram.data.core import Data
from engram.data.csv_file import further
from engram.data.limits import check_size
from engram.errors import EngramError, bad


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
    more = further(path, read_parquet, test=test, valid=valid)
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
