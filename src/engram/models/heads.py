"""Heads: from features to one logit per class, with one row of weights per class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram import keys
from engram.errors import check_bool, check_int


def _make_column_keys(seed: keys.Key, classes: int, device: torch.device) -> Tensor:
    """Make one key per class [C], independent of the number of classes."""
    key = keys.fold(seed, "head", torch.arange(classes, device=device))
    return torch.as_tensor(key)


class Linear(nn.Linear):
    """Linear head.

    Parameters
    ----------
    features, classes, bias
        As in `torch.nn.Linear`.
    xavier
        Initial weights by Glorot and Bengio (uniform), as if all classes were there, and biases 0.

    Examples
    --------
    >>> small, large = Linear(4, 2), Linear(4, 6)
    >>> small.reset_columns(0)
    >>> large.reset_columns(0)
    >>> torch.equal(small.weight, large.weight[:2])
    True
    """

    def __init__(
        self, features: int, classes: int, bias: bool = True, xavier: bool = False
    ) -> None:
        super().__init__(check_int("features", features, 1), check_int("classes", classes, 1), bias)
        self.xavier = check_bool("xavier", xavier)
        self.class_parameters: tuple[str, ...] = ("weight", "bias") if bias else ("weight",)

    @property
    def features(self) -> int:
        return self.in_features

    @property
    def classes(self) -> int:
        return self.out_features

    @torch.no_grad()
    def reset_columns(self, seed: keys.Key) -> None:
        """Draw every class anew: uniform in +-1/sqrt(features), class c from (seed, "head", c).

        With `xavier` the bound is sqrt(6 / (features + classes)), and biases are 0.
        """
        bound = self.in_features**-0.5
        if self.xavier:
            bound = (6 / (self.in_features + self.out_features)) ** 0.5
        key = _make_column_keys(seed, self.out_features, self.weight.device)
        drawn = (2 * keys.uniform(key, self.in_features + 1) - 1) * bound  # [C, F + 1]
        self.weight.copy_(drawn[:, :-1])
        if self.bias is not None:
            self.bias.copy_(0 * drawn[:, -1] if self.xavier else drawn[:, -1])


class Cosine(nn.Module):
    """Cosine head: logit = scale * cos(class row, features), the scale is learnt.

    Examples
    --------
    >>> head = Cosine(2, 3, scale=10.0)
    >>> _ = head.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]))
    >>> [round(v, 4) for v in head(torch.tensor([[3.0, 4.0]]))[0].tolist()]
    [6.0, 8.0, -6.0]
    """

    def __init__(self, features: int, classes: int, scale: float = 1.0) -> None:
        super().__init__()
        shape = check_int("classes", classes, 1), check_int("features", features, 1)
        self.weight = nn.Parameter(torch.randn(shape) / features**0.5)
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.class_parameters: tuple[str, ...] = ("weight",)

    @property
    def features(self) -> int:
        return self.weight.shape[1]

    @property
    def classes(self) -> int:
        return self.weight.shape[0]

    def cosines(self, features: Tensor) -> Tensor:
        """[B, C] cosines without the scale, as margin losses need them."""
        return F.linear(F.normalize(features, dim=-1), F.normalize(self.weight, dim=-1))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * self.cosines(features)

    @torch.no_grad()
    def reset_columns(self, seed: keys.Key) -> None:
        """Draw every class anew: normal with norm about 1, class c from (seed, "head", c)."""
        key = _make_column_keys(seed, self.classes, self.weight.device)
        self.weight.copy_(keys.normal(key, self.features) / self.features**0.5)
