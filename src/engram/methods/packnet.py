"""PackNet: tasks packed into one network by pruning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from engram.errors import check_float, check_int
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.method import Method, Phase, State
from engram.methods.task_masks import (
    choose_statistics,
    free_new_classes,
    keep_statistics,
    refuse_known_classes,
)
from engram.models.forward_pass import Output
from engram.per_run import PerRun
from engram.streams.stream import Task


@dataclass(frozen=True, kw_only=True)
class PackNet(Method):
    """Tasks packed into one network: after each task, most of its weights are freed for the next.

    A task trains all weights that no earlier task owns. Then the smallest of them are pruned, layer
    by layer, and the rest is trained again and belongs to the task from then on. Rows of a task are
    answered with the weights of this task and of those before it, so nothing is forgotten, but the
    task of a row must be given. Biases, and scales of normalisation, are trained in the first task
    only; running statistics are kept for each task.

    Parameters
    ----------
    share
        Share of a task's weights that is pruned, in every layer; the paper uses 0.5 and 0.75.
    retrain
        Epochs for which the remaining weights are trained after pruning.

    Examples
    --------
    >>> [phase.name for phase in PackNet().phases(0)]
    ['task', 'retrain']
    >>> PackNet().task_identity
    'required'

    References
    ----------
    Mallya and Lazebnik 2018, CVPR.
    """

    task_identity: ClassVar[str] = "required"

    share: PerRun = 0.75
    retrain: int = 1

    def __post_init__(self) -> None:
        check_float("share", self.share, 0.0, 1.0)
        check_int("retrain", self.retrain, 1)

    @property
    def grows(self) -> bool:
        return True  # by the running statistics of each task, where the network has any

    def phases(self, stage: int) -> tuple[Phase, ...]:
        return Phase(), Phase(name="retrain", before=self.prune, epochs=self.retrain)

    def start(self, learner: RunLearner, task: Task) -> None:
        if not learner.stage:
            refuse_known_classes(learner, "PackNet")
            learner.state = {"owner": torch.zeros_like(learner.vector, dtype=torch.long)}
            return
        # what was pruned is 0, and begins there
        owner = learner.state["owner"].clamp(max=learner.stage)
        learner.state = {**learner.state, "owner": owner}
        learner.free = learner.free & (owner == learner.stage)
        free_new_classes(learner)

    def prune(self, learner: RunLearner, task: Task) -> None:
        """Set the smallest of the task's new weights to 0; later tasks own them."""
        owner, free = learner.state["owner"].clone(), learner.free.clone()
        vector = learner.vector.clone()
        mine, open_, weights = (learner.layout(one) for one in (owner, free, vector))
        for name, weight in weights.items():
            if weight.ndim < 2 or name in learner.networks.class_rows:
                continue
            own = (mine[name] == learner.stage).nonzero(as_tuple=True)
            sizes = weight[own].abs()
            least = sizes.argsort(stable=True)[: int(self.share * len(sizes))]
            gone = tuple(axis[least] for axis in own)
            weight[gone], mine[name][gone], open_[name][gone] = 0.0, learner.stage + 1, False
        learner.state = {**learner.state, "owner": owner}
        learner.vector, learner.free = vector, free

    def finish(self, learner: RunLearner, task: Task) -> None:
        keep_statistics(learner)

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        told = (stage >= 0) & (state["owner"] <= stage)
        vector = torch.where(told | (stage < 0), net.vector, 0.0)
        buffers = choose_statistics(net, state, stage)
        found: Output = net.frozen({"vector": vector, "buffers": buffers})(x)
        return found
