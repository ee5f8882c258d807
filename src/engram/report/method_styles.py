"""Styles of methods in all figures: colour, dash, marker, and a short name."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

# Okabe and Ito's colours, distinguishable with any common colour blindness. Yellow is invisible
# on white and black on a dark page, so they are replaced by grey and violet; dashes and markers do
# the rest.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A", "#6A3D9A")
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = (
    "circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "pentagon",
    "star",
)  # fmt: skip

NAME_WITH_NOTES = re.compile(r"(.+) \(([^()]+)\)")  # a name with notes in brackets


@dataclass(frozen=True)
class Style:
    """Colour, dash and marker of one method."""

    color: str
    dash: str
    symbol: str


def assign_styles(names: Sequence[str]) -> dict[str, Style]:
    """Assign a style to each name; 72 differ in colour or marker, the first 8 in colour and dash.

    Examples
    --------
    >>> assign_styles(["EWC", "ER"])["ER"]
    Style(color='#D55E00', dash='dash', symbol='square')
    """
    return {
        name: Style(PALETTE[i % len(PALETTE)], DASHES[i % len(DASHES)], SYMBOLS[i % len(SYMBOLS)])
        for i, name in enumerate(names)
    }


def shorten(text: str, width: int = 28) -> str:
    """Shorten a text to one line of at most `width` characters, with an ellipsis.

    Examples
    --------
    >>> shorten("EWC strength=5000 variant=online seed-averaged", 21)
    'EWC strengt…-averaged'
    """
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    tail = (width - 1) // 2 - 1
    return line[: width - 1 - tail] + "…" + line[-tail:]


def short_names(names: Sequence[str], width: int = 28) -> dict[str, str]:
    """Shorten names so that they stay distinct.

    If one is too long, notes in brackets that all names share are dropped first.

    Examples
    --------
    >>> list(short_names(["EWC (MNIST, Task-IL, O1)", "EWC (MNIST, Class-IL, O1)"], 20).values())
    ['EWC (Task-IL)', 'EWC (Class-IL)']
    >>> short_names(["a" * 40, "a" * 41], 9)
    {'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa': 'aaaaa…aaa', \
'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa': 'aaaaa…aaa (2)'}
    """
    taken: dict[str, int] = {}
    result = {}
    told = _drop_shared_notes(names) if any(len(name) > width for name in names) else names
    for name, text in zip(names, told, strict=True):
        short = shorten(text, width) or "(no name)"
        taken[short] = taken.get(short, 0) + 1
        result[name] = short if taken[short] == 1 else f"{short} ({taken[short]})"
    return result


def _drop_shared_notes(names: Sequence[str]) -> Sequence[str]:
    """Drop the notes that all names of the form ``method (note, note)`` share."""
    parts = [NAME_WITH_NOTES.fullmatch(name) for name in names]
    if len(names) < 2 or not all(parts):
        return names
    notes = [part[2].split(", ") for part in parts if part]
    shared = set(notes[0]).intersection(*notes[1:])
    found = []
    for part, own in zip(parts, notes, strict=True):
        kept = ", ".join(note for note in own if note not in shared)
        found.append(f"{part and part[1]} ({kept})" if kept else f"{part and part[1]}")
    return found if len(set(found)) == len(set(names)) else names


def as_plot_text(text: str) -> str:
    """Escape text for plotly, which interprets some HTML tags.

    Examples
    --------
    >>> as_plot_text("<b>EWC</b> & co")
    '&lt;b&gt;EWC&lt;/b&gt; &amp; co'
    """
    return html.escape(text, quote=False)
