"""HTML for notebooks: escaped text, tables, blocks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


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


def join_blocks(*parts: str) -> str:
    """Join paragraphs and tables into one block; empty ones are left out."""
    return "<div>" + "".join(part for part in parts if part) + "</div>"
