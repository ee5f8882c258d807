"""Choose samples whose running mean follows the mean of the class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import choose
from engram.memory.source import Source

RULES = ("distance", "inner_product")
_TIE = 1e-12  # scores closer than this, relative to the features' size, are ties


def herding(
    features: Tensor,
    count: int,
    *,
    normalize: bool = True,
    dedupe: bool = True,
    rule: str = "distance",
) -> Tensor:
    """Greedy order: the k-th pick x minimises ``|mu - (x + sum of earlier picks) / k|``.

    Ties go to the lowest index. The first m of a longer order are the order of length m.

    Parameters
    ----------
    features
        [n, d]
    count
        Length of the order; n at most, where nothing may repeat.
    normalize
        Bring every feature vector to length 1 first.
    dedupe
        Never choose an index twice.
    rule
        ``distance`` as above; ``inner_product`` leaves the length of x out of the comparison, as
        the first public code did. They agree for vectors of equal length.

    Examples
    --------
    >>> herding(torch.tensor([[1, 0], [0.9, 0.1], [0, 1], [0.5, 0.5], [-0.2, 1]]), 3).tolist()
    [3, 2, 0]
    """
    choose("rule", rule, RULES)
    x = features.double()  # [n, d]
    if normalize:
        x = F.normalize(x, dim=-1)
    lengths = x.square().sum(-1)  # [n]
    # |mu - (x + s)/k|^2 k^2 = |x|^2 - 2 x.(k mu - s) + what does not depend on x
    own = lengths if rule == "distance" else torch.zeros_like(lengths)
    mean = x.mean(0)
    total = torch.zeros_like(mean)
    free = torch.ones(len(x), dtype=torch.bool)
    slack = _TIE * lengths.nan_to_num(0.0).sum().item() / max(len(x), 1)
    picks = min(count, len(x)) if dedupe or len(x) == 0 else count
    order: list[int] = []
    for k in range(1, picks + 1):
        score = own - 2.0 * (x @ (k * mean - total))
        best = lowest(score, free, slack * k)
        order.append(best)
        total = total + x[best]
        free[best] = not dedupe
    return torch.tensor(order, dtype=torch.long)


def lowest(score: Tensor, free: Tensor, slack: float) -> int:
    """The first free index whose score is within `slack` of the lowest one.

    Equal rows may get scores that differ in the last bit, because a matrix product sums in blocks;
    numbers that are none (a diverged network) lose to all others.
    """
    score = score.nan_to_num(torch.finfo(score.dtype).max)
    near = (score <= score[free].min() + slack) & free
    return int(near.to(torch.uint8).argmax())


@dataclass(frozen=True)
class Herding:
    """Mean of features: see `herding`."""

    normalize: bool = True
    dedupe: bool = True
    rule: str = "distance"

    def __post_init__(self) -> None:
        choose("rule", self.rule, RULES)

    def rank(self, learner: Source, rows: Tensor, column: int, count: int) -> Tensor:
        return herding(
            learner.outputs(rows).features,
            count,
            normalize=self.normalize,
            dedupe=self.dedupe,
            rule=self.rule,
        )
