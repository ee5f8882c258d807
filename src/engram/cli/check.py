"""``engram check``."""

from __future__ import annotations

from dataclasses import fields
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from engram.cli.data import parsed
from engram.cli.options import Label, Root
from engram.cli.shell import BAD_INPUT, FAILED, emit
from engram.errors import EngramError, bad, unknown

ABOUT_DATA = "the data that --set and --label apply to"


def command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CLASS|NAME", help="A method, policy, probe, detector or network."
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="NAME|PATH", help="Data to check a network on."),
    ] = None,
    root: Root = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="KEY=VALUE",
            help="With --data, an option of that data; otherwise a field of the method: "
            "strength=10, memory.total=200. Repeatable.",
        ),
    ] = None,
    label: Label = None,
) -> None:  # fmt: skip
    """Test your own method, policy, probe, detector or network against the contract.

    Exit code 1: a check failed; 2: the code under test raised an error.
    """
    if find_spec("engram.checks") is None:
        raise EngramError("this version has no contract suite (engram.checks)")
    from engram.checks import check

    shape, tried = None, target
    if data is not None:
        from engram.data import load

        where = str(root) if root else None
        shape = load(data, root=where, **parsed(options, label)).sample_shape
    elif label:
        raise bad("--data", ABOUT_DATA, None)
    elif options:
        tried = method_with(target, options)
    report = check(tried, sample_shape=shape)
    emit(str(report))
    if any(one.raised for one in report.failed):  # the same code as for any error of one's own
        raise typer.Exit(BAD_INPUT)
    if not report.passed:
        raise typer.Exit(FAILED)


def method_with(target: str, assignments: list[str]) -> Any:
    """A method by name, with other values than its defaults.

    Examples
    --------
    >>> method_with("BiC", ["variant=sigmoid", "BiC.memory.total=60"]).memory.total
    60
    """
    from engram.checks.suite import resolve
    from engram.methods.base import Method
    from engram.recipes.assign import put
    from engram.recipes.assign_parts import option_of
    from engram.recipes.names import build_method
    from engram.yaml_text import key_value

    kind = resolve(target)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise bad("--data", ABOUT_DATA, None)
    content: dict[str, Any] = {"stream": {"data": "blobs"}, "method": {"name": target}}
    for assignment in assignments:
        key, value = key_value(assignment)
        option = option_of(key, target) or key.removeprefix("method.")
        known, first = [field.name for field in fields(kind)], option.partition(".")[0]
        if first != option and first not in known:  # a section of a recipe, training say
            raise unknown("--set", first, known)
        put(content, f"method.{option}", value)
    return build_method(content["method"])
