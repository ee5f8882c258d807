"""Other settings of a method beside it: each run ends as it does when nobody else is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from engram.checks.equality import match
from engram.checks.report import DoesNotApply
from engram.checks.toys import changed, each_part, runs_of, streams, tame, train
from engram.learner.likeness import likeness
from engram.methods.base import Method

# whole numbers and switches decide shapes and ways, real numbers what a network computes
CHANGES: dict[type, Callable[[Any], Any]] = {
    int: lambda value: value + 1, bool: lambda value: not value, float: lambda value: value / 2,
}  # fmt: skip


def altered(method: Method, *kinds: type) -> Method:
    """The method with another value of every field of these types that takes one."""

    def other(part: Method) -> Method:
        for field in fields(part):
            value = getattr(part, field.name)
            if field.init and type(value) in kinds:
                part = changed(part, field.name, CHANGES[type(value)](value))
        return part

    return each_part(method, other)


def check_other_settings_beside_it(method: Method) -> None:
    """Other settings of the method, and other seeds, in one engine: each run ends as alone."""
    mine = tame(method)
    others = [altered(mine, *kinds) for kinds in ((float,), (int, bool), (float, int, bool))]
    tried = [one for one in others if likeness(one) != likeness(mine) and _works(one)]
    if not tried:
        raise DoesNotApply("no number or switch among its fields")
    stream = streams()[1]
    # the same seed: what runs of one seed share must not hide what tells them apart
    runs = [runs_of(one, [stream])[0] for one in (mine, *tried)]
    runs.append(runs_of([mine, mine], [stream, stream])[1])
    match(runs)


def _works(method: Method) -> bool:
    """Whether the method takes these settings: some are refused when a run begins only."""
    try:
        train(runs_of(method, streams()[1:2]))
    except Exception:  # alone, as well: nothing to compare
        return False
    return True
