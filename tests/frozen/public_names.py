"""What users may rely on: public names with their signatures, commands with their options, formats.

The list is `public_names.txt`; ``python -m tests.frozen --write names`` renews it. Names, optional
parameters and options may be added at any time, and types may change; `broken_promises` finds
names, places and defaults that went or changed.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from typer.main import get_command

import engram
from engram.cli import app
from engram.engine import checkpoints, portable_state
from engram.experiments import experiment_id, search
from engram.methods.method import Method
from engram.records import predictions, probe_arrays, scored_items

MODULES = (
    "engram", "engram.checks", "engram.data", "engram.deploy", "engram.errors",
    "engram.experiments", "engram.keys", "engram.losses", "engram.memory", "engram.methods",
    "engram.methods.method", "engram.metrics", "engram.models", "engram.novelty", "engram.probes",
    "engram.records", "engram.report", "engram.reproduce", "engram.streams",
)  # fmt: skip
FORMATS = {
    "checkpoint of a run": checkpoints.FORMAT,
    "file of a model": portable_state.FORMAT,
    "ids of recipes": str(experiment_id.ID_FORMAT),
    "items that were scored": scored_items._FORMAT,
    "predictions": predictions._FORMAT,
    "arrays of probes": probe_arrays._FORMAT,
    "search": search.FORMAT,
}


def list_public_names() -> str:
    """All of them, one to a line."""
    lines = ["# Renewed by: python -m tests.frozen --write names"]
    seen: dict[int, str] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        lines += ["", f"[{name}]"]
        for word in sorted(_public(module), key=str.lower):
            value = getattr(module, word)
            named = isinstance(value, type) or inspect.isfunction(value)
            if named and id(value) in seen:
                lines.append(f"{word}: as {seen[id(value)]}")
                continue
            if named:
                seen[id(value)] = f"{name}.{word}"
            lines += _describe(word, value)
    lines += ["", "[command line]", *_commands(get_command(app), ("engram",))]
    lines += ["", "[formats]", *(f"{what}: {form}" for what, form in FORMATS.items())]
    return "\n".join(lines) + "\n"


def broken_promises(kept: str, found: str) -> list[str]:
    """The lines of a list that another one does not keep.

    Examples
    --------
    >>> kept = (
    ...     "[engram]\\nload(name: str, *, root: str = '') -> Data\\nclass Stream\\n    head: int"
    ... )
    >>> broken_promises(kept, kept.replace("*, root", "*, cache: int = 0, root"))
    []
    >>> broken_promises(kept, kept.replace("*, root: str = ''", "cache: int = 0"))
    ["[engram] load(name: str, *, root: str = '') -> Data"]
    >>> broken_promises(kept, kept.replace("    head: int", ""))
    ['[engram] class Stream head: int']
    """
    there = _by_place(found)
    return [
        f"{' '.join(place[:-1])} {line}" for place, line in _by_place(kept).items()
        if place not in there or not _keeps(line, there[place], inside=len(place) > 2)
    ]  # fmt: skip


def _by_place(text: str) -> dict[tuple[str, ...], str]:
    """Lines by section, class and name."""
    lines: dict[tuple[str, ...], str] = {}
    section, owner = "", ""
    for line in text.splitlines():
        if line.startswith("["):
            section, owner = line, ""
        elif line.strip() and not line.startswith("#"):
            inside = line.startswith("    ")
            owner = owner if inside else line.partition("(")[0]
            said = line.strip()
            if section == "[command line]":
                name = " ".join(word for word in said.split() if word.islower() and "-" not in word)
            else:
                name = re.split(r"[(:=]", said)[0].strip()
            lines[(section, owner, name) if inside else (section, name)] = said
    return lines


def _keeps(kept: str, found: str, inside: bool = False) -> bool:
    """Whether one line offers all that another does; `inside` a class."""
    if kept == found:
        return True
    if inside and ") -> " not in kept:  # a field
        return _untyped(kept) == _untyped(found)
    if kept.startswith("engram "):  # a command: its options in any order
        return set(kept.split()) <= set(found.split())
    own, mine = _parameters(kept), _parameters(found)
    if kept.startswith("class ") or own is None or mine is None:
        return False
    places, names = own
    more, other = mine
    added = [*more[len(places) :], *(one for one in other if one not in names)]
    optional = all("= " in one or one.startswith("*") for one in added)
    return more[: len(places)] == places and names <= other | set(more) and optional


def _untyped(text: str) -> str:
    """A field or parameter without its type."""
    name, _, rest = text.partition(":")
    _, mark, default = rest.rpartition(" = ")
    return f"{name}{mark}{default}" if mark else name


def _parameters(line: str) -> tuple[list[str], set[str]] | None:
    """Positional parameters, and those by keyword only, without their types."""
    head, mark, _ = line.rpartition(") -> ")
    if not mark:
        return None
    parts, depth = [""], 0
    for sign in head.partition("(")[2]:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    words = [_untyped(part.strip()) for part in parts if part.strip()]
    place = next((k for k, word in enumerate(words) if word.startswith("*")), len(words))
    return words[:place], {word for word in words[place:] if word != "*"}


def _public(module: Any) -> list[str]:
    """The names of a module: those it lists, or those that it defines itself."""
    if module is engram:
        return list(engram.__all__)
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        word for word, value in vars(module).items()
        if not word.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]  # fmt: skip


def _describe(word: str, value: Any) -> Iterator[str]:
    if inspect.ismodule(value):
        yield f"{word}: module"
    elif isinstance(value, type):
        yield f"class {word}{_bases(value)}"
        yield from (f"    {line}" for line in _members(value))
    elif inspect.isfunction(value):
        yield f"{word}{_signature(value)}"
    else:
        yield f"{word}: {type(value).__name__}"


def _bases(kind: type) -> str:
    own = [base.__name__ for base in kind.__bases__ if base is not object]
    return f"({', '.join(own)})" if own else ""


def _members(kind: type) -> Iterator[str]:
    """Fields, methods and properties that the class itself adds."""
    if issubclass(kind, enum.Enum):
        yield from (f"{one.name} = {one.value!r}" for one in kind)
        return
    own = {f.name: f for f in fields(kind)} if is_dataclass(kind) else {}
    for name, field in own.items():
        if not name.startswith("_") and name in vars(kind).get("__annotations__", {}):
            yield f"{name}: {_annotation(field.type)}{_default(field)}"
    for name in getattr(kind, "_fields", ()):
        yield f"{name}: {_annotation(kind.__annotations__.get(name, ''))}"
    start = vars(kind).get("__init__")
    plain = inspect.isfunction(start) and not own and not hasattr(kind, "_fields")
    if plain and len(inspect.signature(start).parameters) > 1:
        yield f"__init__{_signature(start)}"
    if issubclass(kind, Method) and kind is not Method:
        return  # its verbs are those of the contract, and its helpers its own
    for name, value in sorted(vars(kind).items()):
        if name.startswith("_") or name in own or name in getattr(kind, "_fields", ()):
            continue
        wrapped = isinstance(value, staticmethod | classmethod)
        inner: Any = value.__func__ if wrapped else value  # type: ignore[attr-defined]
        if isinstance(value, property) or type(value).__name__ == "cached_property":
            yield f"{name}: property"
        elif inspect.isfunction(inner):
            yield f"{name}{_signature(inner)}"


def _default(field: Any) -> str:
    if field.default is not MISSING:
        return f" = {_show(field.default)}"
    return "" if field.default_factory is MISSING else " = ..."


def _signature(function: Any) -> str:
    parts, star = [], False
    for one in inspect.signature(function).parameters.values():
        if one.kind is one.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        mark = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        text = f"{mark}{one.name}"
        if one.annotation is not one.empty:
            text += f": {_annotation(one.annotation)}"
        if one.default is not one.empty:
            text += f" = {_show(one.default)}"
        parts.append(text)
    back = inspect.signature(function).return_annotation
    return f"({', '.join(parts)}) -> {_annotation(back)}"


def _annotation(found: Any) -> str:
    if found is inspect.Signature.empty:
        return "?"
    return found if isinstance(found, str) else getattr(found, "__name__", str(found))


def _show(value: Any) -> str:
    """A default as it is written; objects without such a form by their class."""
    text = repr(value)
    return f"<{type(value).__name__}>" if " at 0x" in text or len(text) > 80 else text


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[str]:
    inner = getattr(command, "commands", {})
    if not inner:
        given = [
            "/".join([*one.opts, *one.secondary_opts]) if one.opts[0].startswith("-")
            else str(one.name).upper()
            for one in command.params if not getattr(one, "hidden", False)
        ]  # fmt: skip
        yield " ".join([*words, *given])
    for name, one in sorted(inner.items()):
        if not one.hidden:
            yield from _commands(one, (*words, name))
