"""Trees of classes: superclasses of the classes of a data set, read from a mapping, a file or an
attribute.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from engram.data.dataset import Data
from engram.errors import bad, unknown
from engram.streams.class_groups import class_id

SUPER_PREFIX, FINE_PREFIX = "superclass/", "fine/"
Members = Sequence[str | int]
Hierarchy = Mapping[str, Members] | str | os.PathLike[str]


@dataclass(frozen=True)
class ClassTree:
    """The classes of a data set, its superclasses after them, and the parent of each.

    Parameters
    ----------
    fine
        Number of classes of the data; superclasses have the ids that follow.
    names
        Names of the superclasses.
    parent
        The superclass directly above a class or superclass; those at the top have none.
    """

    fine: int
    names: tuple[str, ...]
    parent: Mapping[int, int]

    @property
    def key(self) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
        """Hashable content of the tree."""
        return self.names, tuple(sorted(self.parent.items()))

    def ancestors(self, c: int) -> list[int]:
        """Return all superclasses of a class, from the top down."""
        found: list[int] = []
        while c in self.parent:
            c = self.parent[c]
            found.insert(0, c)
        return found

    @cached_property
    def families(self) -> dict[int, list[int]]:
        """The children of each superclass."""
        found: dict[int, list[int]] = {self.fine + i: [] for i in range(len(self.names))}
        for child, above in self.parent.items():
            found[above].append(child)
        return found

    @cached_property
    def width(self) -> dict[int, int]:
        """Number of fine classes below each superclass."""
        found = dict.fromkeys(self.families, 0)
        for c in range(self.fine):
            for above in self.ancestors(c):
                found[above] += 1
        return found

    @cached_property
    def paths(self) -> Tensor:
        """[fine, depth + 1] ids from the top down to each fine class, padded with -1."""
        paths = [[*self.ancestors(c), c] for c in range(self.fine)]
        deep = max(len(path) for path in paths)
        return torch.tensor([path + [-1] * (deep - len(path)) for path in paths])


def find_parents(data: Data) -> dict[int, int]:
    """Return the direct superclass of each class of `hierarchical_data`; empty for other data.

    Examples
    --------
    >>> data = Data.from_arrays(
    ...     [[0.0]] * 4,
    ...     [[1, 0], [1, 0], [2], [2]],
    ...     classes=["fine/cat", "superclass/pet", "fine/oak"],
    ... )
    >>> find_parents(data)
    {0: 1}
    """
    if not all(str(name).startswith((FINE_PREFIX, SUPER_PREFIX)) for name in data.classes):
        return {}
    above, below = data.y[:, :-1].flatten(), data.y[:, 1:].flatten()
    pairs = (above * data.n_classes + below)[below >= 0].unique().tolist()
    return {pair % data.n_classes: pair // data.n_classes for pair in pairs}


def read_tree(data: Data, hierarchy: Hierarchy) -> ClassTree:
    """Read and check the tree described by a mapping, a file or an attribute of the data.

    Examples
    --------
    >>> data = Data.from_arrays([[0.0]] * 15, ["cat", "dog", "oak"] * 5)
    >>> tree = read_tree(data, {"living": ["animal", "oak"], "animal": ["cat", "dog"]})
    >>> tree.paths.tolist()
    [[3, 4, 0], [3, 4, 1], [3, 2, -1]]
    >>> read_tree(data, {"animal": ["cat", "pet"], "pet": ["animal", "dog"]})
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: hierarchy: expected no cycle, got 'animal < pet < animal'
    """
    _check_data(data)
    members = _members(data, hierarchy)
    present = set(data.labels[data.train].unique().tolist())
    parent: dict[int, int] = {}
    for place, (name, below) in enumerate(members.items()):
        argument = f"hierarchy[{name!r}]"
        if isinstance(below, str) or not isinstance(below, Sequence) or not len(below):
            raise bad(argument, "a list of at least one subclass", below)
        for member in below:
            child = _find_child(argument, member, name, data, list(members))
            shown = data.classes[child] if child < data.n_classes else str(member)
            if child in parent:
                first = list(members)[parent[child] - data.n_classes]
                wanted = f"subclasses that {first!r} does not have"
                raise bad(argument, "every subclass once" if first == name else wanted, shown)
            if child < data.n_classes and child not in present:
                raise bad(argument, "classes with training rows", shown)
            parent[child] = data.n_classes + place
    tree = ClassTree(data.n_classes, tuple(members), parent)
    _refuse_cycles(tree)
    return tree


def _check_data(data: Data) -> None:
    if data.y.shape[1] != 1:
        raise bad("data", "one (fine) label for each row", f"{data.y.shape[1]} labels")
    if len(data.valid):
        raise bad("data", "no validation rows of its own: the protocol splits the training rows",
                  f"{len(data.valid)} validation rows")  # fmt: skip


def _members(data: Data, hierarchy: Hierarchy) -> Mapping[str, Members]:
    """Return the direct subclasses of each superclass, as given."""
    expected = (
        "a mapping from superclass names to their subclasses, a file .csv with the columns child "
        "and parent, or an attribute of the data"
    )
    if isinstance(hierarchy, Mapping) and hierarchy:
        for name in hierarchy:
            if not isinstance(name, str) or not name:
                raise bad("hierarchy", "names of superclasses as keys", name)
        return hierarchy
    if not isinstance(hierarchy, (str, os.PathLike)) or not str(hierarchy):
        raise bad("hierarchy", expected, hierarchy)
    if str(hierarchy).lower().endswith(".csv"):
        return read_members(os.fspath(hierarchy), data.classes)
    return group_members_by_attribute(data, str(hierarchy), expected)


def _find_child(argument: str, member: str | int, own: str, data: Data, names: list[str]) -> int:
    """Return the id of a class or superclass listed under the superclass `own`."""
    if not isinstance(member, str):
        return class_id(argument, member, data)
    known = [
        *(FINE_PREFIX + name for name in data.classes),
        *(SUPER_PREFIX + name for name in names),
    ]
    if member.startswith(FINE_PREFIX) and member in known:
        return class_id(argument, member.removeprefix(FINE_PREFIX), data)
    if member.startswith(SUPER_PREFIX) and member in known:
        return data.n_classes + names.index(member.removeprefix(SUPER_PREFIX))
    fine, higher = member in data.classes, member in names
    if fine and higher and member != own:
        raise bad(argument, f"either {FINE_PREFIX + member!r} or {SUPER_PREFIX + member!r}", member)
    if fine:
        return class_id(argument, member, data)
    if higher:
        return data.n_classes + names.index(member)
    raise unknown(argument, member, [*data.classes, *names])


def _refuse_cycles(tree: ClassTree) -> None:
    for start in tree.families:
        walk = [start]
        while walk[-1] in tree.parent:
            walk.append(tree.parent[walk[-1]])
            if walk[-1] == start:
                shown = " < ".join(tree.names[c - tree.fine] for c in walk)
                raise bad("hierarchy", "no cycle", shown)
            if walk[-1] in walk[:-1]:
                break  # a cycle further up, reported for its own members


# -- reading class trees: files of child and parent, attributes of data ----------------------------

COLUMNS = ("child", "parent")


def read_members(path: str, classes: Sequence[str]) -> dict[str, list[str | int]]:
    """Read the subclasses of each superclass from a file with the columns child and parent.

    An empty parent declares a top-level class or superclass. If the file declares one top-level
    superclass it must declare all, so that a misspelt parent is detected.
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
    """Raise for unknown top-level classes, and unknown parents if the file declares the top."""
    tops = [child for child, parent in parents.items() if not parent]
    for child in tops:
        if child not in members and child not in classes:
            raise unknown(where, child, [*members, *classes])
    if any(child in members for child in tops):
        for parent in members:
            if parent not in parents:
                known = [child for child in parents if child in members]
                raise unknown(f"{where}, parent", parent, known)


