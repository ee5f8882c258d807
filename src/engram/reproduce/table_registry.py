"""Lookup of papers and their tables by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from engram.data import Data, load
from engram.errors import BadArgument, bad, unknown
from engram.records.printed_tables import CODE_BASES, PAPERS
from engram.reproduce.cells import Cell
from engram.reproduce.paper_table import PaperTable
from engram.reproduce.papers import PAPER_NAMES
from engram.reproduce.papers.paper_base import Paper


def table_names() -> dict[str, str]:
    """Return every table that can be reproduced, with a line each.

    Examples
    --------
    >>> list(table_names())[:4]
    ['rwalk/1', 'rwalk/2', 'rwalk/3', 'rwalk/4']
    """
    return {
        f"{paper}/{name}": title
        for paper in PAPER_NAMES
        for name, title in _load_paper(paper).titles.items()
    }


def find_table(
    name: str,
    *,
    embedded: bool = False,
    preset: str = "ours",
    assignments: Sequence[str] = (),
    on: str | None = None,
    root: str | Path | None = None,
) -> PaperTable:
    """Find a table by its name, ``paper/table``.

    Parameters
    ----------
    embedded
        Whether to use embedded data, for tests and a first look.
    preset
        ``printed`` for what the paper says where our preset reads it otherwise.
    assignments
        Changes of the preset, ``key=value`` each.
    on
        Another data set of the kind that the table is about, by name or path, looked for under
        `root`: the table's protocol is then run on it.

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
    titles = paper_titles(paper)
    if not slash or not table:
        raise bad("table", f"{paper}/TABLE with one of {', '.join(titles)}", name)
    short = table.removeprefix("table").removeprefix("tab").strip(" .-_")
    short = short.replace("figure", "fig")
    spelt = {title.lower(): title for title in titles}
    if short not in spelt:
        raise unknown(f"table of {paper}", table, titles)
    other = None if on is None else _load_other_data(on, root)
    return _load_paper(paper).build(
        spelt[short], embedded=embedded, preset_name=preset, assignments=assignments, on=other
    )


def _load_other_data(on: str, root: Any) -> Data:
    """Load the data set that replaces the paper's."""
    try:
        return load(on, root=root)
    except BadArgument as error:
        if not Path(on).exists():
            raise
        how = f"engram data add {on} NAME --root DIR, with --label and --set"
        raise BadArgument(f"on: {error}. A set that needs options is kept by name: {how}") from None


def paper_titles(paper: str) -> Mapping[str, str]:
    """Return tables, groups of tables and figures of a paper, with a line each.

    Examples
    --------
    >>> list(paper_titles("cgl"))[:3]
    ['1', '2', '3']
    """
    if paper not in (*PAPERS, *CODE_BASES):
        raise unknown("paper", paper, PAPER_NAMES)
    if paper not in PAPER_NAMES:
        raise BadArgument(f"paper: {paper} has no preset in this version; there are "
                          f"{', '.join(table_names())}")  # fmt: skip
    return _load_paper(paper).titles


def paper_cells(paper: str, name: str) -> tuple[Cell, ...]:
    """Return the printed cells of a table or group of a paper; empty for a figure."""
    return _load_paper(paper).cells(name)


def untrained_tables(paper: str) -> dict[str, str]:
    """Map the tables of a paper for which nothing is trained to what they hold.

    Examples
    --------
    >>> untrained_tables("cgl")
    {'1': 'data counts', '4': 'constants', '5': 'constants'}
    """
    found = _load_paper(paper)
    return dict.fromkeys(found.counted, "data counts") | dict.fromkeys(
        found.without_data, "constants"
    )


def paper_folders(paper: str) -> Mapping[str, str]:
    """Map tables, figures and groups to the run directory they share with others."""
    return _load_paper(paper).folders


def _load_paper(name: str) -> Paper[Any]:
    found: Paper[Any] = import_module(f"engram.reproduce.papers.{name}_paper").TABLES
    return found
