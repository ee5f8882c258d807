"""What a detector may know of a run, and of its network."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram.errors import BadArgument, EngramError, bad, choose
from engram.learner.learner import Learner
from engram.learner.net import FunctionalNet, Net


class Facts(NamedTuple):
    """What a detector may know of a run before it has seen anything."""

    columns: int  # C, output columns
    features: int  # F, what the last layer sees
    std: Tensor  # deviation by which inputs were divided, broadcast to a sample; 1 if they were not
    like: Tensor  # a tensor of the network's device and precision
    bias: bool  # whether the last layer adds a bias
    sample: tuple[int, ...] = ()  # shape of an input
    seed: int = 0  # of the run
    learner: Learner | None = None  # only to be asked about its network
    rows: int = 0  # training rows of the first task

    def width(self, layer: str) -> int:
        """How many numbers a layer of the model gives, averaged over places; checks its name."""
        return layer_width(self.learner, layer)


def facts_of(learner: Learner) -> Facts:
    """What is known of a run."""
    net: Any = learner.networks.eval.get_submodule("net")
    data, names = learner.feed.data, learner.networks.layout.shapes
    std = torch.ones(1) if not data.std else torch.tensor(data.std)
    std = std.reshape(-1, *[1] * (len(data.sample_shape) - 1)).to(learner.vector)
    return Facts(
        columns=len(learner.stream.order), features=int(net.features), std=std,
        like=learner.vector, bias="net.head.bias" in names,
        sample=tuple(data.sample_shape), seed=learner.seed, learner=learner,
        rows=len(learner.stream.tasks[0].train),
    )  # fmt: skip


def layer_width(learner: Learner | None, layer: str) -> int:
    """See `Facts.width`."""
    if learner is None:
        raise EngramError("layers: no network is known here")
    model = learner.networks.eval.get_submodule("net.backbone")
    choose("layers", layer, [name for name, _ in model.named_modules() if name])
    net = FunctionalNet(learner.networks, learner.vector, learner.buffers, training=False)
    x, path = (
        learner.vector.new_zeros(1, *learner.feed.data.sample_shape),
        f"net.backbone.{layer}",
    )
    found = None
    with torch.no_grad(), suppress(BadArgument):  # it may never be called
        found = net(x, want=(path,)).layers[path]
    if not isinstance(found, Tensor) or found.ndim < 2:
        raise bad("layers", "layers that give one tensor [B, F, ...] in a forward pass", layer)
    return found.shape[1]


def class_rows(net: Net) -> Tensor:
    """[C, F] the weights of the last layer."""
    rows = net.params.get("net.head.weight")
    if rows is None:
        raise EngramError("detectors: the network has no head.weight with one row per class")
    return rows


def among(logits: Tensor, columns: Tensor) -> Tensor:
    """Logits [B, C] of the columns [C] that compete, minus infinity for the others."""
    return logits.masked_fill(~columns, -torch.inf)
