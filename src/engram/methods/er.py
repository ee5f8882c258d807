"""Experience replay: batches of the current task with exemplars of earlier tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from engram.errors import bad, check_choice, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.memory import Memory, check_memory
from engram.methods.method import ARGMAX_OR_THRESHOLD, Method, ReplaySpec, State, Terms
from engram.streams.stream import Task

MIXES = ("paired", "union")
REDUCTIONS = ("mean", "sum")


def task_and_memory_losses(net: Net, batch: Batch) -> tuple[Tensor, Tensor]:
    """Compute the training objective of new and of memory rows, from one forward pass.

    The second is 0 without memory rows.
    """
    net(batch.x, batch.w)  # normalisation layers see the whole batch; the calls below reuse it
    new = net.task(batch._replace(w=batch.w * (1 - batch.old)))
    memory = net.task(batch._replace(w=batch.w * batch.old))
    return new, memory


def replay_terms(net: Net, batch: Batch, reduce: str) -> Terms:
    """Compute one mean over new and memory rows, or one mean over each."""
    if reduce == "mean":
        return {"task": net.task(batch)}
    new, memory = task_and_memory_losses(net, batch)
    return {"task": new, "memory": memory}


@dataclass(frozen=True, kw_only=True)
class ER(Method):
    """Experience replay: train on the current task and on exemplars of earlier tasks.

    Parameters
    ----------
    memory
        How many rows are kept, and which. IIRC: 20 per class, random; CND: 4500 or 9000 shared by
        tasks; RWalk: 10 or 25 per class by herding.
    mix
        ``paired``: memory rows, drawn with replacement, join every batch of the task (CND);
        ``union``: every epoch goes once over the task and the whole memory, shuffled (IIRC, RWalk,
        CGL).
    reduce
        ``mean``: one mean over all rows of a batch; ``sum``: the mean over the new rows plus the
        mean over the memory rows (CND).
    size
        Memory rows per step when paired; 0: as many as the batch size.
    renew
        ``task``: the memory is updated after each task; ``step``: it is a reservoir (policy)
        updated at every step, so that batches replay rows of the current task, too.

    Notes
    -----
    Rolnick et al. 2019 (NeurIPS); Chaudhry et al. 2019 (tiny episodic memories). IIRC's ER is
    ``mix="union"`` with 20 random exemplars per class; the continual-novelty form is ``paired``
    with ``reduce="sum"``.

    Examples
    --------
    >>> ER()
    ER(memory=Memory(total=500), mix='paired', reduce='mean', size=0, renew='task')
    >>> ER(mix="union").replay(1)
    ReplaySpec(kind='union', size=0)
    """

    decides: ClassVar[tuple[str, ...]] = ARGMAX_OR_THRESHOLD

    memory: Memory = field(default=Memory(total=500))
    mix: str = "paired"
    reduce: str = "mean"
    size: int = 0
    renew: str = "task"

    def __post_init__(self) -> None:
        check_choice("mix", self.mix, MIXES)
        check_memory(self.memory)
        check_choice("renew", self.renew, ("task", "step"))
        if self.renew == "step" and (self.mix != "paired" or self.memory.policy != "reservoir"):
            wanted = "'task', unless mix is 'paired' and the memory's policy 'reservoir'"
            raise bad("renew", wanted, self.renew)
        check_choice("reduce", self.reduce, REDUCTIONS)
        check_int("size", self.size)

    def replay(self, stage: int) -> ReplaySpec:
        if self.mix == "union":
            return ReplaySpec("union")
        return ReplaySpec("pair", self.size, renew=self.renew)

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        return replay_terms(net, batch, self.reduce)

    def finish(self, learner: RunLearner, task: Task) -> None:
        if self.renew == "task":  # otherwise the engine updates the reservoir
            learner.exemplars = self.memory.update(learner, task.train)
