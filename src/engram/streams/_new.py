"""Which classes are new in a task, when tasks are met in another sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engram.streams.core import Task


def renewed(tasks: Sequence[Task], order: Sequence[int]) -> tuple[Task, ...]:
    """Tasks with `new` as it is when they are met in this sequence."""
    place = {c: i for i, c in reversed(list(enumerate(order)))}
    seen: set[int] = set()
    result = []
    for task in tasks:
        late = sorted(set(task.shown) - set(task.new), key=place.__getitem__)
        fresh = tuple(c for c in [*task.new, *late] if c not in seen)
        seen.update(fresh)
        same = fresh == task.new
        result.append(task if same else replace(task, new=fresh, visible=task.shown))
    return tuple(result)
