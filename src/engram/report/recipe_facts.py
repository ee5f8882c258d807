"""Facts that a report takes from recipes: data sets, and which methods are references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Methods that train on past data too: references, not competitors.
READS_PAST = frozenset({"Joint", "IncrementalJoint", "ERInfinite"})
REFERENCES = frozenset({"Joint", "IncrementalJoint"})


def data_and_kind(recipe: Mapping[str, Any]) -> tuple[str, str]:
    """Return the data set of a recipe (of a file, its name) and the kind of its stream.

    Examples
    --------
    >>> data_and_kind({"stream": {"kind": "class_incremental", "data": "photos/birds.npz"}})
    ('birds.npz', 'class_incremental')
    """
    stream = recipe.get("stream")
    if not isinstance(stream, Mapping):
        return "", "" if stream is None else str(stream)
    data = stream.get("data")
    shown = "" if data is None else str(data).rstrip("/").replace("\\", "/").rpartition("/")[2]
    return shown, str(stream.get("kind", stream.get("name", "")))


def _method_names(part: object) -> set[str]:
    """Return the names of a method and of all methods joined in it."""
    if isinstance(part, Mapping):
        inner: set[str] = set().union(*(_method_names(v) for v in part.values()))
        return inner | ({str(part["name"])} if "name" in part else set())
    if isinstance(part, (list, tuple)):
        return set().union(*(_method_names(v) for v in part))
    return set()


def is_reference(recipe: str, recipes: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the method of a recipe is a reference for others."""
    method = recipes.get(recipe, {}).get("method", {})
    name = method.get("name") if isinstance(method, Mapping) else method
    return str(name) in REFERENCES


def trains_on_past(recipe: str, recipes: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the method of a recipe trains on past data too."""
    method = recipes.get(recipe, {}).get("method", {})
    names = {str(method)} if isinstance(method, str) else _method_names(method)
    return bool(names & READS_PAST)
