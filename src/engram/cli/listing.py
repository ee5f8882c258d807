"""``engram list``: what there is, read from dataclasses, signatures and docstrings."""

from __future__ import annotations

from typing import Annotated

import typer

from engram.cli.options import Root
from engram.cli.shell import emit, screen

KINDS = (
    "methods", "memories", "detectors", "datasets", "models", "streams", "metrics", "recipes",
    "training",
)  # fmt: skip


def command(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help=", ".join(KINDS))] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of them, shown in full.")
    ] = None,
    root: Root = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print rows of a Markdown table.")
    ] = False,
) -> None:
    """List the names that recipes and commands accept; with NAME, its fields and defaults."""
    from engram.cli import catalogue
    from engram.errors import choose, unknown

    if kind is None:
        for each in KINDS:
            names = ", ".join(catalogue.entries(each, root)) or "none in this version"
            emit(f"{each}: {names}")
        emit("More: engram list methods, engram list methods EWC")
        return
    entries = catalogue.entries(choose("kind", kind, KINDS), root)
    if name is not None:
        if name not in entries:
            raise unknown(kind, name, entries)
        emit(catalogue.about(kind, name, entries[name]))
        return
    if not entries:
        emit(catalogue.EMPTY.get(kind, f"no {kind} in this version"))
        return
    if markdown:
        emit("\n".join(f"| `{one}` | {line.replace('``', '`')} |" for one, line in entries.items()))
        return
    _table(entries)
    if kind in catalogue.MORE:
        emit("\n" + catalogue.MORE[kind])


def _table(entries: dict[str, str]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, line in entries.items():
        table.add_row(Text(name, style="bold"), Text(line))
    screen().print(table)
