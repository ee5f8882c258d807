"""Streams whose tasks share classes and differ in their inputs: domains, permuted, rotated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engram import keys
from engram.data.dataset import Data
from engram.errors import bad, check_int, unknown
from engram.streams.class_groups import all_classes, check_seed, check_tasks, make_domain_tasks
from engram.streams.input_views import Permuted, Rotated, View
from engram.streams.row_numbers import check_valid, hold_out
from engram.streams.stream import Stream, scenario


@scenario
def domain_incremental(
    data: Data,
    *,
    by: str,
    order: Sequence[int | str] | None = None,
    seed: int | None = None,
    valid: float = 0.0,
) -> Stream:
    """One task per value of an attribute (subject, camera, domain), each with all classes.

    Parameters
    ----------
    by
        Name of the attribute of the data.
    order
        Attribute values (numbers, or names if the data has them) in order; values not listed are
        left out. None takes all values of training and test rows, ascending or, with a `seed`,
        shuffled.
    valid
        Share of each class's training rows in each task held out as in-task validation rows.

    Examples
    --------
    >>> import torch
    >>> camera = {"camera": torch.tensor([0] * 20 + [1] * 20)}
    >>> data = Data.from_arrays([[float(i)] for i in range(40)], [0, 1] * 20, attributes=camera)
    >>> print(domain_incremental(data, by="camera"))
    Stream('domain_incremental': 2 tasks, 2 classes, single head) over 'data'
    task  train  test  new classes
       0     16     4  0, 1  [camera=0]
       1     16     4  -  [camera=1]
    """
    if by not in data.attributes:
        if not data.attributes:
            raise bad("by", f"data with attributes ({data.name!r} has none)", by)
        raise unknown("by", by, data.attributes)
    check_valid(data, valid)
    start = check_seed(seed)
    attribute = data.attributes[by].cpu()
    values = _values(data, by, order, seed)
    parts: list[dict[str, Any]] = []
    for value in values:
        train, test, own = (r[attribute[r] == value] for r in (data.train, data.test, data.valid))
        train, held = hold_out(data, train, valid, start)
        held = held if valid else own.sort().values
        parts.append({"train": train, "valid": held, "test": test.sort().values,
                      "domain": f"{by}={_name_value(data, by, value)}"})  # fmt: skip
        _check_domain(data, by, value, len(train), len(test))
    tasks = make_domain_tasks(data, parts, all_classes(data))
    check_tasks(tasks, valid)
    return Stream(data=data, tasks=tuple(tasks), name="domain_incremental")


def _name_value(data: Data, by: str, value: int) -> str:
    """Return the name of an attribute value, if it has one."""
    names = data.attribute_names.get(by, ())
    return names[value] if 0 <= value < len(names) else str(value)


def _values(data: Data, by: str, order: Sequence[int | str] | None, seed: int | None) -> list[int]:
    column = data.attributes[by].cpu()
    known = sorted({*column[data.train].tolist(), *column[data.test].tolist()})
    if order is None:
        if seed is None:
            return known
        drawn = keys.permutation(keys.fold(seed, "domains"), len(known), len(known))
        return [known[i] for i in drawn.tolist()]
    named = {_name_value(data, by, value): value for value in known}
    values: list[Any] = [named.get(one, one) if isinstance(one, str) else one for one in order]
    if not values or len(set(values)) < len(values) or set(values) - set(known):
        raise bad("order", f"different values of {by!r} among {list(named)}", list(order))
    return values


def _check_domain(data: Data, by: str, value: int, train: int, test: int) -> None:
    if not train or not test:
        missing = "training" if not train else "test"
        found = f"{by}={_name_value(data, by, value)} has no {missing} rows"
        raise bad("by", "an attribute whose every value has training and test rows (or an `order` "
                  f"of values that do), {found}", by)  # fmt: skip


@scenario
def permuted(data: Data, *, tasks: int, seed: int = 0, valid: float = 0.0) -> Stream:
    """Use all rows in every task, with a different permutation of the pixels (none in the first).

    Examples
    --------
    >>> data = Data.from_arrays([[float(i)] * 6 for i in range(40)], [0, 1] * 20)
    >>> stream = permuted(data, tasks=3)
    >>> stream, stream.view.describe()["pixels"]
    (Stream('permuted': 3 tasks, 2 classes, single head), 6)
    """
    check_int("tasks", tasks, low=1)
    pixels = 1
    for size in data.sample_shape[-2:]:  # all channels are permuted alike
        pixels *= size
    view = Permuted(tasks=tasks, pixels=pixels, seed=seed)
    names = ["pixels as they are", *(f"permutation {k}" for k in range(1, tasks))]
    return _same_rows(data, names, view, "permuted", valid, seed)


@scenario
def rotated(
    data: Data, *, angles: Sequence[float], valid: float = 0.0, seed: int | None = None
) -> Stream:
    """Use all rows in every task, rotated counter-clockwise by the task's angle in degrees.

    Examples
    --------
    >>> import numpy as np
    >>> data = Data.from_arrays(np.zeros((40, 8, 8), dtype="float32"), [0, 1] * 20)
    >>> [task.domain for task in rotated(data, angles=(0, 45))]
    ['0 degrees', '45 degrees']
    """
    view = Rotated(angles=angles)
    if len(data.sample_shape) not in (2, 3):
        raise bad("data", "images [C, H, W] or [H, W]", data.sample_shape)
    names = [f"{angle:g} degrees" for angle in view.angles]
    return _same_rows(data, names, view, "rotated", valid, check_seed(seed))


def _same_rows(
    data: Data, names: Sequence[str], view: View, name: str, valid: float, seed: int
) -> Stream:
    check_valid(data, valid)
    train, held = hold_out(data, data.train, valid, seed)
    held = held if valid else data.valid.sort().values
    test = data.test.sort().values
    parts = [{"train": train, "valid": held, "test": test, "domain": text} for text in names]
    tasks = make_domain_tasks(data, parts, all_classes(data))
    check_tasks(tasks, valid)
    return Stream(data=data, tasks=tuple(tasks), name=name, view=view)
