"""Mahalanobis distance to the nearest class mean (Lee and others, 2018), stage by stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import number
from engram.learner.batch import Batch
from engram.learner.net import Net
from engram.novelty.base import Detector, Facts, State, among
from engram.novelty.odin import towards


@dataclass(frozen=True)
class Mahalanobis(Detector):
    """Minus half the squared distance of features to the nearest class mean of those seen so far.

    Means stay as they were when their class was learnt; the covariance, shared by all classes, runs
    over all rows seen so far, as if all residuals had been stored. All classes compete, whatever
    the head.

    Parameters
    ----------
    epsilon
        Size of a step of the input towards the nearest mean, in units of the raw input.
    right
        Fit on training rows that the network classifies correctly, as the benchmark does.
    """

    fits: ClassVar[bool] = True
    epsilon: float = 0.0
    right: bool = True

    def __post_init__(self) -> None:
        number("epsilon", self.epsilon, 0.0, float("inf"))

    def start(self, facts: Facts) -> State:
        empty, f = facts.like.double().new_zeros, facts.features
        return {
            "means": empty(facts.columns, f), "known": empty(facts.columns).bool(),
            "covariance": empty(f, f), "precision": empty(f, f), "rows": empty(()),
            "sums": empty(facts.columns, f), "counts": empty(facts.columns), "squares": empty(f, f),
            "std": facts.std,
        }  # fmt: skip

    def fit(self, net: Net, batch: Batch, state: State) -> State:
        features, logits, _ = net(batch.x)
        f, target = features.flatten(1).double(), batch.target
        w = (batch.w > 0).to(f)
        if self.right:
            said = among(logits, batch.open).argmax(-1)
            w = w * (said == target).to(f)
        which = F.one_hot(target, len(state["counts"])).to(f) * w[:, None]  # [B, C]
        return {
            **state, "sums": state["sums"] + which.mT @ f, "counts": state["counts"] + which.sum(0),
            "squares": state["squares"] + (f * w[:, None]).mT @ f,
        }  # fmt: skip

    def finish(self, state: State) -> State:
        sums, counts = state["sums"], state["counts"]
        fresh = sums / counts.clamp(min=1)[:, None]
        means = torch.where(state["known"][:, None], state["means"], fresh)
        # sum over the rows of (f - mean)(f - mean)', from sums of f and of f f'
        cross = means.mT @ sums
        spread = state["squares"] - cross - cross.mT + (means * counts[:, None]).mT @ means
        rows = state["rows"] + counts.sum()
        covariance = (state["covariance"] * state["rows"] + spread) / rows.clamp(min=1)
        return {
            **state, "means": means, "known": state["known"] | (counts > 0), "rows": rows,
            "covariance": covariance, "precision": torch.linalg.pinv(covariance, hermitian=True),
            "sums": torch.zeros_like(sums), "counts": torch.zeros_like(counts),
            "squares": torch.zeros_like(spread),
        }  # fmt: skip

    def score(self, net: Net, x: Tensor, columns: Tensor, state: State) -> Tensor:
        def familiarity(x: Tensor) -> Tensor:
            return nearest(net(x).features.flatten(1), state)

        if self.epsilon:
            slope = torch.func.grad(lambda x: -familiarity(x).sum())(x)
            x = x - self.epsilon * towards(slope) / state["std"]
        return familiarity(x)


def nearest(features: Tensor, state: State) -> Tensor:
    """[B] minus half the squared distance to the nearest known mean.

    Examples
    --------
    >>> state = {"means": torch.tensor([[1.0, 0.0], [4.0, 5.0]]).double(),
    ...          "known": torch.ones(2, dtype=torch.bool), "precision": 2 * torch.eye(2).double()}
    >>> nearest(torch.tensor([[1.0, 1.0]]), state).item()
    -1.0
    """
    away = features.double()[:, None] - state["means"]  # [B, C, F]
    far = ((away @ state["precision"]) * away).sum(-1)
    best: Tensor = (-0.5 * far).masked_fill(~state["known"], -torch.inf).amax(-1)
    return best.nan_to_num(neginf=0.0)  # nothing is known yet
