"""Prefer samples the network is unsure of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.memory.random import group_key
from engram.memory.source import Source
from engram.memory.weighted import weighted_order

_FLOOR = 1e-32  # keeps certain samples drawable, after all others


def entropy(probabilities: Tensor) -> Tensor:
    """[n] Shannon entropy in nats of the rows [n, C].

    Examples
    --------
    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [0.6931, 0.0]
    """
    terms: Tensor = torch.special.entr(probabilities.double())  # 0 log 0 = 0
    return terms.sum(-1)


def entropy_weights(probabilities: Tensor) -> Tensor:
    """[n] chances of being drawn, proportional to the entropy.

    Examples
    --------
    >>> entropy_weights(torch.tensor([[0.5, 0.5], [0.9, 0.1]])).tolist()
    [0.6807, 0.3193]
    """
    weights = entropy(probabilities) + _FLOOR
    return weights / weights.sum()


@dataclass(frozen=True)
class Entropy:
    """Draw with chances proportional to the entropy over the classes seen so far."""

    def rank(self, learner: Source, rows: Tensor, column: int, count: int) -> Tensor:
        seen = learner.opened.cpu() >= 0
        logits = learner.outputs(rows).logits[:, seen].double()
        # a diverged network is sure of nothing it can say: its samples count as certain
        weights = entropy_weights(logits.softmax(-1).nan_to_num(0.0))
        return weighted_order(group_key(learner, column), weights)[:count]
