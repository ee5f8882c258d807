"""Tables by name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from engram.errors import BadArgument, bad, unknown
from engram.records.papers import PAPERS
from engram.reproduce.papers import WRITTEN
from engram.reproduce.papers.base import Paper
from engram.reproduce.table import PaperTable


def table_names() -> dict[str, str]:
    """Every table that can be reproduced, with a line about it.

    Examples
    --------
    >>> list(table_names())[:4]
    ['rwalk/1', 'rwalk/2', 'rwalk/3', 'rwalk/4']
    """
    return {
        f"{paper}/{name}": title
        for paper in WRITTEN
        for name, title in _paper(paper).titles.items()
    }


def find_table(name: str, *, embedded: bool = False, assignments: Sequence[str] = ()) -> PaperTable:
    """A table by its name, ``paper/table``.

    Parameters
    ----------
    embedded
        Made on embedded data, for tests and first looks.
    assignments
        Changes of the preset, ``key=value`` each.

    Examples
    --------
    >>> find_table("rwalk/1").name, len(find_table("RWalk/table3").cells)
    ('rwalk/1', 90)
    >>> find_table("rwalk/9")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: table of rwalk: unknown name '9'. Valid: 1, 2, 3, 4, fig2, ...
    """
    paper, slash, table = name.strip().lower().partition("/")
    if paper not in PAPERS:
        raise unknown("paper", paper, WRITTEN)
    if paper not in WRITTEN:
        raise BadArgument(f"paper: {paper} has no preset in this version; there are "
                          f"{', '.join(table_names())}")  # fmt: skip
    titles = _paper(paper).titles
    if not slash or not table:
        raise bad("table", f"{paper}/TABLE with one of {', '.join(titles)}", name)
    short = table.removeprefix("table").removeprefix("tab").strip(" .-_")
    short = short.replace("figure", "fig")
    spelt = {title.lower(): title for title in titles}
    if short not in spelt:
        raise unknown(f"table of {paper}", table, titles)
    return _paper(paper).build(spelt[short], embedded=embedded, assignments=assignments)


def _paper(name: str) -> Paper[Any]:
    found: Paper[Any] = import_module(f"engram.reproduce.papers.{name}").TABLES
    return found
