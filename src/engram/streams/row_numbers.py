"""Row numbers of a split: checks, JSON form, shuffling, holding out and exact fractions."""

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
    """`rows` as a 1-D int64 tensor, or an error."""
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
    """Row numbers as JSON: ``{"range": [start, stop]}`` where they run on, a list otherwise.

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
    """Row numbers from what `pack_rows` wrote."""
    if isinstance(packed, dict):
        ends = packed.get("range")
        if set(packed) != {"range"} or not isinstance(ends, list) or len(ends) != 2:
            raise bad(argument, "a list of rows or {'range': [start, stop]}", packed)
        return torch.arange(*ends)
    return check_rows(argument, packed)


def find_rows_with(data: Data, rows: Tensor, classes: Iterable[int]) -> Tensor:
    """Those of `rows`, ascending, that carry a label among `classes`."""
    wanted = torch.zeros(data.n_classes + 1, dtype=torch.bool)  # the last entry answers for -1
    wanted[list(classes)] = True
    hit = wanted[data.y[rows].cpu()].any(dim=1)
    return rows[hit].sort().values


def find_classes_in(data: Data, *parts: Tensor) -> set[int]:
    """Class ids that label some of these rows."""
    found = torch.cat([data.y[rows].flatten() for rows in parts]).unique().tolist()
    return {label for label in found if label >= 0}


def split_by_class(data: Data, rows: Tensor) -> list[Tensor]:
    """The rows of each (first) label apart, in the order given; groups by their first row.

    Sorting by row and not by label keeps draws that go from group to group free of class ids.
    """
    labels = data.labels[rows].cpu()
    counts = labels.unique(return_counts=True)[1]
    groups = rows[labels.argsort(stable=True)].split(counts.tolist())
    return sorted(groups, key=lambda group: int(group[0]))


def shuffle_rows(rows: Tensor, seed: int, purpose: str) -> Tensor:
    """Rows in a keyed order.

    The key names the first row, never the class: other class ids or another class order leave
    the draw as it is.
    """
    if not len(rows):
        return rows
    return rows[keys.permutation(keys.fold(seed, purpose, int(rows[0])), len(rows), len(rows))]


def hold_out(data: Data, rows: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split rows into (kept, held out), a keyed share of every class, both ascending."""
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
    """The share to hold out, refused where the data already has its validation rows."""
    check_float("valid", valid, 0.0, 1.0)
    if valid >= 1:
        raise bad("valid", "a fraction in [0, 1)", valid)
    if valid > 0 and len(data.valid):
        raise bad("valid", f"0.0, since {data.name!r} has {len(data.valid)} validation rows of its "
                  "own", valid)  # fmt: skip
    return valid


def partition_rows(groups: Sequence[Tensor], hands: int, seed: int) -> list[Tensor]:
    """Deal the rows of every group into `hands` parts of almost equal size, keyed, ascending."""
    parts: list[list[Tensor]] = [[] for _ in range(hands)]
    start = 0  # goes on from group to group, so that left-overs do not pile up in the first part
    for group in groups:
        mixed = shuffle_rows(group, seed, "deal")
        place = (torch.arange(len(mixed)) + start) % hands
        for k in range(hands):
            parts[k].append(mixed[place == k])
        start += len(mixed)
    return [torch.cat(part).sort().values if part else torch.empty(0).long() for part in parts]


# -- exact fractions of a number of rows -----------------------------------------------------------


def exact_fraction(share: float) -> Fraction:
    """The decimal number that is meant, not its neighbour in binary.

    Examples
    --------
    >>> exact_fraction(0.29)
    Fraction(29, 100)
    """
    return Fraction(str(float(share)))


def count_fraction(share: float | Fraction, rows: int) -> int:
    """How many of `rows` a share is, rounded down.

    Examples
    --------
    >>> count_fraction(0.29, 100), int(0.29 * 100)
    (29, 28)
    """
    return int((share if isinstance(share, Fraction) else exact_fraction(share)) * rows)
