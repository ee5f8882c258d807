"""Labels that are refined over time: a superclass first, its subclasses later."""

from __future__ import annotations

from engram.checks.equality import compare
from engram.checks.report import DoesNotApply, require
from engram.checks.tamed import tame
from engram.checks.task_start import task_start
from engram.checks.toys import clouds, runs_of
from engram.methods.base import DECISIONS, Method
from engram.streams import Stream, hierarchical

TREE: dict[str, list[str | int]] = {"A": [0, 1], "B": [2, 3]}
ORDERS: tuple[tuple[tuple[str | int, ...], ...], ...] = (
    (("A", "B"), (0, 2, 4), (1, 3, 5)),
    (("B", 5), ("A", 2, 4), (0, 1, 3)),
    (("A", 4), ("B", 1, 5), (3, 0, 2)),
)


def refined() -> list[Stream]:
    """Three streams over one tree: rows of a subclass were partly seen under its superclass."""
    data, found = clouds(), []
    for order in ORDERS:
        tasks = [[_full(name) for name in group] for group in order]
        stream = hierarchical(data, hierarchy=TREE, tasks=tasks, valid=0.0, post_valid=0.0)
        found.append(stream)
    # runs train together over one Data, and these differ in nothing
    return [Stream(data=found[0].data, tasks=one.tasks) for one in found]


def _full(name: str | int) -> str:
    return f"superclass/{name}" if isinstance(name, str) else f"fine/{name}"


def _need_sets(method: Method) -> None:
    if DECISIONS["set"] not in method.decides:
        raise DoesNotApply("it decides by argmax, so streams with label sets are refused")


def check_refined_labels_in_lockstep(method: Method) -> None:
    """Where superclasses come before their subclasses, lockstep is the loop as well."""
    _need_sets(method)
    compare(runs_of(tame(method), refined()))


def check_stored_labels_stay_incomplete(method: Method) -> None:
    """Exemplars come back with the labels of their own task, not with those that came later."""
    _need_sets(method)
    if method.memory_budget is None or method.reads == "past":
        raise DoesNotApply("keeps no exemplars, or may read the past")
    at = task_start(tame(method), stage=2, on=refined()[:2])
    stream = at.learners[0].stream
    for batch in at.own_batches():
        for part in (batch, *batch.memory):
            told = (part.y >= 0) & (part.w > 0)[:, None]
            own = stream.visible[part.stage[:, None], part.y.clamp(min=0)]
            require(
                not bool((told & ~own).any()),
                "a row comes with a label that its own task did not show: exemplars keep the "
                "labels they were stored with",
            )
