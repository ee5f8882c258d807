"""Lines of a reproduction as tables: data frames, CSV files, LaTeX and Markdown."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.errors import RecordError, bad, check_choice
from engram.io import make_folders
from engram.reproduce.cells import Cell
from engram.reproduce.shipped_results import format_shipped
from engram.reproduce.verdicts import ReproductionLine

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "paper", "table", "cell", "stage", "metric", "printed", "corrected", "correction", "ours",
    "difference", "low", "high", "verdict", "reason", "settings",
)  # fmt: skip
SHOWN_COLUMNS = ("cell", "metric", "printed", "ours", "difference", "interval", "verdict", "reason")
CORRECTION_COLUMNS = ("corrected", "correction")
FORMATS = ("table", "csv", "latex", "markdown")
SHORT_NUMBER_FORMAT = "%.6g"  # for files that people read
_LINE_COLUMNS = ["paper", "table", "cell", "metric", "settings", "stage"]


def to_frame(lines: Sequence[ReproductionLine]) -> pd.DataFrame:
    """Convert lines to a frame with `COLUMNS`, in full precision."""
    import pandas as pd

    rows = [
        (
            line.cell.paper, line.cell.table, line.name, line.cell["stage"],
            line.cell["metric"], line.cell.printed,
            line.cell.corrected if line.cell.correction else math.nan, line.cell.correction,
            line.ours, line.difference, line.low, line.high, line.verdict, line.reason,
            line.settings,
        )
        for line in lines
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


def choose_columns(lines: Sequence[ReproductionLine]) -> tuple[str, ...]:
    """Choose the columns to show: the stage if it distinguishes lines; corrections, results that
    ship with the package, and settings if any.
    """
    found: tuple[str, ...] = SHOWN_COLUMNS
    if any(line.cell.correction for line in lines):
        found = (*found[:3], *CORRECTION_COLUMNS, *found[3:])
    if any(format_shipped(line.cell, line.data) for line in lines):
        found = (*found[:-1], "shipped", found[-1])
    if len({(line.name, line.cell["metric"], line.settings) for line in lines}) < len(lines):
        found = (found[0], "stage", *found[1:])
    return (*found, "settings") if any(line.settings for line in lines) else found


def is_line_table(path: Path) -> bool:
    """Return whether a file is a table of lines, by its header."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().strip() == ",".join(COLUMNS)


def read_lines(path: Path) -> pd.DataFrame | None:
    """Read the lines of a CSV file as text; None without a file. Raises for other tables."""
    import pandas as pd

    from engram.io import read_text

    if not path.exists():
        return None
    text = read_text(path)
    header = text.partition("\n")[0].strip()
    if header != ",".join(COLUMNS):
        raise bad(str(path), f"a table with the columns {', '.join(COLUMNS)}", header)
    try:
        return pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    except ValueError as error:
        raise RecordError(f"{path}: not a valid CSV file ({error})") from error


def merge_lines(
    path: Path, lines: Sequence[ReproductionLine], *, digits: str | None = None
) -> Path:
    """Merge lines into a CSV file.

    Existing lines are kept as they are, character by character, if they are about other cells
    or were made with other settings; the others are replaced in place.
    """
    import pandas as pd

    from engram.io import write_text

    text = to_frame(lines).to_csv(index=False, float_format=digits)
    fresh = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    old = read_lines(path)
    if old is not None:
        fresh = _merge_frames(old, fresh)
    make_folders(path.parent)  # not created yet if nothing was trained
    return write_text(path, fresh.to_csv(index=False))


