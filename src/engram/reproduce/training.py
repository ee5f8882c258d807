"""The runs of a reproduction: in this process, or spread over several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engram.pools import find_pool
from engram.pools.base import Work
from engram.recipes import Callback, execute
from engram.reproduce.planning import ReproductionPlan, pending
from engram.reproduce.spread import processes_for


def train(
    made: ReproductionPlan, folder: Path, *, device: Any, callback: Callback | None,
    deadline: float | None, group_size: int, compile: bool, again: bool, workers: int,
) -> None:  # fmt: skip
    """Train what is missing."""
    left = () if workers else made.runs if again else pending(made.runs, folder)
    count = processes_for(
        left, device=device, workers=workers, compile=compile, group_size=group_size
    )
    if count == 1:
        execute(
            made.runs, out=folder, device=device, callback=callback, deadline=deadline,
            group_size=group_size, compile=compile, again=again,
        )  # fmt: skip
        return
    recipes, plans = zip(*made.by_recipe, strict=True)
    work = Work(
        recipes=recipes, planned=plans, out=folder, device=device, data=made.root, workers=count,
        callback=callback, deadline=deadline, compile=compile, again=again,
    )  # fmt: skip
    find_pool("processes")(work)
