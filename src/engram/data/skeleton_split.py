"""Training, validation and test rows of skeletons, class by class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from engram import keys
from engram.errors import bad, whole


def split_within_classes(label: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Rows of train, valid and test, 8:1:1 per class with floors; what is left over is unused.

    Examples
    --------
    >>> parts = split_within_classes(torch.zeros(66, dtype=torch.long))
    >>> {part: len(rows) for part, rows in parts.items()}
    {'train': 52, 'valid': 6, 'test': 6}
    """
    chosen: dict[str, list[Tensor]] = {"train": [], "valid": [], "test": []}
    for mixed in _mixed_classes(label, seed):
        held, kept = len(mixed) // 10, len(mixed) * 8 // 10
        chosen["test"].append(mixed[:held])
        chosen["valid"].append(mixed[held : 2 * held])
        chosen["train"].append(mixed[2 * held : 2 * held + kept])
    return _sorted_parts(chosen)


def split_as_stored(label: Tensor, last: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Rows of train, valid and test, cut per class in that order with the rows of `last` behind.

    Validation and test get a tenth each, rounded down but at least one row, training all others.
    Within the rows of `last` [N] bool, and within the others, the seed draws the order.

    Examples
    --------
    >>> label = torch.zeros(66, dtype=torch.long)
    >>> parts = split_as_stored(label, torch.arange(66) % 3 == 0)
    >>> {part: len(rows) for part, rows in parts.items()}
    {'train': 54, 'valid': 6, 'test': 6}
    >>> (parts["test"] % 3).unique().tolist()
    [0]
    """
    chosen: dict[str, list[Tensor]] = {"train": [], "valid": [], "test": []}
    for mixed in _mixed_classes(label, seed):
        count, late = len(mixed), last[mixed]
        held = max(1, count // 10)
        if int(late.sum()) < held or count < 3:
            wanted = f"'drawn', or 3 sequences and more in each class, {held} of its test part"
            raise bad("held", wanted, f"stored, a class of {count} with {int(late.sum())}")
        stored = torch.cat([mixed[~late], mixed[late]])
        for part, rows in zip(chosen, stored.split([count - 2 * held, held, held]), strict=True):
            chosen[part].append(rows)
    return _sorted_parts(chosen)


def _mixed_classes(label: Tensor, seed: int) -> Iterator[Tensor]:
    """The rows of one class after the other, in an order that the seed draws."""
    for value in label.unique().tolist():
        rows = (label == value).nonzero()[:, 0]
        key = keys.fold(whole("seed", seed), "skeleton split", value)
        yield rows[keys.order(key, len(rows), len(rows))]


def _sorted_parts(chosen: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    return {part: torch.cat(list(rows)).sort().values for part, rows in chosen.items()}
