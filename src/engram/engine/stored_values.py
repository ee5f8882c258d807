"""Values that a method stores with its exemplars, and latents, both as tables.

A table [R?, M + 1, ...] has a row for each slot of the memory, and one more for values that are to
be discarded, so that a step writes without a decision on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engram.engine.sampler import StepRows
from engram.errors import bad
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.method import Method, State
from engram.models.classifier import Classifier
from engram.streams.stream_outline import LatentOutline

ValueTables = dict[str, Tensor]
MemorySnapshot = tuple[Tensor, Tensor, ValueTables]  # rows and stages of exemplars, their values
ROWS_AT_ONCE = 4096


def stack_value_tables(learners: Sequence[RunLearner], slots: int = 0) -> ValueTables:
    """Stack the values of all learners [R, M + 1, ...], padded to `slots` or the most in use."""
    slots = max(slots, *(len(one.exemplars) for one in learners))

    def padded(value: Tensor) -> Tensor:
        empty = value.new_zeros(slots + 1 - len(value), *value.shape[1:])
        return torch.cat([value, empty])

    names = learners[0].values
    return {name: torch.stack([padded(one.values[name]) for one in learners]) for name in names}


def make_empty_tables(
    learner: RunLearner, method: Method, rows: StepRows, slots: int
) -> ValueTables:
    """Make empty tables [M + 1, ...]; the shapes are found with a single row."""
    first = [leaf[0, 0, :1].cpu() for leaf in (rows.main.rows, rows.main.stages)]
    batch = learner.batch(*first)
    with torch.no_grad():
        found = method.remember(learner.net(), batch, learner.state)
    return {name: value.new_zeros(slots + 1, *value.shape[1:]) for name, value in found.items()}


def read_slots(table: Tensor, slot: Tensor) -> Tensor:
    """Read slots [R?, B] of a table [R?, M + 1, ...]; zeros for slot -1.

    Examples
    --------
    >>> read_slots(torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([1, -1])).tolist()
    [[2.0], [0.0]]
    """
    shape = (*slot.shape, *[1] * (table.ndim - slot.ndim))
    index = slot.clamp(min=0).reshape(shape).expand(*slot.shape, *table.shape[slot.ndim :])
    found = table.gather(slot.ndim - 1, index)
    return torch.where((slot >= 0).reshape(shape), found, 0.0)


def write_slots_(table: Tensor, into: Tensor, values: Tensor) -> None:
    """Write values [R?, B, ...] into the slots [R?, B] of a table, unless these are -1.

    Examples
    --------
    >>> table = torch.zeros(3, 1)
    >>> write_slots_(table, torch.tensor([1, -1]), torch.tensor([[5.0], [6.0]]))
    >>> table[:2].tolist()
    [[0.0], [5.0]]
    """
    last = table.shape[into.ndim - 1] - 1
    place = torch.where(into >= 0, into, last)
    shape = (*into.shape, *[1] * (table.ndim - into.ndim))
    index = place.reshape(shape).expand_as(values)
    table.scatter_(into.ndim - 1, index, values.to(table.dtype))


class Recall(NamedTuple):
    """Which rows of a step `Method.remember` is asked about."""

    own: bool = False  # those of the batch: they may enter the memory, or are in it
    apart: bool = False  # those of the separate memory batches
    rewrites: bool = False  # whether values of rows in the memory are replaced

    @classmethod
    def in_stage(cls, method: Method, stage: int, enters: bool) -> Recall:
        """Return which rows a method is asked about; `enters`: rows of a step may be stored."""
        replay = method.replay(stage)
        if not method.implements("remember"):
            return cls()
        joins = replay.kind in ("pair", "union")
        joins = joins or any(phase.rows in ("memory", "both") for phase in method.phases(stage))
        return cls(enters or (replay.rewrites and joins), replay.rewrites, replay.rewrites)

    def __bool__(self) -> bool:
        return self.own or self.apart

    def ask(self, method: Method, net: Net, batch: Batch, state: State) -> tuple[ValueTables, ...]:
        """Return the values of the batch's rows, and of those of its memory batches."""
        apart = batch.memory if self.apart else ()
        own = method.remember(net, batch, state) if self.own else {}
        return own, *(method.remember(net, part, state) for part in apart)


