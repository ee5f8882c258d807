"""``engram new``: a file to begin an own method, detector or policy with."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from engram.cli.shell import emit
from engram.errors import bad, choose

KINDS = ("method", "detector", "policy")


def command(
    kind: Annotated[str, typer.Argument(metavar="|".join(KINDS), help="What to write.")],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.py", help="File to write; existing files are not overwritten."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="Name of the class (default: from the file name)."),
    ] = None,
) -> None:
    """Write a working method, detector or policy, with comments on what to change."""
    choose("kind", kind, KINDS)
    path = python_file(file)
    label = class_name(path.stem) if name is None else name
    if not label.isidentifier() or keyword.iskeyword(label):
        raise bad("--name", "a valid class name, such as MyMethod", label)
    if not path.parent.is_dir():
        raise bad("FILE", "a file in an existing folder", str(path))
    text = template(kind).replace("{{ name }}", label)
    text = text.replace("{{ file }}", path.name).replace("{{ module }}", path.stem)
    try:
        with path.open("x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        raise bad("FILE", "a file that does not exist yet", str(path)) from None
    emit(f"Written: {path}\nCheck:   engram check {path}:{label}\nMore:    see the top of the file")


def template(kind: str) -> str:
    """The text of a template, with places for file, module and class."""
    return (files("engram.cli") / "templates" / f"{kind}.py.j2").read_text(encoding="utf-8")


def python_file(path: Path) -> Path:
    """The path, whose name must be one that Python can import.

    Examples
    --------
    >>> python_file(Path("my_method")).name
    'my_method.py'
    """
    path = path if path.suffix else path.with_suffix(".py")
    good = path.suffix == ".py" and path.stem.isidentifier() and not keyword.iskeyword(path.stem)
    if not good:
        raise bad("FILE", "a name that Python can import, such as my_method.py", path.name)
    return path


def class_name(stem: str) -> str:
    """The class that goes with a file.

    Examples
    --------
    >>> class_name("my_method"), class_name("lwf2")
    ('MyMethod', 'Lwf2')
    """
    words = [word for word in re.split(r"_+", stem) if word]
    return "".join(word[0].upper() + word[1:] for word in words) or "Mine"
