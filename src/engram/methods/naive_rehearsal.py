"""Naive rehearsal: equal numbers of old and new samples in every batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from engram.errors import check_choice, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.memory import Memory, check_memory
from engram.methods.er import task_and_memory_losses
from engram.methods.method import ARGMAX_OR_THRESHOLD, Method, ReplaySpec, State, Terms
from engram.streams.stream import Task

WEIGHTINGS = ("mean", "task_count")


def task_count_terms(new: Tensor, memory: Tensor, now: Tensor) -> Terms:
    """Weight two losses as ``new / t + (1 - 1/t) * memory`` at task t = now + 1.

    Examples
    --------
    >>> import torch
    >>> terms = task_count_terms(torch.tensor(0.8), torch.tensor(0.4), torch.tensor(3))
    >>> {name: round(value.item(), 6) for name, value in terms.items()}
    {'task': 0.2, 'memory': 0.3}
    """
    share = 1 / (now + 1).to(new.dtype)
    return {"task": share * new, "memory": (1 - share) * memory}


@dataclass(frozen=True, kw_only=True)
class NaiveRehearsal(Method):
    """Add as many memory rows to each batch as it has new ones; tasks share the memory.

    After task t, B // t random rows of the task replace as many random old ones, so that the
    memory of B items is always full. Every replayed row goes through its own task's head.

    Parameters
    ----------
    memory
        1000 items by default, the published size for class-incremental streams (1500 for
        task-incremental ones). ``shrink="equal"`` keeps exactly equal shares instead.
    weighting
        ``mean``: one mean over new and old rows (ConFER's text); ``task_count``: ``new / t + (1 -
        1/t) * old`` at task t (ConFER's base code).
    size
        Memory rows per step; 0: as many as the batch size.

    Notes
    -----
    Hsu et al. 2018 (NeurIPS workshop on continual learning).

    Examples
    --------
    >>> NaiveRehearsal().memory
    Memory(total=1000, shared_by='task', shrink='random')
    """

    decides: ClassVar[tuple[str, ...]] = ARGMAX_OR_THRESHOLD

    memory: Memory = field(default=Memory(total=1000, shared_by="task", shrink="random"))
    weighting: str = "mean"
    size: int = 0

    def __post_init__(self) -> None:
        check_choice("weighting", self.weighting, WEIGHTINGS)
        check_int("size", self.size)
        check_memory(self.memory)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("pair", self.size)

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        if self.weighting == "mean":
            return {"task": net.task(batch)}
        return task_count_terms(*task_and_memory_losses(net, batch), batch.now)

    def finish(self, learner: RunLearner, task: Task) -> None:
        learner.exemplars = self.memory.update(learner, task.train)
