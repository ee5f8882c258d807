"""Old names of fields, values, arguments and options, which work for one version with a warning.

Whoever renames something adds a line to one of the tables; in the version after, the line goes.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ParamSpec, TypeVar

from engram.errors import bad

P = ParamSpec("P")
T = TypeVar("T")

# Of the library's dataclasses, which say so with `accept_old_names`: old name to new name ...
FIELDS: dict[str, dict[str, str]] = {
    "Training": {
        "first_factor": "first_task_scale",
        "last": "incomplete_batch",
        "min_lr": "stop_lr",
    },
    "Phase": {"fresh": "reinitialise", "moves": "trainable"},
    "Work": {"again": "rerun"},
    "RequestLimits": {"most_bytes": "max_request_bytes"},
    "IIRCProtocol": {"first_factor": "first_task_scale"},
}
# ... and of a field, old value to new value
VALUES: dict[str, dict[str, dict[str, str]]] = {
    "Training": {"scope": {"then": "at_time"}},
    "ReplaySpec": {"kind": {"apart": "separate"}},
    "RWalkPreset": {
        name: {"then": "at_time"} for name in ("scope_multi", "scope_single", "scope_samples")
    },
    "CGLPreset": {"scope": {"then": "at_time"}, "gem_scope": {"then": "at_time"}},
}
# Of the command line, by command.
OPTIONS: dict[str, dict[str, str]] = {
    "run": {"--again": "--rerun", "--outside": "--ood"},
    "sweep": {"--again": "--rerun"},
    "search": {"--on": "--select-on"},
    "reproduce": {"--again": "--rerun"},
    "novelty": {"--outside": "--ood"},
    "open-world": {"--budget": "--labels", "--outside": "--ood"},
    "serve": {"--most-bytes": "--max-request-bytes"},
}


class RenamedWarning(DeprecationWarning):
    """Something was called by its old name."""


def warn_renamed(old: str, new: str, owner: str) -> None:
    """Warn of an old name at the line of the caller that is not part of the library.

    Examples
    --------
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_renamed("min_lr", "stop_lr", "Training")
    >>> print(caught[0].message)
    Training: min_lr is now called stop_lr; the old name will be removed in the next version
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back and _is_passed_through(str(frame.f_globals.get("__name__"))):
        frame, level = frame.f_back, level + 1
    warnings.warn(describe_rename(old, new, owner), RenamedWarning, stacklevel=level)


def _is_passed_through(module: str) -> bool:
    """Whether a call from this module was made on behalf of another one."""
    return module.partition(".")[0] in ("engram", "dataclasses")


def describe_rename(old: str, new: str, owner: str) -> str:
    """What a user of an old name is told."""
    return f"{owner}: {old} is now called {new}; the old name will be removed in the next version"


def new_name(owner: type, name: str) -> str:
    """The present name of a field, with a warning if `name` is the old one."""
    new = FIELDS.get(_key(owner), {}).get(name)
    if new is None:
        return name
    warn_renamed(name, new, owner.__name__)
    return new


def new_value(owner: type, name: str, value: Any) -> Any:
    """The present form of a field's value, with a warning if `value` is the old one."""
    known = VALUES.get(_key(owner), {}).get(name, {})
    if not isinstance(value, str) or value not in known:
        return value
    warn_renamed(f"{name}={value!r}", f"{name}={known[value]!r}", owner.__name__)
    return known[value]


def rename_fields(owner: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass with old names and values replaced.

    Examples
    --------
    >>> from engram import Training
    >>> rename_fields(Training, {"lr": 0.1, "scope": "seen"})
    {'lr': 0.1, 'scope': 'seen'}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        new = new_name(owner, name)
        if new in found or (new != name and new in values):
            raise bad(new, "it once, not by its old and its new name", dict(values))
        found[new] = new_value(owner, new, value)
    return found


def _key(owner: type) -> str:
    """What the tables call a class of the library; a user's own class is none of them."""
    return owner.__name__ if owner.__module__.partition(".")[0] == "engram" else ""


def accept_old_names(cls: type[T]) -> type[T]:
    """Decorate a dataclass so that its constructor and its attributes understand the old names."""
    create: Callable[..., None] = cls.__init__
    names = [one.name for one in fields(cls) if one.init]  # type: ignore[arg-type]
    watched = {*FIELDS.get(_key(cls), {}), *VALUES.get(_key(cls), {})}

    @functools.wraps(create)
    def initialise(self: T, *given: Any, **options: Any) -> None:
        if watched.isdisjoint(options) and watched.isdisjoint(names[: len(given)]):
            create(self, *given, **options)
            return
        values = [new_value(cls, *one) for one in zip(names, given, strict=False)]
        for name in [one for one in options if one in FIELDS.get(_key(cls), {})]:
            options[new_name(cls, name)] = options.pop(name)  # `replace` gives the new one, too
        options = {name: new_value(cls, name, value) for name, value in options.items()}
        create(self, *values, *given[len(names) :], **options)

    cls.__init__ = initialise  # type: ignore[assignment]
    for old, new in FIELDS.get(_key(cls), {}).items():
        setattr(cls, old, _old_attribute(old, new))
    return cls


def _old_attribute(old: str, new: str) -> property:
    def read(self: Any) -> Any:
        warn_renamed(old, new, type(self).__name__)
        return getattr(self, new)

    return property(read, doc=f"The old name of `{new}`.")


def accept_old_arguments(**renamed: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function so that it takes arguments by their old names.

    Examples
    --------
    >>> @accept_old_arguments(again="rerun")
    ... def train(*, rerun=False):
    ...     return rerun
    >>> train(rerun=True)
    True
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*given: P.args, **options: P.kwargs) -> T:
            for old in renamed.keys() & options.keys():
                warn_renamed(old, renamed[old], function.__name__)
                options.setdefault(renamed[old], options.pop(old))
            return function(*given, **options)

        return call

    return decorate


def replace_old_options(command: str, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words of a command line with today's options, and those that were replaced.

    Examples
    --------
    >>> replace_old_options("search", ["r.yaml", "--on=test"])
    (['r.yaml', '--select-on=test'], {'--on': '--select-on'})
    """
    known = OPTIONS.get(command, {})
    found, replaced = [], {}
    options = True
    for word in words:
        name, equals, value = word.partition("=")
        options = options and word != "--"
        if options and name in known:
            replaced[name] = known[name]
            word = known[name] + equals + value
        found.append(word)
    return found, replaced
