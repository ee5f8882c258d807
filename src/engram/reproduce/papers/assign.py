"""Changing single choices of a preset from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from engram.errors import bad, unknown
from engram.recipes.plain import convert, to_plain
from engram.yaml_text import key_value

Preset = TypeVar("Preset")
_ABSENT = object()


def assign(preset: Preset, assignments: Sequence[str]) -> Preset:
    """The preset with ``key=value`` applied; dots lead into protocols and methods.

    Examples
    --------
    >>> from engram.reproduce.papers.rwalk_preset import (PAPER)
    >>> assign(PAPER, ["mnist.epochs=5"]).mnist.epochs
    5
    """
    for text in assignments:
        key, value = key_value(text)
        preset = _changed(preset, key.split("."), value, "preset")
    return preset


def _changed(owner: Any, path: Sequence[str], value: Any, where: str) -> Any:
    name, rest = path[0], path[1:]
    if isinstance(owner, Mapping):
        if rest and not isinstance(owner.get(name), Mapping):
            raise bad(f"{where}.{name}", "a field of the method", ".".join(path))
        inner = _changed(owner[name], rest, value, f"{where}.{name}") if rest else value
        return {**owner, name: inner}
    names = {f.name for f in fields(owner)} if is_dataclass(owner) else set()
    if name not in names:
        raise unknown(where, name, names)
    now = getattr(owner, name)
    if rest:
        value = _changed(now, rest, value, f"{where}.{name}")
    elif isinstance(now, (bool, int, float, str, tuple)) and name != "model":
        value = convert(type(now), value, path=f"{where}.{name}")
    elif is_dataclass(now) and value is not None:
        expected = f"null, to leave it out, or a field of it such as {name}.data"
        raise bad(f"{where}.{name}", expected, value)
    return replace(owner, **{name: value})


def changes(base: Any, preset: Any) -> dict[str, str]:
    """Where a preset differs from another one, as assignments; how they were written is no matter.

    Examples
    --------
    >>> from engram.reproduce.papers.rwalk_preset import (PAPER)
    >>> changes(PAPER, assign(PAPER, ["seeds=5", "mnist.epochs=2", "mnist.epochs=1", "cifar=null"]))
    {'mnist.epochs': '1', 'cifar': 'null'}
    """
    return dict(_changes(to_plain(base), to_plain(preset), ""))


def _changes(base: Any, now: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(base, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*base, *now]):
            where = f"{path}.{key}" if path else key
            yield from _changes(base.get(key, _ABSENT), now.get(key, _ABSENT), where)
    elif now is _ABSENT:  # an option that was left out again
        yield path, "default"
    elif base != now:
        yield path, now if isinstance(now, str) else json.dumps(now)
