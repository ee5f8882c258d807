"""``engram resume``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.errors import RecordError, bad

if TYPE_CHECKING:
    from engram.cli.request import Request


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    device: Annotated[
        str | None,
        typer.Option(metavar="auto|cpu|cuda", help="Where to train (default: as before)."),
    ] = None,
) -> None:  # fmt: skip
    """Go on with an interrupted run: only what is missing is trained."""
    from engram.cli.perform import perform
    from engram.cli.request import requests

    if not directory.is_dir():
        raise bad("DIR", "an existing run directory", str(directory))
    for request in requests(directory) or [from_recipes(directory)]:
        perform(replace(request, device=device) if device else request, directory)


def from_recipes(directory: Path) -> Request:
    """The request that the recipes of a directory amount to, where Python wrote them."""
    from engram.cli.request import Request
    from engram.records import RunDirectory

    folder = RunDirectory(directory, create=False)
    found = [_without_facts(directory, folder.recipe(name)) for name in folder.recipes()]
    if not found:
        raise RecordError(f"{directory}: holds no recipes; not a run directory?")
    return Request(recipes=found)


def _without_facts(directory: Path, content: dict[str, Any]) -> dict[str, Any]:
    stream = dict(content.get("stream", {}))
    if "kind" not in stream:
        raise RecordError(
            f"{directory}: was written by engram.run in Python, which alone has the stream; "
            f"call it again with out={str(directory)!r} and it goes on"
        )
    stream.pop("head", None)  # a fact about the stream, no option of its scenario
    return {**content, "stream": stream}
