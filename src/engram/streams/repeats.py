"""Test samples of a stream that are training samples as well."""

from __future__ import annotations

from typing import Any

import torch

from engram.data.repeats import repeats, said
from engram.streams.core import Stream


def repeated_test_rows(stream: Stream) -> int:
    """How many test rows have the same input as a training row, in whatever tasks.

    Examples
    --------
    >>> from engram.data.core import Data
    >>> from engram.streams import class_incremental
    >>> x, y = torch.rand(8, 3), [0, 1, 2, 3] * 2
    >>> repeated_test_rows(class_incremental(Data.from_arrays(x, y, test=(x[:3], y[:3]))))
    3
    """
    if "_repeated" not in stream.__dict__:
        masks = []
        for kind in ("train", "test"):
            mask = torch.zeros(len(stream.data), dtype=torch.bool)
            mask[torch.cat([getattr(task, kind) for task in stream.tasks]).cpu()] = True
            masks.append(mask)
        # streams over one data set mostly hold the same rows, in another order of tasks
        known: dict[Any, int] = stream.data.__dict__.setdefault("_repeated", {})
        key = tuple(mask.numpy().tobytes() for mask in masks)
        if key not in known:
            known[key] = len(repeats(stream.data, *(mask.nonzero()[:, 0] for mask in masks)))
        stream.__dict__["_repeated"] = known[key]
    found: int = stream.__dict__["_repeated"]
    return found


def repeats_in_words(stream: Stream) -> str:
    """What to say of a stream's repeated samples; nothing where there are none."""
    count = repeated_test_rows(stream)
    tests = len(torch.cat([task.test for task in stream.tasks]).unique())
    return said(count, tests) if count else ""
