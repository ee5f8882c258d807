"""The command line.

Files that define commands import nothing heavy at their top, so that ``engram --help`` is quick:
what needs torch, pandas or rich is imported inside the functions.
"""

from __future__ import annotations

from typing import Annotated

import typer

from engram import __version__
from engram.cli import (
    check,
    data,
    demo,
    diff,
    listing,
    metrics,
    new,
    novelty,
    open_world,
    predict,
    report,
    reproduce,
    resume,
    run,
    search,
    serve,
    sweep,
)  # fmt: skip
from engram.cli.shell import Shell

__all__ = ["app", "main"]

app = typer.Typer(
    name="engram",
    cls=Shell,
    help="Measure what a neural network forgets, and find out how to prevent it.",
    epilog="Start with: engram demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"engram {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; may appear anywhere on the line.")
    ] = False,
) -> None:
    """Measure what a neural network forgets, and find out how to prevent it."""


# In the order of the help: make results, read them, look around.
COMMANDS = (
    ("demo", demo.command, "Run a complete example, from data to report."),
    ("run", run.command, "Train methods on a stream and show the results."),
    ("sweep", sweep.command, "Run several recipes, or one over a grid of values."),
    ("search", search.command, "Tune hyper-parameters on validation data."),
    ("resume", resume.command, "Continue an interrupted run."),
    ("reproduce", reproduce.command, "Rerun a paper's table and compare the numbers."),
    ("metrics", metrics.command, "Show every metric of one or more run directories."),
    ("novelty", novelty.command, "Evaluate novelty detectors, forgotten data included."),
    ("open-world", open_world.command, "Detect novel inputs, have them labelled, learn them."),
    ("predict", predict.command, "Predict labels with a trained model."),
    ("serve", serve.command, "Serve a model over HTTP: predict, novelty, learn."),
    ("report", report.command, "Write an HTML report on run directories."),
    ("diff", diff.command, "Show how two protocols differ."),
    ("list", listing.command, "List methods, models, data sets and more."),
    ("new", new.command, "Create a template for your own method or detector."),
    ("check", check.command, "Test your own method, detector or network."),
)
for name, function, line in COMMANDS:
    app.command(name, short_help=line)(function)
app.add_typer(data.app, name="data", short_help="List, add, pack, verify and inspect data sets.")


def main() -> None:
    """Run the command line."""
    app()
