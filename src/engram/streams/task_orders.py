"""Orders of tasks and classes: drawing and naming them, and reordering a stream."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from engram import keys
from engram.errors import bad, check_int
from engram.streams.class_groups import class_id, split_by_sizes
from engram.streams.class_tree import find_parents
from engram.streams.row_numbers import find_rows_with
from engram.streams.stream import ROW_PARTS, Stream, Task

Order = tuple[int, ...]
_MOST_TASKS = 9  # 362,880 orders
# options for the order of classes: runs that differ only in them belong to one experiment
ORDER_OPTIONS = ("order", "configuration")
_CONFIGURATION = "configuration-"
_ENUMERATED = 8  # up to so many classes all orders are listed and shuffled, above they are drawn


def class_order(tasks: Mapping[int, Sequence[int]] | Sequence[Sequence[int]] | Stream,
                task_order: Sequence[int]) -> list[int]:  # fmt: skip
    """Return the class order that results from a task order.

    `tasks` are the classes of each task (a list, or a mapping from task numbers), or a stream.

    Examples
    --------
    >>> class_order({1: (0, 1), 2: (2, 3), 3: (4, 5)}, (3, 1, 2))
    [4, 5, 0, 1, 2, 3]
    """
    lists = [task.new for task in tasks] if isinstance(tasks, Stream) else tasks
    groups = dict(lists) if isinstance(lists, Mapping) else dict(enumerate(lists))
    _permutation("task_order", task_order, list(groups))
    return [c for k in task_order for c in groups[k]]


def all_task_orders(n: int) -> list[Order]:
    """List all orders of n tasks, the natural one first.

    Examples
    --------
    >>> all_task_orders(3)
    [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    """
    if check_int("n", n, low=1) > _MOST_TASKS:
        raise bad("n", f"at most {_MOST_TASKS} tasks ({math.factorial(_MOST_TASKS):,} orders)", n)
    return list(itertools.permutations(range(n)))


def random_class_orders(n_classes: int, count: int, seed: int = 0) -> list[Order]:
    """Draw `count` different random orders; a larger count only extends the list.

    Examples
    --------
    >>> orders = random_class_orders(10, 100, seed=0)
    >>> len(set(orders)), orders[:3] == random_class_orders(10, 3, seed=0)
    (100, True)
    """
    check_int("n_classes", n_classes, low=1)
    check_int("count", count, low=1)
    check_int("seed", seed)
    if n_classes <= 20 and count > math.factorial(n_classes):
        raise bad("count", f"at most {math.factorial(n_classes)}, the number of orders", count)
    if n_classes <= _ENUMERATED:
        every = list(itertools.permutations(range(n_classes)))
        drawn = keys.permutation(keys.fold(seed, "class orders"), len(every), len(every))
        return [every[i] for i in drawn[:count].tolist()]
    found: dict[Order, None] = {}
    for attempt in itertools.count():
        key = keys.fold(seed, "class orders", attempt)
        found[tuple(keys.permutation(key, n_classes, n_classes).tolist())] = None
        if len(found) == count:
            break
    return list(found)


def order_name(order: Sequence[int]) -> str:
    """Return a compact name of an order, for tables and file names.

    Examples
    --------
    >>> order_name((2, 0, 1))
    '2-0-1'
    """
    if not len(order):
        raise bad("order", "at least one number", order)
    return "-".join(str(check_int(f"order[{i}]", item)) for i, item in enumerate(order))


def order_text(options: Mapping[str, Any]) -> str:
    """Return the order given by options of a scenario as text, "" for the default.

    Examples
    --------
    >>> order_text({"order": [2, 0, 1], "valid": 0.1}), order_text({"configuration": 3})
    ('2-0-1', 'configuration-3')
    """
    if options.get("configuration") is not None:
        return f"{_CONFIGURATION}{options['configuration']}"
    order = options.get("order")
    return "-".join(map(str, order)) if order is not None else ""


def order_options(text: str) -> dict[str, Any]:
    """Return the options of a scenario for an order: the inverse of `order_text`.

    Examples
    --------
    >>> order_options("2-0-1"), order_options("configuration-3"), order_options("")
    ({'order': [2, 0, 1]}, {'configuration': 3}, {})
    """
    if text.startswith(_CONFIGURATION):
        return {"configuration": parse_order(text.removeprefix(_CONFIGURATION))[0]}
    return {"order": list(parse_order(text))} if text else {}


def parse_order(name: str) -> Order:
    """Parse a name made by `order_name`.

    Examples
    --------
    >>> parse_order("2-0-1")
    (2, 0, 1)
    """
    parts = name.split("-") if isinstance(name, str) else [""]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise bad("name", "numbers joined by '-', such as '2-0-1'", name)
    return tuple(int(part) for part in parts)


def reorder(
    stream: Stream,
    *,
    task_order: Sequence[int] | None = None,
    class_order: Sequence[int | str] | None = None,
) -> Stream:
    """Reorder a stream: move its tasks, or rebuild tasks from another class order.

    Parameters
    ----------
    task_order
        Numbers of the tasks, each once. Tasks keep their rows and their view.
    class_order
        Ids or names of the stream's classes, each once. Tasks keep their sizes; every class keeps
        its training, validation and test rows.

    Superclasses must still come in an earlier task than their subclasses.

    Examples
    --------
    >>> from engram.data.dataset import Data
    >>> from engram.streams.incremental_streams import class_incremental
    >>> data = Data.from_arrays([[float(i)] for i in range(40)], [0, 1, 2, 3] * 10)
    >>> stream = class_incremental(data)
    >>> reorder(stream, task_order=(1, 0)).order, reorder(stream, class_order=[3, 0, 1, 2]).order
    ((2, 3, 0, 1), (3, 0, 1, 2))
    """
    if (task_order is None) == (class_order is None):
        raise bad("task_order", "either a task_order or a class_order", (task_order, class_order))
    if task_order is not None:
        _permutation("task_order", task_order, list(range(len(stream))))
        return _check_superclasses_first("task_order", stream.pick(task_order))
    wanted = [class_id("class_order", c, stream.data) for c in class_order or ()]
    _permutation("class_order", wanted, list(stream.order))
    if stream.view is not None or any(set(task.shown) != set(task.new) for task in stream):
        raise bad("class_order", "None, since classes of this stream are not tied to one task "
                  "(use task_order)", class_order)  # fmt: skip
    groups = split_by_sizes(wanted, [len(task.new) for task in stream])
    moved = replace(stream, tasks=tuple(_rebuild_task(stream, group) for group in groups))
    return _check_superclasses_first("class_order", moved)


def _check_superclasses_first(argument: str, stream: Stream) -> Stream:
    """Return the stream; raise unless superclasses come before their subclasses.

    Their rows were divided for that order: in any other, rows would show both labels.
    """
    name = stream.data.classes
    for child, above in find_parents(stream.data).items():
        first, then = (stream.position[c] for c in (above, child))
        if min(first, then) >= 0 and stream.opening[first] >= stream.opening[then]:
            expected = f"{name[above]!r} in an earlier task than its subclass {name[child]!r}"
            found = [int(stream.opening[place]) for place in (first, then)]
            raise bad(argument, expected, f"tasks {found[0]} and {found[1]}")
    return stream


def _rebuild_task(stream: Stream, group: Sequence[int]) -> Task:
    """Make the task of these classes, with the rows each has in the task that introduces it."""
    homes: dict[int, list[int]] = {}
    for c in group:
        homes.setdefault(int(stream.opening[stream.position[c]]), []).append(c)
    rows: dict[str, Any] = {}
    for kind in ROW_PARTS:
        parts = [
            find_rows_with(stream.data, getattr(stream[k], kind), cs) for k, cs in homes.items()
        ]
        rows[kind] = torch.cat(parts).unique()  # ascending; a row with two labels counts once
    return Task(**rows, new=tuple(group), visible=tuple(group))


def _permutation(argument: str, order: Sequence[int], of: list[int]) -> None:
    if sorted(order) != sorted(of):
        raise bad(argument, f"each of {sorted(of)} once", list(order))
