"""Tables of new inputs: the columns that a model was trained on, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engram.deploy.labels import Array
from engram.errors import bad


def is_table(x: Any) -> bool:
    """Whether inputs are a table with named columns, such as a pandas DataFrame."""
    return hasattr(x, "columns") and hasattr(x, "iloc")


def features(table: Any, columns: Sequence[str], name: str = "x") -> Array:
    """[n, F] the features of training, in their order; further columns do not matter.

    A feature ``colour=red`` says whether the column ``colour`` is red, as in training; a value that
    training had not is none of those. ``size missing`` says whether ``size`` is not there, which
    then counts as 0.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"id": [7, 8], "colour": ["red", "blue"], "size": [1.5, 2]})
    >>> features(table, ["size", "colour=green", "colour=red"]).tolist()
    [[1.5, 0.0, 1.0], [2.0, 0.0, 0.0]]
    >>> features(pd.DataFrame({"size": [1.5, None]}), ["size", "size missing"]).tolist()
    [[1.5, 0.0], [0.0, 1.0]]
    """
    found = [_column(table, column, name) for column in columns]
    for place, column in enumerate(columns):
        if f"{column} missing" in columns:
            found[place] = np.nan_to_num(found[place], nan=0.0)
    return np.stack(found, 1).astype(np.float32)


def _column(table: Any, column: str, name: str) -> Array:
    if column in table.columns:
        try:
            numbers: Array = table[column].to_numpy(np.float64, na_value=np.nan)
        except (TypeError, ValueError):
            raise bad(f"column {column!r} of {name}", "numbers, as in training", "text") from None
        return numbers
    base = column.removesuffix(" missing")
    if base != column and base in table.columns:
        gaps: Array = table[base].isna().to_numpy()
        return gaps
    pieces = column.split("=")
    for cut in range(len(pieces) - 1, 0, -1):  # names and values may hold the sign themselves
        own, value = "=".join(pieces[:cut]), "=".join(pieces[cut:])
        if own in table.columns:
            is_value: Array = np.array([_text(one) == value for one in table[own].tolist()])
            return is_value
    wanted = pieces[0] if len(pieces) > 1 else column
    raise bad(f"columns of {name}", f"{wanted!r} among them, as in training", list(table.columns))


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
