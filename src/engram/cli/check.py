"""``engram check``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from engram.cli.shell import emit
from engram.errors import EngramError

FAILED = 1


def command(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:CLASS|NAME", help="A method, policy or detector.")
    ],
) -> None:
    """Try a method, own or built in, against the rules of the game."""
    if find_spec("engram.checks") is None:
        raise EngramError("this version has no contract suite (engram.checks)")
    from engram.checks import check

    report = check(target)
    emit(str(report))
    if not report.passed:
        raise typer.Exit(FAILED)
