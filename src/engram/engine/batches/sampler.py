"""Which rows each step of an epoch sees: a pure function of (seed, stage, epoch, step).

Runs trained together are sampled at once, [R, S, B]: R runs, S steps, B rows. A shorter run is
padded by weight and repeats a real row there, so that no padding value can be infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.engine.batches.padding import PaddedItems
from engram.engine.batches.reservoir import Contents, Reservoir
from engram.memory.exemplars import Exemplars

EPOCHS_AHEAD = 64
STRETCH = 200  # iterations sampled at once
AS_BATCH = -1  # as many memory rows as the batch has of the task


class IndexBatch(NamedTuple):
    """The rows of S steps."""

    rows: Tensor  # [R, S, B]
    stages: Tensor  # [R, S, B]
    y: Tensor  # [R, S, B, L]
    w: Tensor  # [R, S, B]
    slot: Tensor  # [R, S, B]


class Minibatches(NamedTuple):
    """Everything S steps need: the main batch, batches kept apart, a key per step."""

    main: IndexBatch
    apart: tuple[IndexBatch, ...]
    key: Tensor  # [R, S]
    lengths: tuple[int, ...]  # [S] real rows of the longest run's main batch
    live: np.ndarray  # [R, S] whether a run has any row at that step
    into: Tensor | tuple[()] = ()  # [R, S, B] slot that a row of the main batch enters, or -1


class Sampler:
    """Samples the epochs of one phase of a task, or stretches of its iterations."""

    def __init__(
        self,
        main: PaddedItems,
        memory: Sequence[PaddedItems],
        *,
        seeds: Sequence[int],
        stage: int,
        batch_size: int,
        last: str,
        pair: bool,
        memory_size: int,
        dtype: torch.dtype,
        reservoir: Reservoir | None = None,
        iterations: int = 0,
    ) -> None:
        self.main, self.memory, self.stage = main, list(memory), stage
        self.device, self.dtype, self.last, self.pair = main.rows.device, dtype, last, pair
        self.batch = min(batch_size, main.length) if batch_size else main.length
        self.memory_size = memory_size  # 0: all items, in order; or AS_BATCH
        self.seeds = torch.tensor(list(seeds), device=self.device)
        self.whole = self.batch >= main.length  # one batch is the epoch: no order to draw
        self._keys: tuple[int, keys.Key] = (-1, 0)
        self.reservoir = reservoir  # the memory is a reservoir that changes with every step
        self.total = iterations  # 0: epochs are sampled
        self._first: Minibatches | None = None  # the rows of every epoch, where they are the same

    # -- in order ----------------------------------------------------------------------------------
    @property
    def chunks(self) -> int:
        """Stretches of iterations, 0 where epochs are sampled."""
        return -(-self.total // STRETCH)

    def __call__(self, number: int) -> Minibatches:
        """The rows of an epoch, or of a stretch of iterations; to be called in order."""
        if self.total:
            start = number * STRETCH
            return self.iterations(start, min(start + STRETCH, self.total))
        if not self.fixed:
            return self.epoch(number)
        self._first = self._first or self.epoch(0)
        return self.rekeyed(self._first, number) if number else self._first

    def skip(self, count: int) -> None:
        """Go on behind `count` epochs or stretches: what passed by is in the reservoir."""
        for number in range(count if self.reservoir is not None else 0):
            self(number)

    # -- one at a time -----------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Slots of a reservoir that is renewed with every step, 0 for other memories."""
        return 0 if self.reservoir is None else self.reservoir.slots

    def reservoir_after(self, run: int, before_task: Exemplars) -> Exemplars:
        """The reservoir of a run after the task, given its exemplars before."""
        if self.reservoir is None:
            return before_task
        count, seen = int(self.reservoir.filled[run]), int(self.reservoir.seen[run])
        holder = self.reservoir.holder[run, :count].cpu()
        new, place = holder >= 0, holder.clamp(min=0)
        source = (self.main.rows, self.main.stages, self.main.y[..., 0])
        parts = []
        for before, items in zip(before_task[:3], source, strict=True):
            old = torch.full((count,), -1)
            old[: len(before)] = before[:count]
            parts.append(torch.where(new, items[run].cpu()[place], old))
        return Exemplars._make([*parts, torch.arange(count), seen])

    @property
    def fixed(self) -> bool:
        """Whether every epoch has the very same rows."""
        drawn = bool(self.memory) and bool(self.memory_size)
        return self.whole and not drawn and self.reservoir is None and not self.total

    def rekeyed(self, rows: Minibatches, epoch: int) -> Minibatches:
        """The rows of a fixed epoch in another one: the same, with other noise."""
        part, place = divmod(epoch, EPOCHS_AHEAD)
        if self._keys[0] != part:  # many epochs at once: a step may be cheaper than a key
            epochs = torch.arange(EPOCHS_AHEAD, device=self.device) + part * EPOCHS_AHEAD
            self._keys = part, keys.fold(self.seeds[:, None], "step", self.stage, epochs, 0)
        return rows._replace(key=self._keys[1][:, place : place + 1])  # type: ignore[index]

    @property
    def steps_per_epoch(self) -> int:
        if self.last == "drop":
            return max(1, self.main.length // self.batch)
        return -(-self.main.length // self.batch)

    def epoch(self, epoch: int) -> Minibatches:
        """One pass over the items of every run."""
        steps, size = self.steps_per_epoch, self.batch
        place = torch.arange(steps * size, device=self.device).expand(len(self.seeds), -1)
        epochs = torch.full((len(self.seeds), steps), epoch, device=self.device)
        order = self._permutations(torch.full_like(self.seeds, epoch))  # [R, n]
        count = self.main.real[:, None]
        own = count.clamp(max=size)  # a task smaller than the batch is one batch of its own size
        if self.last == "wrap":
            index, real = order.gather(1, place % count), place < -(-count // own) * own
        else:
            limit = count if self.last == "keep" else count // own * own
            index, real = order.gather(1, place.clamp(max=self.main.length - 1)), place < limit
        inside = torch.arange(steps, device=self.device).expand(len(self.seeds), -1)
        live = self._live_epoch(steps)
        return self._minibatches(
            index.view(-1, steps, size), real.view(-1, steps, size), epochs, inside, live
        )

    def _live_epoch(self, steps: int) -> np.ndarray:
        sizes = np.array(self.main.sizes)
        own = -(-sizes // self.batch) if self.last != "drop" else np.maximum(1, sizes // self.batch)
        return np.arange(steps)[None] < own[:, None]

    def iterations(self, start: int, stop: int) -> Minibatches:
        """Iterations: shuffled epochs end to end, each without its incomplete last batch."""
        size, device = self.batch, self.device
        per = torch.clamp(self.main.real // size, min=1)[:, None]  # [R, 1] steps per epoch
        step = torch.arange(start, stop, device=device)[None]  # [1, S]
        epochs, inside = step // per, step % per  # [R, S]
        first = epochs[:, :1]
        span = int((epochs[:, -1:] - first).max()) + 1
        orders = self._permutations(first + torch.arange(span, device=device))  # [R, E, n]
        place = inside[..., None] * size + torch.arange(size, device=device)  # [R, S, B]
        which = (epochs - first)[..., None] * self.main.length
        flat = which + place.clamp(max=self.main.length - 1)
        index = orders.flatten(1).gather(1, flat.flatten(1)).view_as(flat)
        live = np.ones((len(self.seeds), stop - start), dtype=bool)
        return self._minibatches(index, place < self.main.real[:, None, None], epochs, inside, live)

    def _permutations(self, epochs: Tensor) -> Tensor:
        """[R, ..., n] orders of the rows in epochs [R, ...]."""
        places = torch.arange(self.main.length, device=self.device).expand(*epochs.shape, -1)
        if self.whole:
            return places
        each = (-1, *[1] * (epochs.ndim - 1))
        real = self.main.real.view(each)
        key = keys.fold(self.seeds.view(each), "order", self.stage, epochs)
        drawn = keys.order(key, self.main.length, real)
        # a run whose rows fit into one batch has no order, in a group as alone
        return torch.where(real[..., None] <= self.batch, places, drawn)

    def _minibatches(
        self, index: Tensor, real: Tensor, epochs: Tensor, inside: Tensor, live: np.ndarray
    ) -> Minibatches:
        key = keys.fold(self.seeds[:, None], "step", self.stage, epochs, inside)  # [R, S]
        main = self._index_batch(self.main, index, real)
        lengths = tuple(real.sum(-1).amax(0).tolist())
        into: Tensor | tuple[()] = ()
        if self.reservoir is None:
            apart = tuple(self._memory_batch(t, key, j) for j, t in enumerate(self.memory))
        else:
            # rows pass by once, in the first epoch
            passes = real & (epochs == 0)[..., None]
            now = self.reservoir
            some = bool(passes.any())
            held = now.insert(index, passes) if some else now.unchanged(*index.shape[1:])
            apart = tuple(self._reservoir_batch(held, key, j) for j in range(now.draws))
            into = held.into
        if self.pair and apart:
            main, into = _paired(apart[0], main, into)
            apart, lengths = (), tuple((main.w > 0).sum(-1).amax(0).tolist())
        return Minibatches(main, apart, key, lengths, live, into)  # type: ignore[arg-type]

    def _memory_batch(self, source: PaddedItems, key: keys.Key, number: int) -> IndexBatch:
        runs, steps = key.shape  # type: ignore[union-attr]
        if not self.memory_size:
            index = torch.arange(source.length, device=self.device).expand(runs, steps, -1)
            return self._index_batch(source, index, index < source.real[:, None, None])
        size, wanted = self._wanted()
        count = source.real[:, None].expand(runs, steps)
        index = keys.below(keys.fold(key, "memory", number), count, size)
        return self._index_batch(source, index, wanted.expand(runs, steps, size))

    def _wanted(self) -> tuple[int, Tensor]:
        """Memory rows drawn per step, and [R, 1, size] which of them each run wants."""
        size = self.batch if self.memory_size == AS_BATCH else self.memory_size
        own = torch.full_like(self.main.real, size)
        if self.memory_size == AS_BATCH:
            own = self.main.real.clamp(max=size)  # a small task's batch is small, so is its share
        return size, torch.arange(size, device=self.device) < own[:, None, None]

    def _reservoir_batch(self, held: Contents, key: keys.Key, number: int) -> IndexBatch:
        """Memory rows of each step from what the reservoirs hold then."""
        size, wanted = self._wanted()
        drawn = keys.fold(key, "memory", number)
        slot = keys.below(drawn, held.filled.clamp(min=1), size)  # [R, S, m]
        there = (held.filled > 0)[..., None] & wanted
        holder = held.holder.gather(2, slot)
        batch = self._index_batch(self.main, holder.clamp(min=0), there)
        if self.memory:  # what earlier tasks left, by slot
            memory = self.memory[0]
            old = self._index_batch(memory, slot.clamp(max=memory.length - 1), there)
            new = holder >= 0
            batch = IndexBatch(*(
                torch.where(new.unsqueeze(-1) if a.ndim > new.ndim else new, a, b)
                for a, b in zip(batch, old, strict=True)
            ))  # fmt: skip
        return batch._replace(slot=slot)

    def _index_batch(self, source: PaddedItems, index: Tensor, real: Tensor) -> IndexBatch:
        flat = index.flatten(1)
        label = flat[..., None].expand(-1, -1, source.y.shape[-1])
        return IndexBatch(
            source.rows.gather(1, flat).view_as(index),
            source.stages.gather(1, flat).view_as(index),
            source.y.gather(1, label).view(*index.shape, -1),
            real.to(self.dtype) * source.weight.gather(1, flat).view_as(index).to(self.dtype),
            source.slot.gather(1, flat).view_as(index),
        )


def _paired(
    memory: IndexBatch, main: IndexBatch, into: Tensor | tuple[()]
) -> tuple[IndexBatch, Tensor | tuple[()]]:
    """Memory rows, then rows of the task, then all padding.

    A short last batch is a prefix then, and a row has the place it has when its run trains alone.
    """
    there = main.w.amax(-1, keepdim=True)  # [R, S, 1] whether the run takes this step
    memory = memory._replace(w=memory.w * there)
    joined = IndexBatch(*(torch.cat([a, b], 2) for a, b in zip(memory, main, strict=True)))
    front = (joined.w == 0).to(torch.uint8).argsort(dim=-1, stable=True)  # [R, S, B]
    if isinstance(into, Tensor):
        into = torch.cat([torch.full_like(memory.slot, -1), into], 2).gather(2, front)
    label = front[..., None].expand_as(joined.y)
    return IndexBatch(
        joined.rows.gather(2, front), joined.stages.gather(2, front),
        joined.y.gather(2, label), joined.w.gather(2, front), joined.slot.gather(2, front),
    ), into  # fmt: skip
