"""Over how many processes runs are spread, and what that makes of a forecast."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from engram.engine.backend import device_of
from engram.engine.engine import Engine
from engram.recipes import Plan
from engram.reproduce.cost import CostEstimate, steps_of

# multiply-adds of all steps from which on starting processes pays: a minute or two of a core
MUCH = 10**11


def processes_for(
    plans: Sequence[Plan], *, device: Any, workers: int = 0, compile: bool = False,
    group_size: int = 0,
) -> int:  # fmt: skip
    """How many processes train these runs, where `workers` are asked for; 0: as many as pay."""
    if workers:
        return workers
    spread = not compile and not group_size and pays(plans, device)
    return (os.cpu_count() or 1) if spread else 1


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


def seconds_of(costs: Sequence[CostEstimate], processes: int, device: Any) -> float:
    """About how long all of it takes.

    Processes share cores, and a GPU they share as if there was one of them. No run, and no group in
    lockstep, is spread over several.
    """
    total = sum(cost.seconds for cost in costs)
    if processes == 1 or device_of(device).type != "cpu":
        return total
    count = min(processes, os.cpu_count() or 1)
    longest = [one.seconds if one.lockstep else one.seconds / one.runs for one in costs]
    return max([total / count, *longest])
