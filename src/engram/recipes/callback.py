"""Hooks through which a caller follows an execution."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from engram.recipes.plan import Plan
from engram.records import Rows


class Callback:
    """Hooks that are called while runs train; override those that you need."""

    def note(self, text: str) -> None:
        """Something the caller should know before anything runs; a warning unless overridden."""
        warnings.warn(text, stacklevel=2)

    def begin(self, plans: Sequence[Plan], done: int) -> None:
        """`done` of the plans were finished before."""

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        """Steps of a stage of some plans that train together."""

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        """A stage is recorded."""
