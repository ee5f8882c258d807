"""Results that come with the package: of each cell our number and its verdict, of each finding how
many of its comparisons hold.

They are files of the package, made from ``benchmarks/reproduce`` by ``python -m
benchmarks.reproduce.verdicts --ship``, so that an installed Engram has them as well as a checkout.
Intervals, spreads and numbers of figures are in the checkout alone.
"""

from __future__ import annotations

import io
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from engram.reproduce.cells import Cell

if TYPE_CHECKING:
    import pandas as pd

LINE_COLUMNS = ("table", "cell", "stage", "metric", "ours", "verdict", "settings")
FINDING_COUNTS = ("finding", "comparisons", "yes", "no", "undecided", "not run", "printed")
SHIPPED_FOLDER = "shipped"
FINDINGS = "findings"  # ending of a paper's file, and the table it is about


@cache
def _read(name: str, columns: tuple[str, ...]) -> pd.DataFrame:
    import pandas as pd

    file = resources.files("engram.reproduce").joinpath(SHIPPED_FOLDER, f"{name}.csv")
    if not file.is_file():
        return pd.DataFrame(columns=list(columns))
    text = file.read_text(encoding="utf-8")
    return pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)


def shipped_lines(paper: str) -> pd.DataFrame:
    """Return the shipped results of a paper as text, one line per cell.

    Examples
    --------
    >>> lines = shipped_lines("rwalk")
    >>> lines[lines["table"] == "4"]["verdict"].unique().tolist()
    ['agrees']
    """
    return _read(paper, LINE_COLUMNS)


def shipped_findings(paper: str) -> pd.DataFrame:
    """Return how many comparisons of each finding of a paper hold in the shipped results.

    Examples
    --------
    >>> list(shipped_findings("iirc"))
    ['finding', 'comparisons', 'yes', 'no', 'undecided', 'not run', 'printed']
    """
    return _read(f"{paper}-{FINDINGS}", FINDING_COUNTS)


@cache
def _index_lines(paper: str) -> dict[tuple[str, ...], tuple[str, ...]]:
    rows = shipped_lines(paper)[list(LINE_COLUMNS)].itertuples(index=False, name=None)
    return {row[:4]: row[4:] for row in rows}


def find_shipped(cell: Cell) -> tuple[str, str, str] | None:
    """Find our shipped number of a cell, its verdict, and the settings that it was made with.

    Examples
    --------
    >>> from engram.reproduce.cells import read_cells
    >>> find_shipped(read_cells("rwalk", "4")[0])
    ('3', 'agrees', '')
    """
    found = _index_lines(cell.paper).get((cell.table, cell.name, cell["stage"], cell["metric"]))
    return None if found is None else (found[0], found[1], found[2])


def format_shipped(cell: Cell, data: str = "") -> str:
    """Format our shipped number of a cell with its verdict; "" on other `data`, or without one.

    Examples
    --------
    >>> from engram.reproduce.cells import read_cells
    >>> (
    ...     format_shipped(read_cells("rwalk", "4")[0]),
    ...     format_shipped(read_cells("rwalk", "1")[0], "x"),
    ... )
    ('3 agrees', '')
    """
    found = None if data else find_shipped(cell)
    return "" if found is None else f"{found[0]} {found[1]}"
