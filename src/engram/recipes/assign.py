"""``key=value``: one value of a plain recipe, changed by the name of its field."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from engram import methods
from engram.engine.training import Training
from engram.errors import BadArgument, bad, nearest, unknown
from engram.models.build import model_options
from engram.recipes.names import build_method
from engram.recipes.sections import COMMON, DEFAULT_MODEL, stream_kind, stream_options
from engram.yaml_text import parse_value

SECTIONS = ("stream", "model", "method", "training", "seeds", "keep", "average", "label", "probes")
NESTED = SECTIONS[:4]  # those that have fields


def set_value(content: dict[str, Any], assignment: str) -> None:
    """Apply ``key=value`` to a plain recipe; a bare field name works where it is unique.

    Examples
    --------
    >>> content = {"stream": {"data": "digits"}, "method": {"name": "EWC"}}
    >>> set_value(content, "epochs=3")
    >>> set_value(content, "method.strength=10")
    >>> set_value(content, "hidden=[32]")
    >>> content["training"], content["method"], content["model"]
    ({'epochs': 3}, {'name': 'EWC', 'strength': 10}, {'name': 'mlp', 'hidden': [32]})
    """
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise bad("--set", "key=value", assignment)
    value = parse_value(f"--set {key}", text)
    path = key.split(".")
    if len(path) == 1 and key not in SECTIONS:
        path = [_home(content, key), key]
    if path[0] not in SECTIONS:
        raise unknown("--set", path[0], SECTIONS)
    if not all(path) or (len(path) > 1 and path[0] not in NESTED):
        raise bad("--set", f"a field of {', '.join(NESTED)}", key)
    target = content
    for depth, name in enumerate(path[:-1]):
        inner = target.get(name)
        if not isinstance(inner, dict):
            inner = _opened(name, inner) if depth == 0 else _empty(key, name, inner)
        target[name] = inner
        target = inner
    target[path[-1]] = value


def _opened(section: str, value: Any) -> dict[str, Any]:
    """A section that is given by its name alone, as the mapping that it stands for."""
    if value is None:
        return {"name": DEFAULT_MODEL} if section == "model" else {}
    if section == "training" or not isinstance(value, (str, os.PathLike)):
        raise bad(section, "a mapping of fields", value)
    return {"data" if section == "stream" else "name": value}


def _empty(key: str, name: str, value: Any) -> dict[str, Any]:
    if value is not None:
        raise bad("--set", f"a field of something that has fields, {name} is {value!r}", key)
    return {}


def _home(content: Mapping[str, Any], key: str) -> str:
    """The section a bare field name belongs to."""
    method = build_method(content.get("method", "Finetune"))
    kind = stream_kind(content.get("stream", {}))
    model = content.get("model", DEFAULT_MODEL)
    model = model.get("name") if isinstance(model, Mapping) else model
    owners = {
        "model": set(model_options(model) if isinstance(model, str) else ()),
        "training": {f.name for f in fields(Training)},
        "method": {f.name for f in fields(method) if f.init},
        "stream": {*stream_options(kind), *COMMON},
    }
    found = [section for section, names in owners.items() if key in names]
    if len(found) == 1:
        return found[0]
    if not found:
        raise _nowhere(key, {*SECTIONS}.union(*owners.values()), type(method).__name__)
    choices = " or ".join(f"{section}.{key}" for section in found)
    raise bad("--set", f"one of {choices}, because the bare name is in both", key)


def _nowhere(key: str, known: set[str], method: str) -> BadArgument:
    """The error for a bare name without an owner; fields of the other methods are near, too."""
    elsewhere: dict[str, list[str]] = {}
    for name in methods.__all__:
        for field in fields(getattr(methods, name)):
            elsewhere.setdefault(field.name, []).append(name)
    plain = unknown("--set", key, known)
    guess = nearest(key, [*known, *elsewhere])
    if guess is None or guess in known:
        return plain
    owners = f"a field of {', '.join(elsewhere[guess])}"
    text = f"unknown name {key!r}, did you mean {guess!r}, {owners}?"
    text = text if guess != key else f"{key} is {owners}, not of {method}"
    return BadArgument(f"--set: {text}").of_kind("unknown")
