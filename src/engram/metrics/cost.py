"""Costs of a run: time, steps, memory, size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engram.errors import bad

_ADDITIVE_FIELDS = (
    "seconds",
    "steps",
)  # adds up over stages; the rest is held, so the largest stage counts


@dataclass(frozen=True)
class RunCost:
    """Time and steps spent, memory and state held.

    `memory_*` count what the exemplar memory holds, `state_bytes` what a method keeps beside it.

    Examples
    --------
    >>> first = RunCost(seconds=2.0, steps=100, memory_items=50, parameters=10)
    >>> first + RunCost(seconds=1.0, steps=50, memory_items=80, parameters=10)
    RunCost(seconds=3.0, steps=150, memory_items=80, memory_bytes=0, parameters=10, state_bytes=0)
    """

    seconds: float = 0.0
    steps: int = 0
    memory_items: int = 0
    memory_bytes: int = 0
    parameters: int = 0
    state_bytes: int = 0

    def __post_init__(self) -> None:
        for name, value in self.as_dict().items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise bad(name, "a number of at least 0", value)

    def __add__(self, other: RunCost) -> RunCost:
        """Combine the costs of two stages: time and steps add up, of memory the maximum counts."""
        if not isinstance(other, RunCost):
            return NotImplemented
        mine, theirs = self.as_dict(), other.as_dict()
        joined = {
            name: mine[name] + theirs[name]
            if name in _ADDITIVE_FIELDS
            else max(mine[name], theirs[name])
            for name in mine
        }
        return RunCost(**joined)

    @property
    def steps_per_second(self) -> float:
        """Steps per second; NaN if no time was measured.

        Examples
        --------
        >>> RunCost(seconds=2.0, steps=100).steps_per_second
        50.0
        """
        return self.steps / self.seconds if self.seconds > 0 else math.nan

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, as rows of a results table need them.

        Examples
        --------
        >>> RunCost(steps=3).as_dict()["steps"]
        3
        """
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def relative_to(self, other: RunCost) -> dict[str, float]:
        """Each field divided by that of `other`; NaN for 0 / 0, infinite for x / 0.

        Examples
        --------
        >>> RunCost(seconds=3.0, steps=10).relative_to(RunCost(seconds=2.0, steps=10))["seconds"]
        1.5
        """
        base = other.as_dict()

        def ratio(a: float, b: float) -> float:
            return a / b if b else (math.inf if a else math.nan)

        return {name: ratio(value, base[name]) for name, value in self.as_dict().items()}


def total_cost(costs: Iterable[RunCost]) -> RunCost:
    """Total cost of stages that ran one after another.

    Examples
    --------
    >>> total_cost([RunCost(steps=5, parameters=7), RunCost(steps=6, parameters=7)]).steps
    11
    """
    result = RunCost()
    for cost in costs:
        result = result + cost
    return result


def bytes_held(tree: Any) -> int:
    """Bytes of all arrays and tensors in nested mappings, lists and tuples.

    Examples
    --------
    >>> import numpy as np
    >>> bytes_held({"weights": np.zeros(3, np.float32), "rows": [np.zeros(2, np.int64)]})
    28
    """
    if isinstance(tree, Mapping):
        return sum(map(bytes_held, tree.values()))
    if isinstance(tree, (list, tuple)):
        return sum(map(bytes_held, tree))
    return int(getattr(tree, "nbytes", 0))


def human_bytes(count: float) -> str:
    """A number of bytes as readable text.

    Examples
    --------
    >>> human_bytes(1536), human_bytes(12)
    ('1.5 KiB', '12 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
