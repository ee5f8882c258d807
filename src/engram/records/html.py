"""A Result as notebooks show it: one line per method, and what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engram.html_text import block, escape, table
from engram.records.summary import _cell, headline, summary_names
from engram.spelling import plural

if TYPE_CHECKING:
    from engram.records.result import Result

MOST_LABELS = 50  # lines of the table


def html_of(result: Result) -> str:
    """The summary of a result in HTML."""
    if not result.runs:
        return block("<p>Result: no runs</p>")
    numbers, names = result.summary(), summary_names(result)
    costs = result.cost()
    rows = []
    for label, row in list(numbers.iterrows())[:MOST_LABELS]:
        cells = [_cell(row[name], row[f"{name}_std"]) for name in names]
        seconds = costs["seconds"].get(label, np.nan) if "seconds" in costs else np.nan
        taken = "-" if np.isnan(seconds) else f"{seconds:.1f} s"
        rows.append([label, int(row["runs"]), *cells, taken])
    titles = ["method", "runs", *(name.replace("_", " ") for name in names), "time per run"]
    more = len(numbers) - len(rows)
    lost = len(result.diverged)
    remarks = [
        f"{more} more methods" if more else "", f"{plural(lost, 'run')} diverged" if lost else "",
    ]  # fmt: skip
    remarks += [f"could not read: {problem}" for problem in result.problems]
    return block(f"<p>{escape(headline(result))}; mean ± standard deviation over runs</p>",
                 table(titles, rows), *(f"<p>{escape(r)}</p>" for r in remarks if r))  # fmt: skip
