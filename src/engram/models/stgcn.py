"""Spatio-temporal graph convolutional network on skeletons."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.errors import bad, check_int
from engram.models.forward_pass import check_skeleton_shape
from engram.models.layers import BatchNorm, Dropout
from engram.models.skeleton_graphs import (
    Pairs,
    WithConstants,
    bidirectional_edges,
    bones,
    check_stretch,
    partitions,
    stretch_axes,
)

FRAMES_AT_ONCE = 2  # frames that one window serves


class TemporalConvolution(torch.autograd.Function):
    """Convolution over time as matrix products: [N, T, V, C] and [tk, C, O] to [N, T, V, O].

    Mapped over runs, a convolution becomes a grouped one, which is slow on CUDA. A product of
    windows is not, but windows are copies, and copying is what it costs. Two frames that share a
    window of tk + 1 frames copy little more than half of what a window per frame would, for a
    ninth more arithmetic at tk = 9. Both gradients come from windows of the output's gradient, so
    that none are kept.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return _product(_windows(x, len(weight)), weight, x.shape[1])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        tk, inputs, outputs = weight.shape
        windows = _windows(dy, tk)  # [N, T / S, V, (tk + S - 1) * O]
        dx = _product(windows, weight.flip(0).transpose(1, 2), x.shape[1])
        x = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % FRAMES_AT_ONCE)).unflatten(
            1, (-1, FRAMES_AT_ONCE)
        )
        x = x.transpose(2, 3).reshape(len(x), -1, FRAMES_AT_ONCE * inputs)
        # One product per row and a sum: a single one has too small a result to fill a device.
        pairs = torch.bmm(x.mT, windows.flatten(1, 2)).sum(0)
        pairs = pairs.reshape(FRAMES_AT_ONCE, inputs, -1, outputs)
        dweight = sum(
            pairs[s, :, s : s + tk] for s in range(FRAMES_AT_ONCE)
        )  # [C, tk, O], backwards
        return dx, dweight.transpose(0, 1).flip(0)  # type: ignore[union-attr]


def _windows(x: Tensor, tk: int) -> Tensor:
    """[N, T / S, V, (tk + S - 1) * C]: all frames that S = TOGETHER frames see, 0 outside."""
    frames, half = x.shape[1], tk // 2
    x = F.pad(x, (0, 0, 0, 0, half, half + -frames % FRAMES_AT_ONCE))
    return x.unfold(1, tk + FRAMES_AT_ONCE - 1, FRAMES_AT_ONCE).transpose(-1, -2).flatten(-2)


def _product(windows: Tensor, weight: Tensor, frames: int) -> Tensor:
    """[N, frames, V, O] of windows and weight [tk, C, O]."""
    rows, times, joints, width = windows.shape
    shifted = [
        F.pad(weight, (0, 0, 0, 0, s, FRAMES_AT_ONCE - 1 - s)) for s in range(FRAMES_AT_ONCE)
    ]
    matrix = torch.stack(shifted, 2).reshape(width, -1)  # [(tk + S - 1) * C, S * O]
    y = torch.mm(windows.reshape(-1, width), matrix)
    y = y.reshape(rows, times, joints, FRAMES_AT_ONCE, -1).transpose(2, 3)  # [N, T / S, S, V, O]
    return y.flatten(1, 2)[:, :frames]


