"""Operations on row numbers: checks, JSON form, shuffling, holding out, exact fractions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from engram import keys
from engram.data.dataset import Data
from engram.errors import bad, check_float

ROW_PARTS = ("train", "valid", "post_valid", "test")  # kinds of rows that a task has


def check_rows(argument: str, rows: Any) -> Tensor:
    """Convert `rows` to a 1-D int64 tensor, or raise."""
    try:
        tensor = torch.as_tensor(list(rows) if isinstance(rows, range) else rows)
    except (TypeError, ValueError, RuntimeError):
        raise bad(argument, "row numbers", rows) from None
    if tensor.ndim != 1:
        raise bad(argument, "row numbers of shape [n]", tuple(tensor.shape))
    if len(tensor) and (tensor.is_floating_point() or tensor.dtype == torch.bool):
        raise bad(argument, "whole row numbers", tensor.dtype)
    return tensor.long()


def pack_rows(rows: Tensor) -> Any:
    """Convert row numbers to JSON values: ``{"range": [start, stop]}`` if consecutive, else a list.

    Examples
    --------
    >>> pack_rows(torch.tensor([4, 5, 6])), pack_rows(torch.tensor([4, 6]))
    ({'range': [4, 7]}, [4, 6])
    """
    numbers: list[int] = rows.tolist()
    if numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return {"range": [numbers[0], numbers[-1] + 1]}
    return numbers


def unpack_rows(argument: str, packed: Any) -> Tensor:
    """Convert the JSON values of `pack_rows` to row numbers."""
    if isinstance(packed, dict):
        ends = packed.get("range")
        if set(packed) != {"range"} or not isinstance(ends, list) or len(ends) != 2:
            raise bad(argument, "a list of rows or {'range': [start, stop]}", packed)
        return torch.arange(*ends)
    return check_rows(argument, packed)


def find_rows_with(data: Data, rows: Tensor, classes: Iterable[int]) -> Tensor:
    """Return those of `rows`, ascending, that have a label among `classes`."""
    wanted = torch.zeros(data.n_classes + 1, dtype=torch.bool)  # the last entry is for -1
    wanted[list(classes)] = True
    hit = wanted[data.y[rows].cpu()].any(dim=1)
    return rows[hit].sort().values


def find_classes_in(data: Data, *parts: Tensor) -> set[int]:
    """Return the class ids that occur as labels of these rows."""
    found = torch.cat([data.y[rows].flatten() for rows in parts]).unique().tolist()
    return {label for label in found if label >= 0}


def split_by_class(data: Data, rows: Tensor) -> list[Tensor]:
    """Group rows by their (first) label, keeping their order; groups are sorted by first row.

    Sorting groups by row and not by label makes draws over groups independent of class ids.
    """
    labels = data.labels[rows].cpu()
    counts = labels.unique(return_counts=True)[1]
    groups = rows[labels.argsort(stable=True)].split(counts.tolist())
    return sorted(groups, key=lambda group: int(group[0]))


def shuffle_rows(rows: Tensor, seed: int, purpose: str) -> Tensor:
    """Shuffle rows by a key.

    The key depends on the first row and not on the class, so that the draw does not depend on class
    ids or the class order.
    """
    if not len(rows):
        return rows
    return rows[keys.permutation(keys.fold(seed, purpose, int(rows[0])), len(rows), len(rows))]


def hold_out(data: Data, rows: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split rows into (kept, held out) by drawing a share of every class; both are ascending."""
    rows = rows.sort().values
    if share == 0 or not len(rows):
        return rows, rows[:0]
    kept, held = [], []
    for group in split_by_class(data, rows):
        count = count_fraction(share, len(group))
        mixed = shuffle_rows(group, seed, "valid")
        held.append(mixed[:count])
        kept.append(mixed[count:])
    return torch.cat(kept).sort().values, torch.cat(held).sort().values


def check_valid(data: Data, valid: float) -> float:
    """Return the share to hold out; raise if the data has validation rows already."""
    check_float("valid", valid, 0.0, 1.0)
    if valid >= 1:
        raise bad("valid", "a fraction in [0, 1)", valid)
    if valid > 0 and len(data.valid):
        raise bad("valid", f"0.0, since {data.name!r} has {len(data.valid)} validation rows of its "
                  "own", valid)  # fmt: skip
    return valid


def partition_rows(groups: Sequence[Tensor], count: int, seed: int) -> list[Tensor]:
    """Partition the rows of every group at random into parts of almost equal size, ascending."""
    parts: list[list[Tensor]] = [[] for _ in range(count)]
    start = 0  # continues over groups, so that remainders do not accumulate in the first part
    for group in groups:
        mixed = shuffle_rows(group, seed, "deal")
        place = (torch.arange(len(mixed)) + start) % count
        for k in range(count):
            parts[k].append(mixed[place == k])
        start += len(mixed)
    return [torch.cat(part).sort().values if part else torch.empty(0).long() for part in parts]


# -- exact fractions of a number of rows -----------------------------------------------------------


def exact_fraction(share: float) -> Fraction:
    """Return the decimal number as it is written, instead of its binary approximation.

    Examples
    --------
    >>> exact_fraction(0.29)
    Fraction(29, 100)
    """
    return Fraction(str(float(share)))


def count_fraction(share: float | Fraction, rows: int) -> int:
    """Return a share of `rows`, rounded down.

    Examples
    --------
    >>> count_fraction(0.29, 100), int(0.29 * 100)
    (29, 28)
    """
    return int((share if isinstance(share, Fraction) else exact_fraction(share)) * rows)
