"""Drawing the tasks of a hierarchical stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engram import keys
from engram.errors import bad, whole

_ATTEMPTS = 200


def draw_schedule(
    families: Mapping[int, Sequence[int]],
    fine: Sequence[int],
    first: int | None,
    classes_per_task: int,
    seed: int,
) -> list[list[int]]:
    """Random tasks in which every superclass comes strictly before its subclasses.

    The first task holds `first` superclasses of the top, all later ones `classes_per_task` classes,
    the last what is left.

    Examples
    --------
    >>> draw_schedule({4: [0, 1], 5: [2, 3]}, [0, 1, 2, 3], 2, 4, seed=0)[0] in ([4, 5], [5, 4])
    True
    """
    step = whole("classes_per_task", classes_per_task, low=1)
    parent = {child: above for above, members in families.items() for child in members}
    tops = {above for above in families if above not in parent}
    start = max(1, round(len(tops) * 2 / 3)) if first is None else whole("first", first, low=1)
    if start > len(tops):
        raise bad("first", f"at most {len(tops)}, the number of superclasses at the top", first)
    below = (c for members in families.values() for c in members)
    everything = list(dict.fromkeys([*families, *below, *(c for c in fine if c not in parent)]))
    for size in range(step, 0, -1):  # the last always does
        found = _draw(everything, tops, parent, start, size, seed)
        if found and size == step:
            return found
        if found:
            break
    raise bad("classes_per_task", f"{size}, the largest with which some of {_ATTEMPTS} draws put "
              "superclasses before their subclasses and fill all tasks, or `tasks` of your own",
              classes_per_task)  # fmt: skip


def _draw(
    everything: Sequence[int],
    tops: set[int],
    parent: Mapping[int, int],
    start: int,
    step: int,
    seed: int,
) -> list[list[int]] | None:
    """The first of some draws in which all tasks but the last are full."""
    for attempt in range(_ATTEMPTS):
        drawn = keys.order(keys.fold(seed, "schedule", attempt), len(everything), len(everything))
        mixed = [everything[i] for i in drawn.tolist()]
        opening = [c for c in mixed if c in tops][:start]
        later = _fill([c for c in mixed if c not in opening], opening, parent, step)
        if all(len(group) == step for group in later[:-1]):
            return [opening, *later]
    return None


def _fill(
    waiting: list[int], opening: Sequence[int], parent: Mapping[int, int], step: int
) -> list[list[int]]:
    """Take classes in the drawn order, a subclass no sooner than the task after its superclass."""
    done = set(opening)
    groups: list[list[int]] = []
    while waiting:
        ready = [c for c in waiting if c not in parent or parent[c] in done][:step]
        groups.append(ready)
        done.update(ready)
        waiting = [c for c in waiting if c not in done]
    return groups
