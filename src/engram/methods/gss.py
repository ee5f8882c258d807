"""Gradient-based sample selection (the greedy variant): a memory of rows whose gradients differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from engram import keys
from engram.learner.batch import Batch
from engram.learner.networks import Net
from engram.learner.parameter_layout import Views
from engram.methods.er import replay_terms
from engram.methods.method import Offer, ReplaySpec, Slots, State, Terms
from engram.methods.online_replay import OnlineReplay
from engram.models.functional_call import differentiate

FLOOR = 1e-12
UNLIKE = 1.0  # likeness of orthogonal gradients, and of a row that is compared with none


def row_gradients(net: Net, batch: Batch) -> list[Tensor]:
    """Compute gradients [B, n] of the training objective, one row's each, by each parameter."""
    own = [leaf.unsqueeze(1) for leaf in batch.per_row]
    rows = Batch(*own, *batch.shared)  # type: ignore[arg-type]
    axes: Any = Batch(*[0] * len(batch.per_row), *[None] * len(batch.shared))  # type: ignore[arg-type]
    weights = Views((name, one.detach()) for name, one in net.params.items())

    def one(row: Batch) -> Any:
        return differentiate(lambda params: net.given(Views(params)).task(row))(dict(weights))

    found: dict[str, Tensor] = vmap(one, in_dims=(axes,))(rows)
    return [slope.flatten(1) for slope in found.values()]


def likeness(new: Sequence[Tensor], old: Sequence[Tensor], known: Tensor) -> Tensor:
    """Compute 1 + the largest cosine [B] of gradients [B, n] to those [M, n] that are `known` [M].

    Examples
    --------
    >>> new, old = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]), torch.tensor([[5.0, 0.0]])
    >>> likeness([new], [old], torch.tensor([True])).tolist()
    [2.0, 1.0, 0.0]
    >>> likeness([new], [old], torch.tensor([False])).tolist()
    [1.0, 1.0, 1.0]
    """
    along = torch.stack([one @ other.mT for one, other in zip(new, old, strict=True)]).sum(0)
    lengths = [
        torch.stack([one.norm(dim=1) for one in parts]).norm(dim=0).clamp(min=FLOOR)
        for parts in (new, old)
    ]
    cosines = along / lengths[0][:, None] / lengths[1]
    nearest = torch.where(known, cosines, -1.0).amax(1)
    return torch.where(known.any(), 1 + nearest.clamp(-1.0, 1.0), UNLIKE)


@dataclass(frozen=True, kw_only=True)
class GSS(OnlineReplay):
    """Replay from a memory of rows with unlike gradients (GSS-Greedy).

    A row's score is C = 1 + max cos(its gradient, those of the memory rows in its step). In a full
    memory, a row of C < 1 challenges slot i, drawn in proportion to C_i, and takes it with
    probability C_i / (C_i + C).

    Parameters
    ----------
    memory
        How many rows are kept: ``Memory(total=..., policy="admit")``. Aljundi et al.: 300 on MNIST,
        1000 on CIFAR-10.
    reduce
        ``mean``: one mean over all rows of a batch; ``sum``: the mean over the new rows plus the
        mean over the memory rows.
    size
        Memory rows per step, with which new rows are compared, too; 0: as many as the batch size.
        Aljundi et al.: 10.

    Examples
    --------
    >>> GSS(size=10).replay(0)
    ReplaySpec(kind='separate', size=10, renew='step')

    References
    ----------
    Aljundi et al. 2019, NeurIPS.
    """

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("separate", self.size, renew="step")

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        both = batch.memory[0].join(batch)
        return replay_terms(net, both.select(both.order_padding_last()), self.reduce)

    def remember(self, net: Net, batch: Batch, state: State) -> dict[str, Tensor]:
        if not batch.memory:  # rows that are stored outside of a step are compared with none
            return {"score": torch.full_like(batch.w, UNLIKE)}
        (memory,), count = batch.memory, len(batch.memory[0].w)
        both = memory.join(batch)
        order = both.order_padding_last()
        place = order.argsort()
        slopes = row_gradients(net, both.select(order))
        old, new = ([one[rows] for one in slopes] for rows in (place[:count], place[count:]))
        return {"score": likeness(new, old, memory.w > 0)}

    def admit(self, row: Offer, memory: Slots, state: State) -> tuple[Tensor, State]:
        own, scores = row.values["score"], memory.values["score"]
        slot = memory.draw(scores, keys.fold(row.key, "slot"))
        here = torch.arange(len(scores), device=scores.device) == slot
        theirs = torch.where(here, scores, 0).sum()
        point = keys.uniform(keys.fold(row.key, "keep"))
        enters = ~memory.full | ((own < 1) & (point * (theirs + own) < theirs))
        return torch.where(enters, slot, -1), state
