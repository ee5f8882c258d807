"""Attention along the edges of a graph network, which TWP protects."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import bad
from engram.learner.layout import Networks

BACKBONE = "net.backbone"
SMALL = 1e-24  # the root of 0 has no slope


def attention(z: Tensor, edges: Tensor, softmax: bool = False) -> Tensor:
    """[B, E] (z_i)^T tanh(z_j) of every edge i -> j, z = h W [B, V, D].

    With `softmax`, its leaky ReLU is normalised over the edges that come in at each node.

    Examples
    --------
    >>> z, edges = torch.tensor([[[0.5], [1.0]]]), torch.tensor([[0, 1], [1, 0]])
    >>> [round(v, 6) for v in attention(z, edges)[0].tolist()]
    [0.380797, 0.462117]
    """
    source, target = edges
    e: Tensor = (z[..., source, :] * torch.tanh(z[..., target, :])).sum(-1)
    if not softmax:
        return e
    e = F.leaky_relu(e, 0.2)
    # The highest edge of each target becomes 1: with one maximum for all targets, those far below
    # it would vanish. Not differentiated, since any constant per target cancels.
    at = target.expand(e.shape)
    floor = e.new_full((*e.shape[:-1], z.shape[-2]), -torch.inf)
    peaks = floor.scatter_reduce(-1, at, e.detach(), "amax")  # [B, V]
    raised = (e - peaks.gather(-1, at)).exp()
    together = (target[:, None] == target[None, :]).to(e.dtype)  # [E, E] same target
    shares: Tensor = raised / (raised @ together)
    return shares


def length(e: Tensor, w: Tensor, norm: str = "l2") -> Tensor:
    """Length of all attentions of the batch, rows of weight 0 left out."""
    squared = (e.square() * w[:, None]).sum()
    return squared.clamp(min=SMALL).sqrt() if norm == "l2" else squared


def graph_of(networks: Networks, layers: str) -> tuple[tuple[str, ...], Tensor]:
    """Paths of the linear maps h W to read, and the edges [2, E]."""
    try:
        backbone: Any = networks.eval.get_submodule(BACKBONE)
    except AttributeError:
        backbone = None
    edges, found = getattr(backbone, "edges", None), getattr(backbone, "layers", None)
    if edges is None or found is None or not all(hasattr(one, "linear") for one in found):
        kind = type(backbone).__name__ if backbone is not None else "a model of another kind"
        raise bad("model", "a graph network such as 'gcn' for TWP", kind)
    count = 1 if layers == "first" else len(found)
    return tuple(f"{BACKBONE}.layers.{i}.linear" for i in range(count)), edges
