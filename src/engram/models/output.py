"""What every network answers."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Output(NamedTuple):
    """One forward pass: it serves the classifier, herding, nearest mean and every detector.

    Examples
    --------
    >>> import torch
    >>> Output(torch.zeros(2, 8), torch.zeros(2, 3)).logits.shape
    torch.Size([2, 3])
    """

    features: Tensor  # [B, F]
    logits: Tensor  # [B, C], every class the head has room for
    # outputs of submodules that were asked for, by path
    layers: dict[str, Tensor] = {}  # noqa: RUF012
