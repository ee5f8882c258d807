"""The command line.

Files that define commands import nothing heavy at their top, so that ``engram --help`` is quick:
what needs torch, pandas or rich is imported inside the functions.
"""

from __future__ import annotations

from typing import Annotated

import typer

from engram import __version__
from engram.cli import check, data, demo, listing, metrics, report, resume, run, sweep
from engram.cli.shell import Shell

__all__ = ["app", "main"]

app = typer.Typer(
    name="engram",
    cls=Shell,
    help="Measures, and helps to fix, what a neural network forgets.",
    epilog="Start with: engram demo",
    no_args_is_help=True,
    add_completion=False,
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


MAKE, READ, LOOK = "Make results", "Read results", "Look around"

app.command("demo", rich_help_panel=MAKE)(demo.command)
app.command("run", rich_help_panel=MAKE)(run.command)
app.command("sweep", rich_help_panel=MAKE)(sweep.command)
app.command("resume", rich_help_panel=MAKE)(resume.command)
app.command("metrics", rich_help_panel=READ)(metrics.command)
app.command("report", rich_help_panel=READ)(report.command)
app.command("list", rich_help_panel=LOOK)(listing.command)
app.command("check", rich_help_panel=LOOK)(check.command)
app.add_typer(data.app, name="data", rich_help_panel=LOOK)


def main() -> None:
    """Run the command line."""
    app()
