"""Tables of numbers or texts, in as many parts as the screen needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from engram.cli.console import escape_controls, results_console

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd


MOST_METHODS = 200  # methods printed side by side


def print_table(title: str, table: pd.DataFrame, digits: int = 3) -> None:
    """A table of numbers or texts, in as many parts as the screen needs."""
    from rich.text import Text

    from engram.cli.console import say
    from engram.cli.result_display import make_plain_table

    if title == "metrics":
        table, more = _limit_methods(table)
        table = _side_by_side(table, digits)
        if more:
            say(f"the first {MOST_METHODS} of {MOST_METHODS + more:,} methods; --csv prints all")
    else:
        results_console().print(Text(f"\n{title}", style="bold"))
    cells = table.map(lambda value: _format_cell(value, digits))
    for block in _split_columns(cells, results_console().width):
        shown = make_plain_table(str(table.index.name or ""), *map(str, block.columns))
        for name, row in block.iterrows():
            shown.add_row(Text(escape_controls(str(name))), *row)
        results_console().print(shown)


def _limit_methods(table: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Keep the first `MOST_METHODS` methods; returns how many there are beyond them."""
    labels = list(dict.fromkeys(table["label"]))
    if len(labels) <= MOST_METHODS:
        return table, 0
    return table[table["label"].isin(labels[:MOST_METHODS])], len(labels) - MOST_METHODS


def _split_columns(cells: pd.DataFrame, width: int) -> Iterator[pd.DataFrame]:
    """Columns in groups that fit beside the names of the lines."""
    gap = 2
    names = max(map(len, map(str, [*cells.index, cells.index.name or ""])), default=0)
    start, used = 0, names
    for place, column in enumerate(cells.columns):
        need = gap + max(len(str(column)), *(len(cell) for cell in cells[column]), 1)
        if place > start and used + need > width:
            yield cells.iloc[:, start:place]
            start, used = place, names
        used += need
    yield cells.iloc[:, start:]


def _side_by_side(table: pd.DataFrame, digits: int) -> pd.DataFrame:
    """Metrics as lines, methods as columns, mean and spread as text."""
    from engram.cli.result_display import format_mean_std

    names = [
        f"{name} ({definition})" if definition else name
        for name, definition in zip(table["metric"], table["definition"], strict=True)
    ]
    text = [
        format_mean_std(mean, std, digits)
        for mean, std in zip(table["mean"], table["std"], strict=True)
    ]
    wide = table.assign(metric=names, text=text).pivot(
        index="metric", columns="label", values="text"
    )
    return wide.loc[list(dict.fromkeys(names)), list(dict.fromkeys(table["label"]))]


def _format_cell(value: Any, digits: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.{digits}f}"
    return str(value)
