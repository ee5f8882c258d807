"""``engram sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engram.cli.options import (
    Address,
    Again,
    Assignments,
    Budget,
    CheckpointEvery,
    Compile,
    DataSet,
    Deterministic,
    Device,
    Label,
    Log,
    Methods,
    Model,
    Out,
    Root,
    Scenario,
    Seeds,
)
from engram.cli.pool_options import Pool, Workers, check_pool


def command(
    recipes: Annotated[
        list[Path] | None, typer.Argument(metavar="RECIPE.yaml...", help="Recipe files.")
    ] = None,
    data: DataSet = None,
    label: Label = None,
    method: Methods = None,
    model: Model = None,
    stream: Scenario = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid", "-g", metavar="KEY=V1,V2,...",
            help="Values to try: lr=0.1,0.01. Repeat it to run every combination.",
        ),
    ] = None,
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
    again: Again = False,
    budget: Budget = None,
    log: Log = None,
) -> None:  # fmt: skip
    """Run several recipes, or one over a grid of values, in lockstep where shapes are equal."""
    from engram.cli import arguments
    from engram.cli.request import Request
    from engram.cli.train import refuse_diverged, run_request
    from engram.errors import bad
    from engram.recipes.assign import Content, set_values

    check_pool(pool, workers, address)
    if not recipes and data is None:
        raise bad("engram sweep", "a RECIPE.yaml, or --data with a name or path", "neither")
    plain: list[Content] = []
    files: list[Path | None] = [*recipes] if recipes else [None]
    for path in files:
        plain += arguments.contents(
            recipe=path, data=data, methods=method or (), model=model, stream=stream, seeds=seeds,
            columns=label or (),
        )  # fmt: skip
    for assignment in assignments or ():
        set_values(plain, assignment)
    request = Request(
        recipes=arguments.grid(plain, grid or ()), root=str(root.absolute()) if root else None,
        device=device, pool=pool, workers=workers, address=address, compile=compile,
        deterministic=deterministic, checkpoint_every=checkpoint_every, log=log or [],
    )  # fmt: skip
    refuse_diverged([run_request(request, out, again=again, budget=budget)])
