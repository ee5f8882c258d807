"""Streaming linear discriminant analysis on the features of a frozen network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.errors import check_float
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.first_session import FirstSession
from engram.methods.method import State
from engram.models.forward_pass import Output
from engram.per_run import PerRun
from engram.streams.stream import Task


def update_statistics(state: State, features: Tensor, labels: Tensor) -> State:
    """Update counts, means and the within-class scatter by rows [n, d] with labels [n].

    Examples
    --------
    >>> empty = {"count": torch.zeros(2), "mean": torch.zeros(2, 1), "scatter": torch.zeros(1, 1)}
    >>> rows, labels = torch.tensor([[1.0], [3.0], [7.0]]), torch.tensor([0, 0, 1])
    >>> found = update_statistics(
    ...     update_statistics(empty, rows[:1], labels[:1]), rows[1:], labels[1:]
    ... )
    >>> found["mean"].tolist(), found["scatter"].item()
    ([[2.0], [7.0]], 2.0)
    """
    count, mean, scatter = state["count"], state["mean"], state["scatter"]
    member = (labels[:, None] == torch.arange(len(count))).to(features.dtype)  # [n, C]
    fresh = member.sum(0)
    own = (member.T @ features) / fresh.clamp(min=1)[:, None]  # [C, d] means of the new rows
    centred = features - member @ own
    shift = own - mean
    share = count * fresh / (count + fresh).clamp(min=1)  # scatter between old and new means
    scatter = scatter + centred.T @ centred + (shift * share[:, None]).T @ shift
    moved = mean + shift * (fresh / (count + fresh).clamp(min=1))[:, None]
    return {"count": count + fresh, "mean": moved, "scatter": scatter}


@dataclass(frozen=True, kw_only=True)
class SLDA(FirstSession):
    """Streaming LDA: class means and a shared covariance of frozen features, in one pass.

    The network is trained on the first task and then frozen; no exemplars are kept.

    Parameters
    ----------
    shrinkage
        Weight of the identity matrix in the covariance that is inverted, above 0.
    relative
        Multiply the identity matrix by the mean variance, so that the shrinkage does not depend on
        the scale of the features. With few rows per class, 0.01 to 0.5 then make sense.
    train_first
        Train the network on the first task; False: it keeps its initial weights. Under a frozen
        backbone (``model.freeze``) there is nothing to train.

    Examples
    --------
    >>> [phase.rows for stage in (0, 1) for phase in SLDA().phases(stage)]
    ['task', 'none']

    References
    ----------
    Hayes and Kanan 2020, CVPR Workshops.
    """

    shrinkage: PerRun = 1e-4
    relative: bool = False

    def __post_init__(self) -> None:
        check_float("shrinkage", self.shrinkage, 0.0, 1.0, open_low=True)

    def finish(self, learner: RunLearner, task: Task) -> None:
        features = learner.outputs(task.train).features.double()
        classes, width = len(learner.opened), features.shape[1]
        state = {k: v.cpu().double() for k, v in learner.state.items()} or {
            "count": torch.zeros(classes).double(), "mean": torch.zeros(classes, width).double(),
            "scatter": torch.zeros(width, width).double(),
        }  # fmt: skip
        labels = learner.labels(task.train)[:, 0]
        known = labels >= 0
        state = update_statistics(state, features[known], labels[known])
        covariance = state["scatter"] / state["count"].sum().clamp(min=1)
        unit = torch.eye(width, dtype=covariance.dtype)
        if self.relative and (variance := float(covariance.trace()) / width) > 0:
            unit *= variance
        shrunk = (1 - self.shrinkage) * covariance + self.shrinkage * unit
        weight = torch.linalg.solve(shrunk, state["mean"].T).T  # [C, d]
        bias = -0.5 * (weight * state["mean"]).sum(1)
        whole = state | {"weight": weight, "bias": bias}
        learner.state = {k: v.to(learner.device) for k, v in whole.items()}

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        output = net(x)
        if "weight" not in state:  # before the first task is over
            return output
        features = output.features.to(state["weight"].dtype)
        return output._replace(logits=features @ state["weight"].T + state["bias"])
