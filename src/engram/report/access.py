"""The data-access ledger, whatever its depth: who read what, summed over stages and runs."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{12}(?![0-9a-f])")
_IDENTITY = ("recipe", "run", "seed", "order")  # keys that say whose ledger it is


@dataclass(frozen=True)
class Access:
    """One entry: the recipe it belongs to (empty if unknown), where it stood, and its value."""

    recipe: str
    path: tuple[str, ...]
    value: Any


def entries(ledger: Mapping[str, Any], recipes: Collection[str]) -> list[Access]:
    """All entries of a ledger; of those written twice for the same run and stage, the last.

    Examples
    --------
    >>> ledger = {"part-1": {"0a1b2c3d4e5f-0-": {"0": {"train": 64}}},
    ...           "part-2": {"0a1b2c3d4e5f-0-": {"0": {"train": 64}, "1": {"train": 32}}}}
    >>> [(e.path, e.value) for e in entries(ledger, ["0a1b2c3d4e5f"])]
    [(('0a1b2c3d4e5f-0-', '0', 'train'), 64), (('0a1b2c3d4e5f-0-', '1', 'train'), 32)]
    """
    found: dict[tuple[str, ...], Access] = {}
    known = frozenset(recipes)
    for entry in _walk(ledger, (), "", known):
        # A run is written in several parts: which part is no part of what was read.
        start = next((i for i, word in enumerate(entry.path) if _recipe_in(word, known)), 0)
        path = entry.path[start:]
        found[path] = Access(entry.recipe, path, entry.value)
    return list(found.values())


def _recipe_in(word: str, known: Collection[str]) -> str:
    if word in known:
        return word
    return next((match for match in _ID.findall(word) if match in known), "")


def _walk(
    value: Any, path: tuple[str, ...], recipe: str, known: Collection[str]
) -> Iterator[Access]:
    if isinstance(value, Mapping):
        identity = [str(value[key]) for key in _IDENTITY if key in value]
        told = next(filter(None, (_recipe_in(word, known) for word in identity)), "")
        if told:
            path = (*path, "-".join(identity))
        for key, inner in value.items():
            if not (told and key in _IDENTITY):
                owner = told or _recipe_in(str(key), known) or recipe
                yield from _walk(inner, (*path, str(key)), owner, known)
    elif isinstance(value, (list, tuple)) and any(isinstance(v, Mapping) for v in value):
        for number, inner in enumerate(value):
            yield from _walk(inner, (*path, str(number)), recipe, known)
    else:
        yield Access(recipe, path, value)


def readers_of_the_past(ledger: Mapping[str, Any], recipes: Collection[str]) -> set[str]:
    """Recipes whose ledger shows rows of earlier tasks that were not kept.

    Examples
    --------
    >>> readers_of_the_past({"0a1b2c3d4e5f-0-": {"1": {"past": 3}}}, ["0a1b2c3d4e5f"])
    {'0a1b2c3d4e5f'}
    """
    return {
        entry.recipe
        for entry in entries(ledger, recipes)
        if entry.recipe and (
            (entry.path[-1] == "past" and _is_count(entry.value) and entry.value > 0)
            or (entry.path[-1] == "reads" and entry.value == "past")
        )
    }  # fmt: skip


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def totals(
    ledger: Mapping[str, Any], names: Mapping[str, str]
) -> list[tuple[str, str, str, float | None]]:
    """Rows of (method, entry, text, number): counts summed per recipe, then what is no number.

    Parameters
    ----------
    names
        Recipe id to the name of its method.
    """
    sums: dict[tuple[str, str], float] = {}
    texts: dict[tuple[str, str], dict[str, None]] = {}
    for entry in entries(ledger, names):
        name = names.get(entry.recipe, "")
        if name and entry.path[-1] == "label":
            continue  # the name again
        key = (name, entry.path[-1]) if name else ("", " / ".join(entry.path))
        if _is_count(entry.value):
            sums[key] = sums.get(key, 0) + entry.value
        else:
            value = entry.value
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            texts.setdefault(key, {})[text] = None
    rows: list[tuple[str, str, str, float | None]] = [
        (*key, f"{total:,.12g}", float(total)) for key, total in sums.items()
    ]
    rows += [(*key, ", ".join(list(each)[:5]), None) for key, each in texts.items()]
    order = list(dict.fromkeys(name for name, *_ in rows))
    return sorted(rows, key=lambda row: order.index(row[0]))
