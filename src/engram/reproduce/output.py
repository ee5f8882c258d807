"""Lines as tables: for reports, papers and other programs."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engram.errors import choose
from engram.reproduce.verdict import Line

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "paper", "table", "cell", "metric", "paper_value", "ours", "difference", "low", "high",
    "verdict", "reason",
)  # fmt: skip
SHOWN = ("cell", "metric", "paper", "ours", "difference", "interval", "verdict", "reason")
FORMATS = ("table", "csv", "latex", "markdown")
_IDENTITY = ["paper", "table", "cell", "metric"]


def to_frame(lines: Sequence[Line]) -> pd.DataFrame:
    """One row per cell, full precision, the columns of `COLUMNS`."""
    import pandas as pd

    rows = [
        (
            line.cell.paper, line.cell.table, line.cell.name, line.cell["metric"],
            line.cell.value, line.ours, line.difference, line.low, line.high,
            line.verdict, line.reason,
        )
        for line in lines
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


def merge_frame(path: Path, lines: Sequence[Line]) -> Path:
    """Write the lines into a CSV file; lines of other cells that it holds already stay."""
    import pandas as pd

    from engram.records.files import write_text

    fresh = to_frame(lines)
    if path.exists():
        old = pd.read_csv(path, dtype=dict.fromkeys((*_IDENTITY, "reason"), str))
        if list(old.columns) == list(COLUMNS):
            keys = set(fresh[_IDENTITY].itertuples(index=False, name=None))
            other = [k not in keys for k in old[_IDENTITY].itertuples(index=False, name=None)]
            kept = old[pd.Series(other, index=old.index, dtype=bool)]
            fresh = pd.concat([kept, fresh], ignore_index=True) if len(kept) else fresh
    return write_text(path, fresh.to_csv(index=False))


def _digits(line: Line) -> int:
    return 1 if line.cell.percent else 3


def _own_spread(line: Line) -> str:
    """Our spread, where the paper prints one to compare it with."""
    if math.isnan(line.cell.std) or math.isnan(line.spread):
        return ""
    return f" ± {line.spread:.{_digits(line) + 1}f}"


def texts(line: Line) -> dict[str, str]:
    """A line as a person reads it, the paper's number as printed."""
    places = _digits(line)
    spread = "" if math.isnan(line.cell.std) else f" ± {line.cell.std:g}"
    printed = "-" if math.isnan(line.cell.value) else f"{line.cell.value:g}{spread}"
    known = not math.isnan(line.ours)
    span = "" if math.isnan(line.low) else f"{line.low:.{places}f} .. {line.high:.{places}f}"
    gap = known and not math.isnan(line.cell.value)
    return {
        "cell": line.cell.name, "metric": line.cell["metric"], "paper": printed,
        "ours": f"{line.ours:.{places}f}{_own_spread(line)}" if known else "-",
        "difference": f"{line.difference:+.{places}f}" if gap else "",
        "interval": span, "verdict": line.verdict, "reason": line.reason,
    }  # fmt: skip


def render(lines: Sequence[Line], form: str) -> str:
    r"""The lines as ``csv`` (full precision), ``latex`` or ``markdown``.

    Examples
    --------
    >>> import numpy as np
    >>> from engram.reproduce.cells import Cell
    >>> cell = Cell("rwalk", "1", {"method": "EWC", "metric": "F"}, 0.08)
    >>> line = Line(cell, np.array([0.1]), float("nan"), float("nan"), "agrees", "")
    >>> print(render([line], "csv"))
    paper,table,cell,metric,paper_value,ours,difference,low,high,verdict,reason
    rwalk,1,EWC,F,0.08,0.1,0.02,,,agrees,
    """
    choose("format", form, FORMATS[1:])
    if form == "csv":
        text = io.StringIO()
        to_frame(lines).to_csv(text, index=False, float_format="%.6g")
        return text.getvalue().rstrip("\n")
    import pandas as pd

    from engram.report.tables import Column, Table
    from engram.report.tables import render as write

    frame = pd.DataFrame([texts(line) for line in lines], columns=list(SHOWN), dtype=object)
    columns = tuple(Column(name, name.capitalize()) for name in SHOWN)
    return write(Table("reproduction", "Reproduction", columns, frame), form)
