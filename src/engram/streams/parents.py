"""Where parents of classes are written down: files with child and parent, attributes of data."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from engram.data.core import Data
from engram.errors import bad, unknown

COLUMNS = ("child", "parent")


def members_from_file(path: str, classes: Sequence[str]) -> dict[str, list[str | int]]:
    """Superclasses and what lies beneath each, from a file with the columns child and parent.

    An empty parent declares a class at the top: a superclass, or a class without one. A file that
    declares some superclasses at the top declares all, so that a misspelt parent is found.
    """
    where = f"hierarchy ({path})"
    parents: dict[str, str] = {}
    for line, (child, parent) in enumerate(_lines(path, where), start=2):
        if not child:
            raise bad(f"{where}, line {line}", "a child", "nothing")
        if child in parents:
            expected = f"one parent for {child!r}, which has {parents[child] or 'none'!r} already"
            raise bad(f"{where}, line {line}", expected, parent or "none")
        parents[child] = parent
    members: dict[str, list[str | int]] = {}
    for child, parent in parents.items():
        if parent:
            members.setdefault(parent, []).append(child)
    if not members:
        raise bad(where, "at least one child with a parent", "none")
    _check_tops(where, parents, members, classes)
    return members


def _lines(path: str, where: str) -> list[tuple[str, str]]:
    if not Path(path).is_file():
        raise bad("hierarchy", "a file that exists", path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            found = [one.strip() for one in reader.fieldnames or ()]
            if sorted(found) != sorted(COLUMNS):
                raise bad(where, "the columns child,parent", ",".join(found) or "nothing")
            reader.fieldnames = found
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as problem:
        raise bad(where, "comma-separated text", str(problem)) from None
    for number, row in enumerate(rows, start=2):
        if None in row:
            raise bad(f"{where}, line {number}", "two columns", "more")
    return [((row["child"] or "").strip(), (row["parent"] or "").strip()) for row in rows]


def _check_tops(
    where: str,
    parents: dict[str, str],
    members: dict[str, list[str | int]],
    classes: Sequence[str],
) -> None:
    """Classes at the top are known, and so is every parent where the file declares the top."""
    tops = [child for child, parent in parents.items() if not parent]
    for child in tops:
        if child not in members and child not in classes:
            raise unknown(where, child, [*members, *classes])
    if any(child in members for child in tops):
        for parent in members:
            if parent not in parents:
                known = [child for child in parents if child in members]
                raise unknown(f"{where}, parent", parent, known)


def members_by_attribute(data: Data, name: str, expected: str) -> dict[str, list[str | int]]:
    """Superclasses by an attribute that has one value in each class; -1 means none."""
    if name not in data.attributes:
        if not data.attributes:
            raise bad("hierarchy", expected, f"{name} ({data.name!r} has no attributes)")
        raise unknown("hierarchy", name, list(data.attributes))
    values, names = data.attributes[name].cpu(), data.attribute_names.get(name)
    members: dict[str, list[str | int]] = {}
    for c, title in enumerate(data.classes):
        found = values[data.labels.cpu() == c].unique().tolist()
        if len(found) > 1:
            shown = [_name(name, value, names) for value in found[:3]]
            raise bad(f"hierarchy {name!r}", f"one parent for the class {title!r}", shown)
        if found and found[0] >= 0:
            members.setdefault(_name(name, found[0], names), []).append(c)
    if not members:
        raise bad(f"hierarchy {name!r}", "at least one class with a parent", "none")
    return members


def _name(attribute: str, value: int, names: Sequence[str] | None) -> str:
    if names is None:
        return str(value)
    if not value < len(names):
        known = f"a parent among the {len(names)} values that have a name"
        raise bad(f"hierarchy {attribute!r}", known, value)
    return names[value]
