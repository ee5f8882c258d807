"""Warnings about a stream: test samples that are also training samples, and extreme scales."""

from __future__ import annotations

from typing import Any

import torch

from engram.data.duplicates import describe_count, find_repeats
from engram.data.inspection import describe_wild_scales
from engram.streams.stream import Stream


def count_repeated_test_rows(stream: Stream) -> int:
    """Count the test rows that have the same input as a training row of any task.

    Examples
    --------
    >>> from engram.data.dataset import Data
    >>> from engram.streams import class_incremental
    >>> x, y = torch.rand(8, 3), [0, 1, 2, 3] * 2
    >>> count_repeated_test_rows(class_incremental(Data.from_arrays(x, y, test=(x[:3], y[:3]))))
    3
    """
    if "_repeated" not in stream.__dict__:
        masks = []
        for kind in ("train", "test"):
            mask = torch.zeros(len(stream.data), dtype=torch.bool)
            mask[torch.cat([getattr(task, kind) for task in stream.tasks]).cpu()] = True
            masks.append(mask)
        # cached, because streams over one data set often have the same rows in another order
        known: dict[Any, int] = stream.data.__dict__.setdefault("_repeated", {})
        key = tuple(mask.numpy().tobytes() for mask in masks)
        if key not in known:
            known[key] = len(find_repeats(stream.data, *(mask.nonzero()[:, 0] for mask in masks)))
        stream.__dict__["_repeated"] = known[key]
    found: int = stream.__dict__["_repeated"]
    return found


def describe_repeats(stream: Stream) -> str:
    """Return a warning about repeated samples, empty if there are none."""
    count = count_repeated_test_rows(stream)
    tests = len(torch.cat([task.test for task in stream.tasks]).unique())
    return describe_count(count, tests) if count else ""


# -- features on scales that networks do not learn from --------------------------------------------


def describe_scales(stream: Stream) -> str:
    """Return a warning about the scales of the first task's features, empty if they are fine.

    Examples
    --------
    >>> from engram.data.dataset import Data
    >>> from engram.streams import class_incremental
    >>> x = [[i, 1e5 * i] for i in range(20)]
    >>> describe_scales(class_incremental(Data.from_arrays(x, [0, 1] * 10)))
    'features with extreme scales: 1 (root mean square 1...e+06); standardize=True, on the ...
    """
    known = stream.data.__dict__.setdefault("_scales", {})
    rows = stream.tasks[0].train
    key = rows.cpu().numpy().tobytes()
    if key not in known:
        known[key] = describe_wild_scales(stream.data, rows)
    found: str = known[key]
    return found
