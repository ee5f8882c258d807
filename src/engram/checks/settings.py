"""Other settings of a method beside it: each run ends as it does when nobody else is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from engram.checks.equality import match
from engram.checks.report import DoesNotApply
from engram.checks.tamed import changed, each_part, tame
from engram.checks.toys import Trained, runs_of, streams, train
from engram.learner.likeness import likeness
from engram.methods.base import Method
from engram.streams import Stream

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
    stream, known = streams()[1], {likeness(mine)}
    # the same seed: what runs of one seed share must not hide what tells them apart
    runs, alone = runs_of(mine, [stream]), list[Trained]()
    for one in others:
        key = likeness(one)
        if key not in known and (found := _works(one, stream)) is not None:
            runs.append(runs_of(one, [stream])[0])
            alone.append(found)
        known.add(key)
    if not alone:
        raise DoesNotApply("no number or switch among its fields")
    runs.append(runs_of([mine, mine], [stream, stream])[1])
    every = [train(runs[:1]), *alone, train(runs[-1:])]
    match(runs, {(p, k): after for p, one in enumerate(every) for (_, k), after in one.items()})


def _works(method: Method, stream: Stream) -> Trained | None:
    """The method trained alone; some settings are refused when a run begins only."""
    try:
        return train(runs_of(method, [stream]))
    except Exception:  # alone, as well: nothing to compare
        return None
