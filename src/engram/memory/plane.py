"""Prefer samples close to the decision plane of their class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from engram.errors import choose
from engram.memory.groups import first_label
from engram.memory.random import group_key
from engram.memory.source import Source
from engram.memory.weighted import weighted_order

_FLOOR = 1e-8

# 1/d has no meaning for d <= 0, so the distance is made positive first
TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "abs_eps": lambda d: d.abs().clamp(min=_FLOOR),
    "softplus": lambda d: F.softplus(d).clamp(min=_FLOOR),
}


def plane_weights(distances: Tensor, transform: str = "abs_eps") -> Tensor:
    """[n] chances of being drawn, inverse to the distance.

    Parameters
    ----------
    transform
        ``abs_eps``: 1 / max(abs(d), 1e-8); ``softplus``: 1 / log(1 + exp(d)).

    Examples
    --------
    >>> import torch
    >>> plane_weights(torch.tensor([2.0, 4.0, -4.0])).tolist()
    [0.5, 0.25, 0.25]
    """
    positive = TRANSFORMS[choose("transform", transform, TRANSFORMS)]
    weights = 1.0 / positive(distances.double())
    return weights / weights.sum()


@dataclass(frozen=True)
class Plane:
    """Draw with chances inverse to the product of features and the class's last-layer weights."""

    transform: str = "abs_eps"

    def __post_init__(self) -> None:
        choose("transform", self.transform, TRANSFORMS)

    def rank(self, learner: Source, rows: Tensor, column: int, count: int) -> Tensor:
        features = learner.outputs(rows).features.double()  # [n, d]
        weights = learner.class_weights().double()  # [C, d]
        if column >= 0:
            distances = features @ weights[column]
        else:  # a whole task: every row by its own first label
            own = first_label(learner.labels(rows))
            distances = (features * weights[own]).sum(-1)
        distances = distances.nan_to_num(1e30)  # a diverged network: last
        chances = plane_weights(distances, self.transform)
        return weighted_order(group_key(learner, column), chances)[:count]
