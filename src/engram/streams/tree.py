"""Trees of classes: superclasses above the classes of the data, to any depth."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from engram.data.core import Data
from engram.errors import bad, unknown
from engram.streams._classes import class_id
from engram.streams.parents import members_by_attribute, members_from_file

SUPER, FINE = "superclass/", "fine/"
Members = Sequence[str | int]
Hierarchy = Mapping[str, Members] | str | os.PathLike[str]


@dataclass(frozen=True)
class Tree:
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
        """What the tree says, to look things up by."""
        return self.names, tuple(sorted(self.parent.items()))

    def above(self, c: int) -> list[int]:
        """All superclasses of a class, from the top down."""
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
        """How many fine classes lie beneath each superclass."""
        found = dict.fromkeys(self.families, 0)
        for c in range(self.fine):
            for above in self.above(c):
                found[above] += 1
        return found

    @cached_property
    def paths(self) -> Tensor:
        """[fine, depth + 1] ids from the top down to each fine class, -1 behind shorter paths."""
        paths = [[*self.above(c), c] for c in range(self.fine)]
        deep = max(len(path) for path in paths)
        return torch.tensor([path + [-1] * (deep - len(path)) for path in paths])


def parents_in(data: Data) -> dict[int, int]:
    """The superclass right above each class of data that `hierarchical_data` made; empty for other.

    Examples
    --------
    >>> data = Data.from_arrays([[0.0]] * 4, [[1, 0], [1, 0], [2], [2]],
    ...                         classes=["fine/cat", "superclass/pet", "fine/oak"])
    >>> parents_in(data)
    {0: 1}
    """
    if not all(str(name).startswith((FINE, SUPER)) for name in data.classes):
        return {}
    above, below = data.y[:, :-1].flatten(), data.y[:, 1:].flatten()
    pairs = (above * data.n_classes + below)[below >= 0].unique().tolist()
    return {pair % data.n_classes: pair // data.n_classes for pair in pairs}


def read_tree(data: Data, hierarchy: Hierarchy) -> Tree:
    """The tree that a mapping, a file or an attribute of the data describes, checked.

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
            child = _child(argument, member, name, data, list(members))
            shown = data.classes[child] if child < data.n_classes else str(member)
            if child in parent:
                first = list(members)[parent[child] - data.n_classes]
                wanted = f"subclasses that {first!r} does not have"
                raise bad(argument, "every subclass once" if first == name else wanted, shown)
            if child < data.n_classes and child not in present:
                raise bad(argument, "classes with training rows", shown)
            parent[child] = data.n_classes + place
    tree = Tree(data.n_classes, tuple(members), parent)
    _refuse_circles(tree)
    return tree


def _check_data(data: Data) -> None:
    if data.y.shape[1] != 1:
        raise bad("data", "one (fine) label for each row", f"{data.y.shape[1]} labels")
    if len(data.valid):
        raise bad("data", "no validation rows of its own: the protocol splits the training rows",
                  f"{len(data.valid)} validation rows")  # fmt: skip


def _members(data: Data, hierarchy: Hierarchy) -> Mapping[str, Members]:
    """What lies directly beneath each superclass, as it was given."""
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
        return members_from_file(os.fspath(hierarchy), data.classes)
    return members_by_attribute(data, str(hierarchy), expected)


def _child(argument: str, member: str | int, own: str, data: Data, names: list[str]) -> int:
    """The id of a class or superclass that stands beneath the superclass `own`."""
    if not isinstance(member, str):
        return class_id(argument, member, data)
    known = [*(FINE + name for name in data.classes), *(SUPER + name for name in names)]
    if member.startswith(FINE) and member in known:
        return class_id(argument, member.removeprefix(FINE), data)
    if member.startswith(SUPER) and member in known:
        return data.n_classes + names.index(member.removeprefix(SUPER))
    fine, higher = member in data.classes, member in names
    if fine and higher and member != own:
        raise bad(argument, f"either {FINE + member!r} or {SUPER + member!r}", member)
    if fine:
        return class_id(argument, member, data)
    if higher:
        return data.n_classes + names.index(member)
    raise unknown(argument, member, [*data.classes, *names])


def _refuse_circles(tree: Tree) -> None:
    for start in tree.families:
        walk = [start]
        while walk[-1] in tree.parent:
            walk.append(tree.parent[walk[-1]])
            if walk[-1] == start:
                shown = " < ".join(tree.names[c - tree.fine] for c in walk)
                raise bad("hierarchy", "no cycle", shown)
            if walk[-1] in walk[:-1]:
                break  # a circle further up, which its own members report
