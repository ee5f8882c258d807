"""A plan: one run of the engine, and the names under which its numbers are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from engram.engine.run_spec import Run
from engram.probes import Probe


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """One run and the names under which its numbers are kept."""

    run: Run
    content: Mapping[str, Any]  # the recipe as plain values
    recipe: str  # its id
    label: str
    order: str = ""
    keep: str = "scores"
    average: str = "micro"
    probes: Mapping[str, Probe] = field(default_factory=dict)  # by name and hash of their source

    @cached_property  # asked for at every step and stage of thousands of runs
    def key(self) -> tuple[str, int, str]:
        return self.recipe, self.run.seed, self.order
