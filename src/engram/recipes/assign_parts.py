"""``NAME.option=value``: an option of the methods or detectors that a recipe has by that name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from engram.errors import BadArgument, unknown

Content = dict[str, Any]


def option_of(key: str, name: str) -> str:
    """What follows a name and a point in a key; nothing where the key begins otherwise.

    Own classes may be called by their last name alone; their whole names hold points themselves.

    Examples
    --------
    >>> option_of("EWC.strength", "EWC"), option_of("EWC", "EWC"), option_of("SI.strength", "EWC")
    ('strength', '', '')
    >>> own = "own/quiet.py:Quiet"
    >>> option_of("own/quiet.py:Quiet.size", own), option_of("Quiet.size", own)
    ('size', 'size')
    """
    for one in (name, name.rpartition(":")[2]):
        if key.startswith(f"{one}."):
            return key.removeprefix(f"{one}.")
    return ""


def put_detector(content: Content, key: str, value: Any) -> bool:
    """Set an option of the detectors that a key names, tuned or not; whether there are any.

    Examples
    --------
    >>> content = {"detectors": ["Softmax", {"name": "Tuned", "detector": "ODIN"}]}
    >>> put_detector(content, "ODIN.temperature", 10), put_detector(content, "KNN.k", 5)
    (True, False)
    >>> content["detectors"][1]
    {'name': 'Tuned', 'detector': {'name': 'ODIN', 'temperature': 10}}
    """
    specs = _listed(content.get("detectors"))
    if not any(option_of(key, one) for one in names_of(specs)):
        return False
    content["detectors"] = [_with(one, key, value) for one in specs]
    return True


def _with(spec: Any, key: str, value: Any) -> Any:
    opened = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(opened, Mapping):
        return spec
    if opened.get("detector") is not None:
        opened = {**opened, "detector": _with(opened["detector"], key, value)}
    option = option_of(key, str(opened.get("name")))
    if option:
        return {**opened, option: value}
    return spec if opened == {"name": spec} else opened


def _listed(specs: Any) -> list[Any]:
    """Detectors as a list; what is none is refused elsewhere."""
    if isinstance(specs, (str, Mapping)):
        return [specs]
    return list(specs) if isinstance(specs, (list, tuple)) else []


def names_of(specs: Any) -> Iterator[str]:
    """The names of detectors, and of those that others hold."""
    for spec in _listed(specs):
        if isinstance(spec, Mapping):
            yield str(spec.get("name"))
            yield from names_of([spec["detector"]] if spec.get("detector") else ())
        elif isinstance(spec, str):
            yield spec


def nobody(key: str, recipes: Sequence[Content], known: Iterable[str]) -> BadArgument:
    """The error for a key whose first word is no name that is known.

    Examples
    --------
    >>> print(nobody("Quite.size", [{"method": {"name": "own/quiet.py:Quiet"}}], ["stream"]))
    --set: unknown name 'Quite', did you mean 'Quiet'? Valid: Quiet, stream
    """
    named = [str(one["method"].get("name")) for one in recipes]
    named += [name for one in recipes for name in names_of(one.get("detectors"))]
    short = [name.rpartition(":")[2] for name in named]
    return unknown("--set", key.partition(".")[0], [*known, *short])