def convolve_over_time(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolution of [N, T, V, C] with [O, C, tk, 1] over time, T staying as it is.

    Examples
    --------
    >>> x = torch.tensor([1.0, 2.0, 4.0]).reshape(1, 3, 1, 1)
    >>> convolve_over_time(x, torch.ones(1, 1, 3, 1), torch.zeros(1)).flatten().tolist()
    [3.0, 7.0, 6.0]
    """
    if x.is_cuda:
        return convolve_by_windows(x, weight, bias)
    # on the CPU a convolution is faster, mapped or not, and takes the channels where they are
    y = F.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=(weight.shape[2] // 2, 0))
    return y.permute(0, 2, 3, 1)


def convolve_by_windows(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`convolve_over_time` without a convolution."""
    x, weight = _cast(x, weight)
    kernel = weight.squeeze(-1).permute(2, 1, 0)
    y: Tensor = TemporalConvolution.apply(x, kernel)  # type: ignore[no-untyped-call]
    return y + bias


def _cast(*values: Tensor) -> list[Tensor]:
    """What autocast does to factors, before they are copied to windows or rows instead of after."""
    kind = values[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(values)
    return [value.to(torch.get_autocast_dtype(kind)) for value in values]


def convolve_over_joints(x: Tensor, graph: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Sum over p of graph[p] (x weight[p] + bias[p]) of [N, T, V, C] and [3 * O, C, 1, 1].

    Joints are mixed first: a block then keeps three copies of its input, which in the first block
    is small, and adds the biases, mixed alike, once per joint.

    Examples
    --------
    >>> graph, x = torch.ones(3, 2, 2), torch.tensor([1.0, 2.0]).reshape(1, 1, 2, 1)
    >>> convolve_over_joints(x, graph, torch.ones(3, 1, 1, 1), torch.ones(3)).flatten().tolist()
    [15.0, 15.0]
    """
    x, graph, weight = _cast(x, graph, weight)
    rows, frames, joints, inputs = x.shape
    mix = graph.permute(2, 0, 1).flatten(0, 1)  # [V * 3, V]
    near = torch.bmm(mix.expand(rows * frames, -1, -1), x.flatten(0, 1))
    near = near.reshape(rows, frames * joints, 3 * inputs)
    matrix = weight.reshape(3, -1, inputs).transpose(1, 2).flatten(0, 1)  # [3 * C, O]
    # A product per row, for the sake of the weight's gradient (see OverTime).
    y: Tensor = torch.bmm(near, matrix.expand(rows, -1, -1)).unflatten(1, (frames, joints))
    return y + torch.mm(mix.sum(1).reshape(joints, 3), bias.reshape(3, -1))


class STGCNBlock(nn.Module):
    """Graph convolution over three partitions, then convolution over time; channels last.

    The convolutions hold the weights, the functions above apply them.
    """

    def __init__(
        self, inputs: int, outputs: int, joints: int, kernel: int, dropout: float, residual: bool
    ) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(inputs, 3 * outputs, 1)
        self.mapped = nn.Identity()  # where TWP reads x W of every joint
        self.importance = nn.Parameter(torch.ones(3, joints, joints))
        self.spatial_norm = BatchNorm(outputs, axis=-1)
        self.temporal = nn.Conv2d(outputs, outputs, (kernel, 1), padding=(kernel // 2, 0))
        self.temporal_norm = BatchNorm(outputs, axis=-1)
        self.dropout = Dropout(dropout)
        self.residual = residual

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        graph = graph * self.importance
        if self.mapped._forward_hooks:  # for listeners alone: joints are mixed before W is applied
            self.mapped(F.linear(x, self.spatial.weight.flatten(1)))
        y = convolve_over_joints(x, graph, self.spatial.weight, self.spatial.bias)  # type: ignore[arg-type]
        y = self.spatial_norm(y).relu()
        y = convolve_over_time(y, self.temporal.weight, self.temporal.bias)  # type: ignore[arg-type]
        y = self.temporal_norm(y).permute(0, 3, 1, 2)
        y = self.dropout(y).permute(0, 2, 3, 1)  # a mask is drawn in the order [N, C, T, V]
        out: Tensor = (y + x if self.residual else y).relu()
        return out


class STGCN(WithConstants):
    """Spatio-temporal graph network for skeletons: 2 blocks of 64 channels, mean pooling.

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
    stretch
        Stretch x, y and z of each sample to [-1, 1] first, as `GCN` does.

    Examples
    --------
    >>> STGCN((3, 52, 20), edges="ucla")(torch.zeros(2, 3, 52, 20)).shape
    torch.Size([2, 64])
    """

    constants = ("graph", "edges")

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        *,
        edges: str | Pairs | None = None,
        width: int = 64,
        depth: int = 2,
        tk: int = 9,
        dropout: float = 0.0,
        stretch: bool = False,
    ) -> None:
        super().__init__()
        channels, _, joints, self._people = check_skeleton_shape("stgcn", sample_shape)
        if check_int("tk", tk, 1) % 2 == 0:
            raise bad("tk", "an odd number of frames", tk)
        pairs = bones(edges, joints)
        self.graph = partitions(pairs, joints)  # [3, V, V]
        self.edges = bidirectional_edges(pairs)  # [2, E]
        self._stretch = check_stretch(stretch, sample_shape)
        self.data_norm = BatchNorm(joints * channels, axis=-1)
        check_int("width", width, 1)
        sizes = [channels] + [width] * check_int("depth", depth, 1)
        self.blocks = nn.ModuleList(
            STGCNBlock(sizes[i], width, joints, tk, dropout, residual=i > 0) for i in range(depth)
        )
        self.features = width
        self.root_modules = ("data_norm", "blocks")
        self.edge_maps = tuple(f"blocks.{i}.mapped" for i in range(depth))

    def root(self, x: Tensor) -> Tensor:
        x = stretch_axes(x) if self._stretch else x
        if x.ndim == 4:
            x = x.unsqueeze(-1)
        rows, channels, frames, joints, people = x.shape
        x = x.permute(0, 4, 2, 3, 1).reshape(rows, people * frames, joints * channels)
        x = self.data_norm(x).reshape(rows * people, frames, joints, channels)
        for block in self.blocks:
            x = block(x, self.graph)
        latent: Tensor = x.unflatten(0, (rows, people))
        return latent.permute(0, 1, 4, 2, 3)  # [B, M, C, T, V]

    def body(self, z: Tensor) -> Tensor:
        return z.mean((3, 4)).mean(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))
