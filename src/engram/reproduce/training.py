"""The runs of a reproduction: in this process, or spread over several."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engram.engine.engine import Engine
from engram.pools import find_pool
from engram.pools.base import Work
from engram.recipes import Callback, Plan, execute
from engram.reproduce.cost import steps_of
from engram.reproduce.planning import ReproductionPlan, pending

# multiply-adds of all steps from which on starting processes pays: a minute or two of a core
MUCH = 10**11


def train(
    made: ReproductionPlan, folder: Path, *, device: Any, callback: Callback | None,
    deadline: float | None, group_size: int, compile: bool, again: bool, workers: int,
) -> None:  # fmt: skip
    """Train what is missing."""
    count = workers
    if not count:
        left = made.runs if again else pending(made.runs, folder)
        spread = not compile and not group_size and pays(left, device)
        count = (os.cpu_count() or 1) if spread else 1
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


def pays(plans: Sequence[Plan], device: Any) -> bool:
    """Whether processes would be done earlier: on the CPU, with much work and no lockstep."""
    if len({plan.recipe for plan in plans}) < 2:
        return False
    engine = Engine([plan.run for plan in plans], device=device)
    if engine.device.type != "cpu" or any(map(engine.maps, engine.groups())):
        return False
    total = 0
    for run in engine.runs:
        step = engine.parameters(run) * (run.training.batch_size or 256)
        total += step * steps_of(run)
    return total > MUCH
