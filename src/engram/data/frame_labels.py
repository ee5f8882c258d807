"""Classes of the rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from engram.errors import bad

FEW = 20  # different values that any column of classes may have, however short the table


def table_labels(labels: Any, separator: str | None, name: str) -> tuple[list[Any], list[str]]:
    """A label, or a list of labels, for each row, and the names of all classes.

    Numbers are names, too: the classes 3, 7 and 9 are three, in this order.

    Examples
    --------
    >>> table_labels(pd.DataFrame({"kind": [7, 3, 7]}), None, "table")
    (['7', '3', '7'], ['3', '7'])
    >>> table_labels(pd.DataFrame({"kind": ["a;b", "b"]}), ";", "table")
    ([['a', 'b'], ['b']], ['a', 'b'])
    >>> table_labels(pd.DataFrame({"wet": [1, 0], "cold": [1, 1]}), None, "table")
    ([['wet', 'cold'], ['cold']], ['wet', 'cold'])
    """
    if len(labels.columns) > 1:
        return _marked(labels, name)
    column = labels.columns[0]
    values = labels[column]
    if separator is not None:
        cells = [sorted({p.strip() for p in str(one).split(separator)} - {""}) for one in values]
        empty = [row for row, one in enumerate(cells) if not one]
        if empty:
            where = f"column {column!r} of {name}"
            raise bad(where, "a label in every row", f"none in row {empty[0]}")
        return cells, sorted({one for cell in cells for one in cell})
    if pd.api.types.is_float_dtype(values):
        parted = values.to_numpy(np.float64)
        if not (parted == np.round(parted)).all():
            first = parted[parted != np.round(parted)][0]
            expected = "classes: whole numbers or names (regression targets are not supported)"
            raise bad(f"column {column!r} of {name}", expected, float(first))
        values = values.astype(np.int64)
    kinds = sorted(values.unique().tolist()) if pd.api.types.is_numeric_dtype(values) \
        else sorted(values.map(str).unique())  # fmt: skip
    if len(kinds) > max(FEW, len(values) // 2):
        got = f"{len(kinds):,} different values in {len(values):,} rows"
        raise bad(f"column {column!r} of {name}", "a column of classes, each with rows", got)
    return [str(one) for one in values], [str(one) for one in kinds]


def _marked(labels: Any, name: str) -> tuple[list[Any], list[str]]:
    """One column of yes and no for each class."""
    for column in labels.columns:
        values = labels[column]
        if not pd.api.types.is_numeric_dtype(values) or not values.isin([0, 1]).all():
            got = values[~values.isin([0, 1])].iloc[0] if values.dtype != object else values.iloc[0]
            expected = "0 and 1, in one column per class"
            raise bad(f"column {column!r} of {name}", expected, got)
    table, classes = labels.to_numpy().astype(bool), list(labels.columns)
    none = np.flatnonzero(~table.any(1))
    if len(none):
        raise bad("label", f"at least one class in every row of {name}", f"none in row {none[0]}")
    rows: list[Any] = [[classes[i] for i in np.flatnonzero(row)] for row in table]
    if all(len(row) == 1 for row in rows):
        rows = [row[0] for row in rows]
    return rows, classes
