"""Results on a terminal. Imports pandas, so commands import it inside functions."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from engram.cli.console import (
    escape_controls,
    messages_console,
    print_heading,
    report_unreadable,
    results_console,
    say,
)
from engram.engine.run_definition import Run
from engram.experiments import Plan, Recipe
from engram.experiments.order_study import OrderStudy
from engram.experiments.plan import make_plans_by_recipe
from engram.models.pretrained_folders import describe_start
from engram.records import Result
from engram.records.prediction_scoring import SCORE_TITLES, average_name
from engram.records.summary import describe_search
from engram.report.diagnostics import Finding, diagnose
from engram.streams.stream_warnings import describe_repeats, describe_scales

if TYPE_CHECKING:
    import pandas as pd

MOST_FINDINGS = 12
MOST_METHODS = 200  # lines of the table
STYLES = {"error": "red", "warning": "yellow", "note": "dim"}


def question(plans: Sequence[Plan]) -> None:
    """Print what will be run, on two lines."""
    streams = list({id(plan.run.stream): plan.run.stream for plan in plans}.values())
    first = streams[0]
    told = [note for stream in streams for note in stream.data.notes]
    told += [describe_start(plan.run.model) for plan in plans]
    told += [advise_scope(plan.run) for plan in plans]
    notes = dict.fromkeys(note for note in told if note)
    say(f"{first.data!r}")
    more = f" and {len(streams) - 1} more streams" if len(streams) > 1 else ""
    seeds = len({plan.run.seed for plan in plans})
    labels = list(dict.fromkeys(plan.label for plan in plans))
    shown = ", ".join(labels[:8]) + (f", ... ({len(labels)})" if len(labels) > 8 else "")
    say(f"{first!r}{more}; {shown}; {seeds} seed{'s' if seeds > 1 else ''}")
    for words in (describe_repeats(first), describe_scales(first)):
        if words:
            say(f"warning: {words}", style="yellow")
    for note in notes:
        say(f"note: {note}", style="yellow")


def advise_scope(run: Run) -> str:
    """Advise a scope for a head on frozen features that would forget by the default one.

    Trained against classes of earlier tasks, of which it sees no rows, a head only learns to deny
    them.
    """
    method, stream = run.method, run.stream
    frozen = isinstance(run.model, Mapping) and bool(run.model.get("freeze"))
    trains = not method.implements("answer") and method.reads != "past"  # a head, on its task
    if not frozen or not trains or method.memory is not None or run.training.scope != "auto":
        return ""
    new = stream.visible.long().sum(0)  # tasks that show each class
    if stream.head != "single" or len(stream) < 2 or int(new.max()) > 1:
        return ""
    name = type(method).__name__
    why = "has no rows of earlier classes: on frozen features its head forgets less with scope=own"
    return f"{name} {why}"


def print_outcome(result: Result, folder: Path, *, page: Path | None = None) -> None:
    """Print the table of results, findings, and the paths of records and report."""
    for stream in result.streams:
        if len(result.streams) > 1:
            print_heading(stream)
        part = result.select(stream=stream)
        results_console().print(summary_table(part))
        if len(part.labels) > MOST_METHODS:
            say(f"the first {MOST_METHODS} of {len(part.labels):,} methods; "
                "engram metrics --csv prints all", style="dim")  # fmt: skip
    print_footnotes(result)
    print_findings(diagnose(select_own_views(result), result.class_names))
    report_unreadable(result)
    say(f"Results:  {folder}")
    say(f"Report:   {page or f'engram report {shlex.quote(str(folder))} -o report.html'}")


def print_order_study(result: Result, recipes: Sequence[Recipe], root: str | None) -> None:
    """Print how much the final performance depends on the order, for every recipe of a study."""
    tasks = {plans[0].recipe: one.build_stream(root=root) for one, plans in
             zip(recipes, make_plans_by_recipe(recipes, root), strict=True)}  # fmt: skip
    ended = set(result.runs) - set(result.diverged)
    chosen = result.of_runs([run for run in result.runs if run.recipe in tasks and run in ended])
    study = OrderStudy(chosen, {k: tuple(t.shown for t in one) for k, one in tasks.items()})
    table = make_plain_table("order sensitivity", "level", "AOPD", "MOPD")
    for label, row in study.summary(ddof=1).iterrows():
        for level in ("task", "class"):
            if f"{level}_aopd" in row and not math.isnan(row[f"{level}_aopd"]):
                cells = (
                    format_mean_std(float(row[f"{level}_{name}"]), row[f"{level}_{name}_std"])
                    for name in ("aopd", "mopd")
                )
                table.add_row(Text(str(label)), level, *cells)
    results_console().print(table)


def select_own_views(result: Result) -> pd.DataFrame:
    """Keep the rows of each stream's own head view."""
    frame = result.frame()
    return frame[frame["head"].isin(["", *result.heads])]


