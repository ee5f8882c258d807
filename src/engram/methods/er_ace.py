"""Experience replay with asymmetric cross-entropy: new rows do not push old classes away."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from engram.errors import check_int
from engram.learner.batch import Batch
from engram.learner.networks import Net
from engram.losses import multi_hot
from engram.memory import Memory, check_memory
from engram.methods.er import task_and_memory_losses
from engram.methods.method import Method, ReplaySpec, State, Terms


def classes_in_batch(batch: Batch) -> Tensor:
    """Return the mask [C] of the classes among the labels of a batch's new rows.

    Examples
    --------
    >>> import torch
    >>> y, w = torch.tensor([[0], [2], [1]]), torch.tensor([1.0, 1.0, 0.0])
    >>> rest = dict.fromkeys(Batch._fields[3:10], torch.zeros(3, 4))
    >>> rest["old"] = torch.tensor([0.0, 1.0, 0.0])
    >>> classes_in_batch(Batch(x=y, y=y, w=w, **rest)).tolist()
    [True, False, False, False]
    """
    rows = multi_hot(batch.y, batch.opened.shape[-1], batch.w.dtype)  # [B, C]
    return ((batch.w * (1 - batch.old))[:, None] * rows).sum(0) > 0


@dataclass(frozen=True, kw_only=True)
class ERACE(Method):
    """Replay in which new rows compete only among the classes in their batch (ER-ACE).

    L = CE over the classes present in the incoming batch (new rows) + CE over all classes seen
    (memory rows). The memory is a reservoir updated at every step.

    Parameters
    ----------
    size
        Memory rows per step; 0: as many as the batch size.
    memory
        A reservoir. Caccia et al.: 5 to 100 items per class.

    Examples
    --------
    >>> ERACE().memory
    Memory(total=500, policy='reservoir')

    References
    ----------
    Caccia et al. 2022, International Conference on Learning Representations.
    """

    size: int = 0
    memory: Memory = field(default=Memory(total=500, policy="reservoir"))

    def __post_init__(self) -> None:
        check_int("size", self.size)
        check_memory(self.memory)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("pair", self.size, renew="step")

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        own = classes_in_batch(batch) | (batch.old[:, None] > 0)  # [B, C]
        new, memory = task_and_memory_losses(net, batch._replace(open=batch.open & own))
        return {"task": new, "memory": memory}
