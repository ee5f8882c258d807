"""Hierarchical streams (IIRC): a superclass first, its subclasses later, one label at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engram.data.core import Data
from engram.errors import bad, number, unknown, whole
from engram.shares import exact, part_of
from engram.streams._classes import all_classes, check_seed, check_tasks, class_id
from engram.streams._rows import by_class, rows_with, shuffled
from engram.streams._schedule import draw_schedule
from engram.streams.core import Stream, Task
from engram.streams.origin import scenario

SUPER, FINE = "superclass/", "fine/"


@scenario
def hierarchical(
    data: Data,
    *,
    hierarchy: Mapping[str, Sequence[str | int]],
    tasks: Sequence[Sequence[str | int]] | None = None,
    first: int | None = None,
    classes_per_task: int = 5,
    seed: int = 0,
    valid: float = 0.1,
    post_valid: float = 0.1,
    super_share: float = 0.4,
    sub_share: float = 0.8,
    cap: int = 8,
    shuffle: bool = False,
) -> Stream:
    """A stream in which an image is first known by its superclass and later by its own class.

    Labels are incomplete while training: a task shows only the label it introduces, and a
    superclass and its subclass share only part of their rows. Post-task validation and test rows
    of a task are all rows of its classes.

    Parameters
    ----------
    data
        Rows with one (fine) label. The stream runs over `hierarchical_data(data, ...)`, which
        shares its inputs.
    hierarchy
        Subclasses (names or ids) of each superclass. Fine classes not named have no superclass.
    tasks
        Classes of each task: names, where needed with the prefix ``superclass/`` or ``fine/``.
        A superclass must come in a strictly earlier task than its subclasses. None draws them:
        `first` random superclasses (default: two thirds of all), then `classes_per_task` each.
    valid, post_valid
        Shares of each fine class's training rows, the first ones in stored order, for in-task and
        post-task validation.
    super_share, sub_share, cap
        Of n rows of a subclass its superclass gets the first ``super_share * n`` and the subclass
        the last ``sub_share * n``, rounded down. Superclasses with more than `cap` subclasses take
        proportionally less of each.
    shuffle
        Share out rows in a keyed random order instead of the stored one.

    Examples
    --------
    >>> data = Data.from_arrays(
    ...     [[float(i)] for i in range(100)], ["cat", "dog", "oak", "car"] * 25)
    >>> pets = {"pet": ["cat", "dog"]}
    >>> print(hierarchical(data, hierarchy=pets, tasks=[["pet"], ["dog", "car"]]))
    Stream('hierarchical': 2 tasks, 3 classes, single head, label sets) over 'data (hierarchical)'
    task  train  valid  post-valid  test  new classes
       0     12      0           4    10  superclass/pet
       1     28      3           4    10  fine/dog, fine/car
    """
    for name, share in (("super_share", super_share), ("sub_share", sub_share)):
        number(name, share, 0.0, 1.0, open_low=True)
    number("valid", valid, 0.0, 1.0)
    number("post_valid", post_valid, 0.0, 1.0)
    if valid + post_valid >= 1:
        raise bad("post_valid", "valid + post_valid below 1", (valid, post_valid))
    whole("cap", cap, low=1)
    check_seed(seed)
    families = _families(data, hierarchy)
    twofold = hierarchical_data(data, hierarchy=hierarchy)
    if tasks is None:
        every = all_classes(data, "`tasks` that name the classes to learn")
        groups = draw_schedule(families, every, first, classes_per_task, seed)
    else:
        groups = _given(twofold, families, tasks, first)
    rows = _Rows(data, families, (valid, post_valid), (super_share, sub_share), cap,
                 seed if shuffle else None)  # fmt: skip
    made = [rows.task(twofold, group) for group in groups]
    check_tasks(made, 0.0)
    return Stream(data=twofold, tasks=tuple(made), name="hierarchical")


def hierarchical_data(data: Data, *, hierarchy: Mapping[str, Sequence[str | int]]) -> Data:
    """The same rows with two labels, (superclass, fine class) or (fine class, none).

    Fine classes keep their ids, superclasses follow. Names get a prefix, since a superclass and a
    fine class may have the same one.

    Examples
    --------
    >>> data = Data.from_arrays([[float(i)] for i in range(15)], ["cat", "dog", "oak"] * 5)
    >>> both = hierarchical_data(data, hierarchy={"pet": ["cat", "dog"]})
    >>> both.classes
    ('fine/cat', 'fine/dog', 'fine/oak', 'superclass/pet')
    >>> both.y[:3].tolist()
    [[3, 0], [3, 1], [2, -1]]
    """
    families = _families(data, hierarchy)
    parent = torch.full((data.n_classes,), -1, dtype=torch.long)
    for above, members in families.items():
        parent[members] = above
    fine = data.labels
    if bool((fine < 0).any()):
        raise bad("data", "a label for each row", "rows without one")
    above_row = parent.to(fine.device)[fine]
    alone = above_row < 0
    y = torch.stack([torch.where(alone, fine, above_row), torch.where(alone, -1, fine)], dim=1)
    names = [FINE + name for name in data.classes] + [SUPER + name for name in hierarchy]
    columns = {**data.attributes, "fine": fine, "superclass": above_row}
    name = f"{data.name} (hierarchical)"
    return replace(data, y=y, classes=tuple(names), name=name, attributes=columns)


def super_count(n: int, subclasses: int, *, share: float = 0.4, cap: int = 8) -> int:
    """Rows that a superclass gets of n rows of one of its subclasses.

    Examples
    --------
    >>> super_count(1196, 3), super_count(1196, 58), super_count(1196, 118)
    (478, 65, 32)
    """
    part = exact(share)
    return part_of(part * cap / subclasses if subclasses > cap else part, n)


class _Rows:
    """The splits of every class: who gets which rows."""

    def __init__(self, data: Data, families: Mapping[int, list[int]], held: tuple[float, float],
                 shares: tuple[float, float], cap: int, seed: int | None) -> None:  # fmt: skip
        self.data = data
        none = torch.empty(0, dtype=torch.long)
        sizes = {child: len(members) for members in families.values() for child in members}
        parent = {child: above for above, members in families.items() for child in members}
        self.train: dict[int, list[Tensor]] = {}  # class id of the new data -> its parts
        self.valid: dict[int, list[Tensor]] = {}
        post = [none]
        for rows in by_class(data, data.train):
            label = int(data.labels[rows[0]])
            mixed = rows if seed is None else shuffled(rows, seed, "share")
            a, b = part_of(held[0], len(rows)), part_of(held[1], len(rows))
            post.append(mixed[a : a + b])
            for target, part in ((self.valid, mixed[:a]), (self.train, mixed[a + b :])):
                if label not in parent:
                    target[label] = [part]
                    continue
                n = len(part)
                upper = super_count(n, sizes[label], share=shares[0], cap=cap)
                target.setdefault(parent[label], []).append(part[:upper])
                target[label] = [part[n - part_of(shares[1], n) :]]
        self.post = torch.cat(post)

    def task(self, twofold: Data, group: Sequence[int]) -> Task:
        """The task that introduces these classes."""
        rows: dict[str, Any] = {}
        for kind, parts in (("train", self.train), ("valid", self.valid)):
            rows[kind] = torch.cat([part for c in group for part in parts[c]]).sort().values
        return Task(**rows, post_valid=rows_with(twofold, self.post, group),
                    test=rows_with(twofold, self.data.test, group), new=tuple(group),
                    visible=tuple(group))  # fmt: skip


def _present(data: Data) -> list[int]:
    return sorted(data.labels[data.train].unique().tolist())


def _families(data: Data, hierarchy: Mapping[str, Sequence[str | int]]) -> dict[int, list[int]]:
    """Ids of superclasses (after the fine ones) and of their subclasses, checked."""
    if data.y.shape[1] != 1:
        raise bad("data", "one (fine) label for each row", f"{data.y.shape[1]} labels")
    if len(data.valid):
        raise bad("data", "no validation rows of its own, the protocol splits the training rows",
                  f"{len(data.valid)} validation rows")  # fmt: skip
    if not isinstance(hierarchy, Mapping) or not hierarchy:
        raise bad("hierarchy", "a mapping from superclass names to their subclasses", hierarchy)
    present = set(_present(data))
    owner: dict[int, str] = {}
    families: dict[int, list[int]] = {}
    for place, (name, members) in enumerate(hierarchy.items()):
        if isinstance(members, str) or not isinstance(members, Sequence) or not len(members):
            raise bad(f"hierarchy[{name!r}]", "a list of at least one subclass", members)
        ids = [class_id(f"hierarchy[{name!r}]", member, data) for member in members]
        for child in ids:
            if child in owner:
                taken = f"subclasses that {owner[child]!r} does not have"
                raise bad(f"hierarchy[{name!r}]", taken, data.classes[child])
            if child not in present:
                raise bad(f"hierarchy[{name!r}]", "classes with training rows", data.classes[child])
            owner[child] = name
        families[data.n_classes + place] = ids
    return families


def _given(data: Data, families: Mapping[int, list[int]], tasks: Sequence[Sequence[str | int]],
           first: int | None) -> list[list[int]]:  # fmt: skip
    """Ids of the classes of given tasks, checked: each once, superclasses strictly earlier."""
    if first is not None:
        raise bad("first", "None, since the tasks are given", first)
    if isinstance(tasks, str) or not isinstance(tasks, Sequence) or not len(tasks):
        raise bad("tasks", "a list of lists of classes", tasks)
    parent = {child: above for above, members in families.items() for child in members}
    met: dict[int, int] = {}
    groups = []
    for k, group in enumerate(tasks):
        if isinstance(group, str) or not isinstance(group, Sequence) or not len(group):
            raise bad(f"tasks[{k}]", "a list of classes", group)
        groups.append([_either_id(f"tasks[{k}]", wanted, data) for wanted in group])
        for c in groups[-1]:
            if c in met:
                raise bad(f"tasks[{k}]", f"every class once, task {met[c]} has it", data.classes[c])
            met[c] = k
    for child, above in parent.items():
        if child in met and met.get(above, len(groups)) >= met[child]:
            expected = f"{data.classes[above]!r} in an earlier task than its subclass"
            raise bad(f"tasks[{met[child]}]", expected, data.classes[child])
    return groups


def _either_id(argument: str, wanted: str | int, data: Data) -> int:
    """The id of a class given by id, full name, or a bare name that only one class has."""
    if not isinstance(wanted, str) or wanted in data.classes:
        return class_id(argument, wanted, data)
    found = [name for name in (FINE + wanted, SUPER + wanted) if name in data.classes]
    if len(found) == 2:
        raise bad(argument, f"either {found[0]!r} or {found[1]!r}", wanted)
    if not found:
        raise unknown(argument, wanted, [name.split("/", 1)[1] for name in data.classes])
    return data.classes.index(found[0])
