"""The command that imports logs of other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engram.cli.console import emit, say
from engram.errors import bad, plural

FORMS = "mammoth|avalanche|pycil|csv"
ABSENT = "not in a log, so absent: scores of rows, tasks to come, chance, costs"


def import_logs(
    form: Annotated[str, typer.Argument(metavar=FORMS, help="Which library wrote the logs.")],
    logs: Annotated[list[Path], typer.Argument(metavar="LOG...", help="Log files.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Run directory to write.")
    ],
    label: Annotated[str, typer.Option(help="Name of the method (default: the log's).")] = "",
    head: Annotated[
        str, typer.Option(metavar="single|multi", help="Head view (default: the log's).")
    ] = "",
    percent: Annotated[bool, typer.Option("--percent", help="A CSV file has percentages.")] = False,
) -> None:
    """Import accuracies from logs of Mammoth, Avalanche, PyCIL or LAMDA-PILOT, or from CSV.

    The run directory is read by metrics, report and diff like any other. CSV has the columns label,
    seed, stage, task, value, counted from 1, or a matrix with a line per stage.
    """
    from engram.records.imported_logs import import_log

    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise bad("--out", "a folder that is new or empty", str(out))
    found = import_log(form, *logs, label=label, head=head, percent=percent)
    found.save(out)
    emit(str(found))
    say(ABSENT, style="dim")
    say(f"wrote {plural(len(found), 'run')} to {out}")
