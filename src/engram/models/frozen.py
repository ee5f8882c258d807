"""A backbone that never learns: it stands beside the network, which begins with its features."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn


class Encoder:
    """A backbone in eval mode, whose weights are no part of what a run learns, saves or copies.

    Whoever feeds the network gives it features: see `engram.learner.features.FeatureFeed`.

    Examples
    --------
    >>> encoder = Encoder(nn.Linear(3, 2), 2)
    >>> encoder(torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(self, backbone: nn.Module, width: int) -> None:
        self.module, self.width = backbone.eval().requires_grad_(False), width
        digest = hashlib.sha256()
        for name, tensor in self.module.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        self.digest = digest.hexdigest()

    def __deepcopy__(self, memo: dict[int, Any]) -> Encoder:
        return self  # it never changes: copies of a network share it

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Features [B, F] of inputs [B, ...], where those are."""
        self.module.to(x.device, x.dtype)
        found: Tensor = self.module(x)
        return found


class Features(nn.Module):
    """What is left of a backbone that is frozen: features come in, and go to the head.

    Examples
    --------
    >>> Features(4)(torch.ones(2, 4)).shape
    torch.Size([2, 4])
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, z: Tensor) -> Tensor:
        return z
