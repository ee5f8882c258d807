"""Hyper-parameters that differ between runs in lockstep, as tensors in the fields of one method."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

from engram.learner.structural_key import object_attributes, structural_key
from engram.methods.method import Method

Path = tuple[str | int, ...]


def varying_values(methods: Sequence[Method]) -> dict[Path, list[float]] | None:
    """Return float values that differ between methods, by path; None if anything else differs.

    All attributes of a method are compared, computed ones as well.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Pull(Method):
    ...     strength: float = 1.0
    >>> varying_values([Pull(1.0), Pull(2.0)])
    {('strength',): [1.0, 2.0]}
    """
    found: dict[Path, list[float]] = {}
    return found if _compare(list(methods), (), found) else None


def _compare(values: list[Any], path: Path, found: dict[Path, list[float]]) -> bool:
    first = values[0]
    if all(v is first for v in values):
        return True
    if any(type(v) is not type(first) for v in values):
        return False
    if is_dataclass(first):
        parts = [object_attributes(v) for v in values]
        return all(part.keys() == parts[0].keys() for part in parts) and all(
            _compare([part[name] for part in parts], (*path, name), found) for name in parts[0]
        )
    if type(first) is tuple and all(len(v) == len(first) for v in values):
        return all(_compare([v[i] for v in values], (*path, i), found) for i in range(len(first)))
    if type(first) is float:
        if any(v != first for v in values):
            found[path] = list(values)
        return True
    known = structural_key(first)
    return all(structural_key(v) == known for v in values)


def replace_values(method: Method, values: dict[Path, Tensor]) -> Method:
    """Replace fields of a method by tensors, without validating it again."""
    for path, value in values.items():
        method = _replace_at(method, path, value)
    return method


def _replace_at(owner: Any, path: Path, value: Tensor) -> Any:
    if not path:
        return value
    first, rest = path[0], path[1:]
    if isinstance(first, int):
        return tuple(_replace_at(v, rest, value) if i == first else v for i, v in enumerate(owner))
    changed = copy.copy(owner)
    object.__setattr__(changed, first, _replace_at(getattr(owner, first), rest, value))
    return changed


def make_tensors(found: dict[Path, list[float]], like: Tensor) -> dict[Path, Tensor]:
    """Make tensors [R] for `replace_values` inside a mapped function."""
    return {
        path: torch.tensor(values, dtype=like.dtype, device=like.device)
        for path, values in found.items()
    }
