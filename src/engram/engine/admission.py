"""Memories whose rows a method lets in one by one, while it trains: tables on the device.

A reservoir looks at no network, so the sampler knows its contents ahead. What `Method.admit`
decides may depend on anything that the step has computed, so the rows that a memory holds are
tensors of the step, from which it draws and into which it writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram import keys
from engram.engine.sampler import StepRows, join_memory_rows
from engram.errors import bad
from engram.learner.batch import TrainingRows
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import tree_map
from engram.memory.exemplars import Exemplars
from engram.methods.method import Method, Offer, Slots, State


class HeldRows(NamedTuple):
    """What R memories of M slots hold; slots are filled from the first one on."""

    rows: TrainingRows  # [R?, M]
    filled: Tensor  # [R?] slots in use
    seen: Tensor  # [R?] rows that passed by

    @classmethod
    def from_tree(cls, tree: Any) -> HeldRows:
        """Return the rows that a checkpoint holds as plain tuples."""
        rows, filled, seen = tree
        return cls(TrainingRows(*rows), filled, seen)

    def exemplars(self) -> Exemplars:
        """Return what the memory of a single run holds."""
        count = int(self.filled)
        rows, stages, y, *_ = (leaf[:count].cpu() for leaf in self.rows)
        return Exemplars(rows, stages, y[:, 0], torch.arange(count), int(self.seen))


@dataclass(frozen=True)
class Draws:
    """How the steps of R runs draw from memories that their methods fill."""

    slots: int
    draws: int  # batches drawn per step
    size: int  # rows of each
    own: Tensor  # [R] how many of these rows a run uses
    pair: bool  # whether they join the batch, or come separately

    def __call__(self, rows: StepRows, held: HeldRows) -> StepRows:
        """Return the rows of a step, of R runs or one, with what it draws from the memories."""
        size = self.size if held.filled.ndim else int(self.own[0])
        own = self.own if held.filled.ndim else self.own[0]
        wanted = torch.arange(size, device=own.device) < own.unsqueeze(-1)
        there = wanted & (held.filled > 0).unsqueeze(-1)
        batches = []
        for number in range(self.draws):
            key = keys.fold(rows.key, "memory", number)
            slot = keys.randint(key, held.filled.clamp(min=1), size)  # [R?, m]
            drawn = held.rows.gather(slot)
            batches.append(drawn._replace(w=there.to(rows.main.w.dtype) * drawn.w, slot=slot))
        if not self.pair:
            return rows._replace(apart=tuple(batches))
        main, passes = join_memory_rows(batches[0], rows.main, rows.passes)
        return rows._replace(main=main, passes=passes)


def hold_exemplars(learners: Sequence[RunLearner], rows: StepRows, slots: int) -> HeldRows:
    """Return the exemplars of several learners [R, M]; free slots repeat a row of the task."""
    each = []
    for number, learner in enumerate(learners):
        kept = learner.exemplars
        spare = TrainingRows(*(leaf[number, 0, :1].cpu() for leaf in rows.main))
        items = learner.items(kept.rows, kept.stages) if len(kept) else spare
        place = torch.arange(slots)
        found = items.take(place.where(place < len(items.rows), 0))
        each.append(found._replace(w=torch.ones(slots, dtype=rows.main.w.dtype), slot=place))
    device = rows.main.rows.device
    table = TrainingRows(*(torch.stack(leaves).to(device) for leaves in zip(*each, strict=True)))
    counts = [[len(one.exemplars), one.exemplars.seen] for one in learners]
    filled, seen = torch.tensor(counts, device=device).unbind(-1)
    return HeldRows(table, filled.clone(), seen.clone())


def admit_rows(
    method: Method, held: HeldRows, tables: Mapping[str, Tensor], rows: TrainingRows,
    passes: Tensor, values: Mapping[str, Tensor], key: Tensor, state: State,
) -> tuple[HeldRows, Tensor, State]:  # fmt: skip
    """Offer the rows [B] of a step that `passes` to a memory, one after the other.

    Returns what it holds, the slot that each row has entered and still holds, or -1, and the state
    of the method. `tables` [M, ...] and `values` [B, ...] are what `Method.remember` returned.
    """
    (kept, filled, seen), slots = held, held.rows.length
    place = torch.arange(slots, device=filled.device)
    free = place >= filled
    # what `admit` sees of the rows; the rest follows when it is known who has entered
    y = torch.where(free[:, None], -1, kept.y)
    stages = torch.where(free, -1, kept.stages)
    newest = torch.full_like(place, -1)  # [M] which row of the step a slot holds
    numbers = torch.arange(rows.length, device=place.device)
    own_keys = torch.as_tensor(keys.fold(key, "admit", numbers)).unbind()
    each = {name: value.unbind() for name, value in values.items()}
    offers = zip(rows.y.unbind(), rows.stages.unbind(), passes.unbind(), own_keys, strict=True)
    for number, (labels, stage, comes, own_key) in enumerate(offers):
        own = {name: rows_of[number] for name, rows_of in each.items()}
        memory = Slots(y, stages, tables, place < filled, seen)
        decided = method.admit(Offer(labels, stage, own, own_key), memory, state)
        slot, changed = check_admitted(method, decided)
        enters = comes & (slot >= 0)
        here = (place == torch.where(filled < slots, filled, slot)) & enters  # [M]
        y, stages = _put(here, labels, y), _put(here, stage, stages)
        tables = {name: _put(here, own[name], table) for name, table in tables.items()}
        newest = torch.where(here, number, newest)
        filled = filled + (enters & (filled < slots))
        seen = seen + comes
        state = tree_map(partial(_choose, comes), changed, state)
    into_slot = newest >= 0
    came = newest.clamp(min=0)
    leaves = zip(rows, kept, strict=True)
    kept = TrainingRows(*(_put(into_slot, new.index_select(0, came), old) for new, old in leaves))
    entered = newest == numbers[:, None]  # [B, M]
    into = torch.where(entered.any(1), entered.to(torch.uint8).argmax(1), -1)
    return HeldRows(kept._replace(slot=place), filled, seen), into, state


def admit_rows_on_host(
    method: Method, held: HeldRows, tables: Mapping[str, Tensor], rows: TrainingRows,
    passes: Tensor, values: Mapping[str, Tensor], key: Tensor, state: State,
) -> tuple[HeldRows, Tensor, State]:  # fmt: skip
    """Do the same as `admit_rows` for a run alone on the CPU, where decisions can be looked at.

    `admit` sees the same tensors; what surrounds it is done with numbers, in a third of the time.
    """
    kept, slots, place = held.rows, held.rows.length, torch.arange(held.rows.length)
    filled, seen = int(held.filled), int(held.seen)
    used = place < filled
    y, stages = torch.where(used[:, None], kept.y, -1), torch.where(used, kept.stages, -1)
    each = {name: value.unbind() for name, value in values.items()}
    labels, tasks, passing = rows.y.unbind(), rows.stages.unbind(), passes.nonzero()[:, 0]
    own_keys = torch.as_tensor(keys.fold(key, "admit", passing)).unbind()
    before = torch.arange(seen, seen + len(passing)).unbind()
    newest: dict[int, int] = {}  # which row of the step a slot holds
    for number, own_key, passed in zip(passing.tolist(), own_keys, before, strict=True):
        own = {name: rows_of[number] for name, rows_of in each.items()}
        memory = Slots(y, stages, tables, used, passed)
        decided = method.admit(Offer(labels[number], tasks[number], own, own_key), memory, state)
        found, state = check_admitted(method, decided)
        slot = int(found)
        if slot < 0 or slot >= slots == filled:
            continue
        if filled < slots:
            slot, filled = filled, filled + 1
            used = place < filled
        newest[slot] = number
        # copies, because a state may hold what `admit` was given
        y, stages = y.clone(), stages.clone()
        y[slot], stages[slot] = labels[number], tasks[number]
        tables = {name: table.clone() for name, table in tables.items()}
        for name, table in tables.items():
            table[slot] = own[name]
    into = torch.full_like(rows.rows, -1)
    if newest:
        at, came = torch.tensor([*newest]), torch.tensor([*newest.values()])
        into[came] = at
        leaves = zip(rows, kept, strict=True)
        kept = TrainingRows(*(old.index_copy(0, at, new[came].to(old)) for new, old in leaves))
    counts = torch.tensor([filled, seen + len(passing)]).unbind()
    return HeldRows(kept._replace(slot=place), *counts), into, state


def _choose(comes: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return old if new is old else torch.where(comes, new, old)


def _put(here: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return a table [M, ...] with new entries where `here` [M]."""
    return torch.where(here.reshape(-1, *[1] * (old.ndim - 1)), new.to(old.dtype), old)


def check_admitted(method: Method, found: Any) -> tuple[Tensor, State]:
    """Return the slot and the state that `admit` returned; raise for anything else."""
    if isinstance(found, tuple) and len(found) == 2:
        slot, state = found
        if isinstance(slot, Tensor) and slot.ndim == 0 and isinstance(state, dict):
            return slot, state
    raise bad(f"{type(method).__name__}.admit", "(slot, state), the slot a tensor []", found)
