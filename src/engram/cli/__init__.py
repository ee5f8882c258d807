"""The command line: one function per command, in modules by purpose.

Not here: any computation; commands build requests, call the library and print the results. Begin
with `COMMANDS` below, then run_commands and execution. Modules with commands import torch, pandas
and rich inside functions only, so that ``engram --help`` is fast.
"""

from __future__ import annotations

from typing import Annotated

import typer

from engram import __version__
from engram.cli import (
    author_commands,
    data_command,
    deploy_commands,
    import_command,
    learn_command,
    list_command,
    monitor_commands,
    record_commands,
    reproduce_command,
    run_commands,
    store_commands,
)
from engram.cli.console import CommandGroup

__all__ = ["app", "main"]

app = typer.Typer(
    name="engram",
    cls=CommandGroup,
    help="Continual learning: train networks on a stream of tasks, measure what they forget.",
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
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; allowed anywhere on the line.")
    ] = False,
) -> None:
    """Continual learning: train networks on a stream of tasks, measure what they forget."""


# In the order of the help: produce results, read them, look around. Name, function, summary for
# the overview, and example at the end of the command's help.
COMMANDS = (
    ("demo", run_commands.demo, "Run a complete example, from data to report.",
     "engram demo --out runs/demo"),
    ("run", run_commands.run, "Train methods on a stream and show the results.",
     "engram run --data digits --method ER --method EWC --seeds 3 --out runs/first"),
    ("sweep", run_commands.sweep, "Run several recipes, or one over a grid of values.",
     "engram sweep --data digits --method EWC --grid strength=10,100,1000"),
    ("search", run_commands.search, "Tune hyper-parameters on validation rows.",
     "engram search --data digits --method ER --set valid=0.2 --set-range lr=1e-4..1e-1:log"),
    ("resume", run_commands.resume, "Continue what was interrupted.",
     "engram resume runs/first"),
    ("reproduce", reproduce_command.reproduce, "Run a paper's table and compare the numbers.",
     "engram reproduce rwalk/1 --root sets --out runs/rwalk"),
    ("metrics", record_commands.metrics, "Show all metrics of run directories.",
     "engram metrics runs/first --compare average_accuracy"),
    ("novelty", record_commands.novelty, "Evaluate novelty detectors on finished runs.",
     "engram novelty runs/novel --detectors KNN --set KNN.k=5"),
    ("open-world", deploy_commands.open_world, "Flag novel rows, label them, learn them.",
     "engram open-world --data digits --classes-per-round 3 --labels 15"),
    ("predict", deploy_commands.predict, "Predict labels of new inputs with a trained model.",
     "engram predict runs/first --label ER --data new/"),
    ("learn", learn_command.learn, "Have a model learn a further table, or other data.",
     "engram learn model.engram --data week5.csv --label kind"),
    ("monitor", monitor_commands.monitor, "Show accuracy, drift and alarms of a served model.",
     "engram monitor model.engram -o monitor.html"),
    ("serve", deploy_commands.serve, "Serve a model over HTTP: predict, novelty, learn.",
     "engram serve model.engram --port 8080"),
    ("store", store_commands.store, "Make a store of versions from a model file.",
     "engram store model.engram shop"),
    ("versions", store_commands.versions, "List the versions of a store, or compare two.",
     "engram versions shop --diff 3 5"),
    ("rollback", store_commands.rollback, "Serve an earlier version of a store again.",
     "engram rollback shop 3"),
    ("forget", store_commands.forget, "Remove rows or classes from a model or a store.",
     "engram forget shop --rows gone.csv"),
    ("report", record_commands.report, "Write an HTML report on run directories.",
     "engram report runs/first -o report.html"),
    ("verify", record_commands.verify, "Check the records of a run directory.",
     "engram verify runs/first"),
    ("card", record_commands.card, "Print and save a protocol card that a paper can cite.",
     "engram card runs/first"),
    ("diff", record_commands.diff, "Show how two protocols differ.",
     "engram diff runs/first rwalk/1"),
    ("import", import_command.import_logs, "Import logs of Mammoth, Avalanche, PyCIL or CSV.",
     "engram import mammoth data/results/class-il/seq-mnist/er/logs.pyd --out runs/theirs"),
    ("list", list_command.list_components, "List methods, models, data sets and more.",
     "engram list methods EWC"),
    ("new", author_commands.new, "Write a template for a method, detector or policy.",
     "engram new method my_method.py"),
    ("check", author_commands.check, "Check your own method or network for errors.",
     "engram check my_method.py:MyMethod"),
)  # fmt: skip
for name, function, line, example in COMMANDS:
    app.command(name, short_help=line, epilog=f"Example: {example}")(function)
app.add_typer(
    data_command.data_app, name="data", short_help="List, add, pack, verify and inspect data sets."
)


def main() -> None:
    """Run the command line."""
    app()
