"""Runs of a search: what they were judged on, in words, wherever their numbers are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def searched_on(recipe: Mapping[str, Any]) -> tuple[str, int] | None:
    """The rows that a trial of a search is judged on, and its number of tasks; None for others.

    Examples
    --------
    >>> searched_on({"stream": {"kind": "joint", "search": {"tasks": 3, "on": "valid"}}})
    ('valid', 3)
    """
    stream = recipe.get("stream")
    found = stream.get("search") if isinstance(stream, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    return str(found.get("on", "valid")), int(found.get("tasks", 0))


def searched_in_words(recipes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What must be said about the numbers of trials; nothing where there are none.

    Examples
    --------
    >>> searched_in_words({"a": {"stream": {"search": {"tasks": 3, "on": "test"}}}})
    ['1 recipe is a trial of a search on TEST ROWS of the first 3 tasks: ...']
    """
    counts: dict[tuple[str, int], int] = {}
    for recipe in recipes.values():
        if (found := searched_on(recipe)) is not None:
            counts[found] = counts.get(found, 0) + 1
    words = []
    for (on, tasks), count in sorted(counts.items()):
        who = "1 recipe is a trial" if count == 1 else f"{count} recipes are trials"
        first = "the first task" if tasks == 1 else f"the first {tasks} tasks"
        it = "it" if count == 1 else "them"
        if on == "test":
            rest = f"on TEST ROWS of {first}: whatever is chosen by {it} has no test accuracy"
        else:
            rest = f"on validation rows of {first}: no result here is on test rows"
        words.append(f"{who} of a search {rest}")
    return words
