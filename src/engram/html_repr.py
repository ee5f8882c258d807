"""HTML for notebooks: escaped text, tables, blocks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def escape(text: object) -> str:
    """Escape text for HTML.

    Examples
    --------
    >>> escape("<b> & co")
    '&lt;b&gt; &amp; co'
    """
    return html.escape(str(text))


def html_table(titles: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Build a table; the first column is aligned left, the others right.

    Examples
    --------
    >>> print(html_table(["task", "rows"], [["a<b", 3]]))
    <table><thead><tr><th style="text-align:left">task</th>...<td style="text-align:right">3</td>...
    """
    head = "".join(_cell("th", place, title) for place, title in enumerate(titles))
    body = "".join(
        f"<tr>{''.join(_cell('td', place, value) for place, value in enumerate(row))}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(tag: str, place: int, value: object) -> str:
    side = "right" if place else "left"
    return f'<{tag} style="text-align:{side}">{escape(value)}</{tag}>'


def frame_html(frame: pd.DataFrame, digits: int = 3) -> str:
    """Build a table from a data frame with its index; numbers that are missing show as "-".

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"mean": [0.5, None]}, index=pd.Index(["ER", "EWC"], name="method"))
    >>> print(frame_html(frame))
    <table>...<td style="text-align:right">0.500</td>...<td style="text-align:right">-</td>...
    """
    names = [str(name or "") for name in frame.index.names]
    rows = [
        [*(key if isinstance(key, tuple) else (key,)), *(_format(value, digits) for value in row)]
        for key, row in zip(frame.index, frame.itertuples(index=False), strict=True)
    ]
    return html_table([*names, *frame.columns], rows)


def _format(value: object, digits: int) -> str:
    if value is None or value != value:  # NaN
        return "-"
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def join_blocks(*parts: str) -> str:
    """Join paragraphs and tables into one block; empty ones are left out."""
    return "<div>" + "".join(part for part in parts if part) + "</div>"
