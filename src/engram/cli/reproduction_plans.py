"""Output of ``engram reproduce`` before training: tables, plans and their cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from engram.cli.console import emit, results_console, say
from engram.cli.result_display import make_plain_table
from engram.errors import bad, plural
from engram.experiments.plain_values import format_duration
from engram.reproduce import ReproductionPlan, count_coverage, table_names
from engram.reproduce.coverage import (
    compare_with_constant,
    count_missing_sets,
    shipped_coverage,
    sum_coverage,
)
from engram.reproduce.paper_table import stand_in_data
from engram.reproduce.planning import preview_cells, preview_columns
from engram.reproduce.result_tables import render_rows
from engram.reproduce.shipped_results import FINDINGS, find_shipped, shipped_findings
from engram.reproduce.table_registry import paper_titles

if TYPE_CHECKING:
    from engram.reproduce import TableCoverage

TIMING_SECONDS = 4.0  # seconds for timing in a dry run without a budget
MESSAGE_SECONDS = 3.0  # seconds between messages while timing
SHORT_REASON_LENGTH = 60  # characters of a reason in the row of a cell
MOST_REASON_LENGTH = 400  # characters of a reason shown; messages may name many files
COUNTS = ("cells", "made", "agree", "differ", "undecided", "not comparable", "not run")
MOST_SETTINGS = 3  # kinds of settings of shipped numbers that are named
FOLDER = Path("runs") / "reproduce"


def make_timing_message() -> Callable[[str, int, int], None]:
    """Return a function that prints which runs are being timed, every few seconds."""
    last = -MESSAGE_SECONDS

    def tell(label: str, place: int, groups: int) -> None:
        nonlocal last
        if time.monotonic() - last >= MESSAGE_SECONDS:
            last = time.monotonic()
            say(f"timing a few steps, group {place + 1} of {groups}: {label}", style="dim")

    return tell


def list_tables() -> None:
    """List every table and figure, with a line each."""
    table = make_plain_table("table", "what")
    table.columns[1].justify = "left"
    for name, title in table_names().items():
        table.add_row(name, title)
    results_console().print(table)


def list_paper(paper: str, folder: Path | None, *, end: str, form: str) -> None:
    """List the tables of a paper, with counts of verdicts from a folder."""
    paper_titles(paper)  # raises for an unknown paper
    if folder is not None and not folder.is_dir():
        raise bad("--out", "a folder with run directories or saved tables", str(folder))
    where = FOLDER if folder is None else folder
    lines = count_coverage(paper, where, end=end)
    shipped = {one.name: _say_shipped(one) for one in shipped_coverage(paper).values()}
    shipped[f"{paper}/{FINDINGS}"] = _say_shipped_findings(paper)
    rows = [_count_columns(one, shipped.get(one.name, "-")) for one in lines]
    names = ("table", "what", "shipped", *COUNTS)
    if form != "table":
        return emit(render_rows(rows, names, form))
    table = make_plain_table(*names)
    table.columns[1].justify = "left"
    for row in rows:
        table.add_row(*(Text(row[name]) for name in names))
    results_console().print(table)
    if not any(one.made or one.drawn for one in lines):
        return say(f"nothing is recorded in {where}; run one with engram reproduce {paper}/TABLE")
    if not end:  # numbers on other data are not comparable
        _say_totals(paper, where)
    changed = sum_coverage(lines).changed
    if changed:
        say(f"{changed} of these cells were run only with settings other than the preset's")
    return say(f"counted in {where}; run a table with engram reproduce {paper}/TABLE")


def _say_totals(paper: str, folder: Path) -> None:
    """Say how many trained cells agree, and a constant would, and which sets are missing."""
    found = compare_with_constant(paper, folder)
    if found.cells:
        say(
            f"{found.near} of {plural(found.cells, 'trained cell')} are within the tolerance; the "
            f"best constant of each table and metric is in {found.constant}"
        )
    missing = count_missing_sets(paper, folder)
    if missing:
        say("cells without a number: " + ", ".join(f"{k} {v}" for k, v in missing.items()))


def _say_shipped(one: TableCoverage) -> str:
    """Say how many cells the results of the package have of a table.

    Examples
    --------
    >>> from engram.reproduce import TableCoverage
    >>> _say_shipped(TableCoverage("x/1", "", cells=9, agrees=3, differs=2, not_comparable=1))
    '6 made, 3 agree'
    """
    return f"{one.made} made, {one.agrees} agree"


def _say_shipped_findings(paper: str) -> str:
    """Say how many comparisons of a paper's findings hold in the results of the package."""
    counts = shipped_findings(paper)[["comparisons", "yes"]].astype(int).sum()
    return f"{counts['yes']} of {counts['comparisons']} hold" if counts["comparisons"] else "-"


