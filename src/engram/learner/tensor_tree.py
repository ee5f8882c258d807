"""Operations on trees of tensors: nested dicts and (named) tuples whose leaves are tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def tree_map(f: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply `f` to the leaves of one or several trees of the same shape.

    Examples
    --------
    >>> tree_map(lambda a, b: a + b, {"a": 1, "b": (2, 3)}, {"a": 10, "b": (20, 30)})
    {'a': 11, 'b': (22, 33)}
    """
    if isinstance(tree, dict):
        return {k: tree_map(f, v, *(r[k] for r in rest)) for k, v in tree.items()}
    if isinstance(tree, tuple):
        parts = [tree_map(f, *items) for items in zip(tree, *rest, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return f(tree, *rest)


def leaves(tree: Any) -> Iterator[Tensor]:
    """Iterate over all tensors of a tree."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, tuple):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def stack(trees: Sequence[Any]) -> Any:
    """Stack R trees of equal structure into one with leaves [R, ...]."""
    return tree_map(lambda *parts: torch.stack(parts), *trees)


def pick(tree: Any, index: int) -> Any:
    """Select the tree of one run from a stacked tree; its leaves are views."""
    return tree_map(lambda leaf: leaf[index], tree)


def nbytes(tree: Any) -> int:
    """Return the number of bytes of all leaves."""
    if isinstance(tree, dict):
        return sum(map(nbytes, tree.values()))
    return sum(map(nbytes, tree)) if isinstance(tree, tuple) else int(tree.nbytes)


def tree_shapes(tree: Any) -> Any:
    """Return the structure, shapes and dtypes of a tree as a hashable value."""
    if isinstance(tree, dict):
        return tuple((k, tree_shapes(v)) for k, v in tree.items())
    if isinstance(tree, tuple):
        return tuple(tree_shapes(v) for v in tree)
    return (tuple(tree.shape), str(tree.dtype))


def flatten(tree: Any, prefix: str = "") -> dict[str, Tensor]:
    """Return the leaves by path, as names of tensors in a file.

    Examples
    --------
    >>> flatten({"a": {"b": torch.zeros(1)}}).keys()
    dict_keys(['a/b'])
    """
    if isinstance(tree, dict):
        items = [(str(k), v) for k, v in tree.items()]
    elif isinstance(tree, tuple):
        items = [(f"#{i}", v) for i, v in enumerate(tree)]
    else:
        return {prefix: tree}
    leaves_by_path: dict[str, Tensor] = {}
    for name, value in items:
        leaves_by_path |= flatten(value, f"{prefix}/{name}" if prefix else name)
    return leaves_by_path
