"""The command ``engram monitor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engram.cli.console import emit

if TYPE_CHECKING:
    from engram.deploy.monitor import Monitor


def monitor(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A model.engram, or the folder of a store.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write a page with figures.")
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV with id and label: labels that have come, first."),
    ] = None,
    rate: Annotated[
        float, typer.Option(help="Probability of any false alarm of the tests for drift.")
    ] = 0.05,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV: every prediction.")] = False,
    numbers: Annotated[
        bool, typer.Option("--numbers", help="Print plain numbers, one in each line.")
    ] = False,
) -> None:
    """Show how a served model does: accuracy, drift, calibration, alarms, forgetting.

    Needs predictions that were recorded, by `engram predict --record` or a `Monitor` in Python.
    """
    from engram.cli.console import say
    from engram.cli.wide_tables import print_table
    from engram.deploy.monitor import Monitor
    from engram.errors import bad
    from engram.report.monitor_page import build_monitor_page, describe_numbers, find_problems
    from engram.report.table import frame_to_csv

    if csv and numbers:
        raise bad("--numbers", "no value with --csv", numbers)
    found = Monitor.of(model)
    if labels is not None:
        say(f"{_read_labels(found, labels):,} labels from {labels}")
    if out is not None:
        say(f"{build_monitor_page(found, out, title=f'Monitor of {model.name}', rate=rate)}")
    if csv:
        emit(frame_to_csv(found.observations()))
        return
    values = found.numbers(rate)
    if numbers:
        emit("\n".join(f"{name} {value:.10g}" for name, value in values.items()))
        return
    say(describe_numbers(values))
    for words in find_problems(found, rate):
        say(words, style="yellow")
    drift = found.drift(rate)
    drift = drift[drift["drift"]].set_index("period").drop(columns="drift")
    tables = {
        "accuracy": found.accuracy("period"), "accuracy by class": found.accuracy("class"),
        "class shares": found.shares(), "drift": drift, "novelty alarms": found.alarms("period"),
        "calibration": found.calibration("period"), "forgetting": found.forgetting(),
    }  # fmt: skip
    for title, table in tables.items():
        if len(table):
            print_table(title, table)


def _read_labels(found: Monitor, path: Path) -> int:
    """Record the labels of a CSV file; returns how many."""
    import pandas as pd

    from engram.errors import bad

    if not path.is_file():
        raise bad("--labels", "a CSV file with columns id and label", str(path))
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    if missing := {"id", "label"} - set(table.columns):
        raise bad(f"columns of {path}", f"{sorted(missing)} among them", list(table.columns))
    kinds = {type(one) for one in found.observations()["label"].tolist()}
    values = table["label"].tolist()
    if kinds == {int}:
        values = [_to_int(one) for one in values]
    elif kinds == {bool}:
        values = [_to_bool(one) for one in values]
    found.label(table["id"].tolist(), values)
    return len(values)


def _to_bool(text: str) -> bool:
    from engram.errors import bad

    if text not in ("True", "False"):
        raise bad("--labels", "True or False, as the model predicts", text)
    return text == "True"


def _to_int(text: str) -> int:
    from engram.errors import bad

    try:
        return int(text)
    except ValueError:
        raise bad("--labels", "whole numbers, as the model predicts", text) from None
