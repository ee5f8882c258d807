"""Facts that a report takes from recipes: names of streams, and which methods are references."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

# Methods that train on past data too: references, not competitors.
READS_PAST = frozenset({"Joint", "IncrementalJoint", "ERInfinite"})
REFERENCES = frozenset({"Joint", "IncrementalJoint"})


def stream_name(recipe: Mapping[str, Any]) -> str:
    """Describe the stream of a recipe in a short text; equal texts mean equal streams.

    Examples
    --------
    >>> stream_name({"stream": {"name": "class_incremental", "data": "digits", "seed": 0}})
    'data=digits, name=class_incremental, seed=0'
    >>> stream_name({"stream": {"data": "mine.npz"}, "identity": {"data": "a063f0eaef2b"}})
    'data=mine.npz [a063f0]'
    >>> stream_name({})
    ''
    """
    stream = recipe.get("stream")
    if stream is not None and not isinstance(stream, Mapping):
        return str(stream)
    return ", ".join(f"{key}={value}" for key, value in _stream_texts(recipe).items())


def _stream_texts(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a recipe's stream that have a value, as texts by name."""
    stream = recipe.get("stream")
    if not isinstance(stream, Mapping):
        return {}
    mark = (recipe.get("identity") or {}).get("data", "")  # other data may have the same name
    return {
        key: (value if isinstance(value, str) else json.dumps(value, default=str))
        + (f" [{mark[:6]}]" if key == "data" and mark else "")
        for key, value in sorted(stream.items())
        if value is not None
    }


def distinguish_streams(recipes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Map the `stream_name` of each recipe to its kind and the options that distinguish it.

    Examples
    --------
    >>> streams = [{"kind": "joint", "data": "digits"}, {"kind": "joint", "data": "mnist"}]
    >>> list(distinguish_streams({"stream": one} for one in streams).values())
    ['joint, data=digits', 'joint, data=mnist']
    """
    texts = {stream_name(recipe): _stream_texts(recipe) for recipe in recipes}
    every = [set(options.items()) for options in texts.values()]
    shared = set.intersection(*every) if every else set()
    found = {}
    for name, options in texts.items():
        kind = [options["kind"]] if "kind" in options else []
        own = [f"{k}={v}" for k, v in options.items() if k != "kind" and (k, v) not in shared]
        found[name] = ", ".join([*kind, *own]) or name
    return found


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
