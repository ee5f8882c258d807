"""What ``engram reproduce`` shows before anything is trained: tables, plans and their cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from engram.cli.result_display import plain_table
from engram.cli.shell import emit, say, screen
from engram.errors import bad, plural
from engram.experiments.plain_values import words
from engram.reproduce import ReproductionPlan, table_names, tally
from engram.reproduce.coverage import total
from engram.reproduce.output import written
from engram.reproduce.paper_table import stand_in
from engram.reproduce.planning import columns, outlook
from engram.reproduce.registry import paper_titles

if TYPE_CHECKING:
    from engram.reproduce import Tally

TIMED = 4.0  # seconds in which a dry run times steps, where no budget says otherwise
TELL_EVERY = 3.0  # seconds between lines of a forecast
SHORT_WHY = 60  # of it in the line of a cell
MOST_WHY = 400  # characters of a reason shown; messages may name many files
COUNTS = ("cells", "made", "agree", "differ", "not comparable", "not run")
FOLDER = Path("runs") / "reproduce"


def teller() -> Callable[[str, int, int], None]:
    """Says which runs are being timed: at first, and then whenever some seconds have passed."""
    last = -TELL_EVERY

    def tell(label: str, place: int, groups: int) -> None:
        nonlocal last
        if time.monotonic() - last >= TELL_EVERY:
            last = time.monotonic()
            say(f"timing a few steps, group {place + 1} of {groups}: {label}", style="dim")

    return tell


def list_tables() -> None:
    """Every table and figure, with a line about it."""
    table = plain_table("table", "what")
    table.columns[1].justify = "left"
    for name, title in table_names().items():
        table.add_row(name, title)
    screen().print(table)


def list_paper(paper: str, folder: Path | None, *, end: str, form: str) -> None:
    """The tables of a paper, with counts of verdicts from what is recorded in a folder."""
    paper_titles(paper)  # an unknown one is better known before its files are looked for
    if folder is not None and not folder.is_dir():
        raise bad("--out", "a folder with run directories or saved tables", str(folder))
    where = FOLDER if folder is None else folder
    lines = tally(paper, where, end=end)
    rows = [_counts(one) for one in lines]
    names = ("table", "what", *COUNTS)
    if form != "table":
        return emit(written(rows, names, form))
    table = plain_table(*names)
    table.columns[1].justify = "left"
    for row in rows:
        table.add_row(*(Text(row[name]) for name in names))
    screen().print(table)
    if not any(one.made or one.drawn for one in lines):
        return say(f"nothing is recorded in {where}; run one with engram reproduce {paper}/TABLE")
    changed = total(lines).changed
    if changed:
        say(f"{changed} of these cells were run only with settings other than the preset's")
    return say(f"counted in {where}; run a table with engram reproduce {paper}/TABLE")


def _counts(one: Tally) -> dict[str, str]:
    numbers = (one.cells, one.made, one.agrees, one.differs, one.not_comparable, one.not_run)
    # a figure has no cells: it is drawn or not
    drawn = ("-", "yes" if one.drawn else "no", *("-",) * (len(COUNTS) - 2))
    shown = map(str, numbers) if one.cells else drawn
    return {"table": one.name, "what": one.title, **dict(zip(COUNTS, shown, strict=True))}


def question(planned: ReproductionPlan, folder: Path) -> None:
    """What is about to be made, where, and what is not as in the paper."""
    say(f"{planned.table.name}: {planned.table.title}")
    say(f"{_possible(planned)}, {planned.done} of them already finished; in {folder}")
    others = dict.fromkeys(filter(None, map(stand_in, planned.entries)))
    if others:
        say(f"note: made on {', '.join(others)}, not on the paper's data", style="yellow")
    for note in planned.notes:
        say(f"note: {note}", style="yellow")
    for figure, why in planned.missing_figures.items():
        say(f"not run: {figure}: {why[:MOST_WHY]}", style="yellow")


def _possible(planned: ReproductionPlan) -> str:
    """How much of a table, and of its figures, can be made, and from how many runs."""
    drawn = len(planned.figures)
    figures = drawn + len(planned.missing_figures)
    parts = [f"{len(planned.runnable)} of {len(planned.cells)} cells"] if planned.cells else []
    if figures:
        parts.append(f"{drawn} of {plural(figures, 'figure')}")
    return f"{' and '.join(parts)} can be reproduced here, from {plural(len(planned.runs), 'run')}"


def show_cells(planned: ReproductionPlan, form: str) -> None:
    """Every cell with its printed number, whether it can be made here, and why not."""
    rows = outlook(planned)
    names = columns(rows)
    if form != "table":
        return emit(written(rows, names, form))
    table = plain_table(*names)
    for place, name in enumerate(names):
        table.columns[place].justify = "right" if name == "paper" else "left"
    for row in rows:
        style = "" if row["can be made"] == "yes" else "yellow"
        row["reason"] = _short(row["reason"])  # whole ones follow, once each
        table.add_row(*(Text(row[n], style=style if n == "can be made" else "") for n in names))
    if rows:
        screen().print(table)
    return _show_missing(planned)


def _short(why: str) -> str:
    """The beginning of a reason.

    Examples
    --------
    >>> _short("data: ntu60 was not found under /data: looked for ntu60, ntu60/xsub, NTU60_CS.npz")
    'data: ntu60 was not found under /data: looked for ntu60, ...'
    """
    return why if len(why) <= SHORT_WHY else f"{why[:SHORT_WHY].rpartition(' ')[0]} ..."


def show_costs(planned: ReproductionPlan, form: str) -> None:
    """What would run, group by group, and how long it would take."""
    if not planned.costs:
        return say("nothing is left to train" if planned.done else "nothing would be trained")
    table = plain_table("runs that train together", "runs", "steps", "ms/step", "how", "time")
    for cost in planned.costs:
        more = f" and {len(cost.labels) - 1} more" if len(cost.labels) > 1 else ""
        table.add_row(
            Text(cost.label + more), str(cost.runs), f"{cost.steps:,}",
            f"{'' if cost.timed else '~'}{1000 * cost.step_seconds:.2f}",
            "lockstep" if cost.lockstep else "one by one",
            words(cost.seconds),
        )  # fmt: skip
    if form == "table":
        screen().print(table)
    shared = f" in {planned.processes} processes" if planned.processes > 1 else ""
    how = "estimated from a few steps of each kind on this device"
    say(f"about {words(planned.seconds)} in all{shared}, {how}")
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
        say(f"not run: {plural(count, 'cell')}: {why[:MOST_WHY]}", style="yellow")
