"""PackNet: tasks packed into one network by pruning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from engram.errors import bad, check_float, check_int
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.method import Method, Phase, State
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
            stream = learner.stream
            opens = stream.opening == torch.arange(len(stream.visible))[:, None]  # [T, C]
            if bool((stream.visible & ~opens).any()):
                raise bad("stream", "tasks whose classes are all new, for PackNet", "known classes")
            learner.state = {"owner": torch.zeros_like(learner.vector, dtype=torch.long)}
            return
        # what was pruned is 0, and begins there
        owner = learner.state["owner"].clamp(max=learner.stage)
        learner.state = {**learner.state, "owner": owner}
        learner.free = learner.free & (owner == learner.stage)
        heads = learner.layout(learner.free)
        for name in learner.networks.class_rows:
            heads[name][learner.new.to(learner.device)] = True

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
        if learner.buffers:
            kept = learner.state.get("statistics", {})
            now = {
                name: torch.cat([kept[name], value[None]]) if kept else value[None].clone()
                for name, value in learner.buffers.items()
            }
            learner.state = {**learner.state, "statistics": now}

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        told = (stage >= 0) & (state["owner"] <= stage)
        vector = torch.where(told | (stage < 0), net.vector, 0.0)
        buffers = net.statistics()
        if "statistics" in state:
            buffers = {
                name: choose_row(state["statistics"][name], stage, value)
                for name, value in buffers.items()
            }
        found: Output = net.frozen({"vector": vector, "buffers": buffers})(x)
        return found


def choose_row(rows: Tensor, number: Tensor, default: Tensor) -> Tensor:
    """Return a row of some by its number []; the default where there is none.

    Examples
    --------
    >>> rows, default = torch.tensor([[1.0], [2.0]]), torch.tensor([9.0])
    >>> [choose_row(rows, torch.tensor(k), default).item() for k in (-1, 0, 1, 2)]
    [9.0, 1.0, 2.0, 9.0]
    """
    known = (number >= 0) & (number < len(rows))
    place = number.clamp(0, len(rows) - 1).reshape(1)
    return torch.where(known, rows.index_select(0, place)[0], default)
