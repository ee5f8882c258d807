"""Calling a module with given weights instead of its own, including shared weights, and gradients
of functions that can be mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten


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


def find_module(module: nn.Module, path: str) -> nn.Module:
    """Return a submodule by its path, in a fraction of the time of ``get_submodule``.

    Examples
    --------
    >>> find_module(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), "1")
    ReLU()
    """
    found: Any = module
    for part in path.split(".") if path else ():
        found = found._modules[part]
    return found  # type: ignore[no-any-return]


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
    # as `torch.func.functional_call` does it, in less time, which counts in small networks
    own: list[tuple[dict[str, Any], str, str, Any]] = []
    tables: dict[str, nn.Module] = {}
    try:
        for name, value in weights.items():
            path, _, last = name.rpartition(".")
            layer = tables.get(path)
            if layer is None:
                layer = tables[path] = find_module(module, path)
            table: Any = layer._parameters if last in layer._parameters else layer._buffers
            own.append((table, last, name, table[last]))
            table[last] = value
        return module(*args)
    finally:
        for table, last, name, value in reversed(own):
            weights[name] = table[last]
            table[last] = value


def differentiate(
    function: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that computes the gradient of `function`, like ``torch.func.grad``.

    Torch's own imports its compiler in order to switch off a mode of it: 700 modules and half a
    second of CPU time in every process (`python -m benchmarks.speed.starts`). Results are the same
    to the last bit.

    Examples
    --------
    >>> differentiate(lambda x, y: (x * x * y).sum(), argnums=(0, 1))(torch.ones(2), torch.ones(2))
    (tensor([2., 2.]), tensor([1., 1.]))
    """

    def gradient(*args: Any) -> Any:
        # a new level of autograd, in which only the arguments asked for are variables
        level = functorch._grad_increment_nesting()
        allowed = functorch.get_inplace_requires_grad_allowed()
        try:
            with torch.enable_grad():
                args = _enter_level(args, level)
                chosen = args[argnums] if isinstance(argnums, int) else [args[i] for i in argnums]
                variables, form = tree_flatten(chosen)
                functorch.set_inplace_requires_grad_allowed(True)
                for variable in variables:
                    variable.requires_grad_()
                functorch.set_inplace_requires_grad_allowed(allowed)
                found = function(*args)
                value, aux = found if has_aux else (found, None)
                slopes: Any = [torch.zeros_like(variable) for variable in variables]
                if value.requires_grad:  # create_graph: outer levels may differentiate the gradient
                    slopes = torch.autograd.grad(
                        value, variables, create_graph=True, materialize_grads=True
                    )
                slopes, aux = _leave_level((list(slopes), aux), level)
        finally:
            functorch.set_inplace_requires_grad_allowed(allowed)
            functorch._grad_decrement_nesting()
        result = tree_unflatten(slopes, form)
        result = result if isinstance(argnums, int) else tuple(result)
        return (result, aux) if has_aux else result

    return gradient


def _enter_level(tree: Any, level: int) -> Any:
    def wrap(leaf: Any) -> Any:
        return functorch._wrap_for_grad(leaf, level) if isinstance(leaf, Tensor) else leaf

    return tree_map(wrap, tree)


def _leave_level(tree: Any, level: int) -> Any:
    def unwrap(leaf: Any) -> Any:
        return functorch._unwrap_for_grad(leaf, level) if isinstance(leaf, Tensor) else leaf

    return tree_map(unwrap, tree)
