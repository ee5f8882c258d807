"""Pools: how the runs of many recipes share a machine.

A pool is a module here with a function ``train(work) -> Result`` (see `engram.pools.base`) and a
line in `POOLS`; `engram.sweep` and ``engram sweep --pool`` know it by its name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from engram.errors import bad, choose
from engram.job import launched

if TYPE_CHECKING:
    from engram.pools.base import Pool

POOLS = {
    "together": "runs of the same shape in lockstep",
    "auto": "in lockstep where that is faster",
    "serial": "one run at a time",
    "processes": "runs spread over processes",
    "ray": "groups of runs spread over a Ray cluster",
}
HERE = ("together", "auto", "serial")  # pools that start no processes


def find_pool(name: str, argument: str = "pool") -> Pool:
    """A pool by its name.

    Examples
    --------
    >>> find_pool("serial").__module__
    'engram.pools.serial'
    """
    choose(argument, name, POOLS)
    if launched() and name not in HERE:
        wanted = f"one of {', '.join(HERE)} where torchrun has started the processes"
        raise bad(argument, wanted, name)
    module = import_module(f"engram.pools.{name}")
    return cast("Pool", module.train)