def rewrite_values_(
    tables: ValueTables, batch: Batch, values: tuple[ValueTables, ...], alive: Tensor | None
) -> None:
    """Replace what is stored with the memory rows of a step, in runs that are `alive`.

    `values` are those of the rows of the batch, and of its memory batches; {} of rows that are not
    asked about. Padding repeats a row, and a draw may: of these, the first counts.
    """
    parts = [(b, v) for b, v in zip((batch, *batch.memory), values, strict=False) if v]
    if not parts or not tables:
        return
    slot = torch.cat([torch.where(part.w > 0, part.slot, -1) for part, _ in parts], -1)
    if alive is not None:
        slot = torch.where(alive.unsqueeze(-1), slot, -1)
    again = (slot.unsqueeze(-1) == slot.unsqueeze(-2)).tril(-1).any(-1)
    slot = torch.where(again, -1, slot)
    for name, table in tables.items():
        write_slots_(table, slot, torch.cat([found[name] for _, found in parts], slot.ndim - 1))


def snapshot_memory(learner: RunLearner) -> MemorySnapshot:
    """Copy the state of the memory, for `complete_values` after a verb that may change it."""
    rows, stages = (part.clone() for part in learner.exemplars[:2])  # verbs may write into them
    return rows, stages, learner.values


def complete_values(
    learner: RunLearner, method: Method, before: MemorySnapshot, rewrites: bool = False
) -> None:
    """Give every exemplar its values after a verb: those it had `before`, or new ones.

    `rewrites`: the method is asked again about those it had.
    """
    exemplars, (rows, stages, values) = learner.exemplars, before
    same = torch.equal(exemplars.rows, rows) and torch.equal(exemplars.stages, stages)
    if (same and not rewrites) or not method.implements("remember"):
        return
    span = len(learner.stream.data)
    code, known = exemplars.stages * span + exemplars.rows, stages * span + rows
    order = known.argsort()
    place = torch.searchsorted(known[order], code).clamp(max=max(len(known) - 1, 0))
    had = known[order][place] == code if len(known) else torch.zeros_like(code, dtype=torch.bool)
    new = (~had).nonzero()[:, 0]
    fresh = _compute_values(learner, method, new)
    kept = {name: value[order[place[had]].to(value.device)] for name, value in values.items()}
    if rewrites and kept:
        kept = _compute_values(learner, method, had.nonzero()[:, 0], kept) or kept
    found: ValueTables = {}
    for name in fresh or values:
        sample = fresh[name] if fresh else values[name]
        table = sample.new_empty(len(exemplars), *sample.shape[1:])
        if kept:
            table[had.to(table.device)] = kept[name].to(table.dtype)
        if fresh:
            table[new.to(table.device)] = fresh[name]
        found[name] = table
    learner.values = found


def _compute_values(
    learner: RunLearner, method: Method, which: Tensor, values: ValueTables | None = None
) -> ValueTables:
    """Ask a method about some exemplars; about those that it stored, with their `values`."""
    parts: list[ValueTables] = []
    for start in range(0, len(which), ROWS_AT_ONCE):
        span = slice(start, start + ROWS_AT_ONCE)
        some, exemplars = which[span], learner.exemplars
        batch: Batch = learner.batch(exemplars.rows[some], exemplars.stages[some])
        if values is not None:
            stored = {name: value[span] for name, value in values.items()}
            batch = batch._replace(slot=some.to(batch.slot.device), values=stored)
        with torch.no_grad():
            parts.append(method.remember(learner.net(), batch, learner.state))
    if not parts:
        return {}
    return {name: torch.cat([part[name].detach() for part in parts]) for name in parts[0]}


# -- training on latents ---------------------------------------------------------------------------
# The root of the network encodes the rows of a task once, and only its top is trained. The root is
# frozen during such a task, so its outputs in eval mode form a table. Inputs of earlier tasks are
# not read again: exemplars are stored with their latents.


ENCODED_AT_ONCE = 1024
LATENT_NAME = "latent"  # name of the value returned by `remember`
ROW_PADDING = torch.iinfo(torch.long).max  # sorts after all row numbers
Latents = dict[str, Tensor]  # rows [R?, n] in ascending order, latents [R?, n, ...]


def check_model_root(method: Method, stages: int, net: Classifier) -> None:
    """Raise for a model without a root if the method trains on latents."""
    latent = any(method.replay(stage).latent for stage in range(stages))
    if not net.splits and (latent or method.prologue() is not None):
        kind = type(net.backbone).__name__
        wanted = "a backbone with root(x), body(z) and root_modules, the names of the root's parts"
        raise bad("model", f"{wanted}, because {type(method).__name__} replays latents", kind)


