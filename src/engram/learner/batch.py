"""Training rows on their way from a task to a loss: `TrainingRows` are row numbers with labels and
weights, a `Batch` holds their inputs and is what a method's loss receives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from engram.errors import BadArgument, bad
from engram.streams.stream import Stream

NO_VALUES: dict[str, Tensor] = {}  # shared by all batches: never write into it


class Clock(NamedTuple):
    """Where a training step stands, as tensors [] of one run: for arithmetic, never for an `if`.

    Examples
    --------
    >>> times = (torch.tensor(number) for number in (12, 8, 20, 5))
    >>> clock = Clock(*times, lr=torch.tensor(0.1))  # the fifth step of a phase of 20
    >>> int(clock.step), round(float(clock.progress), 3), float(clock.epoch_progress)
    (4, 0.211, 1.0)
    """

    taken: Tensor  # [] steps of the task before this one
    began: Tensor  # [] steps of the task before this phase
    steps: Tensor  # [] steps of the phase, as planned: validation may end it earlier
    epoch_steps: Tensor  # [] steps of an epoch
    lr: Tensor  # [] learning rate of this step

    @property
    def step(self) -> Tensor:
        """[] steps of the phase before this one."""
        return self.taken - self.began

    @property
    def progress(self) -> Tensor:
        """[] from 0 in the first step of the phase to 1 in the last one."""
        return self.step / (self.steps - 1).clamp(min=1)

    @property
    def epoch_progress(self) -> Tensor:
        """[] from 0 in the first step of an epoch to 1 in the last one."""
        return (self.step % self.epoch_steps) / (self.epoch_steps - 1).clamp(min=1)


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
    memory: tuple[Batch, ...] = ()  # separate batches of memory rows (A-GEM, GEM)
    # [B, ...] what `Method.remember` stored with memory rows, 0 for other rows
    values: Mapping[str, Tensor] = NO_VALUES
    times: tuple[Tensor, ...] = ()  # those of `clock`; none outside of training steps

    def map(self, f: Callable[[Tensor], Tensor]) -> Batch:
        """Apply `f` to every tensor, those of separate memory batches included."""
        memory = tuple(batch.map(f) for batch in self.memory)
        values = {name: f(value) for name, value in self.values.items()}
        times = tuple(map(f, self.times))
        return Batch._make([*map(f, (*self.per_row, *self.shared)), memory, values, times])

    def select(self, rows: slice | Tensor) -> Batch:
        """Return some of the rows, of separate memory batches as well."""
        memory = tuple(batch.select(rows) for batch in self.memory)
        values = {name: value[rows] for name, value in self.values.items()}
        own = [value[rows] for value in self.per_row]
        return Batch._make([*own, *self.shared, memory, values, self.times])

    def join(self, other: Batch) -> Batch:
        """Append the rows of `other`; key, time and separate memory batches stay those of this one.

        Examples
        --------
        >>> rows, none = torch.arange(3.0), torch.zeros(0)
        >>> batch = Batch(*[rows] * 7, *[none] * 3, values={"logits": rows})
        >>> both = batch.join(batch.select(slice(1)))
        >>> both.x.tolist(), both.values["logits"].tolist()
        ([0.0, 1.0, 2.0, 0.0], [0.0, 1.0, 2.0, 0.0])
        """
        if self.values.keys() != other.values.keys():
            raise bad("other", f"rows with the values {sorted(self.values)}", sorted(other.values))
        own = [torch.cat(pair) for pair in zip(self.per_row, other.per_row, strict=True)]
        values = {name: torch.cat([one, other.values[name]]) for name, one in self.values.items()}
        return Batch._make([*own, *self.shared, self.memory, values, self.times])

    def order_padding_last(self) -> Tensor:
        """Return the order [B] of the rows in which those of weight 0 come last.

        Rows of two batches that pass side by side stand where they would without padding, as masks
        of dropout require: ``both.select(both.order_padding_last())``.

        Examples
        --------
        >>> rows, none = torch.arange(4.0), torch.zeros(0)
        >>> batch = Batch(*[rows] * 7, *[none] * 3)._replace(w=torch.tensor([1.0, 0.0, 1.0, 0.0]))
        >>> batch.order_padding_last().tolist()
        [0, 2, 1, 3]
        """
        return (self.w == 0).to(torch.int8).argsort(stable=True)

    @property
    def clock(self) -> Clock:
        """Number, learning rate and progress of the training step."""
        if not self.times:
            raise BadArgument("batch.clock: expected a batch of a training step, got one of a host")
        return Clock(*self.times)

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
        """The weights of the rows of this batch, and of those of separate memory batches."""
        return self.w, *(batch.w for batch in self.memory)

    @property
    def target(self) -> Tensor:
        """[B] the first label; 0 for rows without a label, whose weight is 0."""
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


# -- training rows ---------------------------------------------------------------------------------


class TrainingRows(NamedTuple):
    """Row numbers with their tasks, the labels used in training, and weights.

    Leading axes: [n] rows of one run, [R, n] of R runs (shorter ones are padded), [R, S, B] of S
    steps, [R, B] or [B] of one step. Padding repeats a real row with weight 0, so that no padded
    value can be infinite.
    """

    rows: Tensor  # [..., n] row numbers of the data
    stages: Tensor  # [..., n] the task in which each row is, or was, seen
    y: Tensor  # [..., n, L] labels as output columns, -1 hidden
    w: Tensor  # [..., n] row weights, 0 = padding
    slot: Tensor  # [..., n] place in the memory, -1 = a row of the task

    @property
    def length(self) -> int:
        """n, padding included."""
        return self.rows.shape[-1]

    @property
    def real(self) -> Tensor:
        """[...] number of rows without the padding."""
        return (self.w > 0).sum(-1)

    def take(self, which: Tensor) -> TrainingRows:
        """The rows [n] of one run at the given places, or where a mask is true."""
        return TrainingRows(*(leaf[which] for leaf in self))

    def join(self, more: TrainingRows) -> TrainingRows:
        """Append the rows `more`."""
        dim = self.rows.ndim - 1
        return TrainingRows(*(torch.cat(pair, dim) for pair in zip(self, more, strict=True)))

    def gather(self, index: Tensor) -> TrainingRows:
        """Select rows by their positions `index` [..., m]; with R runs, [R, S, B] within each run.

        Examples
        --------
        >>> own = torch.tensor([[5, 6, 7], [8, 9, 9]])  # of two runs
        >>> real = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
        >>> rows = TrainingRows(own, own * 0, own[..., None], real, own * 0 - 1)
        >>> rows.real.tolist()
        [3, 2]
        >>> rows.gather(torch.tensor([[2, 0], [0, 1]])).rows.tolist()
        [[7, 5], [8, 9]]
        """
        dim = self.rows.ndim - 1
        flat = index.flatten(dim)
        label = flat[..., None].expand(*flat.shape, self.y.shape[-1])
        rows, stages, y, w, slot = self
        return TrainingRows(
            rows.gather(dim, flat).view_as(index),
            stages.gather(dim, flat).view_as(index),
            y.gather(dim, label).view(*index.shape, -1),
            w.gather(dim, flat).view_as(index),
            slot.gather(dim, flat).view_as(index),
        )


def task_rows(stream: Stream, stage: int) -> TrainingRows:
    """Return the training rows of a task with their labels, cached for all runs over the stream."""
    known: dict[int, TrainingRows] = stream.__dict__.setdefault("_task_rows", {})
    if stage not in known:
        rows = stream.tasks[stage].train
        stages = torch.full_like(rows, stage)
        y, slot = visible_labels(stream, rows, stages), torch.full_like(rows, -1)
        known[stage] = TrainingRows(rows, stages, y, torch.ones(len(rows)), slot)
    return known[stage]


def visible_labels(stream: Stream, rows: Tensor, stages: Tensor) -> Tensor:
    """Return the labels [n, L] of rows; -1 for those that training does not use in their task."""
    y = stream.targets[rows]
    where = stages[:, None], y.clamp(min=0)
    return move_hidden_last(y, stream.used_in_training[where] & (y >= 0), stream.visible[where])


def move_hidden_last(y: Tensor, shown: Tensor, own: Tensor | None = None) -> Tensor:
    """Set hidden labels [n, L] to -1 and move them last: y[:, 0] is a label if there is any.

    Labels in `own`, those of the task's classes, come first.
    """
    hidden = torch.where(shown, y, -1)
    if hidden.shape[1] == 1:
        return hidden
    rank = (~shown).to(torch.int8) * 2
    first = (rank if own is None else rank - own.to(torch.int8)).argsort(dim=1, stable=True)
    return hidden.gather(1, first)
