"""Labels that would go wrong in silence: found, and refused with the row they stand in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engram.errors import bad

Array = npt.NDArray[Any]
MAX_CLASSES = 1_000_000  # a higher id is no count of classes
_SHOWN = 5  # wrong labels in an error
NO_NAME = "\uffff"  # pads sets of names; no text has this character


def check_one_type(part: Any) -> Array:
    """Labels as an array of numbers, booleans or text, never of a mixture or of objects.

    Examples
    --------
    >>> check_one_type([b"cat", b"dog"]).tolist()
    ['cat', 'dog']
    >>> check_one_type(["cat", 3])
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: y: expected labels of one type, got int and str
    >>> check_one_type([[3, 1], [2]]).tolist()
    [[3, 1], [2, -1]]
    """
    if is_ragged(part):
        return _pad_labels(part)
    if isinstance(part, Tensor):
        return part.detach().cpu().numpy()
    if isinstance(part, (list, tuple)):
        _refuse_mixture(part)
    try:
        array = np.asarray(part)
    except ValueError:  # lists within lists
        raise bad("y", "a label or a list of labels for each row", "lists that differ") from None
    if array.dtype.kind == "O":
        _refuse_mixture(array.ravel().tolist())
        array = np.array(array.tolist())
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    if array.dtype.kind not in "biufU":
        raise bad("y", "whole numbers or names as labels", f"dtype {array.dtype}")
    return array


def is_ragged(part: Any) -> bool:
    """Whether each row has a list of labels of its own, not all of one length.

    Examples
    --------
    >>> is_ragged([["cat", "pet"], ["oak"]]), is_ragged([[0, 1], [2, -1]]), is_ragged([0, 1])
    (True, False, False)
    """
    if isinstance(part, np.ndarray) and part.dtype == object and part.ndim == 1:
        part = part.tolist()
    if not isinstance(part, (list, tuple)) or not all(map(_is_set, part)):
        return False
    sets = any(isinstance(row, (set, frozenset)) for row in part)
    return sets or len({len(row) for row in part}) > 1


def _is_set(row: Any) -> bool:
    if isinstance(row, np.ndarray):
        return row.ndim == 1
    return isinstance(row, (list, tuple, set, frozenset))


def _pad_labels(part: Any) -> Array:
    """[N, L] the labels of each row, then -1, or `NO_NAME` behind names."""
    rows = [sorted(row) if isinstance(row, (set, frozenset)) else list(row) for row in part]
    flat = check_one_type([label for row in rows for label in row])
    if flat.ndim != 1:
        raise bad("y", "a label or a list of labels for each row", "lists that differ")
    if flat.dtype.kind == "b":
        expected = "class ids or names in lists of different lengths"
        raise bad("y", expected, "true and false, which need a column for every class")
    names = flat.dtype.kind == "U"
    flat = flat if names else to_whole_numbers("y", flat)
    lengths = np.array([len(row) for row in rows])
    there = np.arange(lengths.max(initial=1)) < lengths[:, None]
    table = np.full(there.shape, NO_NAME if names else -1, flat.dtype)
    table[there] = flat
    return table


def _refuse_mixture(values: Sequence[Any]) -> None:
    kinds = {type(one) for one in values}
    for row, one in enumerate(values if type(None) in kinds else ()):
        if one is None:
            raise bad("y", "a label for each row", f"none in row {row}")
    if kinds and all(issubclass(kind, (list, tuple)) for kind in kinds):
        _refuse_mixture([label for row in values for label in row])
        return
    texts = {kind for kind in kinds if issubclass(kind, (str, bytes))}
    truths = {kind for kind in kinds if issubclass(kind, (bool, np.bool_))}
    if any(some and kinds - some for some in (texts, truths)):
        raise bad("y", "labels of one type", _Types(kinds))
    for row, one in enumerate(values if texts else ()):
        if one[-1:] in ("\0", b"\0"):  # arrays of text drop it
            raise bad("y", "names with no NUL character at the end", f"{one!r} at place {row}")


class _Types:
    """Names of types, shown as they are."""

    def __init__(self, kinds: set[type[Any]]) -> None:
        self.kinds = kinds

    def __repr__(self) -> str:
        return " and ".join(sorted(kind.__name__ for kind in self.kinds))


def to_whole_numbers(argument: str, labels: Array) -> Array:
    """Labels as int64; fractions, nan, infinities and numbers too large are refused.

    Examples
    --------
    >>> to_whole_numbers("y", np.array([0.0, 2.0])).tolist()
    [0, 2]
    """
    if labels.dtype.kind == "f":
        wrong = ~np.isfinite(labels) | (labels != np.round(labels))
        if wrong.any():
            place = tuple(int(axis) for axis in np.argwhere(wrong)[0])
            expected = "whole numbers or names as labels, no continuous ones"
            raise bad(argument, expected, f"{labels[place]!s} in row {place[0]}")
    if labels.size and labels.max() >= MAX_CLASSES:
        raise bad(argument, f"class ids below {MAX_CLASSES}", labels.max().item())
    return labels.astype(np.int64)


def check_labels(where: str, values: Any, rows: int, classes: int | None = None) -> Array:
    """[rows] class ids from 0, below `classes`, or an error that says what is wrong with them.

    Examples
    --------
    >>> check_labels("labels", [0, 3, -1], 3, classes=3)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: labels: expected whole numbers from 0 to 2, got [3, -1]
    """
    if not isinstance(values, (list, tuple, np.ndarray)):
        raise bad(where, f"a list of {rows} labels", type(values).__name__)
    if len(values) != rows:
        raise bad(where, f"{rows} labels, one per row", len(values))
    try:
        label = np.asarray(values)
    except ValueError:  # lists of different lengths
        label = np.empty((rows, 0))
    if label.ndim != 1:
        raise bad(where, "one whole number per row", f"labels of shape {label.shape}")
    good = np.zeros(rows, bool)
    most = MAX_CLASSES if classes is None else classes
    if label.dtype.kind in "iuf":
        good = (label == np.round(label)) & (label >= 0) & (label < most)
    if not good.all():
        wrong = label[~good].tolist()[:_SHOWN]
        raise bad(where, f"whole numbers from 0 to {most - 1}", wrong)
    return label.astype(np.int64)


def refuse_unlabelled(y: Tensor, parts: dict[str, Tensor]) -> None:
    """Refuse rows of the split without a label: no task would have them, and nobody would know."""
    if y.is_floating_point() or y.is_complex():
        raise bad("y", "whole numbers", y.dtype)
    if len(y) and int(y.min()) < -1:
        raise bad("y", "class ids from 0 (-1 pads)", int(y.min()))
    for part, rows in parts.items():
        none = (y[rows, 0] < 0).nonzero()[:, 0] if len(rows) else rows
        if len(none):
            row = int(rows[none[0]])
            padded = bool((y[row] >= 0).any())
            expected = "-1 only after the labels of a row" if padded else "a label for each row"
            got = f"row {row}: {y[row].tolist()} (of {len(none)} such rows in {part})"
            raise bad("y", expected, got)


def refuse_similar_names(names: Sequence[str]) -> None:
    """Refuse names that differ in blanks alone, or are blank: one class would be several."""
    often = Counter(" ".join(name.split()) for name in names)
    if "" in often:
        raise bad("y", "a name for each class", "a blank one")
    twice = [name for name in names if often[" ".join(name.split())] > 1]
    if twice:
        raise bad("y", "class names that differ in more than whitespace", twice[:_SHOWN])


def notes_on_names(names: Sequence[str]) -> tuple[str, ...]:
    """What to tell about names that differ only in upper and lower case; letters may.

    Examples
    --------
    >>> notes_on_names(["cat", "Cat", "a", "A"])
    ("the classes 'cat', 'Cat' differ only in upper and lower case",)
    """
    often = Counter(name.casefold() for name in names if len(name) > 1)
    alike = [name for name in names if often[name.casefold()] > 1]
    if not alike:
        return ()
    shown = ", ".join(map(repr, alike[:_SHOWN]))
    return (f"the classes {shown} differ only in upper and lower case",)
