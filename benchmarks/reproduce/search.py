"""Readings of a paper, tried side by side: what each moves, in the cells it may move.

    python -m benchmarks.reproduce.search rwalk-samples --root DIR [--device cuda] [--budget 4m]
    python -m benchmarks.reproduce.search cgl-replay --root DIR --save cgl-replay.csv

A search is a table, the cells to look at, settings common to all trials and the trials, each a list
of assignments as ``engram reproduce --set`` takes them; `SEARCHES` has them by name. All runs of
all trials go into one directory (``--out``), so that runs of equal shape train in lockstep across
trials, a stopped search goes on where it was, and ``--budget 0s`` shows what is there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.reproduce.searches import SEARCHES, Search
from engram.errors import unknown
from engram.experiments import execute
from engram.experiments.plain_values import parse_duration
from engram.records import RunDirectory, read
from engram.reproduce import ReproductionLine, ReproductionPlan, find_table, plan
from engram.reproduce.reproduction import make_lines, select_by_recipe

COLUMNS = ("trial", "settings", "cell", "metric", "paper", "ours", "repetitions", "verdict")


@dataclass(frozen=True)
class Trial:
    """One reading: its name, its settings and what has to be run for it."""

    name: str
    settings: str
    made: ReproductionPlan


def plans_of(
    search: Search, root: str | None, *, only: Sequence[str] = (), common: Sequence[str] = ()
) -> list[Trial]:
    """The plans of a search's trials; `common` is added to the settings of each."""
    for name in only:
        if name not in search.trials:
            raise unknown("trial", name, search.trials)
    found = []
    for name in only or search.trials:
        assignments = [*search.common, *search.trials[name], *common]
        table = find_table(search.table, assignments=assignments)
        made = plan(table, root, cells=search.cells, measure=False)
        found.append(Trial(name, "; ".join(search.trials[name]), made))
    return found


def try_all(
    trials: Sequence[Trial], out: Path, *, device: str = "auto", budget: float | None = None
) -> pd.DataFrame:
    """Run what is missing and within the budget; one row per trial and cell."""
    runs = [run for trial in trials for run in trial.made.runs]
    deadline = None if budget is None else time.monotonic() + budget
    if budget != 0:
        execute(runs, out=out, device=device, deadline=deadline)
    result = read(out) if RunDirectory(out).result_files() else None
    rows = []
    for trial in trials:
        made = trial.made
        own = None if result is None else select_by_recipe(result, made.ids, made.orders)
        rows += [_row(trial, line) for line in make_lines(made, own)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(trial: Trial, line: ReproductionLine) -> tuple[object, ...]:
    return (trial.name, trial.settings, line.name, line.cell["metric"], line.cell.value,
            round(line.ours, 4), len(line.values), line.verdict)  # fmt: skip


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Per trial: numbers that agree, of those made, and the mean distance by metric."""
    made = table[table["ours"].notna() & table["paper"].notna()]
    gap = (made["ours"] - made["paper"]).abs()
    wide = gap.groupby([made["trial"], made["metric"]], sort=False).mean().unstack("metric")
    agree = (made["verdict"] == "agrees").groupby(made["trial"]).sum()
    count = made.groupby("trial").size()
    found = pd.DataFrame({"agree": agree, "of": count}).join(wide.add_prefix("distance "))
    return found.loc[[t for t in dict.fromkeys(table["trial"]) if t in found.index]].round(3)


def conclusion(table: pd.DataFrame) -> str:
    """Whether all numbers agree in some trial, and where most do, of the finished ones."""
    made = table[table["paper"].notna()]
    finished = made.groupby("trial", sort=False)["ours"].apply(lambda one: one.notna().all())
    agree = (made["verdict"] == "agrees").groupby(made["trial"], sort=False).sum()[finished]
    if not len(agree):
        return f"none of {len(finished)} trials is finished"
    numbers = int(made.groupby("trial").size().max())
    best = ", ".join(str(name) for name in agree.index[agree == agree.max()])
    if agree.max() == numbers:
        return f"all {numbers} numbers agree in: {best}"
    return (f"in none of {len(agree)} finished trials do all {numbers} numbers agree; "
            f"most: {agree.max()} in {best}")  # fmt: skip


def show(table: pd.DataFrame) -> str:
    """Trials in rows, cells in columns, the paper's numbers above."""
    short = table.assign(column=table["cell"] + " " + table["metric"])
    wide = short.pivot_table(index="trial", columns="column", values="ours", sort=False)
    paper = short.drop_duplicates("column").set_index("column")["paper"].rename("paper")
    return pd.concat([paper.to_frame().T, wide]).round(3).T.to_string()


def main(arguments: list[str] | None = None, searches: Mapping[str, Search] = SEARCHES) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("name", choices=list(searches))
    parser.add_argument("--root", help="folder with the data sets; default: ENGRAM_DATA")
    parser.add_argument("--only", nargs="+", default=[], metavar="TRIAL")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="common")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budget", metavar="TIME", help="begin nothing after 90s, 4m")
    parser.add_argument("--out", type=Path, help="run directory")
    parser.add_argument("--save", type=Path, help="a CSV file")
    asked = parser.parse_args(arguments)
    search = searches[asked.name]
    out = asked.out or Path("runs") / "search" / asked.name
    trials = plans_of(search, asked.root, only=asked.only, common=asked.common)
    budget = None if asked.budget is None else parse_duration(asked.budget)
    began = time.perf_counter()
    table = try_all(trials, out, device=asked.device, budget=budget)
    some = bool(table["ours"].notna().any())
    print(f"{show(table)}\n{summary(table).to_string()}\n{conclusion(table)}" if some
          else "nothing is recorded yet")  # fmt: skip
    print(f"{time.perf_counter() - began:.1f} s, {len(trials)} trials")
    if asked.save:
        asked.save.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(asked.save, index=False)


if __name__ == "__main__":
    main()
