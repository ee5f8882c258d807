"""Where a run stood in the middle of a task, so that it can go on at the very next step.

A learner's own state covers its weights, method state, optimiser and memory. This is the rest: how
far the task had come, what its schedule and its log knew, and what the trainer held besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from engram.engine.checkpoints.single import rebuild, structure
from engram.learner.learner import Learner
from engram.learner.tree import flatten

Position = tuple[int, int, int]  # phase, chunk of steps within it, steps done of that chunk


@dataclass
class Midway:
    """One run inside a task.

    `facts` are plain numbers, `tensors` a tree; together they are all that a fresh process needs
    besides the learner's state.
    """

    position: Position
    facts: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)

    def packed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name and JSON, for a file."""
        named = flatten(self.tensors).items()
        flat = {f"midway/{k}": v.detach().cpu().contiguous().clone() for k, v in named}
        facts = {"position": list(self.position), "facts": self.facts}
        return flat, facts | {"structure": structure(self.tensors)}

    @classmethod
    def unpacked(cls, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Midway:
        """What `packed` wrote."""
        flat = {k.removeprefix("midway/"): v for k, v in tensors.items() if k.startswith("midway/")}
        phase, chunk, start = facts["position"]
        tree = rebuild(facts["structure"], flat)
        return cls((phase, chunk, start), facts["facts"], tree)


def column(arrays: dict[str, np.ndarray], run: int) -> dict[str, Any]:
    """One run's numbers out of arrays [R]."""
    return {name: value[run].item() for name, value in arrays.items()}


def put_column(arrays: dict[str, np.ndarray], run: int, numbers: dict[str, Any]) -> None:
    """The reverse of `column`."""
    for name, value in arrays.items():
        value[run] = numbers[name]


def arrays_of(curve: list[tuple[int, np.ndarray]]) -> dict[str, Any]:
    """Curves as a tree of tensors."""
    return {str(step): torch.as_tensor(scores) for step, scores in curve}


def curve_of(tree: dict[str, Any]) -> list[tuple[int, np.ndarray]]:
    """The reverse of `arrays_of`."""
    return [(int(step), scores.numpy()) for step, scores in tree.items()]


class Saver(Protocol):
    """Keeps runs that are inside a task; asked between slices of a few seconds."""

    def due(self) -> bool:
        """Whether it is time to save."""
        ...

    def save(
        self, places: Sequence[int], learners: Sequence[Learner], midways: Sequence[Midway]
    ) -> None:
        """Write the states of runs that train together; may raise to end the training."""
        ...


class Slices:
    """Cuts a stretch of steps into slices of about `seconds`, so that a saver is asked in time."""

    def __init__(self, seconds: float = 1.0, first: int = 8) -> None:
        self.seconds, self.steps = seconds, first

    def took(self, steps: int, seconds: float) -> None:
        """Learn from a slice how many steps the next one may have."""
        wanted = int(steps * self.seconds / max(seconds, 1e-6))
        self.steps = min(max(wanted, 1), 4 * self.steps)  # the first steps may wait for kernels
