"""`Batch`, what a method's loss sees of the data at one step, and the labels that may be shown
for its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from engram.streams.stream import Stream

NO_VALUES: dict[str, Tensor] = {}  # shared, so never to be written


class Batch(NamedTuple):
    """Rows of the current task and, where the method replays, of its memory.

    B rows, L labels at most per row, C output columns (classes in order of introduction).
    """

    x: Tensor  # [B, ...] inputs, scaled and viewed
    y: Tensor  # [B, L] visible labels as output columns, -1 pads
    w: Tensor  # [B] row weights, 0 = padding; take means as sum(w * l) / sum(w)
    stage: Tensor  # [B] task in which the row was, or is, seen
    old: Tensor  # [B] 1 = from memory
    open: Tensor  # [B, C] classes that compete for this row (the training scope)
    slot: Tensor  # [B] place of the row in the memory, -1 = a row of the task
    opened: Tensor  # [C] stage that opened each class, -1 not yet
    now: Tensor  # [] current stage
    key: Tensor  # [] randomness of this step
    memory: tuple[Batch, ...] = ()  # batches kept apart (A-GEM, GEM)
    values: Mapping[str, Tensor] = (
        NO_VALUES  # [B, ...] what `remember` kept with memory rows, else 0
    )

    def map(self, f: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with `f` applied to every tensor, batches kept apart included."""
        apart = tuple(one.map(f) for one in self.memory)
        values = {name: f(value) for name, value in self.values.items()}
        return Batch._make([*map(f, (*self.per_row, *self.shared)), apart, values])

    @property
    def per_row(self) -> tuple[Tensor, ...]:
        """The tensors with a leading axis B."""
        return self[:7]

    @property
    def shared(self) -> tuple[Tensor, ...]:
        """The other tensors: `opened`, `now`, `key`."""
        return self[7:10]

    @property
    def row_weights(self) -> tuple[Tensor, ...]:
        """The weights of the rows here, and of those in batches kept apart."""
        return self.w, *(one.w for one in self.memory)

    @property
    def target(self) -> Tensor:
        """[B] the first label, 0 where there is none (its weight is 0 then)."""
        return self.y[..., 0].clamp(min=0)

    @property
    def seen(self) -> Tensor:
        """[C] classes opened so far."""
        return self.opened >= 0

    @property
    def new(self) -> Tensor:
        """[C] classes opened by the current task."""
        return self.opened == self.now

    @property
    def known(self) -> Tensor:
        """[C] classes opened before the current task."""
        return (self.opened >= 0) & (self.opened < self.now)


# ------------------------------------------------------------------------------------------------
# Rows of a stream as of a stage, with the labels that training is told of them.


class LabelledRows(NamedTuple):
    """(row, stage) pairs with the labels that may be shown for them."""

    rows: Tensor  # [n]
    stages: Tensor  # [n]
    y: Tensor  # [n, L] output columns, -1 hidden
    slot: Tensor  # [n] place in the memory, -1 = a row of the task


def task_items(stream: Stream, stage: int) -> LabelledRows:
    """The training rows of a task with their labels; made once for all runs over the stream."""
    known: dict[int, LabelledRows] = stream.__dict__.setdefault("_task_items", {})
    if stage not in known:
        rows = stream.tasks[stage].train
        stages = torch.full_like(rows, stage)
        y, slot = visible_labels(stream, rows, stages), torch.full_like(rows, -1)
        known[stage] = LabelledRows(rows, stages, y, slot)
    return known[stage]


def visible_labels(stream: Stream, rows: Tensor, stages: Tensor) -> Tensor:
    """[n, L] labels of rows, hidden (-1) unless training is told them in the row's stage."""
    y = stream.targets[rows]
    where = stages[:, None], y.clamp(min=0)
    return move_hidden_last(y, stream.told[where] & (y >= 0), stream.visible[where])


def move_hidden_last(y: Tensor, shown: Tensor, own: Tensor | None = None) -> Tensor:
    """[n, L] labels with the hidden ones as -1 behind: y[:, 0] is a label where there is one.

    Those of the task's `own` classes come first.
    """
    hidden = torch.where(shown, y, -1)
    if hidden.shape[1] == 1:
        return hidden
    rank = (~shown).to(torch.int8) * 2
    first = (rank if own is None else rank - own.to(torch.int8)).argsort(dim=1, stable=True)
    return hidden.gather(1, first)
