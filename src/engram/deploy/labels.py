"""Labels as a user writes them, and the output columns behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.data.labels import one_type, whole_numbers
from engram.errors import bad

Array = npt.NDArray[Any]


def kind_of(names: Sequence[str]) -> str:
    """What labels were before they became names: numbers, if all names are written so.

    Examples
    --------
    >>> kind_of(["0", "12"]), kind_of(["cat", "7"]), kind_of(["007"])
    ('int', 'str', 'str')
    """
    numbers = (name.removeprefix("-") for name in names)
    return (
        "int" if all(n.isascii() and n.isdigit() and str(int(n)) == n for n in numbers) else "str"
    )


def as_labels(y: Any, rows: int, argument: str = "y") -> tuple[Array, str]:
    """[n] labels, one for each row, and their kind; sets of labels are refused."""
    found = one_type(y)
    if found.ndim != 1 or len(found) != rows:
        raise bad(argument, f"one label for each of {rows} rows", f"shape {found.shape}")
    if found.dtype.kind in "iuf":
        return whole_numbers(argument, found), "int"
    return found, "bool" if found.dtype.kind == "b" else "str"


def as_values(names: Sequence[str], kind: str) -> Array:
    """Names as the labels that a user gave.

    Examples
    --------
    >>> as_values(["3", "1"], "int").tolist(), as_values(["True"], "bool").tolist()
    ([3, 1], [True])
    """
    if kind == "int":
        return np.array([int(name) for name in names], dtype=np.int64)
    if kind == "bool":
        return np.array([name == "True" for name in names], dtype=np.bool_)
    return np.array(list(names), dtype=np.str_)


def as_names(labels: Array) -> list[str]:
    """The names of labels, one for each."""
    return [str(label) for label in labels.tolist()]
