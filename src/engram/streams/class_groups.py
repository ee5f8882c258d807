"""Classes by id or name, orders and groups of classes, and the tasks made of them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engram import keys
from engram.data.dataset import Data
from engram.errors import bad, check_int, unknown
from engram.streams.row_numbers import check_valid, find_classes_in, find_rows_with, hold_out
from engram.streams.stream import Task


def class_id(argument: str, wanted: Any, data: Data) -> int:
    """Return the id of a class given by id or by name."""
    if isinstance(wanted, str):
        found = [i for i, name in enumerate(data.classes) if name == wanted]
        if not found:
            raise unknown(argument, wanted, data.classes)
        if len(found) > 1:
            raise bad(argument, f"an id, since classes {found} share this name", wanted)
        return found[0]
    try:
        number = -1 if isinstance(wanted, bool) else operator.index(wanted)
    except TypeError:
        number = -1
    if not 0 <= number < data.n_classes:
        raise bad(argument, f"a class name or an id from 0 to {data.n_classes - 1}", wanted)
    return number


def check_seed(seed: int | None) -> int:
    """Return the seed as a number; None is the same as 0."""
    return 0 if seed is None else check_int("seed", seed)


def all_classes(data: Data, way_out: str = "label counts of existing classes only") -> list[int]:
    """Return all classes of the data; raise if one of them has no training rows."""
    present = find_classes_in(data, data.train)
    empty = [name for i, name in enumerate(data.classes) if i not in present]
    if empty:
        ids = all(name == str(i) for i, name in enumerate(data.classes))
        hint = " (labels are class ids from 0; other numbers: y.astype(str), as names)" * ids
        expected = f"training rows for every class of {data.name!r}, or {way_out}{hint}"
        raise bad("data", expected, f"none for {empty}")
    return sorted(present)


def order_classes(data: Data, order: Sequence[Any] | None, seed: int | None) -> list[int]:
    """Return the classes of a stream: those in `order`, or all, shuffled if there is a seed."""
    check_seed(seed)
    if order is None:
        ids = all_classes(data, "an `order` that names the classes to learn")
        if seed is None:
            return ids
        return [
            ids[i]
            for i in keys.permutation(keys.fold(seed, "classes"), len(ids), len(ids)).tolist()
        ]
    present = find_classes_in(data, data.train)
    if isinstance(order, str) or not isinstance(order, (Sequence, Tensor)) or not len(order):
        raise bad("order", "a list of class ids or names", order)
    ids = [class_id(f"order[{i}]", wanted, data) for i, wanted in enumerate(order)]
    twice = sorted({data.classes[c] for c in ids if ids.count(c) > 1})
    if twice:
        raise bad("order", "every class only once", f"{twice} more than once")
    empty = [data.classes[c] for c in ids if c not in present]
    if empty:
        raise bad("order", "classes that have training rows", empty)
    return ids


def group_sizes(n: int, classes_per_task: int | Sequence[int], first: int | None) -> list[int]:
    """Return the number of new classes of each task; the last task takes the remainder."""
    if isinstance(classes_per_task, Sequence):
        sizes = [check_int(f"classes_per_task[{k}]", s, 1) for k, s in enumerate(classes_per_task)]
        if first is not None:
            raise bad("first", "None, since classes_per_task lists all sizes", first)
        if sum(sizes) != n:
            raise bad("classes_per_task", f"sizes that add up to {n} classes", list(sizes))
        return sizes
    step = check_int("classes_per_task", classes_per_task, 1)
    start = step if first is None else check_int("first", first, 1)
    if start > n:
        argument = "classes_per_task" if first is None else "first"
        raise bad(argument, f"at most {n}, the number of classes", start)
    whole_steps, rest = divmod(n - start, step)
    return [start, *[step] * whole_steps, *[rest] * (rest > 0)]


def split_by_sizes(items: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Split items into consecutive groups of the given sizes."""
    rest = iter(items)
    return [[next(rest) for _ in range(size)] for size in sizes]


def make_class_tasks(
    data: Data, groups: Sequence[Sequence[int]], valid: float, seed: int
) -> list[Task]:
    """Make one task for each group of classes, with all rows that have a label of the group."""
    check_valid(data, valid)
    # split once for all tasks, so that a row with two labels is not used for training in one task
    # and for validation in another
    train, held = hold_out(data, data.train, valid, seed)
    held = held if valid else data.valid
    tasks = [
        Task(train=find_rows_with(data, train, group), valid=find_rows_with(data, held, group),
             test=find_rows_with(data, data.test, group), new=tuple(group), visible=tuple(group))
        for group in groups
    ]  # fmt: skip
    check_tasks(tasks, valid, data.classes)
    return tasks


def check_tasks(tasks: Sequence[Task], valid: float, names: Sequence[str] = ()) -> None:
    """Raise for tasks without training or test rows, or without the requested validation rows."""
    for k, task in enumerate(tasks):
        named = dict(enumerate(names))
        shown = [one if named.get(one, str(one)) == str(one) else named[one] for one in task.shown]
        what = f"task {k} ({task.domain or f'classes {shown}'})"
        if not len(task.train):
            raise bad("data", f"training rows for {what}", "none")
        if not len(task.test):
            how = (
                " (every fifth row of a class is held out where no test rows are given, so a class "
                "of fewer than 5 has none), or an `order` that leaves such classes out"
            )
            raise bad("data", f"test rows for {what}{how if names else ''}", "none")
        if valid and not len(task.valid):
            raise bad("valid", f"a fraction that holds out at least one row of {what}", valid)


def sort_like(classes: set[int], order: Sequence[int]) -> tuple[int, ...]:
    """Sort classes as in `order`."""
    return tuple(c for c in order if c in classes)


def make_domain_tasks(
    data: Data, parts: Sequence[dict[str, Any]], order: Sequence[int]
) -> list[Task]:
    """Make tasks from rows; a class is new in the first task in which it occurs."""
    opened: set[int] = set()
    tasks = []
    for part in parts:
        held = part.get("valid", torch.empty(0, dtype=torch.long))
        here = find_classes_in(data, part["train"], held)
        first = part.pop("first", ())
        ranked = [*first, *(c for c in order if c not in set(first))]
        new = sort_like(here - opened, ranked)
        opened |= here
        tasks.append(Task(**part, new=new, visible=sort_like(here, ranked)))
    return tasks
