"""`PerRun`, the type of options that may differ between runs that train together."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Annotated, Any, get_args, get_origin
from weakref import WeakKeyDictionary

_MARK = "may differ between runs that train together"
PerRun = Annotated[float, _MARK]
"""A number that may differ between runs that train together, where it is then a tensor.

Use it in arithmetic, never in an ``if``. Runs that differ in any other option train one after the
other.
"""
_NAMED = re.compile(r"\bPerRun\b")
_known: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()


def per_run_fields(kind: type) -> frozenset[str]:
    """Return the names that a class or its bases annotate with `PerRun`, resolved once per class.

    ``PerRun | None`` and ``tuple[PerRun, ...]`` count as well.

    Examples
    --------
    >>> class Pull:
    ...     strength: PerRun = 1.0
    ...     floor: "PerRun | None" = None
    ...     decay: float = 0.9
    >>> sorted(per_run_fields(Pull))
    ['floor', 'strength']
    """
    if kind not in _known:
        found: set[str] = set()
        for owner in reversed(kind.__mro__):  # a class may annotate a field of its base otherwise
            for name, annotation in inspect.get_annotations(owner).items():
                (found.add if _is_per_run(annotation, owner) else found.discard)(name)
        _known[kind] = frozenset(found)
    return _known[kind]


def _is_per_run(annotation: Any, owner: type) -> bool:
    if isinstance(annotation, str):  # from __future__ import annotations
        module = sys.modules.get(owner.__module__)
        try:
            found = eval(annotation, vars(module) if module else {}, dict(vars(owner)))
            return _is_per_run(found, owner)
        except Exception:  # a name of a function's scope, or one that only type checkers import
            return bool(_NAMED.search(annotation))
    if get_origin(annotation) is Annotated and _MARK in annotation.__metadata__:
        return True
    return any(_is_per_run(part, owner) for part in get_args(annotation))
