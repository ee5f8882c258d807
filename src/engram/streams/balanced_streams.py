"""Class balancing of a stream by augmented copies of training images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engram import keys
from engram.data.dataset import Data
from engram.data.image_copies import ImageCopies
from engram.errors import bad, check_int
from engram.streams.row_numbers import split_by_class
from engram.streams.stream import Stream, Task, with_origin


def balance(
    stream: Stream,
    *,
    flip: float = 0.5,
    rotate: float = 0.5,
    degrees: float = 30.0,
    per_class: int | None = None,
    seed: int = 0,
) -> Stream:
    """Balance classes with augmented copies of training images, up to the largest class.

    A copy is a separate row with the label and the attributes of its source, in the tasks of its
    source. Its image is generated on the device when a batch is read, the same each time, so
    nothing is stored. Only training rows are copied, so no image leaks into validation or test.

    Parameters
    ----------
    flip, rotate
        Probability that a copy is mirrored from left to right, and that it is rotated. A copy may
        be neither.
    degrees
        Largest rotation of a copy, to either side.
    per_class
        Minimum number of rows per class, instead of the size of the largest class.
    seed
        Draws sources and changes. The numbers of copies of two rows of a class differ by at most
        one; the order of the classes does not matter.

    Examples
    --------
    >>> from engram.streams.incremental_streams import class_incremental
    >>> x = torch.randint(0, 256, (30, 3, 8, 8), dtype=torch.uint8)
    >>> stream = class_incremental(Data.from_arrays(x, [0] * 20 + [1] * 10), classes_per_task=1)
    >>> [len(task.train) for task in stream], [len(task.train) for task in balance(stream)]
    ([16, 8], [16, 16])
    """
    _check(stream)
    options = {"flip": flip, "rotate": rotate, "degrees": degrees, "per_class": per_class,
               "seed": check_int("seed", seed)}  # fmt: skip
    rows = torch.cat([task.train.cpu() for task in stream]).unique()
    data = _add_copies(stream.data, rows, options)
    count = len(stream.data.x)
    source = data.copies.source if data.copies is not None else rows[:0]
    tasks = [_with_copies(task, source, count) for task in stream]
    made = replace(stream, data=data, tasks=tuple(tasks))
    if stream.origin is None:
        return made
    return with_origin(made, stream.origin.change(balance=options))


def _check(stream: Any) -> None:
    if not isinstance(stream, Stream):
        raise bad("stream", "a Stream", type(stream).__name__)
    if len(stream.data.sample_shape) != 3:
        wanted = "images of shape (channels, height, width)"
        raise bad("stream.data", wanted, stream.data.sample_shape)
    if stream.labels == "set":
        raise bad("stream.data", "one label for each row", "sets of labels")
    if stream.data.copies is not None:
        raise bad("stream", "one without copies", f"{len(stream.data.copies)} copies")


def _add_copies(data: Data, rows: Tensor, options: dict[str, Any]) -> Data:
    """Return the data with copies; the same object for the same rows and options."""
    # cached, because runs train together only over the same Data object
    known: dict[Any, Data] = data.__dict__.setdefault("_copied", {})
    name = (rows.numpy().tobytes(), data.fingerprint(), *options.items())
    if name not in known:
        changes = {key: options[key] for key in ("flip", "rotate", "degrees")}
        source, key = _draw_sources(data, rows, options["per_class"], options["seed"])
        where = source.to(data.y.device)
        known[name] = replace(
            data, copies=ImageCopies(source=source, key=key, **changes),
            y=torch.cat([data.y, data.y[where]]),
            attributes={k: torch.cat([v, v[source.to(v.device)]])
                        for k, v in data.attributes.items()},
            notes=(*data.notes, f"{len(source):,} generated copies of training images"),
        )  # fmt: skip
    return known[name]


def _draw_sources(
    data: Data, rows: Tensor, per_class: int | None, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw the source and the key of each copy, class by class in order of their first rows."""
    groups = split_by_class(data, rows)
    largest = max(len(group) for group in groups)
    wanted = largest if per_class is None else check_int("per_class", per_class, low=1)
    sources, drawn = [rows[:0]], [rows[:0]]
    for group in groups:
        missing = max(0, wanted - len(group))
        rounds = -(-missing // len(group))
        start = keys.fold(seed, "copies", int(group[0]))
        each = [group[keys.permutation(keys.fold(start, k), len(group), len(group))]
                for k in range(rounds)]  # fmt: skip
        number = torch.arange(rounds).repeat_interleave(len(group))[:missing]
        source = torch.cat(each)[:missing] if each else rows[:0]
        sources.append(source)
        key = keys.fold(source, "copy", number, seed)
        drawn.append(torch.as_tensor(key))
    return torch.cat(sources), torch.cat(drawn)


def _with_copies(task: Task, source: Tensor, stored: int) -> Task:
    """Return the task with the copies of its training rows."""
    mine = torch.isin(source, task.train.cpu()).nonzero()[:, 0] + stored
    train = torch.cat([task.train, mine.to(task.train.device)])
    return replace(task, train=train)
