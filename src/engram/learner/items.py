"""Rows of a stream as of a stage, with the labels that training is told of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engram.streams.core import Stream


class Items(NamedTuple):
    """(row, stage) pairs with the labels that may be shown for them."""

    rows: Tensor  # [n]
    stages: Tensor  # [n]
    y: Tensor  # [n, L] output columns, -1 hidden
    slot: Tensor  # [n] place in the memory, -1 = a row of the task


def task_items(stream: Stream, stage: int) -> Items:
    """The training rows of a task with their labels; made once for all runs over the stream."""
    known: dict[int, Items] = stream.__dict__.setdefault("_task_items", {})
    if stage not in known:
        rows = stream.tasks[stage].train
        stages = torch.full_like(rows, stage)
        y, slot = visible_labels(stream, rows, stages), torch.full_like(rows, -1)
        known[stage] = Items(rows, stages, y, slot)
    return known[stage]


def visible_labels(stream: Stream, rows: Tensor, stages: Tensor) -> Tensor:
    """[n, L] labels of rows, hidden (-1) unless training is told them in the row's stage."""
    y = stream.targets[rows]
    where = stages[:, None], y.clamp(min=0)
    return shown_first(y, stream.told[where] & (y >= 0), stream.visible[where])


def shown_first(y: Tensor, shown: Tensor, own: Tensor | None = None) -> Tensor:
    """[n, L] labels with the hidden ones as -1 behind: y[:, 0] is a label where there is one.

    Those of the task's `own` classes come first.
    """
    hidden = torch.where(shown, y, -1)
    if hidden.shape[1] == 1:
        return hidden
    rank = (~shown).to(torch.int8) * 2
    first = (rank if own is None else rank - own.to(torch.int8)).argsort(dim=1, stable=True)
    return hidden.gather(1, first)