def format_mean_std(mean: float, std: float, digits: int = 3) -> str:
    """Format mean and standard deviation.

    Examples
    --------
    >>> (
    ...     format_mean_std(0.91234, 0.0421),
    ...     format_mean_std(0.5, float("nan")),
    ...     format_mean_std(float("nan"), 0.0),
    ... )
    ('0.912 ± 0.042', '0.500', '-')
    """
    if math.isnan(mean):
        return "-"
    text = f"{mean:.{digits}f}"
    return text if math.isnan(std) else f"{text} ± {std:.{digits}f}"


def reads_past(result: Result) -> set[str]:
    """Return the labels of methods that may read the training data of earlier tasks."""
    runs = [one for document in result.ledger for one in document.get("runs", [document])]
    past = {str(one["recipe"]) for one in runs if one.get("reads") == "past"}
    pairs = zip(result.runs, result.run_labels, strict=True)
    return {label for run, label in pairs if run.recipe in past}


def summary_table(result: Result) -> Table:
    """Tabulate score, forgetting and cost of one stream, one row per method."""
    numbers, past = result.summary(), reads_past(result)
    costs = {str(label): row for label, row in result.cost().to_dict("index").items()}
    fair = [label not in past for label in numbers.index]
    mains = {average_name(figure): SCORE_TITLES[figure] for figure in dict.fromkeys(result.figures)}
    best = {name: float(numbers[name][fair].max()) for name in mains if sum(fair) > 1}
    table = make_plain_table("method", "runs", *mains.values(), "forgetting", "memory", "time/run")
    for label, row in numbers.head(MOST_METHODS).iterrows():
        cost: Mapping[Any, float] = costs.get(str(label), {})
        table.add_row(
            Text(f"{label}{' *' if label in past else ''}"),
            _runs_cell(row),
            *(_accuracy_cell(row, name, best.get(name, math.nan)) for name in mains),
            format_mean_std(float(row["forgetting"]), row["forgetting_std"]),
            _memory_cell(cost, past=label in past),
            f"{cost['seconds']:.1f} s" if "seconds" in cost else "-",
        )
    return table


def _accuracy_cell(row: Any, name: str, best: float) -> Text:
    mean = float(row[name])
    return Text(format_mean_std(mean, row[f"{name}_std"]), style="bold" if mean == best else "")


def _runs_cell(row: Any) -> Text:
    runs, finished, lost = int(row["runs"]), int(row["finished"]), int(row["diverged"])
    if lost:
        return Text(f"{finished} of {runs}, {lost} diverged", style="red")
    return Text(str(runs) if finished == runs else f"{finished} of {runs}")


