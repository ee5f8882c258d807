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
    help="Measures, and helps to fix, what a neural network forgets.",
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
        bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere on the line.")
    ] = False,
) -> None:
    """Measures, and helps to fix, what a neural network forgets."""


# In the order of the help: make results, read them, look around.
COMMANDS = (
    ("demo", demo.command, "A complete example, from data to a report."),
    ("run", run.command, "Train methods on a stream; show what they remember."),
    ("sweep", sweep.command, "Run many recipes, or one over a grid of values."),
    ("search", search.command, "Choose hyper-parameters on validation rows."),
    ("resume", resume.command, "Continue an interrupted run."),
    ("reproduce", reproduce.command, "Run a paper's table; our numbers beside its own."),
    ("metrics", metrics.command, "Every metric of run directories, side by side."),
    ("novelty", novelty.command, "What detectors find familiar, new or forgotten."),
    ("open-world", open_world.command, "Flag what is novel, spend labels on it, learn it."),
    ("predict", predict.command, "Ask a trained model about new inputs."),
    ("serve", serve.command, "A model behind HTTP: predict, novelty, learn."),
    ("report", report.command, "Write one HTML page about run directories."),
    ("diff", diff.command, "How two protocols differ."),
    ("list", listing.command, "List methods, models, data sets and more."),
    ("new", new.command, "Begin an own method, detector or policy."),
    ("check", check.command, "Check a method against the contract."),
)
for name, function, line in COMMANDS:
    app.command(name, short_help=line)(function)
app.add_typer(data.app, name="data", short_help="List, add, pack, verify and inspect data sets.")


def main() -> None:
    """Run the command line."""
    app()
