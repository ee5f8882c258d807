"""``engram run``."""

from __future__ import annotations

from typing import Annotated

import typer

from engram.cli.options import (
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
    RecipeFile,
    Root,
    Scenario,
    Seeds,
)


def command(
    recipe: RecipeFile = None,
    data: DataSet = None,
    label: Label = None,
    method: Methods = None,
    model: Model = None,
    stream: Scenario = None,
    assignments: Assignments = None,
    seeds: Seeds = None,
    out: Out = None,
    root: Root = None,
    device: Device = "auto",
    keep: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="What to keep: counts|labels|scores|parameters."),
    ] = None,
    together: Annotated[
        bool,
        typer.Option(
            "--together/--no-together",
            help="Train runs in lockstep where that is faster.",
        ),
    ] = True,
    probe: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:CLASS",
            help="Your own measurement after every stage; finished runs are only measured.",
        ),
    ] = None,
    detectors: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Novelty detectors to evaluate after every stage."),
    ] = None,
    outside: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|PATH", help="Outside set (never trained on) for tuning detectors."
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Tune detectors after the first task, against --outside."),
    ] = False,
    compile: Compile = False,
    deterministic: Deterministic = False,
    checkpoint_every: CheckpointEvery = "5m",
    again: Again = False,
    budget: Budget = None,
    log: Log = None,
) -> None:  # fmt: skip
    """Train one or more methods on a stream and show accuracy and forgetting.

    Finished stages are kept: repeat the command, or use engram resume, to continue an
    interrupted run. Exit code 1: all runs diverged.
    """
    from engram.cli import arguments
    from engram.cli.request import Request
    from engram.cli.train import refuse_diverged, run_request
    from engram.recipes.assign import set_values

    plain = arguments.contents(
        recipe=recipe, data=data, methods=method or (), model=model, stream=stream, seeds=seeds,
        keep=keep, probes=probe or (), detectors=arguments.detector_specs(detectors, tune),
        outside=outside, columns=label or (),
    )  # fmt: skip
    for assignment in assignments or ():
        set_values(plain, assignment)
    request = Request(
        recipes=plain, root=str(root.absolute()) if root else None, device=device,
        pool="auto" if together else "serial", compile=compile,
        deterministic=deterministic, checkpoint_every=checkpoint_every, log=log or [],
    )  # fmt: skip
    refuse_diverged([run_request(request, out, again=again, budget=budget)])
