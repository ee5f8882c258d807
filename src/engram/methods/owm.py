"""OWM: updates orthogonal to the mean inputs that earlier tasks gave to each layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram import keys
from engram.errors import check_float, check_int
from engram.learner.learner import RunLearner
from engram.methods.layer_inputs import hold_other_parameters, mean_inputs, project_step
from engram.methods.method import Method, State, Update
from engram.per_run import PerRun
from engram.streams.stream import Task


def shrink(projector: Tensor, inputs: Tensor, alpha: float) -> Tensor:
    """Return a projector [d, d] that has met further inputs [n, d], by recursive least squares.

    The same as one row after the other: P - P x x' P / (alpha + x' P x).

    Examples
    --------
    >>> axes = torch.eye(3).double()
    >>> shrink(axes, torch.tensor([[0.0, 2.0, 0.0]]).double(), alpha=1.0).diagonal().tolist()
    [1.0, 0.2..., 1.0]
    """
    along = projector @ inputs.mT  # [d, n]
    inner = inputs @ along + alpha * torch.eye(len(inputs)).to(inputs)
    found: Tensor = projector - along @ torch.linalg.solve(inner, along.mT)
    return (found + found.mT) / 2


@dataclass(frozen=True, kw_only=True)
class OWM(Method):
    """Move weights only orthogonally to what earlier tasks gave to a layer, on average (OWM).

    P_l = 1 before the first task; after a task, for the mean x of what each batch gave to layer l:
        P_l <- P_l - P_l x x' P_l / (alpha + x' P_l x)
    W_l <- W_l + (what the optimiser did to W_l) P_l, from the second task on

    Parameters
    ----------
    alpha
        What counts as no input: the smaller, the fewer directions remain. Zeng et al.: from about 1
        at the beginning of a task down to .001 and less at its end.
    size
        Rows of a task whose inputs are averaged; with fewer, there are more means and fewer
        directions remain. Zeng et al.: the batch size, 40 to 64.

    Notes
    -----
    A common head is one of the layers; heads of tasks that are given move freely.

    Examples
    --------
    >>> OWM(alpha=0.01)
    OWM(alpha=0.01, size=64)

    References
    ----------
    Zeng, Chen, Cui and Yu 2019, Nature Machine Intelligence 1.
    """

    alpha: PerRun = 0.1
    size: int = 64

    def __post_init__(self) -> None:
        check_float("alpha", self.alpha, open_low=True)
        check_int("size", self.size, 1)

    def start(self, learner: RunLearner, task: Task) -> None:
        hold_other_parameters(learner, "net.backbone")

    def step(self, update: Update, state: State) -> State | tuple[Tensor, State]:
        if "projectors" not in state:
            return state
        return project_step(update, state["projectors"]), state

    def finish(self, learner: RunLearner, task: Task) -> None:
        key = keys.fold(learner.seed, "inputs", learner.stage)
        order = keys.permutation(key, len(task.train), len(task.train)).to(task.train.device)
        own = learner.stream.head == "multi"  # heads of given tasks do not meet
        parts = ("net.backbone",) if own else ("net.backbone", "net.head")
        found = mean_inputs(learner, task.train[order], self.size, parts)
        before, dtype = learner.state.get("projectors", {}), learner.vector.dtype
        made = {}
        for name, inputs in found.items():
            projector = before.get(name, torch.eye(inputs.shape[1])).to(inputs)
            made[name] = shrink(projector, inputs, self.alpha).to(dtype)
        learner.state = {"projectors": made}
