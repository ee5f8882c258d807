"""Rows set aside from all tasks, for a training that comes before the first one."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from engram import keys
from engram.errors import bad
from engram.streams.core import Stream


def set_aside(stream: Stream, share: float, seed: int) -> tuple[Stream, Stream]:
    """The stream without a share of its training rows, and the stream of those rows alone.

    Which rows, depends on the seed and on the rows of each task, not on labels. A row that several
    tasks have is set aside from all of them.

    Examples
    --------
    >>> from engram.data.core import Data
    >>> from engram.streams.incremental import class_incremental
    >>> stream = class_incremental(Data.from_arrays([[float(i)] for i in range(60)], [0, 1] * 30))
    >>> rest, aside = set_aside(stream, 0.25, seed=0)
    >>> [len(part.tasks[0].train) for part in (stream, rest, aside)]
    [48, 36, 12]
    """
    chosen = _chosen(stream, share, seed)
    rest, aside = [], []
    for number, task in enumerate(stream.tasks):
        mine = chosen[task.train]
        if not mine.any() or mine.all():
            expected = f"a fraction that takes some rows of task {number} and leaves some"
            raise bad("share", expected, f"{share:g} of {len(task.train)} rows")
        rest.append(replace(task, train=task.train[~mine]))
        own, none = task.train[mine], task.valid[:0]
        aside.append(replace(task, train=own, valid=none, test=task.test[:1]))
    before = replace(stream, tasks=tuple(aside), head="single", name=f"{stream.name}, set aside")
    return replace(stream, tasks=tuple(rest)), before


def _chosen(stream: Stream, share: float, seed: int) -> Tensor:
    """[N] whether each row of the data is set aside; a generated copy goes with its source."""
    stored = len(stream.data.x)
    draws = keys.uniform(keys.fold(seed, "aside"), stored)
    chosen = torch.zeros(stored, dtype=torch.bool)
    for task in stream.tasks:
        own = task.train[task.train < stored]
        count = max(1, int(share * len(own) + 1e-9))
        chosen[own[draws[own].argsort(stable=True)[:count]]] = True
    return chosen[stream.data.sources(torch.arange(len(stream.data)))]
