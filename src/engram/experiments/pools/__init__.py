"""Pools: how the runs of many recipes share a machine.

A pool is a function ``train(work) -> Result`` (see `pool`) with a line in `POOLS`; `engram.sweep`
and ``engram sweep --pool`` know it by its name. Which runs go together is decided in `planner`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from engram.errors import bad, check_choice
from engram.process import launched

if TYPE_CHECKING:
    from engram.experiments.pools.pool import Pool

POOLS = {
    "together": "runs of equal shapes in lockstep",
    "auto": "in lockstep where it pays",
    "serial": "one run after another",
    "processes": "runs spread over processes",
    "ray": "groups of runs spread over a Ray cluster",
}
# the module of each, and its function ``train(work) -> Result``
_TRAIN = {
    "together": ("pool", "train_together"),
    "auto": ("pool", "train_auto"),
    "serial": ("pool", "train_serial"),
    "processes": ("process_pool", "train"),
    "ray": ("ray_pool", "train"),
}
HERE = ("together", "auto", "serial")  # pools that start no processes


def find_pool(name: str, argument: str = "pool") -> Pool:
    """A pool by its name.

    Examples
    --------
    >>> find_pool("serial").__name__
    'train_serial'
    """
    check_choice(argument, name, POOLS)
    if launched() and name not in HERE:
        wanted = f"one of {', '.join(HERE)} where torchrun has started the processes"
        raise bad(argument, wanted, name)
    module, function = _TRAIN[name]
    return cast("Pool", getattr(import_module(f"engram.experiments.pools.{module}"), function))
