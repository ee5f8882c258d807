"""Finetuning: train on the current task, with nothing to prevent forgetting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engram.methods.method import ARGMAX_OR_THRESHOLD, Method


@dataclass(frozen=True, kw_only=True)
class Finetune(Method):
    """Train on the current task only, starting from the previous weights.

    The lower bound of every comparison (Vanilla, BARE, LB in the papers).

    Examples
    --------
    >>> import engram
    >>> stream = engram.class_incremental(engram.load("blobs"), classes_per_task=2)
    >>> result = engram.run(stream, method=engram.methods.Finetune(), epochs=2)
    >>> bool(result.matrix[0, -1, 0] < result.matrix[0, 0, 0])  # the first task is forgotten
    True
    """

    decides: ClassVar[tuple[str, ...]] = ARGMAX_OR_THRESHOLD
