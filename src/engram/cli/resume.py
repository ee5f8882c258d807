"""``engram resume``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli.options import Address, Budget, Log, Trust
from engram.errors import EngramError, RecordError, bad

if TYPE_CHECKING:
    from engram.cli.request import Request


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    device: Annotated[
        str | None,
        typer.Option(metavar="auto|cpu|cuda", help="Device (default: as before)."),
    ] = None,
    deterministic: Annotated[
        bool | None,
        typer.Option(
            "--deterministic/--no-deterministic",
            help="Bit-identical results on CUDA too (default: as before).",
        ),
    ] = None,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Interval of checkpoints within a task (default: as before)."
        ),
    ] = None,
    address: Address = None,
    budget: Budget = None,
    log: Log = None,
    trust: Trust = False,
) -> None:  # fmt: skip
    """Continue what was interrupted: only what is missing is trained.

    Several commands may have written to the directory; they are continued one by one. If one cannot
    be, a message says so, the others continue, and the exit code is 2.
    """
    from engram.cli.train import trusted

    if not directory.is_dir():
        raise bad("DIR", "an existing run directory", str(directory))
    how = {
        "device": device, "deterministic": deterministic, "checkpoint_every": checkpoint_every,
        "log": log,
        "address": address,
    }  # fmt: skip
    given: dict[str, Any] = {name: value for name, value in how.items() if value is not None}
    with trusted(["resume", str(directory)], trust):
        _resume(directory, given, budget)


def _resume(directory: Path, how: Mapping[str, Any], budget: str | None) -> None:
    """Everything that was asked of a directory, each by itself."""
    from engram.cli.request import Request, request_files
    from engram.cli.searching import search_request
    from engram.cli.shell import BAD_INPUT, describe, mends, say
    from engram.cli.train import refuse_diverged, run_request

    asked: Sequence[Any] = request_files(directory) or from_recipes(directory)
    results, failures = [], 0
    for one in asked:
        try:
            request = one if isinstance(one, Request) else Request.read(one)
            again = replace(request, **how)
            carry_out = run_request if again.search is None else search_request
            results.append(carry_out(again, directory, same=True, budget=budget))
        except Exception as error:
            if len(asked) == 1 or not mends(error):
                raise
            say(f"engram: {describe(error)}", style="red")
            failures += 1
    if failures:
        say(f"{failures} of {len(asked)} requests in {directory} could not be continued")
        raise typer.Exit(BAD_INPUT)
    refuse_diverged(results)


def from_recipes(directory: Path) -> list[Request]:
    """The requests that the recipes of a directory amount to, where Python wrote them."""
    from engram.cli.request import Request
    from engram.recipes.changes import recorded
    from engram.records import RunDirectory

    folder = RunDirectory(directory, create=False)
    roots: dict[str | None, list[dict[str, Any]]] = {}
    orders: dict[str, set[str]] = {}
    for recipe, _, order in folder.finished_runs():
        orders.setdefault(recipe, set()).add(order)
    for name, content in recorded(folder).items():
        plain = _plain(directory, content)
        root = content["identity"].get("data_root")
        roots.setdefault(root, []).extend(_in_orders(directory, plain, orders.get(name, set())))
    if not roots:
        raise RecordError(f"{directory}: contains no recipes; is it a run directory?")
    return [Request(recipes=recipes, root=root) for root, recipes in roots.items()]


def _plain(directory: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded recipe as it is written in a file, if what it names can be had again."""
    from engram.recipes import Recipe
    from engram.recipes.names import Untrusted

    stream = {k: v for k, v in content["stream"].items() if k != "head"}
    if "kind" not in stream:
        raise _only_python(directory, "the stream was built there")
    if content["identity"].get("data_in_memory"):
        raise _only_python(directory, f"its data ({stream['data']!r}) was in memory")
    plain = {k: v for k, v in content.items() if k != "identity"} | {"stream": stream}
    if ":" in str(plain["model"]):
        raise _only_python(directory, f"the model ({plain['model']}) was built there")
    if "in_memory" in (plain.get("outside") or {}):
        raise _only_python(
            directory, f"its outside data ({plain['outside']['data']!r}) was in memory"
        )
    try:
        Recipe.of(plain)
    except Untrusted:
        raise
    except EngramError as error:
        raise _only_python(directory, str(error)) from error
    return plain


def _in_orders(directory: Path, plain: dict[str, Any], orders: set[str]) -> list[dict[str, Any]]:
    """The recipe in every order in which it was begun; a recipe's file names one of them only."""
    from engram.streams.orders import ORDER_OPTIONS, order_options, order_text

    if any(re.match(r"[tc]\d", order) for order in orders):
        raise _only_python(directory, "it is a study of orders (engram.orders)")
    stream = {k: v for k, v in plain["stream"].items() if k not in ORDER_OPTIONS}
    known = {order_text(plain["stream"]), *orders}
    return [{**plain, "stream": {**stream, **order_options(order)}} for order in sorted(known)]


def _only_python(directory: Path, why: str) -> RecordError:
    return RecordError(
        f"{directory}: was written from Python, and {why}; to continue it, make the same call "
        f"again with out={str(directory)!r}"
    )
