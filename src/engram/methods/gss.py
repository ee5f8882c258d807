"""Gradient-based sample selection (the greedy variant): a memory of rows whose gradients differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from engram import keys
from engram.learner.batch import Batch
from engram.learner.networks import Net
from engram.methods.method import Offer, Slots, State
from engram.methods.online_replay import OnlineReplay
from engram.models.functional_call import differentiate

FLOOR = 1e-12
UNLIKE = 1.0  # likeness of orthogonal gradients, and of a row that is compared with none


def row_gradients(net: Net, batch: Batch) -> Tensor:
    """Compute the gradients [B, P] of the training objective, each of one row, by the weights."""
    weights = net.weights.detach()
    own = [leaf.unsqueeze(1) for leaf in batch.per_row]
    rows = Batch(*own, *batch.shared)  # type: ignore[arg-type]
    axes: Any = Batch(*[0] * len(batch.per_row), *[None] * len(batch.shared))  # type: ignore[arg-type]

    def one(row: Batch) -> Tensor:
        found: Tensor = differentiate(lambda vector: net.given(vector).task(row))(weights)
        return found

    found: Tensor = vmap(one, in_dims=(axes,))(rows)
    return found


def likeness(gradients: Tensor, known: Tensor) -> Tensor:
    """Compute 1 + the largest cosine [B] of each gradient [B, P] to those `known` [B].

    Examples
    --------
    >>> g = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    >>> known = torch.tensor([True, False, False])
    >>> likeness(g, known).tolist()
    [2.0, 1.0, 0.0]
    >>> likeness(g, known & ~known).tolist()
    [1.0, 1.0, 1.0]
    """
    unit = gradients / gradients.norm(dim=1, keepdim=True).clamp(min=FLOOR)
    cosines = torch.where(known, unit @ unit.mT, -1.0).amax(1)
    return torch.where(known.any(), 1 + cosines.clamp(-1.0, 1.0), UNLIKE)


@dataclass(frozen=True, kw_only=True)
class GSS(OnlineReplay):
    """Replay from a memory of rows with unlike gradients (GSS-Greedy).

    A row's score is C = 1 + max cos(its gradient, those of the memory rows in its batch). In a full
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
    ReplaySpec(kind='pair', size=10, renew='step')

    References
    ----------
    Aljundi et al. 2019, NeurIPS.
    """

    def remember(self, net: Net, batch: Batch, state: State) -> dict[str, Tensor]:
        known = (batch.old > 0) & (batch.w > 0)
        alike = likeness(row_gradients(net, batch), known)
        return {"score": torch.where(known, UNLIKE, alike)}

    def admit(self, row: Offer, memory: Slots, state: State) -> tuple[Tensor, State]:
        own, scores = row.values["score"], memory.values["score"]
        slot = memory.draw(scores, keys.fold(row.key, "slot"))
        here = torch.arange(len(scores), device=scores.device) == slot
        theirs = torch.where(here, scores, 0).sum()
        point = keys.uniform(keys.fold(row.key, "keep"))
        enters = ~memory.full | ((own < 1) & (point * (theirs + own) < theirs))
        return torch.where(enters, slot, -1), state
