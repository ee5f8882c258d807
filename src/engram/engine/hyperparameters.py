"""Hyper-parameters that differ between runs in lockstep, as tensors in the fields of one method."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import torch
from torch import Tensor

from engram.learner.structural_key import object_attributes, structural_key
from engram.methods.method import Method
from engram.per_run import per_run_fields

Path = tuple[str | int, ...]


def varying_values(methods: Sequence[Method]) -> dict[Path, list[float]] | None:
    """Return options that are declared `PerRun` and differ, by path; None if anything else differs.

    All attributes of a method are compared, computed ones as well.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Pull(Method):
    ...     strength: PerRun = 1.0
    >>> varying_values([Pull(1.0), Pull(2.0)])
    {('strength',): [1.0, 2.0]}
    """
    found = _Differences()
    return found.declared if _compare(list(methods), (), found) and not found.other else None


def explain_apart(methods: Sequence[Method]) -> str:
    """Say which numbers keep methods from training together, and what to write; "" if more does.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Pull(Method):
    ...     strength: float = 1.0
    >>> explain_apart([Pull(1.0), Pull(2.0)])
    'Pull.strength differs ...; declare it as `strength: engram.PerRun` to train them together'
    """
    found = _Differences()
    if not _compare(list(methods), (), found) or not found.other:
        return ""
    owner, name = found.other[0]
    return (
        f"{owner}.{name} differs between runs, which therefore train one after the other; declare "
        f"it as `{name}: engram.PerRun` to train them together"
    )


@dataclass
class _Differences:
    declared: dict[Path, list[float]] = field(default_factory=dict)
    other: list[tuple[str, str]] = field(default_factory=list)  # class and field of other numbers


def _compare(
    values: list[Any], path: Path, found: _Differences, owner: type = object, name: str = ""
) -> bool:
    """Collect numbers that differ; return whether nothing else does.

    The values are those of the field `name` of the class `owner`, or a part of them.
    """
    first = values[0]
    if all(v is first for v in values):
        return True
    if all(type(v) in (int, float) for v in values):
        if all(type(v) is type(first) and v == first for v in values):
            return True
        if name in per_run_fields(owner):
            found.declared[path] = [float(v) for v in values]
            return True
        if not all(type(v) is float for v in values):  # counts are no strengths
            return False
        found.other.append((owner.__name__, name))
        return True
    if any(type(v) is not type(first) for v in values):
        return False
    if is_dataclass(first):
        parts = [object_attributes(v) for v in values]
        return all(part.keys() == parts[0].keys() for part in parts) and all(
            _compare([part[name] for part in parts], (*path, name), found, type(first), name)
            for name in parts[0]
        )
    if type(first) is tuple and all(len(v) == len(first) for v in values):
        return all(
            _compare([v[i] for v in values], (*path, i), found, owner, name)
            for i in range(len(first))
        )
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
