"""Class-balancing reservoir sampling: a memory balanced by class, whatever the stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram import keys
from engram.learner.learner import RunLearner
from engram.methods.method import Offer, Slots, State
from engram.methods.online_replay import OnlineReplay
from engram.streams.stream import Task


@dataclass(frozen=True, kw_only=True)
class CBRS(OnlineReplay):
    """Replay from a memory that stays as balanced over classes as an imbalanced stream allows.

    A class is full once it has been the largest of a full memory. A row of a class that is not full
    replaces a random row of the largest class; one of a full class c replaces a random row of c
    with probability (rows of c in the memory) / (rows of c seen so far).

    Parameters
    ----------
    memory
        How many rows are kept: ``Memory(total=..., policy="admit")``. Chrysakis and Moens: 1000.
    reduce
        ``mean``: one mean over all rows of a batch; ``sum``: the mean over the new rows plus the
        mean over the memory rows.
    size
        Memory rows per step; 0: as many as the batch size. Chrysakis and Moens: 10.

    Examples
    --------
    >>> from engram.memory import Memory
    >>> CBRS(memory=Memory(total=100, policy="admit"), size=10).replay(0)
    ReplaySpec(kind='pair', size=10, renew='step')

    References
    ----------
    Chrysakis and Moens 2020, International Conference on Machine Learning.
    """

    def start(self, learner: RunLearner, task: Task) -> None:
        if "seen" not in learner.state:
            none = torch.zeros(len(learner.opened), dtype=torch.long, device=learner.device)
            learner.state = {"seen": none, "full": none.bool()}

    def admit(self, row: Offer, memory: Slots, state: State) -> tuple[Tensor, State]:
        classes, target = torch.arange(len(state["seen"]), device=row.y.device), memory.target
        own = classes == row.target  # [C]
        held = (target == classes[:, None]).sum(1)  # [C]
        largest = held == held.max()
        seen, full = state["seen"] + own, state["full"] | (largest & memory.full)
        # of the row's class: rows held and seen, and whether it is full
        facts = torch.stack([held, seen, full.long()]) * own
        kept, passed, known = facts.sum(1).unbind()
        mine = target == row.target
        others = (largest[None] & (target[:, None] == classes)).any(1)
        slot = memory.draw(torch.where(known > 0, mine, others), keys.fold(row.key, "slot"))
        lucky = keys.uniform(keys.fold(row.key, "keep")) * passed <= kept
        enters = ~memory.full | (known == 0) | lucky
        return torch.where(enters, slot, -1), {"seen": seen, "full": full}
