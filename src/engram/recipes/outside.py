"""The outside set of a recipe: rows that are never trained on, by which detectors are tuned."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from engram.data import Data, load
from engram.errors import bad, unknown, whole
from engram.probes import Probe
from engram.probes.outside import Outside
from engram.recipes.plain import to_plain
from engram.streams.core import Stream

FIELDS = ("data", "data_options", "limit")


def outside_section(given: Any) -> Any:
    """A checked section: data, or a mapping with the name or path of some; None for none.

    `limit` is the largest number of its rows that are used, see `Outside`.

    Examples
    --------
    >>> outside_section("digits")
    {'data': 'digits'}
    """
    if given is None or isinstance(given, Data):
        return given
    if isinstance(given, (str, os.PathLike)):
        given = {"data": given}
    if not isinstance(given, Mapping):
        raise bad("outside", "data, or the name or path of a data set", given)
    for name in given:
        if name not in FIELDS:
            raise unknown("outside", name, FIELDS)
    source, options = given.get("data"), given.get("data_options") or {}
    if not isinstance(source, (str, os.PathLike)) or not str(source):
        raise bad("outside.data", "the name or path of a data set", source)
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise bad("outside.data_options", "a mapping of options of the data set", options)
    limit = whole("outside.limit", given.get("limit", 0))
    return {
        "data": str(source), **({"data_options": dict(options)} if options else {}),
        **({"limit": limit} if limit else {}),
    }  # fmt: skip


def plain_outside(section: Any) -> Any:
    """The section as a recipe names it; data in memory by its name alone."""
    if not isinstance(section, Data):
        return to_plain(section)
    if section.source is None:
        return {"data": section.name, "in_memory": True}
    options = section.source.options
    return {"data": section.source.name, **({"data_options": to_plain(options)} if options else {})}


class Shelf:
    """Outside sets, each loaded once."""

    def __init__(self, root: str | None = None) -> None:
        self.root = root
        self._known: dict[Any, Outside] = {}
        self._checked: dict[tuple[int, int], Any] = {}  # with what keeps the ids taken

    def find(self, section: Any, stream: Stream, probes: Iterable[Probe]) -> Outside | None:
        """The set, if it suits the stream; an error if there is none and a probe needs it."""
        if section is None:
            for probe in probes:
                if probe.outside:
                    expected = f"an outside data set on which to tune {probe.name!r}"
                    raise bad("outside", expected, None)
            return None
        key = id(section) if isinstance(section, Data) else repr(section)
        if key not in self._known:
            self._known[key] = Outside(self._load(section, stream), _limit(section))
        found = self._known[key]
        if (id(found), id(stream.data)) not in self._checked:
            found.check(stream)
            self._checked[id(found), id(stream.data)] = found, stream.data
        return found

    def _load(self, section: Any, stream: Stream) -> Data:
        if isinstance(section, Data):
            return section
        root = self.root
        if root is None and stream.data.source is not None:
            root = stream.data.source.root
        return load(section["data"], root=root, **section.get("data_options", {}))


def _limit(section: Any) -> int:
    return 0 if isinstance(section, Data) else int(section.get("limit", 0))
