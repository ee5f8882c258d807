"""Training on latents: the root of a network encodes a task's rows once, its top learns from those.

While such a task is learnt the root stands still, so what it answers in eval mode is a table. Old
inputs are not read again: exemplars have kept their latents.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engram.engine.batches.values import read
from engram.errors import bad
from engram.learner.learner import Learner
from engram.methods.base import Method
from engram.models.classifier import Classifier
from engram.streams.outline import LatentOutline

ROWS_AT_ONCE = 1024
NAME = "latent"  # of the value that `remember` keeps with exemplars
BEHIND = torch.iinfo(torch.long).max  # a row number behind all others, for padding
Latents = dict[str, Tensor]  # rows [R?, n] in ascending order, latents [R?, n, ...]


def need_root(method: Method, stages: int, net: Classifier) -> None:
    """Refuse a model without a root where a method trains on latents."""
    latent = any(method.replay(stage).latent for stage in range(stages))
    if not net.splits and (latent or method.prologue() is not None):
        kind = type(net.backbone).__name__
        wanted = "a backbone with root(x), body(z) and root_modules, the names of the root's parts"
        raise bad("model", f"{wanted}, because {type(method).__name__} replays latents", kind)


def latents_of(net: Classifier, sample_shape: tuple[int, ...]) -> LatentOutline | None:
    """What the root of a model answers; None without one."""
    if not net.splits:
        return None
    was = net.training
    with torch.no_grad():
        shape = net.eval().root(torch.zeros(1, *sample_shape)).shape[1:]
    net.train(was)
    return LatentOutline(tuple(shape), net.unit_latents)


def hold_root(learner: Learner, method: Method, stage: int) -> None:
    """Let the root stand still for a task that is learnt from latents."""
    if not method.replay(stage).latent:
        return
    free = learner.layout(learner.free)
    for name in learner.networks.root_names:
        free[name].fill_(False)


def still_root(learners: Sequence[Learner]) -> list[str]:
    """Names of the parameters that no run moves in a task, because it is learnt from latents."""
    if not learners[0].latents:
        return []
    names, frees = learners[0].networks.root_names, [one.layout(one.free) for one in learners]
    return [name for name in names if not any(bool(free[name].any()) for free in frees)]


def encode(learners: Sequence[Learner], method: Method, stage: int) -> None:
    """Give every learner the latents of its task's rows, where the task is learnt from those."""
    if not method.replay(stage).latent:
        return
    if any(phase.fresh for phase in method.phases(stage)):
        raise bad("phase.fresh", "False where replay is latent, whose root stands still", True)
    for learner in learners:
        if len(learner.exemplars) and NAME not in learner.values:
            wanted = f"{type(method).__name__}.remember to return a value called {NAME!r}"
            raise bad("remember", wanted + " (net.at('net.root')(batch.x))", sorted(learner.values))
        rows, order = learner.items().rows.sort()
        stages = learner.items().stages[order]
        root, parts = learner.net().at("net.root"), []
        with torch.no_grad():
            starts = range(0, len(rows), ROWS_AT_ONCE)
            some = [slice(start, start + ROWS_AT_ONCE) for start in starts]
            for _, x in learner.feed.chunks(rows, stages, some):
                parts.append(root(x))
        learner.latents = {"rows": rows.to(learner.device), NAME: torch.cat(parts)}


def stacked(learners: Sequence[Learner]) -> Latents:
    """[R, n, ...] the tables of several learners, padded to the longest; {} without latents."""
    tables = [one.latents for one in learners]
    if not tables[0]:
        return {}
    longest = max(len(table["rows"]) for table in tables)

    def padded(leaf: Tensor, fill: int) -> Tensor:
        return torch.cat([leaf, leaf.new_full((longest - len(leaf), *leaf.shape[1:]), fill)])

    return {
        "rows": torch.stack([padded(table["rows"], BEHIND) for table in tables]),
        NAME: torch.stack([padded(table[NAME], 0) for table in tables]),
    }


def look_up(table: Latents, rows: Tensor, slot: Tensor, by_slot: Tensor | None) -> Tensor:
    """[R?, B, ...] latents of rows of the task, and of exemplars from the table `by_slot`.

    Examples
    --------
    >>> table = {"rows": torch.tensor([4, 7]), "latent": torch.tensor([[0.4], [0.7]])}
    >>> by_slot = torch.tensor([[5.0], [6.0]])
    >>> look_up(table, torch.tensor([7, 1]), torch.tensor([-1, 1]), by_slot).tolist()
    [[0.699...], [6.0]]
    """
    place = torch.searchsorted(table["rows"], rows.contiguous())
    own = read(table[NAME], place.clamp(max=table["rows"].shape[-1] - 1))
    if by_slot is None:
        return own
    old = (slot >= 0).reshape(*slot.shape, *[1] * (own.ndim - slot.ndim))
    return torch.where(old, read(by_slot, slot), own)
