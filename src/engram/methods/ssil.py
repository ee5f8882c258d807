"""SS-IL: separate softmaxes for old and new classes, and distillation within each task."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engram.errors import check_choice, check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.memory import Memory, check_memory
from engram.methods.lwf import distill_blocks
from engram.methods.method import Method, ReplaySpec, State, Terms
from engram.per_run import PerRun
from engram.streams.stream import Task

INPUTS = ("all", "replay")


def competing_classes(batch: Batch) -> Tensor:
    """Return the mask [B, C] of competing classes: the new or the old ones, as the row's own class.

    Examples
    --------
    >>> opened, y = torch.tensor([0, 0, 1, 1, -1]), torch.tensor([[2], [0]])
    >>> rest = dict.fromkeys(Batch._fields[3:10], opened)
    >>> rest |= {"open": opened.expand(2, -1) >= 0, "now": torch.tensor(1)}
    >>> competing_classes(Batch(x=y, y=y, w=torch.ones(2), **rest)).int().tolist()
    [[0, 0, 1, 1, 0], [1, 1, 0, 0, 0]]
    """
    fresh = batch.new[batch.target]  # [B]
    return batch.open & (fresh[:, None] == batch.new)


@dataclass(frozen=True, kw_only=True)
class SSIL(Method):
    """Replay with separate softmaxes for old and new classes, and task-wise distillation (SS-IL).

    L = CE (rows of new classes among the new ones, of old classes among the old ones; one mean
    over all rows) + the sum over past tasks of T² KL(old network || network) among the task's
    classes.

    Parameters
    ----------
    memory
        How many rows are kept, and which. CND: 4500 or 9000, shared by tasks.
    size
        Memory rows per step; 0: as many as the batch size.
    temperature
        T of the distillation.
    kd_inputs
        Rows to distil on: ``all`` (official code), or those of the memory (``replay``, CND's code).

    Examples
    --------
    >>> SSIL().replay(1)
    ReplaySpec(kind='pair', size=0)

    References
    ----------
    Ahn et al. 2021, International Conference on Computer Vision.
    """

    memory: Memory = field(default=Memory(total=500))
    size: int = 0
    temperature: PerRun = 2.0
    kd_inputs: str = "all"

    def __post_init__(self) -> None:
        check_memory(self.memory)
        check_int("size", self.size)
        check_float("temperature", self.temperature, open_low=True)
        check_choice("kd_inputs", self.kd_inputs, INPUTS)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("pair", self.size)

    def start(self, learner: RunLearner, task: Task) -> None:
        if learner.stage == 0:
            return
        blocks = learner.opened == torch.arange(learner.stage)[:, None]  # [K, C]
        learner.state = {"teacher": learner.snapshot(), "blocks": blocks.to(learner.device)}

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        logits = net(batch.x, batch.w).logits
        task = net.task(batch._replace(open=competing_classes(batch)))
        if "teacher" not in state:
            return {"task": task}
        costs = distill_blocks(
            logits, net.frozen(state["teacher"])(batch.x).logits, state["blocks"],
            batch.w if self.kd_inputs == "all" else batch.w * batch.old,
            temperature=self.temperature, scale=True, form="kl",
        )  # fmt: skip
        return {"task": task, "distill": costs.sum()}

    def finish(self, learner: RunLearner, task: Task) -> None:
        learner.exemplars = self.memory.update(learner, task.train)
        learner.state = {}
