"""``engram diff``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from engram.reproduce import Difference


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")],
    other: Annotated[
        str, typer.Argument(metavar="PRESET|RUN", help="PAPER/TABLE, or another run directory.")
    ],
) -> None:
    """Show how the protocol of a run differs from that of a paper or another run.

    Every recipe is compared with the nearest one of the other side; the most important
    differences come first.
    """
    from engram.cli.shell import say, screen
    from engram.reproduce import compare, read_side

    found = compare(read_side(run), read_side(other))
    if not found:
        return say(f"{run} and {other} follow the same protocol")
    screen().print(_table(found))
    _partners(found)
    _reasons(found)
    return None


def _table(found: list[Difference]) -> Table:
    from rich.text import Text

    from engram.cli.show import plain_table

    table = plain_table("field", "here", "there", "in")
    for column in table.columns[1:]:
        column.justify = "left"
    for one in found:
        where = one.recipes[0] if len(one.recipes) == 1 else f"{len(one.recipes)} recipes"
        here, there = one.values
        table.add_row(Text(one.field), Text(here), Text(there), Text(where))
    return table


def _partners(found: list[Difference]) -> None:
    """Which recipe of the other side each was compared with, where they are called otherwise."""
    from engram.cli.shell import say

    pairs = dict(pair for one in found for pair in zip(one.recipes, one.against, strict=True))
    for mine, other in pairs.items():
        if mine != other:
            say(f"{mine} was compared with {other}")


def _reasons(found: list[Difference]) -> None:
    from engram.cli.shell import say

    for kind in dict.fromkeys(one.kind for one in found):
        fields = dict.fromkeys(one.field for one in found if one.kind == kind)
        why = next(one.why for one in found if one.kind == kind)
        say(f"{', '.join(fields)}: {why}", style="dim")
