"""Commands for authors of methods, detectors and policies: check, new."""

from __future__ import annotations

import keyword
import re
from dataclasses import fields
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from engram.cli.console import BAD_INPUT, FAILED, emit
from engram.cli.data_command import parse_options
from engram.cli.options import Label, Root
from engram.errors import EngramError, bad, check_choice, unknown

DATA_OPTION_HINT = "the data that --set and --label apply to"


def check(
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
        shape = load(data, root=where, **parse_options(options, label)).sample_shape
    elif label:
        raise bad("--data", DATA_OPTION_HINT, None)
    elif options:
        tried = make_method(target, options)
    report = check(tried, sample_shape=shape)
    emit(str(report))
    if any(one.raised for one in report.failed):  # the exit code of errors in user code
        raise typer.Exit(BAD_INPUT)
    if not report.passed:
        raise typer.Exit(FAILED)


def make_method(target: str, assignments: list[str]) -> Any:
    """Make a method by name, with some values set.

    Examples
    --------
    >>> make_method("BiC", ["variant=sigmoid", "BiC.memory.total=60"]).memory.total
    60
    """
    from engram.checks.check_suite import resolve_target
    from engram.experiments.build_methods import build_method
    from engram.experiments.overrides import option_after_name, set_key
    from engram.io import parse_key_value
    from engram.methods.method import Method

    kind = resolve_target(target)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise bad("--data", DATA_OPTION_HINT, None)
    content: dict[str, Any] = {"stream": {"data": "blobs"}, "method": {"name": target}}
    for assignment in assignments:
        key, value = parse_key_value(assignment)
        option = option_after_name(key, target) or key.removeprefix("method.")
        known, first = [field.name for field in fields(kind)], option.partition(".")[0]
        if first != option and first not in known:  # a section of a recipe, such as training
            raise unknown("--set", first, known)
        set_key(content, f"method.{option}", value)
    return build_method(content["method"])


# ``engram new``: write a template.


KINDS = ("method", "detector", "policy")


def new(
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
    check_choice("kind", kind, KINDS)
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
    """Read a template, with placeholders for file, module and class."""
    return (files("engram.cli") / "templates" / f"{kind}.py.j2").read_text(encoding="utf-8")


def python_file(path: Path) -> Path:
    """Check that Python can import a file of this name, and return the path.

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
    """Derive a class name from a file name.

    Examples
    --------
    >>> class_name("my_method"), class_name("lwf2")
    ('MyMethod', 'Lwf2')
    """
    words = [word for word in re.split(r"_+", stem) if word]
    return "".join(word[0].upper() + word[1:] for word in words) or "Mine"