def _memory_cell(cost: Mapping[Any, float], *, past: bool = False) -> str:
    """Format the samples kept, and the bytes of state and further networks.

    For a method that reads the past, all earlier data counts as kept.

    Examples
    --------
    >>> _memory_cell({"memory_items": 40.0, "memory_bytes": 2560.0, "state_bytes": 1024.0})
    '40 items, 2.5 KiB + 1.0 KiB state'
    >>> _memory_cell({"memory_items": 0.0})
    '-'
    >>> _memory_cell({"memory_items": 0.0, "memory_bytes": 2048.0, "generator_bytes": 2048.0})
    '2.0 KiB generator'
    >>> _memory_cell({"past_items": 40.0, "past_bytes": 2560.0}, past=True)
    'all past: 40 items, 2.5 KiB'
    """
    from engram.metrics import human_bytes

    def known(name: str) -> float:
        value = cost.get(name, 0.0)
        return 0.0 if math.isnan(value) else value

    parts = []
    if past and "past_items" in cost:
        size = human_bytes(int(known("past_bytes")))
        parts.append(f"all past: {known('past_items'):.0f} items, {size}")
    elif past:
        parts.append("all past data")
    drawn = known("generator_bytes")
    if items := known("memory_items"):
        kind = "latents" if known("latent_bytes") else "items"
        size = human_bytes(int(known("memory_bytes") - drawn))
        parts.append(f"{items:.0f} {kind}, {size}")
    if drawn:
        parts.append(f"{human_bytes(int(drawn))} generator")
    if state := known("state_bytes") + known("network_bytes"):
        parts.append(f"{human_bytes(int(state))} state")
    return " + ".join(parts) or "-"


def make_plain_table(*columns: str) -> Table:
    """Make a table without borders, with numbers aligned right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, column in enumerate(columns):
        heading = Text(
            escape_controls(column)
        )  # a plain string such as "[b112]" would be read as a style
        table.add_column(heading, justify="left" if place == 0 else "right", overflow="fold")
    return table


def describe_view(result: Result, stage: int | None = None) -> str:
    """Describe after which task, in which head view and over which runs numbers are."""
    shown: dict[str, dict[str, None]] = {}
    for label, head in zip(result.run_labels, result.heads, strict=True):
        shown.setdefault(head, {})[label] = None
    view = ", ".join(f"{head}-head view" for head in shown if head)
    if len(shown) > 1:  # numbers in different views are not comparable
        view = "; ".join(f"{head}-head view: {', '.join(own)}" for head, own in shown.items())
        view = f"each in its own head view ({view})"
    spread = ", mean ± standard deviation over runs" if len(result) > len(result.labels) else ""
    after = "after the last task" if stage is None else f"after task {stage + 1}"
    return ", ".join(filter(None, (after, view))) + spread


def print_footnotes(result: Result) -> None:
    """Print how to read the numbers of the table."""
    say(f"{describe_view(result)}; forgetting: definition max", style="dim")
    if any(figure != "accuracy" for figure in result.figures):
        say("pw-Jaccard: precision-weighted Jaccard score of the predicted label sets, over all "
            "distinct test rows of the tasks so far", style="dim")  # fmt: skip
    for words in describe_search(result.recipes):
        say(words, style="yellow")
    models = (one.get("model") for one in result.recipes.values())
    for line in dict.fromkeys(filter(None, map(describe_start, models))):
        say(line, style="dim")
    if reads_past(result):
        say("* reads the training data of earlier tasks: an upper bound", style="dim")


def print_findings(found: Iterable[Finding]) -> None:
    """Print findings, the worst first, merging equal ones of several methods."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for one in found:
        grouped.setdefault((one.severity, one.text), []).append(one.label)
    console = messages_console()
    for (severity, text), labels in list(grouped.items())[:MOST_FINDINGS]:
        line = f"{severity}: {', '.join(labels)}: {text}"
        console.print(Text(line, style=STYLES[severity]), soft_wrap=True)
    if len(grouped) > MOST_FINDINGS:
        say(f"... and {len(grouped) - MOST_FINDINGS} more; the report has all of them")
