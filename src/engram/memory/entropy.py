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
    return _chances(entropy(probabilities))


def label_entropy_weights(logits: Tensor) -> Tensor:
    """[n] the same where a row has a set of labels: a yes or no for each column of [n, C].

    Examples
    --------
    >>> label_entropy_weights(torch.tensor([[0.0, 0.0], [0.0, 99.0]])).tolist()
    [0.6667, 0.3333]
    """
    either = torch.stack([logits, -logits]).double().sigmoid()  # [2, n, C] of yes and of no
    return _chances(entropy(either.nan_to_num(0.0)).sum(0))


def _chances(entropies: Tensor) -> Tensor:
    weights = entropies + _FLOOR
    return weights / weights.sum()


@dataclass(frozen=True)
class Entropy:
    """Draw with chances proportional to the entropy over the classes seen so far.

    That of one answer, or, where rows have sets of labels, of a yes or no for each class.
    """

    def rank(self, learner: Source, rows: Tensor, column: int, count: int) -> Tensor:
        seen = learner.opened.cpu() >= 0
        logits = learner.outputs(rows).logits[:, seen].double()
        if learner.stream.labels == "set":
            weights = label_entropy_weights(logits)
        else:
            # a diverged network is sure of nothing it can say: its samples count as certain
            weights = entropy_weights(logits.softmax(-1).nan_to_num(0.0))
        return weighted_order(group_key(learner, column), weights)[:count]
