"""`engram.sweep`: run many recipes by a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engram.errors import bad
from engram.experiments import Callback, Recipe
from engram.experiments.callbacks import StageHook, open_callback
from engram.experiments.pools import find_pool
from engram.experiments.pools.pool import Work
from engram.records import Result
from engram.renamed import accept_old_arguments

Plain = Recipe | Mapping[str, Any] | str | Path


@accept_old_arguments(again="rerun")
def sweep(
    recipes: Plain | Sequence[Plain],
    *,
    pool: str = "together",
    out: str | Path | None = None,
    device: str = "auto",
    data: str | None = None,
    workers: int = 0,
    address: str | None = None,
    compile: bool = False,
    deterministic: bool = False,
    exact: bool = False,
    checkpoint_every: float | str = "5m",
    callback: Callback | StageHook | str | None = None,
    deadline: float | None = None,
    rerun: bool = False,
    log: str | Sequence[str] = (),
) -> Result:
    """Run several recipes; runs of equal shapes train in lockstep with ``pool="together"``.

    Parameters
    ----------
    recipes
        Recipes, mappings or paths of files; or one of these.
    pool
        ``together`` lockstep, ``auto`` lockstep where it pays, ``serial`` one run after another,
        ``processes`` runs spread over `workers` processes (needs `out`), ``ray`` groups of runs
        spread over a Ray cluster (``pip install engram-cl[ray]``).
    workers
        Number of processes, or of concurrent groups on a cluster; 0 for one per core, or as many
        as fit on the cluster.
    address
        With ``ray``: ``HOST:PORT`` of a cluster that this machine belongs to, or ``auto`` for the
        one running here; otherwise one is started here for the duration of the call.
    data
        Folder with data sets by name.
    deadline
        ``time.monotonic`` at which training stops; the same call continues.
    compile, deterministic, exact, checkpoint_every, rerun, log
        As in `engram.run`; every process of ``processes`` compiles its own steps.

    Examples
    --------
    >>> base = {"stream": {"data": "blobs"}, "training": {"epochs": 1}}
    >>> result = sweep([base | {"method": m} for m in ("Finetune", "ER")])
    >>> result.labels
    ['Finetune', 'ER']
    """
    train = find_pool(pool)
    if address is not None and pool != "ray":
        raise bad("address", f"None, because the pool {pool!r} does not use a cluster", address)
    if isinstance(recipes, (Recipe, Mapping, str, Path)):
        recipes = [recipes]
    built = [_as_recipe(one) for one in recipes]
    if not built:
        raise bad("recipes", "at least one recipe", "none")
    with open_callback(callback, log=log, out=out) as follow:
        work = Work(
            recipes=built, out=out, device=device, data=data, workers=workers, address=address,
            compile=compile, callback=follow, deadline=deadline, rerun=rerun,
            deterministic=deterministic, exact=exact, checkpoint_every=checkpoint_every,
        )  # fmt: skip
        return train(work)


def _as_recipe(one: Any) -> Recipe:
    if isinstance(one, Recipe):
        return one
    if isinstance(one, Mapping):
        return Recipe.of(one)
    return Recipe.read(one)
