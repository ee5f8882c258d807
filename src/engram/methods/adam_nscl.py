"""Adam-NSCL: updates in the null space of what earlier tasks have shown to each layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.errors import check_float
from engram.learner.learner import RunLearner
from engram.methods.layer_inputs import hold_other_parameters, input_moments, project_step
from engram.methods.method import Method, State, Update
from engram.per_run import PerRun
from engram.streams.stream import Task

PART = "net.backbone"
FLOOR = 1e-7  # of the largest eigenvalue: below it, rounding decides


def null_space(moment: Tensor, scale: float) -> Tensor:
    """Return the projector [d, d] onto directions in which a second moment is small.

    Their eigenvalues are at most `scale` times the smallest one.

    Examples
    --------
    >>> null_space(torch.diag(torch.tensor([9.0, 1.0, 2.0])), scale=3.0).round().tolist()
    [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    values, vectors = torch.linalg.eigh(moment)
    least = torch.maximum(values[0], FLOOR * values[-1])
    basis = vectors * (values <= scale * least)
    projector: Tensor = basis @ basis.mT
    return projector


@dataclass(frozen=True, kw_only=True)
class AdamNSCL(Method):
    """Move the weights of a layer only where inputs of earlier tasks hardly reach.

    M_l = sum over rows x of all tasks so far of the inputs of layer l, as x x'
    P_l = U U', U the eigenvectors of M_l with eigenvalues up to scale * (the smallest one)
    W_l <- W_l + (what the optimiser did to W_l) P_l, from the second task on

    Heads move freely; all other parameters stand still from the second task on.

    Parameters
    ----------
    scale
        Eigenvalues up to so many times the smallest one count as none. Wang et al.: 10 to 30.

    Notes
    -----
    It is made for streams with known tasks, one head each: nothing protects a common head.

    Examples
    --------
    >>> AdamNSCL(scale=30.0)
    AdamNSCL(scale=30.0)

    References
    ----------
    Wang et al. 2021, CVPR.
    """

    scale: PerRun = 10.0

    def __post_init__(self) -> None:
        check_float("scale", self.scale, 1.0)

    def start(self, learner: RunLearner, task: Task) -> None:
        hold_other_parameters(learner, PART)

    def step(self, update: Update, state: State) -> State | tuple[Tensor, State]:
        if "projectors" not in state:
            return state
        return project_step(update, state["projectors"]), state

    def finish(self, learner: RunLearner, task: Task) -> None:
        found = input_moments(learner, task.train, PART)
        before = learner.state.get("moments", {})
        moments = {name: one + before.get(name, 0) for name, one in found.items()}
        dtype = learner.vector.dtype
        made = {name: null_space(one, self.scale).to(dtype) for name, one in moments.items()}
        learner.state = {"moments": moments, "projectors": made}
