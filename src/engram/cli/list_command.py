"""``engram list``: methods, models, data sets and more, with their fields and defaults."""

from __future__ import annotations

from typing import Annotated

import typer

from engram.cli.console import emit, results_console
from engram.cli.options import Root

KINDS = (
    "methods", "memories", "detectors", "datasets", "models", "streams", "metrics", "recipes",
    "training",
)  # fmt: skip


def list_components(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help=", ".join(KINDS))] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Explain this one in full.")
    ] = None,
    root: Root = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the rows of a Markdown table.")
    ] = False,
) -> None:
    """List the names that recipes and commands accept; with NAME, its fields and defaults."""
    from engram.cli import component_help
    from engram.errors import check_choice, unknown

    if kind is None:
        for each in KINDS:
            emit(f"{each}: {_names(each, list(component_help.list_entries(each, root)))}")
        emit("One line about each: engram list methods. All about one: engram list methods EWC")
        return
    entries = component_help.list_entries(check_choice("kind", kind, KINDS), root)
    if name is not None:
        if name not in entries:
            raise unknown(kind, name, entries)
        emit(component_help.describe_component(kind, name, entries[name]))
        return
    if not entries:
        emit(component_help.EMPTY_NOTES.get(kind, f"no {kind} in this version"))
        return
    if markdown:
        emit("\n".join(f"| `{one}` | {line.replace('``', '`')} |" for one, line in entries.items()))
        return
    _table(entries)
    if kind in component_help.FOOTNOTES:
        emit("\n" + component_help.FOOTNOTES[kind])


def _names(kind: str, names: list[str]) -> str:
    """Join all names; of published tables, which are many, the first of each paper."""
    if kind == "recipes":
        papers: dict[str, list[str]] = {}
        for name in names:
            papers.setdefault(name.partition("/")[0], []).append(name)
        return ", ".join(f"{one[0]} (and {len(one) - 1} more)" for one in papers.values())
    return ", ".join(names) or "none in this version"


def _table(entries: dict[str, str]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, line in entries.items():
        table.add_row(Text(name, style="bold"), Text(line))
    results_console().print(table)
