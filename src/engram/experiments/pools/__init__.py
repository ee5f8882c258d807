"""Pools: how the runs of many recipes share a machine or a cluster; `POOLS` has them by name.

One group of runs in lockstep is the engine's; recipes and plans are in `experiments`. Begin with
`pool` (`Work`, `Pool`, and the pools of one process), then `process_pool`, the shortest one with
workers.
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
# the module of each, and its function ``train(work) -> Result``
_TRAIN = {
    "together": ("pool", "train_together"),
    "auto": ("pool", "train_auto"),
    "serial": ("pool", "train_serial"),
    "processes": ("process_pool", "train"),
    "ray": ("ray_pool", "train"),
}
IN_PROCESS_POOLS = ("together", "auto", "serial")  # pools that start no processes


def find_pool(name: str, argument: str = "pool") -> Pool:
    """A pool by its name.

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
