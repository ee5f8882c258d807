"""What a method remembers with its exemplars: tables by slot, on the device, for one run or many.

A table [R?, M + 1, ...] has a row for every slot of the memory and one more, into which goes what
is not to be kept: so a step writes without asking the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engram.engine.batches.sampler import Minibatches
from engram.learner.batch import Batch
from engram.learner.learner import Learner
from engram.methods.base import Method

Tables = dict[str, Tensor]
Held = tuple[Tensor, Tensor, Tables]  # rows and stages of exemplars, their values
ROWS_AT_ONCE = 4096


def tables_of(learners: Sequence[Learner], slots: int = 0) -> Tables:
    """[R, M + 1, ...] the values of all learners, padded to `slots` or the most in use."""
    slots = max(slots, *(len(one.exemplars) for one in learners))

    def padded(value: Tensor) -> Tensor:
        empty = value.new_zeros(slots + 1 - len(value), *value.shape[1:])
        return torch.cat([value, empty])

    names = learners[0].values
    return {name: torch.stack([padded(one.values[name]) for one in learners]) for name in names}


def empty_tables(learner: Learner, method: Method, rows: Minibatches, slots: int) -> Tables:
    """[M + 1, ...] tables for values never remembered so far; one row tells their shapes."""
    first = [leaf[0, 0, :1].cpu() for leaf in (rows.main.rows, rows.main.stages)]
    batch = learner.batch(*first)
    with torch.no_grad():
        found = method.remember(learner.net(), batch, learner.state)
    return {name: value.new_zeros(slots + 1, *value.shape[1:]) for name, value in found.items()}


def read(table: Tensor, slot: Tensor) -> Tensor:
    """[R?, B, ...] rows of a table [R?, M + 1, ...]; zeros for slot -1.

    Examples
    --------
    >>> read(torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([1, -1])).tolist()
    [[2.0], [0.0]]
    """
    shape = (*slot.shape, *[1] * (table.ndim - slot.ndim))
    index = slot.clamp(min=0).reshape(shape).expand(*slot.shape, *table.shape[slot.ndim :])
    found = table.gather(slot.ndim - 1, index)
    return torch.where((slot >= 0).reshape(shape), found, 0.0)


def write_(table: Tensor, into: Tensor, values: Tensor) -> None:
    """Put values [R?, B, ...] into the slots [R?, B] of a table, where those are not -1.

    Examples
    --------
    >>> table = torch.zeros(3, 1)
    >>> write_(table, torch.tensor([1, -1]), torch.tensor([[5.0], [6.0]]))
    >>> table[:2].tolist()
    [[0.0], [5.0]]
    """
    last = table.shape[into.ndim - 1] - 1
    place = torch.where(into >= 0, into, last)
    shape = (*into.shape, *[1] * (table.ndim - into.ndim))
    index = place.reshape(shape).expand_as(values)
    table.scatter_(into.ndim - 1, index, values.to(table.dtype))


def held(learner: Learner) -> Held:
    """The memory as it is, for `complete` after a verb that may change it."""
    rows, stages = (part.clone() for part in learner.exemplars[:2])  # verbs may write into them
    return rows, stages, learner.values


def complete(learner: Learner, method: Method, before: Held) -> None:
    """Let every exemplar have its values after a verb: those it had `before`, or fresh ones.

    Whatever verb fills the memory, values and exemplars go together: batches find them by slot.
    """
    exemplars, (rows, stages, values) = learner.exemplars, before
    same = torch.equal(exemplars.rows, rows) and torch.equal(exemplars.stages, stages)
    if same or not method.implements("remember"):
        return
    span = len(learner.stream.data)
    code, known = exemplars.stages * span + exemplars.rows, stages * span + rows
    order = known.argsort()
    place = torch.searchsorted(known[order], code).clamp(max=max(len(known) - 1, 0))
    had = known[order][place] == code if len(known) else torch.zeros_like(code, dtype=torch.bool)
    new = (~had).nonzero()[:, 0]
    fresh = _remembered(learner, method, new)
    found: Tables = {}
    for name in fresh or values:
        sample = fresh[name] if fresh else values[name]
        table = sample.new_empty(len(exemplars), *sample.shape[1:])
        if len(known):
            table[had.to(table.device)] = values[name][order[place[had]].to(table.device)]
        if fresh:
            table[new.to(table.device)] = fresh[name]
        found[name] = table
    learner.values = found


def _remembered(learner: Learner, method: Method, which: Tensor) -> Tables:
    parts: list[Tables] = []
    for some in which.split(ROWS_AT_ONCE):
        if not len(some):
            continue
        exemplars = learner.exemplars
        batch: Batch = learner.batch(exemplars.rows[some], exemplars.stages[some])
        with torch.no_grad():
            parts.append(method.remember(learner.net(), batch, learner.state))
    if not parts:
        return {}
    return {name: torch.cat([part[name].detach() for part in parts]) for name in parts[0]}
