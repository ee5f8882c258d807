"""Averages of transformed gradients: Fisher information, MAS importances, and their kin.

``mean over groups of transform(gradient of term)``, where a group is one sample (the default), some
samples, or the whole set. Evaluation mode, so BatchNorm statistics are neither used per batch nor
moved, and no result depends on how samples are chunked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap

from engram.learner import warm
from engram.learner.batch import Batch
from engram.learner.layout import Networks
from engram.learner.linear import linear_sums, only_linear
from engram.learner.net import FunctionalNet, Net
from engram.learner.outer import outer_layers, outer_sums
from engram.models.context import forward_context
from engram.models.functional import call

Term = Callable[[Net, Batch], Tensor]
Transform = Callable[[Tensor], Tensor]

CHUNK_ENTRIES = 1 << 26  # gradient entries held at once: 256 MiB of float32


class Weights(NamedTuple):
    """Weights of one run, or of several stacked ones."""

    vector: Tensor
    buffers: dict[str, Tensor]


def average_gradient(
    networks: Networks,
    weights: Weights,
    groups: Batch,
    term: Term,
    transform: Transform,
    batch_statistics: bool = False,
) -> Tensor:
    """Mean over groups of ``transform(d term / d vector)``, shape [P].

    `groups` is a Batch whose leaves have two leading axes [groups, rows of a group]; groups whose
    rows all weigh 0 do not count. With `batch_statistics` a BatchNorm layer uses the group's own
    mean and variance, as in training, but its running ones stay as they are.
    """
    warm.mapped(weights.vector.device)
    counted = groups.w.sum(-1) > 0  # [G]
    alone = groups.w.shape[1] == 1 and not batch_statistics
    total = None
    if alone and _factorises(transform) and only_linear(networks):
        total = linear_sums(networks, *weights, groups, term, transform)
    if total is None and alone and _factorises(transform):
        outer = outer_layers(networks, groups, term)
        if outer.names:
            total = outer_sums(networks, *weights, groups, term, transform, counted, outer)
    if total is None:
        total = _mapped_sums(networks, weights, groups, term, transform, counted, batch_statistics)
    return total / counted.sum().clamp(min=1)


def _mapped_sums(
    networks: Networks,
    weights: Weights,
    groups: Batch,
    term: Term,
    transform: Transform,
    counted: Tensor,
    batch_statistics: bool,
) -> Tensor:
    def one(batch: Batch) -> Tensor:
        def value(vector: Tensor) -> Tensor:
            net = FunctionalNet(
                networks, vector, weights.buffers, key=batch.key, training=batch_statistics
            )
            return term(net, batch)

        return transform(grad(value)(weights.vector))

    def by_loop(part: Batch) -> Tensor:
        single = (part.map(lambda leaf, i=i: leaf[i]) for i in range(len(part.w)))  # type: ignore[misc]
        return torch.stack([one(batch) for batch in single])

    each = by_loop if networks.unmappable else vmap(one)
    chunk = max(1, CHUNK_ENTRIES // max(1, len(networks.layout)))
    total = torch.zeros_like(weights.vector)
    for start in range(0, groups.w.shape[0], chunk):
        part = groups.map(lambda leaf, a=start: leaf[a : a + chunk])  # type: ignore[misc]
        keep = counted[start : start + chunk, None]
        total = total + torch.where(keep, each(part), 0.0).sum(0)
    return total


def _factorises(transform: Transform) -> bool:
    """Whether transform(a * b) = transform(a) * transform(b), so outer products need no forming."""
    return transform in (torch.square, torch.abs)


def eval_outputs(networks: Networks, weights: Weights, path: str, x: Tensor) -> object:
    """One forward pass in eval mode with these weights."""
    values = {**networks.layout(weights.vector), **weights.buffers}
    with torch.no_grad(), forward_context(None, None):
        return call(networks.eval, values, (path, x), networks.ties)
