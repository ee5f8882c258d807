"""What a report reads out of recipes: the stream's name, and whether a method reads the past."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

# Methods that train on the past as well: references, not competitors.
READS_PAST = frozenset({"Joint", "IncrementalJoint", "ERInfinite"})
REFERENCES = frozenset({"Joint", "IncrementalJoint"})


def stream_name(recipe: Mapping[str, Any]) -> str:
    """A short text for the stream of a recipe; equal texts mean equal streams.

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
    """The options of a recipe's stream that have a value, as texts by name."""
    stream = recipe.get("stream")
    if not isinstance(stream, Mapping):
        return {}
    mark = (recipe.get("identity") or {}).get("data", "")  # other data may bear the same name
    return {
        key: (value if isinstance(value, str) else json.dumps(value, default=str))
        + (f" [{mark[:6]}]" if key == "data" and mark else "")
        for key, value in sorted(stream.items())
        if value is not None
    }


def distinguish_streams(recipes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """For the `stream_name` of each recipe: its kind, and what only some of the streams have.

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
    """The data set of a recipe, a file by its name alone, and the kind of its stream.

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
    """Names of a method and of all methods joined in it."""
    if isinstance(part, Mapping):
        inner: set[str] = set().union(*(_method_names(v) for v in part.values()))
        return inner | ({str(part["name"])} if "name" in part else set())
    if isinstance(part, (list, tuple)):
        return set().union(*(_method_names(v) for v in part))
    return set()


def is_reference(recipe: str, recipes: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the method of a recipe is one that others are compared with."""
    method = recipes.get(recipe, {}).get("method", {})
    name = method.get("name") if isinstance(method, Mapping) else method
    return str(name) in REFERENCES


def trains_on_past(recipe: str, recipes: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a recipe names a method that trains on the past as well."""
    method = recipes.get(recipe, {}).get("method", {})
    names = {str(method)} if isinstance(method, str) else _method_names(method)
    return bool(names & READS_PAST)
