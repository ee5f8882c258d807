"""Pools, which distribute the runs of many recipes over a machine or a cluster.

Not here: training of a group in lockstep (engram.engine), recipes and plans (engram.experiments).
Begin with pool (`Work`, `Pool`, the pools of one process), then process_pool, the simplest one
with workers. `POOLS` has all of them by name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from engram.errors import bad, check_choice
from engram.process import is_torchrun

if TYPE_CHECKING:
    from engram.experiments.pools.pool import Pool

POOLS = {
    "together": "runs of equal shapes in lockstep",
    "auto": "in lockstep where it pays",
    "serial": "one run after another",
    "processes": "runs spread over processes",
    "ray": "groups of runs spread over a Ray cluster",
}
# name of a pool: module and function ``train(work) -> Result``
_TRAIN = {
    "together": ("pool", "train_together"),
    "auto": ("pool", "train_auto"),
    "serial": ("pool", "train_serial"),
    "processes": ("process_pool", "train"),
    "ray": ("ray_pool", "train"),
}
IN_PROCESS_POOLS = ("together", "auto", "serial")  # pools that start no processes


def find_pool(name: str, argument: str = "pool") -> Pool:
    """Return a pool by its name.

    Examples
    --------
    >>> find_pool("serial").__name__
    'train_serial'
    """
    check_choice(argument, name, POOLS)
    if is_torchrun() and name not in IN_PROCESS_POOLS:
        wanted = f"one of {', '.join(IN_PROCESS_POOLS)} where torchrun has started the processes"
        raise bad(argument, wanted, name)
    module, function = _TRAIN[name]
    return cast("Pool", getattr(import_module(f"engram.experiments.pools.{module}"), function))
