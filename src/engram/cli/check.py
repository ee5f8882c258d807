"""``engram check``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from engram.cli.shell import BAD_INPUT, FAILED, emit
from engram.errors import EngramError


def command(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:CLASS|NAME", help="A method, policy, probe or detector."),
    ],
) -> None:
    """Check a method, policy, probe or detector, built in or your own, against the contract.

    Exit code 1: a rule is broken; 2: the method's own code raised an error.
    """
    if find_spec("engram.checks") is None:
        raise EngramError("this version has no contract suite (engram.checks)")
    from engram.checks import check

    report = check(target)
    emit(str(report))
    if any(one.raised for one in report.failed):  # the same code as for any error of one's own
        raise typer.Exit(BAD_INPUT)
    if not report.passed:
        raise typer.Exit(FAILED)