def _merge_frames(old: pd.DataFrame, fresh: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    by_key = dict(iter(fresh.groupby(_LINE_COLUMNS, sort=False)))
    parts: dict[Any, pd.DataFrame] = {}
    for place, key in enumerate(old[_LINE_COLUMNS].itertuples(index=False, name=None)):
        if key in by_key:
            parts.setdefault(key, by_key[key])
        else:
            parts[place] = old.iloc[[place]]
    new = {key: rows for key, rows in by_key.items() if key not in parts}
    return pd.concat([*parts.values(), *new.values()], ignore_index=True)


def _format_number(line: ReproductionLine, value: float, sign: str = "") -> str:
    """Format one of our numbers: percentages to a tenth, others to about three digits."""
    if line.cell.percent:
        return f"{value:{sign}.1f}"
    return f"{value:{sign}.3g}" if abs(value) < 1 else f"{value:{sign}.6g}"


def _own_spread(line: ReproductionLine) -> str:
    """Format our standard deviation, if the paper prints one."""
    if math.isnan(line.cell.std) or math.isnan(line.spread):
        return ""
    return f" ± {line.spread:.2f}" if line.cell.percent else f" ± {line.spread:.3g}"


def format_printed(cell: Cell) -> str:
    """Format the paper's number as printed; "-" if illegible.

    Examples
    --------
    >>> format_printed(Cell("cgl", "2", {"metric": "AOPD"}, 58.21, 0.7))
    '58.21 ± 0.7'
    """
    # beside a correction the deviation is that of the number which is judged
    spread = "" if math.isnan(cell.std) or cell.correction else f" ± {cell.std:g}"
    return "-" if math.isnan(cell.printed) else f"{cell.printed:g}{spread}"


def format_corrected(cell: Cell) -> str:
    """Format the corrected number; "" for a cell taken as printed.

    Examples
    --------
    >>> key = {"metric": "CF"}
    >>> correction = {"correction": "column 3", "printed": 0.09, "corrected": 0.32 / 3}
    >>> format_corrected(Cell("confer", "28", key, 0.32 / 3, **correction))
    '0.107'
    """
    return f"{cell.corrected:.3g}" if cell.correction else ""


def format_line(line: ReproductionLine) -> dict[str, str]:
    """Format a line for reading, with the paper's number as printed."""
    known = not math.isnan(line.ours)
    ends = () if math.isnan(line.low) else (line.low, line.high)
    gap = known and not math.isnan(line.cell.value)
    return {
        "cell": line.name, "stage": line.cell["stage"], "metric": line.cell["metric"],
        "printed": format_printed(line.cell),
        "corrected": format_corrected(line.cell), "correction": line.cell.correction,
        "ours": f"{_format_number(line, line.ours)}{_own_spread(line)}" if known else "-",
        "difference": _format_number(line, line.difference, "+") if gap else "",
        "interval": " .. ".join(_format_number(line, end) for end in ends),
        "verdict": line.verdict, "shipped": format_shipped(line.cell, line.data),
        "reason": line.reason, "settings": line.settings,
    }  # fmt: skip


def render_lines(lines: Sequence[ReproductionLine], form: str) -> str:
    r"""Render lines as ``csv`` (full precision), ``latex`` or ``markdown``.

    Examples
    --------
    >>> import numpy as np
    >>> from engram.reproduce.cells import Cell
    >>> cell = Cell("rwalk", "1", {"method": "EWC", "metric": "F"}, 0.08)
    >>> line = ReproductionLine(cell, np.array([0.1]), float("nan"), float("nan"), "agrees", "")
    >>> print(render_lines([line], "csv"))
    paper,table,cell,stage,metric,printed,corrected,correction,ours,difference,low,high,verdict,...
    rwalk,1,EWC,,F,0.08,,,0.1,0.02,,,agrees,,
    """
    check_choice("format", form, FORMATS[1:])
    if form == "csv":
        text = io.StringIO()
        to_frame(lines).to_csv(text, index=False, float_format=SHORT_NUMBER_FORMAT)
        return text.getvalue().rstrip("\n")
    return render_rows([format_line(line) for line in lines], choose_columns(lines), form)


def render_rows(rows: Sequence[Mapping[str, str]], names: Sequence[str], form: str) -> str:
    """Render rows of text as ``csv``, ``latex`` or ``markdown``."""
    import pandas as pd

    frame = pd.DataFrame(list(rows), columns=list(names), dtype=object)
    if check_choice("format", form, FORMATS[1:]) == "csv":
        return str(frame.to_csv(index=False)).rstrip("\n")
    from engram.report.table import Column, Table
    from engram.report.table import render_table as write

    columns = tuple(Column(name, name.capitalize()) for name in names)
    return write(Table("reproduction", "Reproduction", columns, frame), form)
