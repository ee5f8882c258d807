"""The reference of the command line, made from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

from engram.cli import app

DEFAULT = re.compile(r"\s*\[(?:default: (?P<value>.*?))?(?:(?:; )?required)?\]$")
EXAMPLE = "Example: "


def command_line() -> str:
    """Every command with its arguments, options, defaults and an example."""
    commands = list(walk(get_command(app), "engram"))
    text = [
        "# Command line", "",
        "Every command and option, as `engram COMMAND --help` prints them. Exit codes: 0, all is "
        "well; 1, nothing usable came out (all runs diverged, a check failed, an input could not "
        "be read); 2, wrong usage or an error, said in one line (`--debug`, anywhere on the line, "
        "shows the traceback).", "",
        "| command | |", "|---|---|",
        *(f"| [{name}](#{anchor(name)}) | {summary(command)} |" for name, command in commands),
        "",
    ]  # fmt: skip
    for name, command in commands:
        text += section(name, command)
    return "\n".join(text)


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The commands below a group, in the order of its help."""
    if not isinstance(command, TyperGroup):
        yield name, command
        return
    for below, child in command.commands.items():
        if not child.hidden:
            yield from walk(child, f"{name} {below}")


def section(name: str, command: Any) -> list[str]:
    """One command, as its help shows it."""
    about = type(command).context_class(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(about)])
    lines = [f"## {name}", "", paragraphs(command.help), "", "```text", usage, "```", ""]
    shown = (command.epilog or "").removeprefix(EXAMPLE)
    if shown:
        lines += ["For example:", "", "```sh", shown, "```", ""]
    records = [param.get_help_record(about) for param in command.params]
    rows = [row(*record) for record in records if record]
    if rows:
        lines += ["| option | meaning | default |", "|---|---|---|", *rows, ""]
    return lines


def row(names: str, words: str) -> str:
    """An option in a line of a table, its default in a column of its own."""
    found = DEFAULT.search(words)
    default = ""
    if found:
        words = words[: found.start()]
        default = f"`{found['value']}`" if found["value"] else "required"
    return f"| `{names}` | {escape(words).replace('<', '&lt;')} | {default} |"


def escape(text: str) -> str:
    """Text that may stand in a cell of a table; in backticks a bar ends no cell."""
    return text.replace("|", "\\|")


def summary(command: Any) -> str:
    """The first sentence of a command's help."""
    return escape(paragraphs(command.help).split("\n\n")[0])


def paragraphs(text: str | None) -> str:
    """The help with its paragraphs unwrapped."""
    parts = (text or "").split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts)


def anchor(name: str) -> str:
    """Where the heading of a command is found."""
    return name.replace(" ", "-")
