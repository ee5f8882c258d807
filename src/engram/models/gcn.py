"""Graph convolutional network of the skeleton benchmark (CGL)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.errors import check_choice, check_int
from engram.models.forward_pass import SHARE, check_skeleton_shape
from engram.models.kernels import graph_ops
from engram.models.layers import BatchNorm, Dropout
from engram.models.skeleton_graphs import (
    Pairs,
    WithConstants,
    bidirectional_edges,
    bones,
    check_stretch,
    neighbour_weights,
    stretch_axes,
)


class GraphLayer(nn.Module):
    """ReLU(sum over neighbours of h W + b) + ReLU(h R + r), batch norm over nodes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)  # its output h W is what TWP reads
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.residual = nn.Linear(inputs, outputs)
        self.norm = BatchNorm(outputs, axis=-1)
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, h: Tensor, neighbours: Tensor) -> Tensor:
        near = neighbours @ self.linear(h)  # [B, V, W]
        if self.training and SHARE.get() is None and graph_ops.applies(near):
            return self._fused(near, F.linear(h, self.residual.weight))
        y: Tensor = self.norm(torch.relu(near + self.bias) + torch.relu(self.residual(h)))
        return y

    def _fused(self, near: Tensor, far: Tensor) -> Tensor:
        """The same as the last two lines of `forward`, in training."""
        norm = self.norm
        real = norm.real_rows(near)
        y, mean, var = graph_ops.mix(
            near, far, self.bias, self.residual.bias, real, *norm.factors(), norm.eps
        )
        norm.observe(mean, var, real.sum() * near.shape[1])
        return y


class GCN(WithConstants):
    """Graph network for skeletons: sum aggregation, gated sum and max readout, a layer of 64.

    Parameters
    ----------
    edges
        "ucla", "ntu", or (child, parent) pairs of joints counted from 1.
    width, depth
        Width and number of graph layers.
    hidden
        Width of the predictor's layer, which is the feature width.
    dropout
        Probability of dropping before that layer.
    persons
        For samples [C, T, V, persons]: "concat" joins their coordinates, "first" drops the rest.
    aggregation
        What a joint hears: the "sum" over its neighbours (CGLB), or "symmetric", which counts the
        joint itself and divides by the roots of both degrees (Kipf and Welling 2017).
    stretch
        Stretch x, y and z of each sample to [-1, 1] first: for coordinates that are stored as they
        were recorded, so that random turns act on them (Chen et al. 2021).

    Examples
    --------
    >>> net = GCN((3, 52, 20), edges="ucla")
    >>> net(torch.zeros(2, 3, 52, 20)).shape, net.edges.shape
    (torch.Size([2, 64]), torch.Size([2, 38]))
    """

    constants = ("neighbours", "edges")

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        *,
        edges: str | Pairs | None = None,
        width: int = 64,
        depth: int = 2,
        hidden: int = 64,
        dropout: float = 0.0,
        persons: str = "concat",
        aggregation: str = "sum",
        stretch: bool = False,
    ) -> None:
        super().__init__()
        channels, frames, joints, people = check_skeleton_shape("gcn", sample_shape)
        pairs = bones(edges, joints)
        self.edges = bidirectional_edges(pairs)  # [2, E]
        self.neighbours = neighbour_weights(pairs, joints, aggregation)  # [V, V]
        self._stretch = check_stretch(stretch, sample_shape)
        self._first = check_choice("persons", persons, ["concat", "first"]) == "first"
        inputs = channels * frames * (1 if self._first else people)
        check_int("width", width, 1)
        sizes = [inputs] + [width] * check_int("depth", depth, 1)
        self.layers = nn.ModuleList(map(GraphLayer, sizes[:-1], sizes[1:]))
        self.gate = nn.Linear(width, 1)
        self.dropout = Dropout(dropout)
        self.hidden = nn.Linear(2 * width, check_int("hidden", hidden, 1))
        self.norm = BatchNorm(hidden)
        self.features = hidden
        self.root_modules = ("layers",)
        self.sample_axes = (2, *range(3, len(sample_shape)), 0, 1)  # as `nodes` reads a sample

    def nodes(self, x: Tensor) -> Tensor:
        """[B, C, T, V] or [B, C, T, V, M] -> [B, V, C * T * M], coordinates before time."""
        x = stretch_axes(x) if self._stretch else x
        if x.ndim == 5:
            if self._first:
                x = x[..., 0]
            else:
                x = x.permute(0, 4, 1, 2, 3).flatten(1, 2)  # [B, M * C, T, V]
        return x.permute(0, 3, 1, 2).flatten(2)

    def root(self, x: Tensor) -> Tensor:
        h = self.nodes(x)
        for layer in self.layers:
            h = layer(h, self.neighbours)
        return h  # [B, V, W]

    def body(self, z: Tensor) -> Tensor:
        if graph_ops.applies(z):
            parts = graph_ops.read(z, self.gate.weight[0], self.gate.bias[0])
        else:
            parts = (torch.sigmoid(self.gate(z)) * z).sum(1), z.amax(1)
        graph = torch.cat(parts, -1)  # [B, 2 W]
        y: Tensor = self.norm(torch.relu(self.hidden(self.dropout(graph))))
        return y

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))
