"""``engram search``."""

from __future__ import annotations

from typing import Annotated

import typer

from engram.cli import complete
from engram.cli.options import (
    Address,
    Assignments,
    Budget,
    CheckpointEvery,
    Compile,
    DataSet,
    Deterministic,
    Device,
    Label,
    Log,
    Model,
    Out,
    RecipeFile,
    Root,
    Scenario,
    Seeds,
)
from engram.cli.pool_options import Pool, Workers, check_pool


def command(
    recipe: RecipeFile = None,
    data: DataSet = None,
    label: Label = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method", "-m", metavar="NAME", autocompletion=complete.methods,
            help="Method: a name, A+B, or your own as module:Class.",
        ),
    ] = None,
    model: Model = None,
    stream: Scenario = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--set-range", "-r", metavar="KEY=LOW..HIGH[:log]",
            help="What to vary: lr=1e-4..1e-1:log, memory.total=50..500, optimizer=sgd,adam. "
            "Repeatable.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Number of settings to try.")] = 30,
    tasks: Annotated[
        int | None, typer.Option(help="Number of tasks to tune on, from the first (default: 3).")
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            metavar="valid|test",
            help="Rows to select on; a choice made on test is marked as such.",
        ),
    ] = "valid",
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="Metric to select by (default: accuracy).")
    ] = None,
    batch: Annotated[
        int, typer.Option(help="Settings to try in parallel (0: up to 32).")
    ] = 0,
    sampler: Annotated[
        str,
        typer.Option(
            metavar="tpe|random",
            help="How settings are proposed.",
        ),
    ] = "tpe",
    search_seed: Annotated[int, typer.Option(help="Seed of the sampler.")] = 0,
    run: Annotated[
        bool, typer.Option("--run", help="Then run the best setting on the whole stream.")
    ] = False,
    pool: Pool = "together",
    workers: Workers = 0,
    address: Address = None,
    assignments: Assignments = None,
    seeds: Seeds = None,
    out: Out = None,
    root: Root = None,
    device: Device = "auto",
    compile: Compile = False,
    deterministic: Deterministic = False,
    checkpoint_every: CheckpointEvery = "5m",
    budget: Budget = None,
    log: Log = None,
) -> None:  # fmt: skip
    """Tune hyper-parameters on validation rows of the first tasks.

    Trials are kept: repeat the command, or use engram resume, to continue an interrupted search;
    more --trials add further ones. Test rows and later tasks are not read.
    """
    from engram.cli import arguments
    from engram.cli.request import Request
    from engram.cli.searching import search_request
    from engram.errors import bad
    from engram.recipes.assign import set_values
    from engram.tuning.ranges import ranges_of

    check_pool(pool, workers, address)
    if recipe is None and data is None:
        raise bad("engram search", "a RECIPE.yaml, or --data with a name or path", "neither")
    ranges_of(ranges or [], "--set-range")
    plain = arguments.contents(
        recipe=recipe, data=data, methods=[method] if method else (), model=model, stream=stream,
        seeds=seeds, columns=label or (),
    )  # fmt: skip
    for assignment in assignments or ():
        set_values(plain, assignment)
    asked = {
        "ranges": list(ranges or ()), "trials": trials, "tasks": tasks, "on": on, "metric": metric,
        "batch": batch, "sampler": sampler, "seed": search_seed, "run": run,
    }  # fmt: skip
    request = Request(
        recipes=plain, root=str(root.absolute()) if root else None, device=device, pool=pool,
        workers=workers, address=address, compile=compile, deterministic=deterministic,
        checkpoint_every=checkpoint_every, search=asked, log=log or [],
    )  # fmt: skip
    search_request(request, out, budget=budget)
