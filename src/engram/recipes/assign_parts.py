"""``NAME.option=value``: an option of the methods or detectors that a recipe has by that name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from engram.errors import BadArgument, unknown

Content = dict[str, Any]


def option_of(key: str, name: str) -> str:
    """What follows a name and a point in a key; nothing where the key begins otherwise.

    Names of own classes hold points themselves.

    Examples
    --------
    >>> option_of("EWC.strength", "EWC"), option_of("own/quiet.py:Quiet.size", "own/quiet.py:Quiet")
    ('strength', 'size')
    >>> option_of("EWC", "EWC"), option_of("SI.strength", "EWC")
    ('', '')
    """
    return key.removeprefix(f"{name}.") if key.startswith(f"{name}.") else ""


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

    An own class by its last name alone is told how it is written.

    Examples
    --------
    >>> print(nobody("Quiet.size", [{"method": {"name": "own/quiet.py:Quiet"}}], ["stream"]))
    --set: expected size alone or own/quiet.py:Quiet.size for an own class, got 'Quiet.size'
    """
    first, _, rest = key.partition(".")
    named = [str(one["method"].get("name")) for one in recipes]
    named += [name for one in recipes for name in names_of(one.get("detectors"))]
    for name in named:
        if name.rpartition(":")[2] == first and name != first:
            alone = f"{rest} alone or " if name == recipes[0]["method"].get("name") else ""
            expected = f"{alone}{name}.{rest} for an own class"
            return BadArgument(f"--set: expected {expected}, got {key!r}").of_kind("unknown")
    return unknown("--set", first, [*known, *(name for name in named if ":" not in name)])
