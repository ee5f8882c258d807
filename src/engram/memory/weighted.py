"""Ranking by drawing without replacement, unequal chances."""

from __future__ import annotations

import torch
from torch import Tensor

from engram import keys
from engram.errors import bad

_LAST = 1e4  # more than any log weight of a double plus any Gumbel number drawn here


def weighted_order(key: keys.Key, weights: Tensor) -> Tensor:
    """Draw without replacement until nothing is left; return the indices in order of drawing.

    Sorting by ``log w + Gumbel noise`` is the same as drawing one after the other with chances
    proportional to the weights that remain (exponential keys), and tiny weights do not vanish as
    they would in a quotient. Weights of zero come last, in random order.

    Parameters
    ----------
    weights
        [n] of any scale, not negative.

    Examples
    --------
    >>> order = weighted_order(5, torch.tensor([0.0, 1.0, 1e-30]))
    >>> order.tolist()
    [1, 2, 0]
    """
    weights = weights.double()
    if bool((weights < 0).any()) or not bool(weights.isfinite().all()):
        raise bad("weights", "finite numbers of at least 0", weights.tolist())
    drawn = keys.uniform(key, len(weights)).clamp(min=2.0**-53)  # 0 has no logarithm
    noise = -(-drawn.log()).log()
    score = torch.where(weights > 0, weights.log() + noise, noise - _LAST)
    return score.argsort(descending=True, stable=True)