def latent_outline(net: Classifier, sample_shape: tuple[int, ...]) -> LatentOutline | None:
    """Return shape and range of the outputs of a model's root; None without one."""
    if not net.splits:
        return None
    was = net.training
    with torch.no_grad():
        shape = net.eval().root(torch.zeros(1, *sample_shape)).shape[1:]
    net.train(was)
    return LatentOutline(tuple(shape), net.unit_latents)


def freeze_root(learner: RunLearner, method: Method, stage: int) -> None:
    """Freeze the root during a task that is trained on latents."""
    if not method.replay(stage).latent:
        return
    free = learner.layout(learner.free)
    for name in learner.networks.root_names:
        free[name].fill_(False)


def frozen_names(learners: Sequence[RunLearner], every: bool = False) -> list[str]:
    """Return the names of parameters that no run differentiates, because all of them stand still.

    Of networks that grow, or if `every` one is asked for, all that are frozen as a whole in every
    run; of others, those of the root in a task that is trained on latents.
    """
    networks = learners[0].networks
    names = networks.root_names if learners[0].latents else []
    if networks.grows or every:
        names = list(networks.layout.shapes)
    if not names:
        return []
    frees = [one.layout(one.free) for one in learners]
    return [name for name in names if not any(bool(free[name].any()) for free in frees)]


def encode_latents(learners: Sequence[RunLearner], method: Method, stage: int) -> None:
    """Compute the latents of the rows of a task, if it is trained on latents."""
    if not method.replay(stage).latent:
        return
    if any(phase.reinitialise for phase in method.phases(stage)):
        raise bad(
            "phase.reinitialise", "False where replay is latent, whose root stands still", True
        )
    for learner in learners:
        if len(learner.exemplars) and LATENT_NAME not in learner.values:
            wanted = f"{type(method).__name__}.remember to return a value called {LATENT_NAME!r}"
            raise bad("remember", wanted + " (net.root(batch.x))", sorted(learner.values))
        rows, order = learner.items().rows.sort()
        stages = learner.items().stages[order]
        root, parts = learner.net().root, []
        with torch.no_grad():
            starts = range(0, len(rows), ENCODED_AT_ONCE)
            some = [slice(start, start + ENCODED_AT_ONCE) for start in starts]
            for _, x in learner.feed.chunks(rows, stages, some):
                parts.append(root(x))
        learner.latents = {"rows": rows.to(learner.device), LATENT_NAME: torch.cat(parts)}


def stack_latents(learners: Sequence[RunLearner]) -> Latents:
    """Stack the tables of several learners [R, n, ...], padded; {} without latents."""
    tables = [one.latents for one in learners]
    if not tables[0]:
        return {}
    longest = max(len(table["rows"]) for table in tables)

    def padded(leaf: Tensor, fill: int) -> Tensor:
        return torch.cat([leaf, leaf.new_full((longest - len(leaf), *leaf.shape[1:]), fill)])

    return {
        "rows": torch.stack([padded(table["rows"], ROW_PADDING) for table in tables]),
        LATENT_NAME: torch.stack([padded(table[LATENT_NAME], 0) for table in tables]),
    }


def look_up_latents(table: Latents, rows: Tensor, slot: Tensor, by_slot: Tensor | None) -> Tensor:
    """Look up latents [R?, B, ...] of rows of the task, and of exemplars in the table `by_slot`.

    Examples
    --------
    >>> table = {"rows": torch.tensor([4, 7]), "latent": torch.tensor([[0.4], [0.7]])}
    >>> by_slot = torch.tensor([[5.0], [6.0]])
    >>> look_up_latents(table, torch.tensor([7, 1]), torch.tensor([-1, 1]), by_slot).tolist()
    [[0.699...], [6.0]]
    """
    place = torch.searchsorted(table["rows"], rows.contiguous())
    own = read_slots(table[LATENT_NAME], place.clamp(max=table["rows"].shape[-1] - 1))
    if by_slot is None:
        return own
    old = (slot >= 0).reshape(*slot.shape, *[1] * (own.ndim - slot.ndim))
    return torch.where(old, read_slots(by_slot, slot), own)
