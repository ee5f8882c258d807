"""`Work`, the input of a pool, `Pool`, its protocol, and the three pools of one process: auto,
serial, together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from engram.errors import check_int
from engram.experiments import Callback, Plan, Recipe, execute
from engram.experiments.plan import make_plans_by_recipe
from engram.experiments.recorder import Recorder
from engram.records import Result
from engram.renamed import accept_old_names

PlanKey = tuple[str, int, str]  # recipe, seed, order


@accept_old_names
@dataclass(kw_only=True)
class Work:
    """Recipes, and how to run them.

    Parameters
    ----------
    out
        Run directory; None keeps everything in memory, if the pool can.
    data
        Directory in which data sets are found by name.
    workers
        Number of processes, if the pool has any; 0 for one per core.
    address
        Address of a cluster, if the pool uses one; None for one on this machine.
    callback
        Receives notes, steps and finished stages, also those of workers.
    deadline
        ``time.monotonic`` after which nothing new is started.
    compile, deterministic, exact, checkpoint_every, rerun
        As in `engram.run`.
    planned
        The plans of each recipe, if the caller has made them already.
    """

    recipes: Sequence[Recipe]
    out: str | Path | None = None
    device: Any = "auto"
    data: str | None = None
    workers: int = 0
    address: str | None = None
    compile: bool = False
    deterministic: bool = False
    exact: bool = False
    checkpoint_every: float | str = "5m"
    callback: Callback | None = None
    deadline: float | None = None
    rerun: bool = False
    planned: Sequence[Sequence[Plan]] = ()

    def __post_init__(self) -> None:
        check_int("workers", self.workers)

    @cached_property
    def by_recipe(self) -> Sequence[Sequence[Plan]]:
        """One plan per run of each recipe."""
        return self.planned or make_plans_by_recipe(self.recipes, self.data)

    @property
    def plans(self) -> list[Plan]:
        """One plan per run."""
        return [plan for plans in self.by_recipe for plan in plans]

    def run_here(self, *, together: bool | None) -> Result:
        """Run everything in this process; see `engram.run` for `together`."""
        pool = {None: "auto", True: "together", False: "serial"}[together]
        if together and len(self.plans) == 1:
            together = None  # a single run gains nothing from being mapped
        return execute(
            self.plans, out=self.out, device=self.device, pool=pool,
            together=False if self.exact else together, exact=self.exact,
            compile=self.compile, callback=self.callback, deadline=self.deadline, rerun=self.rerun,
            deterministic=self.deterministic, checkpoint_every=self.checkpoint_every,
        ).result()  # fmt: skip


def contents_by_run(work: Work, recorder: Recorder) -> dict[PlanKey, dict[str, Any]]:
    """Return recipes as plain values, by their unfinished runs."""
    unfinished = {plan.key: plan for plan in recorder.open}
    found: dict[PlanKey, dict[str, Any]] = {}
    for recipe, plans in zip(work.recipes, work.by_recipe, strict=True):
        keys = [plan.key for plan in plans if plan.key in unfinished]
        if keys:
            # a run of several recipes has the probes of all of them
            asked = unfinished[keys[0]].content
            names = ("probes", "outside", "keep")
            measured = {name: asked[name] for name in names if name in asked}
            content = {**recipe.plain(), **measured}
            found |= dict.fromkeys(keys, content)
    return found


def unique_recipes(
    keys: Sequence[PlanKey], contents: Mapping[PlanKey, dict[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """Return the recipes of some runs, each once; one id may have several with other seeds."""
    return tuple({id(contents[key]): contents[key] for key in keys}.values())


class Pool(Protocol):
    """A function that trains unfinished runs and returns the runs of all recipes.

    Every pool honours all fields of `Work`.
    """

    def __call__(self, work: Work) -> Result: ...


def train_auto(work: Work) -> Result:
    """See `engram.experiments.pools.pool.Pool`."""
    return work.run_here(together=None)


def train_serial(work: Work) -> Result:
    """See `engram.experiments.pools.pool.Pool`."""
    return work.run_here(together=False)


def train_together(work: Work) -> Result:
    """See `engram.experiments.pools.pool.Pool`."""
    return work.run_here(together=True)
