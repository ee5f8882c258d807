"""Calling a module with given weights instead of its own, including shared weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def find_tied_names(module: nn.Module) -> dict[str, str]:
    """Map additional names of shared tensors to the name given by ``named_parameters``.

    A layer that has two names is one layer, and its tensors have one name.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> net[1].weight = net[0].weight
    >>> find_tied_names(net)
    {'1.weight': '0.weight'}
    """
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for path, layer in module.named_modules():  # each layer once
        for name, value in (*layer._parameters.items(), *layer._buffers.items()):
            if value is None:
                continue
            full = f"{path}.{name}" if path else name
            known = first.setdefault(id(value), full)
            if known != full:
                found[full] = known
    return found


def call_with_weights(
    module: nn.Module, weights: dict[str, Tensor], args: tuple[Any, ...], tied: Mapping[str, str]
) -> Any:
    """``module(*args)`` with `weights` by name; buffers that it replaced are in `weights` after.

    `tied` are the module's `find_tied_names`. Torch can look for them itself, but then it does so
    in every call, and leaves the given weights in a layer that has two names.
    """
    for name, other in tied.items():
        if other in weights:
            weights[name] = weights[other]
    return functional_call(module, weights, args, tie_weights=False)
