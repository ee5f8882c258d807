"""Streams whose tasks bring new classes: class-incremental, task-incremental, and all at once."""

from __future__ import annotations

from collections.abc import Sequence

from engram.data.dataset import Data
from engram.streams.class_groups import (
    check_seed,
    group_sizes,
    make_class_tasks,
    order_classes,
    split_by_sizes,
)
from engram.streams.stream import Stream, scenario


@scenario
def class_incremental(
    data: Data,
    *,
    classes_per_task: int | Sequence[int] = 2,
    order: Sequence[int | str] | None = None,
    seed: int | None = None,
    valid: float = 0.0,
    first: int | None = None,
) -> Stream:
    """Every task has new classes, and at test time all classes seen so far compete.

    Parameters
    ----------
    classes_per_task
        Classes in each task; with one number the last task takes what is left. A list gives the
        size of every task.
    order
        Class ids or names in order of introduction; classes not named are left out. None takes
        all classes, by id or, with a `seed`, shuffled; each must then have training rows.
    seed
        Shuffles the classes when `order` is None, and draws the validation rows.
    valid
        Share of each class's training rows held out as in-task validation rows. 0 uses the
        data's own validation rows, if it has any.
    first
        Classes in the first task, where it differs from the others.

    Examples
    --------
    >>> data = Data.from_arrays([[float(i)] for i in range(50)], ["a", "b", "c", "d", "e"] * 10)
    >>> print(class_incremental(data, order=["e", "d", "c", "b", "a"], valid=0.25))
    Stream('class_incremental': 3 tasks, 5 classes, single head) over 'data'
    task  train  valid  test  new classes
       0     12      4     4  e, d
       1     12      4     4  c, b
       2      6      2     2  a
    """
    ids = order_classes(data, order, seed)
    groups = split_by_sizes(ids, group_sizes(len(ids), classes_per_task, first))
    tasks = make_class_tasks(data, groups, valid, check_seed(seed))
    return Stream(data=data, tasks=tuple(tasks), name="class_incremental")


@scenario
def task_incremental(
    data: Data,
    *,
    classes_per_task: int | Sequence[int] = 2,
    order: Sequence[int | str] | None = None,
    seed: int | None = None,
    valid: float = 0.0,
    first: int | None = None,
) -> Stream:
    """Every task has new classes, and at test time only the classes of the row's task compete.

    The options are those of `class_incremental`.

    Examples
    --------
    >>> data = Data.from_arrays([[float(i)] for i in range(40)], [0, 1, 2, 3] * 10)
    >>> task_incremental(data, classes_per_task=[1, 3])
    Stream('task_incremental': 2 tasks, 4 classes, multi head)
    """
    ids = order_classes(data, order, seed)
    groups = split_by_sizes(ids, group_sizes(len(ids), classes_per_task, first))
    tasks = make_class_tasks(data, groups, valid, check_seed(seed))
    return Stream(data=data, tasks=tuple(tasks), name="task_incremental", head="multi")


@scenario
def joint(
    data: Data,
    *,
    order: Sequence[int | str] | None = None,
    valid: float = 0.0,
    seed: int | None = None,
) -> Stream:
    """All classes, or those in `order`, in one task: ordinary training, an upper bound.

    Examples
    --------
    >>> data = Data.from_arrays([[float(i)] for i in range(40)], [0, 1, 2, 3] * 10)
    >>> joint(data)
    Stream('joint': 1 task, 4 classes, single head)
    """
    ids = order_classes(data, order, None)
    tasks = make_class_tasks(data, [ids], valid, check_seed(seed))
    return Stream(data=data, tasks=tuple(tasks), name="joint")
