"""WA: distillation with exemplars, and weights of new classes aligned to those of old ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engram.errors import check_float
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import distill_rows, mean
from engram.memory import Memory, check_memory
from engram.methods.method import Method, ReplaySpec, State, Terms, Update
from engram.methods.new_classes import need_new_classes
from engram.per_run import PerRun
from engram.streams.stream import Task

HEAD = "net.head.weight"


def align_weights(rows: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Scale the rows [C, F] of new classes so that their mean length is that of the old ones.

    Examples
    --------
    >>> rows = torch.tensor([[3.0, 4.0], [0.0, 10.0], [20.0, 0.0], [7.0, 0.0]])
    >>> align_weights(rows, torch.tensor([1, 0, 0, 0]) > 0, torch.tensor([0, 1, 1, 0]) > 0).tolist()
    [[3.0, 4.0], [0.0, 3.333333492279053], [6.666666984558105, 0.0], [7.0, 0.0]]
    """
    lengths = rows.norm(dim=-1)
    factor = mean(lengths, old.to(rows.dtype)) / mean(lengths, new.to(rows.dtype)).clamp(min=1e-12)
    return torch.where(new[:, None], factor * rows, rows)


@dataclass(frozen=True, kw_only=True)
class WA(Method):
    """Distillation with exemplars, then weights of new classes aligned to those of old ones (WA).

    L = (1 - s) CE (all rows, all classes seen) + s * distillation of the network before the task
    over the old classes, with s the share of old classes among those seen. After each task, from
    the second on, the head's weights of new classes are multiplied by (mean length of the old
    ones) / (mean length of the new ones).

    Parameters
    ----------
    memory
        Exemplars to keep, all of them trained on in every epoch. The paper: 2000 by herding.
    temperature
        T of the distillation.
    clip
        Set negative weights of the head to 0 after every step, as the paper proposes, so that
        longer weights mean larger logits. It needs features of at least 0.

    Examples
    --------
    >>> WA(temperature=0.0)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: temperature: expected a number above 0, got 0.0

    References
    ----------
    Zhao et al. 2020, CVPR.
    """

    memory: Memory = field(default=Memory(total=500, policy="herding"))
    temperature: PerRun = 2.0
    clip: bool = False

    def __post_init__(self) -> None:
        check_memory(self.memory)
        check_float("temperature", self.temperature, open_low=True)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("union")

    def implements(self, verb: str) -> bool:
        # a step that follows the update needs the whole vector, and a copy of the one before
        return super().implements(verb) and (verb != "step" or self.clip)

    def start(self, learner: RunLearner, task: Task) -> None:
        if learner.stage == 0:
            need_new_classes(learner, "WA")
            return
        learner.state = {"teacher": learner.snapshot()}

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        task = net.task(batch)
        if "teacher" not in state:
            return {"task": task}
        known = batch.known
        rows = distill_rows(
            net(batch.x, batch.w).logits, net.frozen(state["teacher"])(batch.x).logits,
            known, temperature=self.temperature,
        )  # fmt: skip
        share = known.sum().to(task.dtype) / batch.seen.sum().clamp(min=1)
        return {"task": (1 - share) * task, "distill": share * mean(rows, batch.w)}

    def step(self, update: Update, state: State) -> State | tuple[Tensor, State]:
        weights = update.after.clone()
        head = update.layout(weights)[HEAD]
        head.copy_(head.clamp(min=0))
        return weights, state

    def finish(self, learner: RunLearner, task: Task) -> None:
        if learner.stage:
            rows = learner.params[HEAD]
            masks = learner.known.to(rows.device), learner.new.to(rows.device)
            rows.copy_(align_weights(rows, *masks))
        learner.exemplars = self.memory.update(learner, task.train)
        learner.state = {}
