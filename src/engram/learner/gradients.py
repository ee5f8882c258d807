"""Averages of transformed gradients: Fisher information, MAS importances, and their kin.

``mean over groups of transform(gradient of term)``, where a group is one sample (the default), some
samples, or the whole set. Evaluation mode, so BatchNorm statistics are neither used per batch nor
moved, and no result depends on how samples are chunked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from engram.learner.batch import Batch
from engram.learner.layout import Networks
from engram.learner.net import FunctionalNet, Net
from engram.models.context import forward_context

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
    counted = groups.w.sum(-1) > 0  # [G]
    alone = groups.w.shape[1] == 1 and not batch_statistics
    if alone and _factorises(transform) and _only_linear(networks):
        total = _linear_sums(networks, weights, groups, term, transform)
    else:
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

    chunk = max(1, CHUNK_ENTRIES // max(1, len(networks.layout)))
    total = torch.zeros_like(weights.vector)
    for start in range(0, groups.w.shape[0], chunk):
        part = groups.map(lambda leaf, a=start: leaf[a : a + chunk])  # type: ignore[misc]
        keep = counted[start : start + chunk, None]
        total = total + torch.where(keep, vmap(one)(part), 0.0).sum(0)
    return total


def _factorises(transform: Transform) -> bool:
    """Whether transform(a * b) = transform(a) * transform(b), so outer products need no forming."""
    return transform in (torch.square, torch.abs)


def _only_linear(networks: Networks) -> bool:
    owned = set()
    for name, module in networks.eval.named_modules():
        if isinstance(module, nn.Linear):
            owned |= {f"{name}.{parameter}" for parameter, _ in module.named_parameters()}
    return owned == set(networks.layout.shapes)


def _linear_sums(
    networks: Networks, weights: Weights, groups: Batch, term: Term, transform: Transform
) -> Tensor:
    """The same sums for networks of linear layers, in one pass over all samples.

    A sample's weight gradient is the outer product of the layer's input and the gradient at its
    output, and the transform of an outer product is the outer product of the transforms.
    """
    rows_of = [leaf.flatten(0, 1) for leaf in groups[:6]]
    flat = Batch._make([*rows_of, *(leaf[0] for leaf in groups[6:9]), ()])
    layers = {k: m for k, m in networks.eval.named_modules() if isinstance(m, nn.Linear)}
    inputs: dict[str, Tensor] = {}

    def value(probes: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hooks = [
            layer.register_forward_hook(_probe(name, inputs, probes))
            for name, layer in layers.items()
        ]
        try:
            net = FunctionalNet(networks, weights.vector, weights.buffers, training=False)
            total = term(net, flat) * flat.w.sum()
        finally:
            for hook in hooks:
                hook.remove()
        return total, {name: value.detach() for name, value in inputs.items()}

    rows = len(flat.w)
    probes = {
        name: weights.vector.new_zeros(rows, layer.out_features) for name, layer in layers.items()
    }
    slopes, seen = grad(value, has_aux=True)(probes)
    parts: dict[str, Tensor] = {}
    for name, layer in layers.items():
        slope = transform(slopes[name])  # [rows, out]
        parts[f"{name}.weight"] = slope.T @ transform(seen[name])
        if layer.bias is not None:
            parts[f"{name}.bias"] = slope.sum(0)
    return networks.layout.flatten(parts[name] for name in networks.layout.shapes)


def _probe(
    name: str, inputs: dict[str, Tensor], probes: Mapping[str, Tensor]
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    """A hook that notes a layer's input and adds a zero whose gradient is the output's."""

    def hook(_module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        inputs[name] = args[0]
        return out + probes[name]

    return hook


def eval_outputs(networks: Networks, weights: Weights, path: str, x: Tensor) -> object:
    """One forward pass in eval mode with these weights."""
    values = {**networks.layout(weights.vector), **weights.buffers}
    with torch.no_grad(), forward_context(None, None):
        return functional_call(networks.eval, values, (path, x))
