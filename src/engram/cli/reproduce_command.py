"""``engram reproduce``: run a paper's table, or show its cells, costs and state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engram.cli.options import Compile, Device, Out, Rerun
from engram.errors import plural

if TYPE_CHECKING:
    from engram.reproduce import PaperTable, Reproduction, ReproductionPlan

STYLES = {"agrees": "green", "differs": "red", "not run": "dim", "not comparable": "yellow"}
FORMAT_SUFFIXES = {".csv": "csv", ".tex": "latex", ".md": "markdown"}


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="PAPER/TABLE",
            help="Such as rwalk/1. With rwalk alone: the state of its tables. Without: all.",
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            "--root",
            "--data",
            metavar="DIR",
            help="Folder with data sets by name (default: ENGRAM_DATA).",
        ),
    ] = None,
    cells: Annotated[
        str,
        typer.Option(metavar="EXPR", help='Only these cells or figure rows: "method=Vanilla|PI*".'),
    ] = "",
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop after 90s, 10m, 1h30m; repeat to continue. Limits --dry-run, too.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cells, what would run, and for how long.")
    ] = False,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Use built-in data: offline, in minutes.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="Use another data set of the same kind; may be a built-in one."
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="ours|printed",
            help="Settings: ours, or the paper's text where ours read it otherwise.",
        ),
    ] = "ours",
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="KEY=VALUE",
            help="Change a setting of the preset: seeds=3, mnist.epochs=5. Repeatable.",
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="table|csv|latex|markdown", help="Output format.")
    ] = "table",
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write to a file: .tex or .md (overwritten), .csv (cells are added).",
        ),
    ] = None,
    group_size: Annotated[
        int, typer.Option(metavar="N", help="Train at most N runs in lockstep (0: as many as fit).")
    ] = 0,
    workers: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Processes (0: on the CPU one per core, if runs do not train in lockstep).",
        ),
    ] = 0,
    out: Out = None,
    device: Device = "auto",
    compile: Compile = False,
    rerun: Rerun = False,
) -> None:
    """Run a paper's table and compare our numbers with the published ones.

    Only missing runs are trained; repeat the command to continue an interrupted one.
    """
    from engram.cli import reproduction_plans as plans
    from engram.engine.backend import resolve_device
    from engram.errors import check_choice, check_int
    from engram.experiments.plain_values import parse_duration
    from engram.reproduce import default_out, find_table, plan
    from engram.reproduce.planning import add_costs
    from engram.reproduce.reproduction import directory_suffix
    from engram.reproduce.result_tables import FORMATS

    check_choice("--format", form, FORMATS)
    check_int("--workers", workers)
    check_int("--group-size", group_size)
    _check_save(save, dry_run)
    limit = None if budget is None else parse_duration(budget)
    if name is None:
        return plans.list_tables()
    if "/" not in name and not (cells or dry_run or assignments or save or limit is not None):
        return plans.list_paper(
            name.strip().lower(), out, end=directory_suffix(embedded, on), form=form
        )
    resolve_device(device)  # raises before data is read
    table = find_table(
        name, embedded=embedded, preset=preset, assignments=assignments or (), on=on, root=root
    )
    folder = out if out is not None else default_out(table, embedded=embedded, on=on)
    done = None if rerun else folder
    planned = plan(table, root, cells=cells, out=done, device=device, measure=False)
    plans.question(planned, folder)
    if dry_run:
        plans.show_cells(planned, form)
        planned = add_costs(
            planned,
            out=done,
            device=device,
            group_size=group_size,
            tell=plans.make_timing_message(),
            limit=plans.TIMING_SECONDS if limit is None else limit,
            workers=workers,
            compile=compile,
        )
        return plans.show_costs(planned, form)
    _require_runnable(planned)
    made = _run(table, planned, folder, device, limit, group_size, compile, rerun, workers)
    _print(made, form)
    if save is not None:
        _save(made, save, FORMAT_SUFFIXES[save.suffix])
    _print_summary(made)
    return None


def _check_save(save: Path | None, dry_run: bool) -> None:
    """Raise for an unsuitable file before anything runs."""
    from engram.errors import bad
    from engram.io import check_writable
    from engram.reproduce.result_tables import read_lines

    if save is None:
        return
    if dry_run:
        raise bad("--save", "no value with --dry-run, which has no numbers (use --format)", save)
    if save.suffix not in FORMAT_SUFFIXES:
        raise bad("--save", "a file that ends in .csv, .tex or .md", str(save))
    if save.suffix == ".csv":
        read_lines(save)  # raises for a file of another kind
    check_writable(save)


def _run(
    table: PaperTable, planned: ReproductionPlan, folder: Path, device: str, limit: float | None,
    group_size: int, compile: bool, rerun: bool, workers: int,
) -> Reproduction:  # fmt: skip
    from engram.cli.console import exit_code, say, stop_reason
    from engram.cli.execution import show_progress
    from engram.reproduce import reproduce

    try:
        with show_progress() as callback:
            return reproduce(
                table, planned=planned, budget=limit, out=folder, device=device, callback=callback,
                group_size=group_size, compile=compile, rerun=rerun, workers=workers,
            )  # fmt: skip
    except KeyboardInterrupt as error:
        why = stop_reason(error)
        say(f"\n{why}. Finished tasks are kept; repeat the command to continue.", style="yellow")
        raise typer.Exit(exit_code(error)) from None


def _require_runnable(planned: ReproductionPlan) -> None:
    """Raise if no cell can be made, with what is missing and how to get it."""
    from engram.cli.reproduction_plans import MOST_REASON_LENGTH
    from engram.errors import EngramError

    if planned.runnable or planned.figures:
        return
    why = dict.fromkeys(entry.missing for entry in planned.entries)
    reasons = "; ".join(
        text[:MOST_REASON_LENGTH] for text in (*why, *planned.missing_figures.values())
    )
    raise EngramError(
        f"nothing of {planned.table.name} can be reproduced: {reasons}. Give the folder of the "
        "data sets with --root DIR or ENGRAM_DATA, or use --embedded to try it on embedded data"
    )


def _print(made: Reproduction, form: str) -> None:
    from rich.text import Text

    from engram.cli.console import emit, results_console
    from engram.cli.reproduction_plans import MOST_REASON_LENGTH
    from engram.cli.result_display import make_plain_table
    from engram.reproduce.result_tables import choose_columns, format_line, render_lines

    if not made.lines:
        return
    if form != "table":
        return emit(render_lines(made.lines, form))
    names = choose_columns(made.lines)
    table = make_plain_table(*names)
    for name in {"metric", "verdict", "reason", "settings"} & {*names}:
        table.columns[names.index(name)].justify = "left"
    for line in made.lines:
        said = format_line(line)
        said["reason"] = said["reason"][:MOST_REASON_LENGTH]
        style = STYLES[line.verdict]
        table.add_row(*(Text(said[k], style=style if k == "verdict" else "") for k in names))
    return results_console().print(table)


def _save(made: Reproduction, path: Path, form: str) -> None:
    from engram.cli.console import say
    from engram.io import write_text
    from engram.reproduce.result_tables import SHORT_NUMBER_FORMAT, merge_lines, render_lines

    if form == "csv":
        say(f"wrote {merge_lines(path, made.lines, digits=SHORT_NUMBER_FORMAT)}")
    else:
        say(f"wrote {write_text(path, render_lines(made.lines, form) + chr(10))}")


def _print_findings(made: Reproduction) -> None:
    """Print how many comparisons of each finding hold, beside the shipped results."""
    from rich.text import Text

    from engram.cli.console import results_console
    from engram.cli.result_display import make_plain_table
    from engram.reproduce.papers.findings import YES, count_findings
    from engram.reproduce.shipped_results import FINDING_COUNTS, FINDINGS, shipped_findings

    files = [one for one in made.figures if one.name == f"{FINDINGS}.csv"]
    if not files:
        return
    import pandas as pd

    counts = count_findings(pd.read_csv(files[0], keep_default_na=False))
    known = shipped_findings(made.plan.table.name.partition("/")[0]).to_dict("records")
    shipped = {one["finding"]: f"{one[YES]} of {one['comparisons']}" for one in known}
    table = make_plain_table(*FINDING_COUNTS, "shipped")
    table.columns[0].justify = "left"
    for row in counts.to_dict("records"):
        said = [str(row[name]) for name in FINDING_COUNTS]
        table.add_row(*(Text(word) for word in (*said, shipped.get(row["finding"], "-"))))
    results_console().print(table)


def _print_summary(made: Reproduction) -> None:
    import shlex

    from engram.cli.console import say

    counts = ", ".join(f"{count} {verdict}" for verdict, count in made.counts().items())
    if counts:
        say(f"{plural(len(made.lines), 'cell')}: {counts}")
    _print_findings(made)
    for path in made.figures:
        say(f"wrote {path}")
    if made.open_runs:
        left = "1 run is" if made.open_runs == 1 else f"{made.open_runs} runs are"
        say(f"{left} unfinished; the same command continues", style="yellow")
    if made.plan.runs:
        say(f"Results:  {made.out}")
        say(f"Report:   engram report {shlex.quote(str(made.out))} -o report.html")
