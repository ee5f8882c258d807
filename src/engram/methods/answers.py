"""What verbs take and return, looked at where the engine calls them: one clear line, not a bug."""

from __future__ import annotations

import inspect
from typing import Any
from weakref import WeakSet

from torch import Tensor

from engram.errors import BadArgument, bad
from engram.methods.base import Method, State, Terms

VERBS = tuple(
    name
    for name, value in vars(Method).items()
    if inspect.isfunction(value) and name[0] != "_" and name not in ("implements", "describe")
)


_SOUND = WeakSet[type]()  # classes whose verbs were looked at: a study has thousands of runs


def wrong_arguments(kind: type[Method], verb: str) -> str:
    """What is wrong with the arguments of a class's verb, or nothing.

    Examples
    --------
    >>> class Short(Method):
    ...     def loss(self, net, batch): ...
    >>> wrong_arguments(Short, "loss")
    'loss is called with (net, batch, state), it takes (net, batch)'
    """
    wanted = list(inspect.signature(getattr(Method, verb)).parameters)[1:]
    call = f"({', '.join(wanted)})"
    written = inspect.getattr_static(kind, verb)
    bound = getattr(kind, verb)
    if not callable(bound):
        return f"{verb} must be a function of {call}"
    given = inspect.signature(bound)
    if not isinstance(written, staticmethod | classmethod):
        given = given.replace(parameters=list(given.parameters.values())[1:])
    try:
        given.bind(*wanted)
    except TypeError:
        return f"{verb} is called with {call}, it takes {given}"
    return ""


def check_arguments(method: Method) -> None:
    """Refuse a method one of whose verbs cannot be called as the engine calls it."""
    kind = type(method)
    if kind in _SOUND:
        return
    for verb in VERBS:
        if fault := wrong_arguments(kind, verb):
            raise BadArgument(f"method: {kind.__name__}.{fault}")
    _SOUND.add(kind)


def named_terms(method: Method, terms: Any) -> Terms:
    """What `loss` returned, if it is named terms."""
    if isinstance(terms, dict) and terms and all(isinstance(t, Tensor) for t in terms.values()):
        return terms
    raise bad(f"{type(method).__name__}.loss", "{name: term}, terms being tensors", terms)


def next_state(method: Method, verb: str, state: Any) -> State:
    """What `step` or `interval` returned, if it can be a state."""
    if isinstance(state, dict):
        return state
    raise bad(f"{type(method).__name__}.{verb}", "a state to be returned, a dict", state)
