"""``engram reproduce``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engram.cli.options import Again, Compile, Device, Out

if TYPE_CHECKING:
    from engram.reproduce import PaperTable, Reproduction, ReproductionPlan

STYLES = {"agrees": "green", "differs": "red", "not run": "dim", "not comparable": "yellow"}
TELL_EVERY = 3.0  # seconds between lines of a forecast
MOST_WHY = 400  # characters of a reason shown; messages may name many files


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="PAPER/TABLE", help="rwalk/1, say; without it: a list.")
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            "--root", "--data", metavar="DIR",
            help="Folder in which data sets are found by name (default: ENGRAM_DATA).",
        ),
    ] = None,
    cells: Annotated[
        str,
        typer.Option(metavar="EXPR", help='Some cells: "dataset=MNIST,method=Vanilla|PI*".'),
    ] = "",
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop after 90s, 10m, 1h30m; repeat to continue."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run and how long it would take.")
    ] = False,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="On embedded data: offline, in minutes.")
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="KEY=VALUE",
            help="Change a choice of the preset: seeds=3, mnist.epochs=5. Repeatable.",
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="table|csv|latex|markdown", help="How to print.")
    ] = "table",
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write it: .tex or .md these cells alone, .csv beside those it has.",
        ),
    ] = None,
    group_size: Annotated[
        int, typer.Option(metavar="N", help="Train at most N runs in lockstep (0: as many as fit).")
    ] = 0,
    out: Out = None,
    device: Device = "auto",
    compile: Compile = False,
    again: Again = False,
) -> None:  # fmt: skip
    """Run a paper's table and put our numbers beside its own.

    Only what is missing is run; the same command continues a stopped reproduction.
    """
    from engram.errors import bad, choose
    from engram.recipes.duration import seconds
    from engram.reproduce import default_out, find_table, plan
    from engram.reproduce.output import FORMATS, read_lines

    choose("--format", form, FORMATS)
    endings = {".csv": "csv", ".tex": "latex", ".md": "markdown"}
    if save is not None and save.suffix not in endings:
        raise bad("--save", "a file that ends in .csv, .tex or .md", str(save))
    if save is not None and save.suffix == ".csv":
        read_lines(save)  # complains about a file of something else before anything runs
    limit = None if budget is None else seconds(budget)
    if name is None:
        return _list()
    table = find_table(name, embedded=embedded, assignments=assignments or ())
    folder = out if out is not None else default_out(table, embedded=embedded)
    planned = plan(
        table, root, cells=cells, out=None if again else folder, device=device, measure=dry_run,
        group_size=group_size, tell=_teller(),
    )  # fmt: skip
    if dry_run:
        return _show_plan(planned, folder)
    _question(planned, folder)
    _refuse_nothing(planned)
    made = _run(table, planned, folder, device, limit, group_size, compile, again)
    _print(made, form)
    if save is not None:
        _save(made, save, endings[save.suffix])
    _close(made)
    return None


def _teller() -> Callable[[str, int, int], None]:
    """Says which runs are being timed: at first, and then whenever some seconds have passed."""
    import time

    from engram.cli.shell import say

    last = -TELL_EVERY

    def tell(label: str, place: int, groups: int) -> None:
        nonlocal last
        if time.monotonic() - last >= TELL_EVERY:
            last = time.monotonic()
            say(f"timing a few steps, group {place + 1} of {groups}: {label}", style="dim")

    return tell


def _list() -> None:
    from engram.cli.shell import screen
    from engram.cli.show import plain_table
    from engram.reproduce import table_names

    table = plain_table("table", "what")
    table.columns[1].justify = "left"
    for name, title in table_names().items():
        table.add_row(name, title)
    screen().print(table)


def _run(
    table: PaperTable, planned: ReproductionPlan, folder: Path, device: str, limit: float | None,
    group_size: int, compile: bool, again: bool,
) -> Reproduction:  # fmt: skip
    from engram.cli.progress import meter
    from engram.cli.shell import exit_code, say, why_stopped
    from engram.reproduce import reproduce

    try:
        with meter() as callback:
            return reproduce(
                table, planned=planned, budget=limit, out=folder, device=device, callback=callback,
                group_size=group_size, compile=compile, again=again,
            )  # fmt: skip
    except KeyboardInterrupt as error:
        why = why_stopped(error)
        say(f"\n{why}. Finished tasks are kept; the same command continues.", style="yellow")
        raise typer.Exit(exit_code(error)) from None


def _question(planned: ReproductionPlan, folder: Path) -> None:
    from engram.cli.shell import say
    from engram.reproduce.table import stand_in

    say(f"{planned.table.name}: {planned.table.title}")
    say(f"{_possible(planned)}, {planned.done} finished before; in {folder}")
    others = dict.fromkeys(filter(None, map(stand_in, planned.entries)))
    if others:
        say(f"note: made on {', '.join(others)}, not on the paper's data", style="yellow")
    for note in planned.notes:
        say(f"note: {note}", style="yellow")
    for figure, why in planned.missing_figures.items():
        say(f"not run: {figure}: {why[:MOST_WHY]}", style="yellow")


def _refuse_nothing(planned: ReproductionPlan) -> None:
    """A table of which nothing can be made is no result: say what is missing and how to get it."""
    from engram.errors import EngramError

    if planned.runnable or planned.figures:
        return
    why = dict.fromkeys(entry.missing for entry in planned.entries)
    reasons = "; ".join(text[:MOST_WHY] for text in (*why, *planned.missing_figures.values()))
    raise EngramError(
        f"nothing of {planned.table.name} can be made here: {reasons}. Name the folder of the data "
        "sets with --root DIR or ENGRAM_DATA, or try it on embedded data with --embedded"
    )


def _possible(planned: ReproductionPlan) -> str:
    """How much of a table, and of its figures, can be made, and from how many runs."""
    drawn = len(planned.figures)
    figures = drawn + len(planned.missing_figures)
    parts = [f"{len(planned.runnable)} of {len(planned.cells)} cells"] if planned.cells else []
    if figures:
        parts.append(f"{drawn} of {figures} figure{'' if figures == 1 else 's'}")
    runs = f"{len(planned.runs)} runs" if len(planned.runs) != 1 else "1 run"
    return f"{' and '.join(parts)} can be made here, from {runs}"


def _show_plan(planned: ReproductionPlan, folder: Path) -> None:
    """What would run, group by group, and what cannot."""
    from rich.text import Text

    from engram.cli.shell import say, screen
    from engram.cli.show import plain_table
    from engram.recipes.duration import words

    _question(planned, folder)
    table = plain_table("runs that train together", "runs", "steps", "ms/step", "how", "time")
    for cost in planned.costs:
        more = f" and {len(cost.labels) - 1} more" if len(cost.labels) > 1 else ""
        table.add_row(
            Text(cost.label + more), str(cost.runs), f"{cost.steps:,}",
            f"{1000 * cost.step_seconds:.2f}", "lockstep" if cost.lockstep else "one by one",
            words(cost.seconds),
        )  # fmt: skip
    screen().print(table)
    _show_missing(planned)
    say(f"about {words(planned.seconds)} in all, from a few steps of each group on this device")


def _show_missing(planned: ReproductionPlan) -> None:
    from engram.cli.shell import say

    reasons: dict[str, int] = {}
    for entry in planned.entries:
        if entry.missing:
            reasons[entry.missing] = reasons.get(entry.missing, 0) + 1
    for why, count in reasons.items():
        cells = "1 cell" if count == 1 else f"{count} cells"
        say(f"not run: {cells}: {why[:MOST_WHY]}", style="yellow")


def _print(made: Reproduction, form: str) -> None:
    from rich.text import Text

    from engram.cli.shell import emit, screen
    from engram.cli.show import plain_table
    from engram.reproduce.output import render, shown, texts

    if not made.lines:
        return
    if form != "table":
        return emit(render(made.lines, form))
    names = shown(made.lines)
    table = plain_table(*names)
    for name in {"metric", "verdict", "reason", "settings"} & {*names}:
        table.columns[names.index(name)].justify = "left"
    for line in made.lines:
        said = texts(line)
        said["reason"] = said["reason"][:MOST_WHY]
        style = STYLES[line.verdict]
        table.add_row(*(Text(said[k], style=style if k == "verdict" else "") for k in names))
    return screen().print(table)


def _save(made: Reproduction, path: Path, form: str) -> None:
    from engram.cli.shell import say
    from engram.records.files import write_text
    from engram.reproduce.output import SHORT, merge_lines, render

    if form == "csv":
        say(f"wrote {merge_lines(path, made.lines, digits=SHORT)}")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        say(f"wrote {write_text(path, render(made.lines, form) + chr(10))}")


def _close(made: Reproduction) -> None:
    import shlex

    from engram.cli.shell import say

    counts = ", ".join(f"{count} {verdict}" for verdict, count in made.counts().items())
    if counts:
        say(f"{len(made.lines)} cells: {counts}")
    for path in made.figures:
        say(f"wrote {path}")
    if made.open_runs:
        left = "1 run is" if made.open_runs == 1 else f"{made.open_runs} runs are"
        say(f"{left} still open; the same command continues", style="yellow")
    if made.plan.runs:
        say(f"Results:  {made.out}")
        say(f"Report:   engram report {shlex.quote(str(made.out))} -o report.html")