def _count_columns(one: TableCoverage, shipped: str) -> dict[str, str]:
    """Tabulate the counts of one table, after what the results of the package have of it."""
    numbers = (one.cells, one.made, one.agrees, one.differs, one.undecided, one.not_comparable,
               one.not_run)  # fmt: skip
    # a figure has no cells: only whether it was drawn
    drawn = ("-", "yes" if one.drawn else "no", *("-",) * (len(COUNTS) - 2))
    shown = map(str, numbers) if one.cells else drawn
    return {
        "table": one.name, "what": one.title, "shipped": shipped,
        **dict(zip(COUNTS, shown, strict=True)),
    }  # fmt: skip


def question(planned: ReproductionPlan, folder: Path) -> None:
    """Print what will be made, where, and what differs from the paper."""
    say(f"{planned.table.name}: {planned.table.title}")
    say(f"{_describe_possible(planned)}, {planned.done} of them already finished; in {folder}")
    others = dict.fromkeys(filter(None, map(stand_in_data, planned.entries)))
    if others:
        say(f"note: made on {', '.join(others)}, not on the paper's data", style="yellow")
    for note in (*planned.notes, *_describe_shipped(planned)):
        say(f"note: {note}", style="yellow")
    for figure, why in planned.missing_figures.items():
        say(f"not run: {figure}: {why[:MOST_REASON_LENGTH]}", style="yellow")


def _describe_shipped(planned: ReproductionPlan) -> list[str]:
    """Describe settings other than the preset's with which shipped numbers were made."""
    known = [
        find_shipped(cell)
        for cell, entry in zip(planned.cells, planned.entries, strict=True)
        if not stand_in_data(entry)
    ]
    counts = Counter(found[2] for found in known if found is not None and found[2])
    return [
        f"{plural(count, 'shipped number')} made with {settings}"
        for settings, count in counts.most_common(MOST_SETTINGS)
    ]


def _describe_possible(planned: ReproductionPlan) -> str:
    """Describe how much of a table and its figures can be made, from how many runs."""
    drawn = len(planned.figures)
    figures = drawn + len(planned.missing_figures)
    parts = [f"{len(planned.runnable)} of {len(planned.cells)} cells"] if planned.cells else []
    if figures:
        parts.append(f"{drawn} of {plural(figures, 'figure')}")
    return f"{' and '.join(parts)} can be reproduced here, from {plural(len(planned.runs), 'run')}"


def show_cells(planned: ReproductionPlan, form: str) -> None:
    """Show every cell with its printed number, whether it can be made here, and why not."""
    rows = preview_cells(planned)
    names = preview_columns(rows)
    if form != "table":
        return emit(render_rows(rows, names, form))
    table = make_plain_table(*names)
    for place, name in enumerate(names):
        numbers = ("printed", "corrected", "shipped")
        table.columns[place].justify = "right" if name in numbers else "left"
    for row in rows:
        style = "" if row["can be made"] == "yes" else "yellow"
        row["reason"] = _shorten_reason(row["reason"])  # the full reasons follow, once each
        table.add_row(*(Text(row[n], style=style if n == "can be made" else "") for n in names))
    if rows:
        results_console().print(table)
    return _show_missing(planned)


def _shorten_reason(why: str) -> str:
    """Shorten a reason.

    Examples
    --------
    >>> _shorten_reason(
    ...     "data: ntu60 was not found under /data: looked for ntu60, ntu60/xsub, NTU60_CS.npz"
    ... )
    'data: ntu60 was not found under /data: looked for ntu60, ...'
    """
    return (
        why
        if len(why) <= SHORT_REASON_LENGTH
        else f"{why[:SHORT_REASON_LENGTH].rpartition(' ')[0]} ..."
    )


def show_costs(planned: ReproductionPlan, form: str) -> None:
    """Show what would run, group by group, and how long it would take."""
    if not planned.costs:
        return say("nothing is left to train" if planned.done else "nothing would be trained")
    table = make_plain_table("runs that train together", "runs", "steps", "ms/step", "how", "time")
    for cost in planned.costs:
        more = f" and {len(cost.labels) - 1} more" if len(cost.labels) > 1 else ""
        table.add_row(
            Text(cost.label + more), str(cost.runs), f"{cost.steps:,}",
            f"{'' if cost.timed else '~'}{1000 * cost.step_seconds:.2f}",
            "lockstep" if cost.lockstep else "one by one",
            format_duration(cost.seconds),
        )  # fmt: skip
    if form == "table":
        results_console().print(table)
    shared = f" in {planned.processes} processes" if planned.processes > 1 else ""
    how = "estimated from a few steps of each kind on this device"
    say(f"about {format_duration(planned.seconds)} in all{shared}, {how}")
    if untimed := sum(not cost.timed for cost in planned.costs):
        say(
            f"~ {untimed} of {len(planned.costs)} groups were not timed but estimated from others "
            "of the same network; --budget 1m times more of them",
            style="yellow",
        )


def _show_missing(planned: ReproductionPlan) -> None:
    reasons: dict[str, int] = {}
    for entry in planned.entries:
        if entry.missing:
            reasons[entry.missing] = reasons.get(entry.missing, 0) + 1
    for why, count in reasons.items():
        say(f"not run: {plural(count, 'cell')}: {why[:MOST_REASON_LENGTH]}", style="yellow")
