"""Streams without clear task boundaries: blurry classes, new instances of all classes, online."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engram.data.dataset import Data
from engram.errors import bad, check_float, check_int
from engram.streams.class_groups import (
    all_classes,
    check_seed,
    check_tasks,
    make_domain_tasks,
    order_classes,
    split_by_sizes,
)
from engram.streams.row_numbers import (
    check_valid,
    count_fraction,
    find_rows_with,
    hold_out,
    partition_rows,
    shuffle_rows,
    split_by_class,
)
from engram.streams.stream import Stream, scenario, with_origin


@scenario
def blurry(
    data: Data,
    *,
    tasks: int = 5,
    mix: float = 0.1,
    order: Sequence[int | str] | None = None,
    seed: int | None = None,
    valid: float = 0.0,
) -> Stream:
    """Every class has a home task, but some of its training rows appear in the other tasks.

    A class is new in the first task where one of its rows occurs. Its validation and test rows
    stay in the home task, so the test sets are those of a class-incremental stream.

    Parameters
    ----------
    tasks
        Number of tasks; classes are spread over them as evenly as possible.
    mix
        Share of each class's training rows that is moved to the other tasks.
    order, seed, valid
        As in `class_incremental`; the seed also draws the rows that are moved.

    Examples
    --------
    >>> data = Data.from_arrays([[float(i)] for i in range(100)], [0, 1, 2, 3] * 25)
    >>> print(blurry(data, tasks=2, mix=0.2))
    Stream('blurry': 2 tasks, 4 classes, single head) over 'data'
    task  train  test  new classes
       0     40    10  0, 1, 2, 3
       1     40    10  -
    """
    check_float("mix", mix, 0.0, 1.0)
    check_valid(data, valid)
    ids = order_classes(data, order, seed)
    if check_int("tasks", tasks, low=2) > len(ids):
        raise bad("tasks", f"at most {len(ids)}, the number of classes", tasks)
    if data.y.shape[1] > 1:
        raise bad("data", "one label for each row", f"{data.y.shape[1]} labels")
    size, rest = divmod(len(ids), tasks)
    homes = split_by_sizes(ids, [size + (k < rest) for k in range(tasks)])
    train, held = hold_out(data, data.train, valid, check_seed(seed))
    held = held if valid else data.valid
    rows = _spread_rows(
        data, [find_rows_with(data, train, home) for home in homes], mix, check_seed(seed)
    )
    parts: list[dict[str, Any]] = [
        {"train": rows[k], "valid": find_rows_with(data, held, home), "first": home,
         "test": find_rows_with(data, data.test, home)} for k, home in enumerate(homes)
    ]  # fmt: skip
    made = make_domain_tasks(data, parts, ids)
    check_tasks(made, valid)
    return Stream(data=data, tasks=tuple(made), name="blurry")


def _spread_rows(data: Data, at_home: list[Tensor], mix: float, seed: int) -> list[Tensor]:
    """Distribute a share of each class over the other tasks."""
    parts: list[list[Tensor]] = [[] for _ in at_home]
    for home, rows in enumerate(at_home):
        others = [k for k in range(len(at_home)) if k != home]
        away = []
        for group in split_by_class(data, rows):
            mixed = shuffle_rows(group, seed, "mix")
            leaving = count_fraction(mix, len(group))
            away.append(mixed[:leaving])
            parts[home].append(mixed[leaving:])
        for k, guests in zip(others, partition_rows(away, len(others), seed), strict=True):
            parts[k].append(guests)
    return [torch.cat(part).sort().values for part in parts]


@scenario
def new_instances(data: Data, *, tasks: int, seed: int = 0, valid: float = 0.0) -> Stream:
    """Use all classes in every task, each time with new rows.

    Examples
    --------
    >>> data = Data.from_arrays([[float(i)] for i in range(100)], [0, 1] * 50)
    >>> print(new_instances(data, tasks=3))
    Stream('new_instances': 3 tasks, 2 classes, single head) over 'data'
    task  train  test  new classes
       0     27     7  0, 1
       1     27     7  -
       2     26     6  -
    """
    check_int("tasks", tasks, low=1)
    check_valid(data, valid)
    seed = check_seed(seed)
    groups = split_by_class(data, data.train.sort().values)
    for group in groups:
        if len(group) < tasks:
            name = data.classes[int(data.labels[group[0]])]
            raise bad("tasks", f"at most {len(group)}, the training rows of class {name!r}", tasks)
    train, test, own = (partition_rows(split_by_class(data, rows.sort().values), tasks, seed)
                        for rows in (data.train, data.test, data.valid))  # fmt: skip
    parts: list[dict[str, Any]] = []
    for k in range(tasks):
        rows, held = hold_out(data, train[k], valid, seed)
        parts.append({"train": rows, "valid": held if valid else own[k], "test": test[k]})
    made = make_domain_tasks(data, parts, all_classes(data))
    check_tasks(made, valid)
    return Stream(data=data, tasks=tuple(made), name="new_instances")


def online(stream: Stream, *, task_labels: bool = True) -> Stream:
    """Return the same stream with a single pass over each task.

    Parameters
    ----------
    task_labels
        Whether the method knows the task of a row, and when a new task begins.

    Examples
    --------
    >>> from engram.streams.incremental_streams import class_incremental
    >>> data = Data.from_arrays([[float(i)] for i in range(40)], [0, 1, 2, 3] * 10)
    >>> online(class_incremental(data))
    Stream('class_incremental': 2 tasks, 4 classes, single head, online)
    """
    if not isinstance(stream, Stream):
        raise bad("stream", "a Stream", type(stream).__name__)
    if not isinstance(task_labels, bool):
        raise bad("task_labels", "True or False", task_labels)
    if not task_labels and stream.head == "multi":
        raise bad("task_labels", "True, since a multi-head stream needs the task id", task_labels)
    once = replace(stream, online=True, task_labels=task_labels)
    if stream.origin is None:
        return once
    return with_origin(once, stream.origin.change(online=True, task_labels=task_labels))
