"""A table as data (`Column`, `Table`), and how it is written as LaTeX, Markdown or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from engram.errors import check_choice
from engram.metrics.tolerance import merge_ties
from engram.records.method_comparison import format_p


@dataclass(frozen=True)
class Column:
    """One column: where its numbers are, what it is called and how it is written.

    Parameters
    ----------
    kind
        ``text``, ``number``, ``p`` (a p value), ``spread`` (a mean with its standard deviation in
        `<key>_std`), or ``rank`` and ``count`` (texts that sort by the columns `rank` and
        `number`).
    best
        ``max`` or ``min`` marks the best value of each group; empty marks none.
    """

    key: str
    title: str
    kind: str = "text"
    digits: int = 3
    best: str = ""
    help: str = ""


@dataclass(frozen=True)
class Table:
    """A table; `frame` may hold more columns than are shown (`name` and `head` drive switches)."""

    name: str
    title: str
    columns: tuple[Column, ...]
    frame: pd.DataFrame
    note: str = ""

    @cached_property
    def values(self) -> dict[str, list[Any]]:
        """The columns as lists: reading cells of a DataFrame one by one is slow."""
        return {str(key): self.frame[key].tolist() for key in self.frame.columns}

    def best_rows(self, column: Column) -> set[int]:
        """Positions of the best values of a column, one or more per head view and stream."""
        if not column.best or not len(self.frame):
            return set()
        values = self.frame[column.key].astype(float)
        level = merge_ties(np.asarray(values, np.float64))  # rounding picks no winner
        values = pd.Series(level, index=values.index)
        if "reads_past" in self.frame:  # a reference is no winner
            values = values.mask(self.frame["reads_past"].astype(bool))
        keys = [self.frame[k].astype(str) for k in ("stream", "head") if k in self.frame]
        groups = values.groupby(keys) if keys else values.groupby(np.zeros(len(values)))
        low, high = groups.transform("min"), groups.transform("max")
        wins = (values == (high if column.best == "max" else low)) & (low < high)
        return set(np.flatnonzero(wins.to_numpy()).tolist())


def is_missing(value: Any) -> bool:
    """None, NA or not a number."""
    return value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value))


def format_cell(table: Table, column: Column, row: int, sign: str = " ± ") -> str:
    """What is written in a cell, without any markup.

    Examples
    --------
    >>> frame = pd.DataFrame({"a": [0.72], "a_std": [0.0123]})
    >>> format_cell(Table("t", "T", (), frame), Column("a", "A", "spread"), 0)
    '0.720 ± 0.012'
    """
    value = table.values[column.key][row]
    if column.kind in ("text", "rank", "count"):
        return "" if is_missing(value) else str(value)
    if is_missing(value):
        return "–"
    if column.kind == "p":
        return format_p(float(value))
    text = _format_number(float(value), column.digits)
    if column.kind == "spread":
        spread = table.values[f"{column.key}_std"][row]
        text += "" if is_missing(spread) else sign + _format_number(float(spread), column.digits)
    return text


def _format_number(value: float, digits: int) -> str:
    if not np.isfinite(value):
        return str(value)
    text = f"{value:,.{digits}f}" if abs(value) >= 10_000 else f"{value:.{digits}f}"
    is_zero = float(text.replace(",", "")) == 0
    return text.removeprefix("-") if is_zero else text.replace("-", "−")


# Exported text is shown by programs: terminals obey control characters, spreadsheets formulas.


_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# first characters, as OWASP lists them (CSV injection), with those of full width
_FORMULA = re.compile("[ ]*[=+@\t\n\uff1d\uff0b\uff0d\uff20-]")


def strip_controls(text: str) -> str:
    r"""Text without control characters, except line ends and tabs.

    Examples
    --------
    >>> strip_controls("ER \x1b[31mred")
    'ER [31mred'
    """
    return _CONTROLS.sub("", text)


def escape_csv(value: Any) -> Any:
    """A cell of a CSV file that spreadsheets take for text, unless it is a number.

    Examples
    --------
    >>> escape_csv("=HYPERLINK(1)"), escape_csv("ER"), escape_csv(-0.5)
    ("'=HYPERLINK(1)", 'ER', -0.5)
    """
    if not isinstance(value, str):
        return value
    text = strip_controls(value)
    return f"'{text}" if _FORMULA.match(text) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def frame_to_csv(
    frame: pd.DataFrame, *, index: bool = False, float_format: str | None = None
) -> str:
    r"""A DataFrame as CSV with escaped cells.

    Examples
    --------
    >>> frame_to_csv(pd.DataFrame({"label": ["=1+1"], "mean": [-0.5]}))
    "label,mean\n'=1+1,-0.5\n"
    """
    whole = frame.reset_index() if index else frame
    texts = [not pd.api.types.is_numeric_dtype(kind) for kind in whole.dtypes]
    cells = {
        place: whole.iloc[:, place].map(escape_csv) if text else whole.iloc[:, place]
        for place, text in enumerate(texts)
    }
    safe = pd.DataFrame(cells, index=whole.index)
    names = ["" if index and name == "index" else escape_csv(name) for name in whole.columns]
    return str(safe.set_axis(names, axis=1).to_csv(index=False, float_format=float_format))


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    "–": "--", "−": "$-$", "±": r"$\pm$", "…": r"\ldots{}", "“": "``", "”": "''",
}  # fmt: skip


def escape_latex(text: str) -> str:
    r"""Text that LaTeX sets as it stands.

    Examples
    --------
    >>> print(escape_latex("50% of a_b & {c}"))
    50\% of a\_b \& \{c\}
    """
    line = " ".join(strip_controls(text).split())
    return "".join(_LATEX.get(letter, letter) for letter in line)


def escape_markdown(text: str) -> str:
    r"""Text that Markdown shows as it stands, in one table cell.

    Examples
    --------
    >>> print(escape_markdown("a|b *c* <i>"))
    a\|b \*c\* &lt;i&gt;
    """
    line = " ".join(strip_controls(text).split())
    for letter in "\\`*_{}[]|#~$":
        line = line.replace(letter, "\\" + letter)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_latex(table: Table) -> str:
    r"""A `table` with rules of the package booktabs, caption and label, ready to be included.

    Examples
    --------
    >>> frame = pd.DataFrame({"m": ["A_1", "B"], "v": [0.5, 0.25]})
    >>> columns = (Column("m", "Method"), Column("v", "Acc.", "number", 2, best="max"))
    >>> print(to_latex(Table("final-acc", "Final accuracy", columns, frame, "Over runs.")))
    % \usepackage{booktabs}
    \begin{table}
    \centering
    \caption{Final accuracy. Over runs.}
    \label{tab:final-acc}
    \begin{tabular}{lr}
    \toprule
    Method & Acc. \\
    \midrule
    A\_1 & \textbf{0.50} \\
    B & 0.25 \\
    \bottomrule
    \end{tabular}
    \end{table}
    """
    sides = "".join("l" if c.kind == "text" else "r" for c in table.columns)
    titles = " & ".join(escape_latex(c.title) for c in table.columns)
    body = [" & ".join(cells) + r" \\" for cells in _cells(table, escape_latex, r"\textbf{%s}")]
    caption = ". ".join(filter(None, (table.title, table.note.rstrip(".")))) + "."
    label = re.sub(r"[^0-9A-Za-z-]+", "-", table.name)
    return "\n".join([
        r"% \usepackage{booktabs}", r"\begin{table}", r"\centering",
        rf"\caption{{{escape_latex(caption)}}}", rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{{sides}}}", r"\toprule", titles + r" \\", r"\midrule", *body,
        r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ])  # fmt: skip


def to_markdown(table: Table) -> str:
    """A pipe table.

    Examples
    --------
    >>> frame = pd.DataFrame({"m": ["A", "B"], "v": [0.5, 0.25]})
    >>> columns = (Column("m", "Method"), Column("v", "Acc.", "number", 2, best="max"))
    >>> print(to_markdown(Table("t", "T", columns, frame)))
    | Method | Acc. |
    | :-- | --: |
    | A | **0.50** |
    | B | 0.25 |
    """
    titles = " | ".join(escape_markdown(c.title) for c in table.columns)
    rule = " | ".join(":--" if c.kind == "text" else "--:" for c in table.columns)
    body = ["| " + " | ".join(cells) + " |" for cells in _cells(table, escape_markdown, "**%s**")]
    return "\n".join([f"| {titles} |", f"| {rule} |", *body])


def _cells(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    best = {c.key: table.best_rows(c) for c in table.columns}
    return [
        [
            bold.replace("%s", text) if row in best[c.key] else text
            for c in table.columns
            for text in [escape(format_cell(table, c, row))]
        ]
        for row in range(len(table.frame))
    ]


def to_csv(table: Table) -> str:
    r"""Comma-separated values with full precision; a spread becomes two columns.

    Examples
    --------
    >>> frame = pd.DataFrame({"m": ['say "A", B'], "v": [0.5], "v_std": [0.125]})
    >>> columns = (Column("m", "Method"), Column("v", "Acc.", "spread"))
    >>> print(to_csv(Table("t", "T", columns, frame)))
    Method,Acc.,Acc. std
    "say ""A"", B",0.5,0.125
    """
    titles: list[str] = []
    keys: list[str] = []
    for column in table.columns:
        titles.append(column.title)
        keys.append(column.key)
        if column.kind == "spread":
            titles.append(f"{column.title} std")
            keys.append(f"{column.key}_std")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(escape_csv, titles))
    columns = [table.values[key] for key in keys]
    writer.writerows([_plain_value(value) for value in row] for row in zip(*columns, strict=True))
    return out.getvalue().removesuffix("\n")


def _plain_value(value: Any) -> Any:
    if is_missing(value):
        return ""
    return int(value) if isinstance(value, float) and value.is_integer() else escape_csv(value)


FORMATS: dict[str, tuple[str, Callable[[Table], str]]] = {
    "latex": ("tex", to_latex),
    "markdown": ("md", to_markdown),
    "csv": ("csv", to_csv),
}


def render_table(table: Table, form: str) -> str:
    r"""The table as ``latex``, ``markdown`` or ``csv``.

    Examples
    --------
    >>> render_table(Table("t", "T", (Column("m", "M"),), pd.DataFrame({"m": ["A"]})), "csv")
    'M\nA'
    """
    return FORMATS[check_choice("form", form, FORMATS)][1](table)
