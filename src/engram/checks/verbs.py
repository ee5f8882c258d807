"""Names and arguments: what a class calls a verb must be one, and something must be its own."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from engram.checks.explain import place_of
from engram.checks.report import require
from engram.methods.answers import VERBS, wrong_arguments
from engram.methods.base import Method

# names that the engine looks up, and what tells their values from those of any other field
VALUES: dict[str, Any] = {
    "reads": lambda value: value == "past",
    "head": lambda value: value == "cosine",
    "grows": lambda value: isinstance(value, bool),
}
NEAR = 0.75  # similarity of names, 1 for equal ones


def check_verbs_are_known(method: Method) -> None:
    """Verbs have the contract's names and arguments, and at least one is the method's own."""
    name = type(method).__name__
    for word, value in _own_names(method):
        meant = _meant(method, word, value)
        require(
            not meant,
            f"{place_of(type(method), word)}the engine never looks at {word!r}, did you mean "
            f"{meant!r}? If it is a helper of yours, name it '_{word}'",
        )
    for verb in VERBS:
        fault = wrong_arguments(type(method), verb)
        require(not fault, place_of(type(method), verb) + fault)
    library = type(method).__module__.startswith("engram.")
    own = any(method.implements(verb) for verb in VERBS) or method.head != Method.head
    require(
        own or library,
        f"{name} overrides no verb, so it is plain finetuning: write at least one of "
        f"{', '.join(VERBS)}",
    )


def _own_names(method: Method) -> Iterator[tuple[str, Any]]:
    """Public names that the author's classes add to the contract, with their values."""
    for kind in type(method).__mro__:
        if kind is object or kind.__module__.startswith("engram."):
            continue
        for word, value in vars(kind).items():
            if not word.startswith("_") and not hasattr(Method, word):
                yield word, value


def _meant(method: Method, word: str, value: Any) -> str:
    """The verb or declaration that a name stands too near to, unless the method has that too."""
    if isinstance(value, type):
        return ""
    if callable(value) or isinstance(value, staticmethod | classmethod):
        missing = [verb for verb in VERBS if not method.implements(verb)]
        inside = [verb for verb in missing if verb in word.lower().split("_")]
    else:
        missing = [name for name, fits in VALUES.items() if fits(value)]
        missing, inside = [n for n in missing if n not in vars(type(method))], []
    near = difflib.get_close_matches(word.lower(), missing, n=1, cutoff=NEAR)
    return next(iter(inside + near), "")
