"""``engram check``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from engram.cli.data import Options, parsed
from engram.cli.options import Label, Root
from engram.cli.shell import BAD_INPUT, FAILED, emit
from engram.errors import EngramError, bad


def command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CLASS|NAME", help="A method, policy, probe, detector or network."
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="NAME|PATH", help="Data that a network is to read."),
    ] = None,
    root: Root = None,
    options: Options = None,
    label: Label = None,
) -> None:
    """Check a method, policy, probe, detector or network of your own against the contract.

    Exit code 1: a rule is broken; 2: the method's own code raised an error.
    """
    if find_spec("engram.checks") is None:
        raise EngramError("this version has no contract suite (engram.checks)")
    from engram.checks import check

    shape = None
    if data is not None:
        from engram.data import load

        where = str(root) if root else None
        shape = load(data, root=where, **parsed(options, label)).sample_shape
    elif options or label:
        raise bad("--data", "the data that --set and --label are about", None)
    report = check(target, sample_shape=shape)
    emit(str(report))
    if any(one.raised for one in report.failed):  # the same code as for any error of one's own
        raise typer.Exit(BAD_INPUT)
    if not report.passed:
        raise typer.Exit(FAILED)