def group_members_by_attribute(data: Data, name: str, expected: str) -> dict[str, list[str | int]]:
    """Group classes by an attribute that has one value in each class; -1 means no superclass."""
    if name not in data.attributes:
        if not data.attributes:
            raise bad("hierarchy", expected, f"{name} ({data.name!r} has no attributes)")
        raise unknown("hierarchy", name, list(data.attributes))
    values, names = data.attributes[name].cpu(), data.attribute_names.get(name)
    members: dict[str, list[str | int]] = {}
    for c, title in enumerate(data.classes):
        found = values[data.labels.cpu() == c].unique().tolist()
        if len(found) > 1:
            shown = [_name_superclass(name, value, names) for value in found[:3]]
            raise bad(f"hierarchy {name!r}", f"one parent for the class {title!r}", shown)
        if found and found[0] >= 0:
            members.setdefault(_name_superclass(name, found[0], names), []).append(c)
    if not members:
        raise bad(f"hierarchy {name!r}", "at least one class with a parent", "none")
    return members


def _name_superclass(attribute: str, value: int, names: Sequence[str] | None) -> str:
    if names is None:
        return str(value)
    if not value < len(names):
        known = f"a parent among the {len(names)} values that have a name"
        raise bad(f"hierarchy {attribute!r}", known, value)
    return names[value]
