"""Proxy-based contrastive replay: rows against the class vectors of the rows in their batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engram.errors import check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import ce_rows, mean, multi_hot
from engram.memory import Memory, check_memory
from engram.methods.method import Method, ReplaySpec, State, Terms
from engram.per_run import PerRun
from engram.streams.stream import Task


def proxy_losses(logits: Tensor, target: Tensor, open_: Tensor, w: Tensor) -> Tensor:
    """Compute -log of the share [B] of a row's own class among the class vectors of all rows.

    Every row of the batch brings the vector of its class, so a class counts as often as it has
    rows (weights `w`), and not at all without.

    Examples
    --------
    >>> logits, target = torch.zeros(3, 4), torch.tensor([0, 0, 2])
    >>> shares = (-proxy_losses(logits, target, torch.ones(3, 4).bool(), torch.ones(3))).exp()
    >>> (3 * shares).round().tolist()  # one of three equal vectors
    [1.0, 1.0, 1.0]
    """
    often = (w[:, None] * multi_hot(target[:, None], logits.shape[-1], w.dtype)).sum(0)  # [C]
    among = open_ & (often > 0)
    counted = logits + often.clamp(min=torch.finfo(often.dtype).tiny).log()
    own = often.clamp(min=torch.finfo(often.dtype).tiny).log()[target]
    return ce_rows(counted, target, among) + own


@dataclass(frozen=True, kw_only=True)
class PCR(Method):
    """Contrast rows with the class vectors of the rows in their batch, memory rows included (PCR).

    L = mean over rows of -log exp(cos(f, v_y) / temperature) / sum over the rows j of the batch of
    exp(cos(f, v_yj) / temperature), f the features of a row of class y, v_c the vector of class c

    Classes that have no row in the batch are not pushed away. The memory is a reservoir updated at
    every step.

    Parameters
    ----------
    temperature
        What cosines are divided by. Lin et al.: 0.09.
    size
        Memory rows per step; 0: as many as the batch size. Lin et al.: 10 rows in a batch, and 10
        to 100 from the memory.
    memory
        A reservoir. Lin et al.: 100 to 5000 rows.

    Examples
    --------
    >>> PCR(temperature=0.1).head
    {'name': 'cosine', 'scale': 10.0}

    References
    ----------
    Lin et al. 2023, IEEE/CVF Conference on Computer Vision and Pattern Recognition.
    """

    temperature: PerRun = 0.09
    size: int = 0
    memory: Memory = field(default=Memory(total=500, policy="reservoir"))

    def __post_init__(self) -> None:
        check_float("temperature", self.temperature, open_low=True)
        check_int("size", self.size)
        check_memory(self.memory)

    @property
    def head(self) -> dict[str, Any]:
        return {"name": "cosine", "scale": 1 / self.temperature}

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("pair", self.size, renew="step")

    def start(self, learner: RunLearner, task: Task) -> None:
        learner.layout(learner.free).head.scale.fill_(False)  # the temperature is not learnt

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        logits = net(batch.x, batch.w).logits
        return {"task": mean(proxy_losses(logits, batch.target, batch.open, batch.w), batch.w)}
