"""The items of R runs as one table: shorter runs are padded and repeat a real row there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engram.learner.items import Items


class PaddedItems(NamedTuple):
    """(row, stage) items of R runs, padded to the longest."""

    rows: Tensor  # [R, n]
    stages: Tensor  # [R, n]
    y: Tensor  # [R, n, L]
    real: Tensor  # [R] how many items are real
    sizes: tuple[int, ...]  # the same, on the host
    weight: Tensor  # [R, n] row weights, mean 1 over the real items
    slot: Tensor  # [R, n] places in the memory, -1 = a row of the task

    @property
    def length(self) -> int:
        return self.rows.shape[1]


def pad_items(
    items: Sequence[Items], device: torch.device, *, class_weights: bool = False, multiple: int = 1
) -> PaddedItems:
    """Stack the items of several runs, padded to a multiple of so many rows."""
    longest = max(len(one.rows) for one in items)
    longest += -longest % multiple

    def padded(leaf: Tensor) -> Tensor:
        short = longest - len(leaf)
        return torch.cat([leaf, leaf[:1].expand(short, *leaf.shape[1:])]) if short else leaf

    stacked = [
        torch.stack([padded(leaf) for leaf in leaves]) for leaves in zip(*items, strict=True)
    ]
    sizes = tuple(len(one.rows) for one in items)
    rows, stages, y, slot = (leaf.to(device) for leaf in stacked)
    weight = [
        padded(_balanced(one.y[:, 0]) if class_weights else torch.ones(len(one.rows)))
        for one in items
    ]
    real = torch.tensor(sizes, device=device)
    return PaddedItems(rows, stages, y, real, sizes, torch.stack(weight).to(device), slot)


def _balanced(labels: Tensor) -> Tensor:
    """[n] weights that give every class the same total, mean 1."""
    counts = torch.bincount(labels.clamp(min=0))
    inverse = 1 / counts[labels.clamp(min=0)]
    return inverse * (len(labels) / inverse.sum())
