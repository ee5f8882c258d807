"""Spatio-temporal graph convolutional network on skeletons."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engram.errors import bad, whole
from engram.models.layers import BatchNorm, Dropout
from engram.models.shapes import skeleton
from engram.models.skeletons import Pairs, WithConstants, bones, partitions


class Block(nn.Module):
    """Graph convolution over three partitions, then convolution over time."""

    def __init__(
        self, inputs: int, outputs: int, joints: int, kernel: int, dropout: float, residual: bool
    ) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(inputs, 3 * outputs, 1)
        self.importance = nn.Parameter(torch.ones(3, joints, joints))
        self.spatial_norm = BatchNorm(outputs)
        self.temporal = nn.Conv2d(outputs, outputs, (kernel, 1), padding=(kernel // 2, 0))
        self.temporal_norm = BatchNorm(outputs)
        self.dropout = Dropout(dropout)
        self.residual = residual

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        parts = self.spatial(x).unflatten(1, (3, -1))  # [N, 3, C, T, V]
        y: Tensor = torch.einsum("npctv,pvw->nctw", parts, graph * self.importance)
        y = self.temporal(self.spatial_norm(y).relu())
        y = self.dropout(self.temporal_norm(y))
        return (y + x if self.residual else y).relu()


class STGCN(WithConstants):
    """Spatio-temporal graph network on skeletons: 2 blocks of 64 channels, mean over all.

    Parameters
    ----------
    edges
        "ucla", "ntu", or (child, parent) pairs of joints counted from 1.
    width, depth
        Channels and number of blocks.
    tk
        Frames seen by a convolution over time (odd).
    dropout
        Probability of dropping at the end of a block.

    Examples
    --------
    >>> STGCN((3, 52, 20), edges="ucla")(torch.zeros(2, 3, 52, 20)).shape
    torch.Size([2, 64])
    """

    constants = ("graph",)

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        *,
        edges: str | Pairs | None = None,
        width: int = 64,
        depth: int = 2,
        tk: int = 9,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        channels, _, joints, self._people = skeleton("stgcn", sample_shape)
        if whole("tk", tk, 1) % 2 == 0:
            raise bad("tk", "an odd number of frames", tk)
        self.graph = partitions(bones(edges, joints), joints)  # [3, V, V]
        self.data_norm = BatchNorm(joints * channels)
        whole("width", width, 1)
        sizes = [channels] + [width] * whole("depth", depth, 1)
        self.blocks = nn.ModuleList(
            Block(sizes[i], width, joints, tk, dropout, residual=i > 0) for i in range(depth)
        )
        self.features = width
        self.root_modules = ("data_norm", "blocks")

    def root(self, x: Tensor) -> Tensor:
        if x.ndim == 4:
            x = x.unsqueeze(-1)
        rows, channels, frames, joints, people = x.shape
        x = x.permute(0, 3, 1, 4, 2).reshape(rows, joints * channels, people, frames)
        x = self.data_norm(x).reshape(rows, joints, channels, people, frames)
        x = x.permute(0, 3, 2, 4, 1).reshape(rows * people, channels, frames, joints)
        for block in self.blocks:
            x = block(x, self.graph)
        latent: Tensor = x.unflatten(0, (rows, people))
        return latent  # [B, M, C, T, V]

    def body(self, z: Tensor) -> Tensor:
        return z.mean((3, 4)).mean(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))
