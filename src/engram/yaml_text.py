"""YAML, read strictly: a key that is given twice, or anything unreadable, is one clear error."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from contextlib import suppress
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from engram.errors import bad

MOST_VALUES = 1_000_000  # references within references grow without bound
MOST_LEVELS = 2000  # of a nested text that libyaml gets to see

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def parse_yaml(argument: str, text: str) -> Any:
    r"""The plain value of a YAML text; `argument` names it in complaints.

    Examples
    --------
    >>> parse_yaml("--set", "{lr: 0.1, hidden: [32]}")
    {'lr': 0.1, 'hidden': [32]}
    >>> parse_yaml("recipe", "lr: 0.1\nepochs: 3\nlr: 0.2")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: recipe: expected every key once, got 'lr' twice, in lines 1 and 3
    """
    import yaml

    try:
        value = _loaded(text)
        values = _size(value, {})
    except _Twice as found:
        raise bad(argument, "every key once", _Words(found)) from None
    except yaml.YAMLError as problem:
        raise bad(argument, "YAML", _Words(_reason(text, problem))) from None
    except (
        ValueError,
        OverflowError,
        RecursionError,
    ) as problem:  # dates that are none
        why = "nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        raise bad(argument, "YAML", _Words(f"{_start(text)} ({why})")) from None
    if values > MOST_VALUES:
        expected = f"at most {MOST_VALUES} values, none of which contains itself"
        raise bad(argument, expected, _Words(_start(text)))
    return value


def parse_value(argument: str, text: str) -> Any:
    """As `parse_yaml`, for one value on a command line: 1e-3 is a number there.

    Examples
    --------
    >>> parse_value("--set lr", "1e-3"), parse_value("--set lr", "'1e-3'")
    (0.001, '1e-3')
    """
    value = parse_yaml(argument, text)
    # YAML wants a point in it; without one it reads a word.
    return float(text) if isinstance(value, str) and _EXPONENT.fullmatch(text.strip()) else value


def key_value(text: str, option: str = "--set") -> tuple[str, Any]:
    """Key and value of ``key=value`` on a command line; `option` names it in complaints.

    Examples
    --------
    >>> key_value("lr=1e-3"), key_value("model.hidden=[32]")
    (('lr', 0.001), ('model.hidden', [32]))
    >>> key_value("lr")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: --set: expected key=value, got 'lr'
    """
    key, value = _parted(text, option, "key=value")
    return key, parse_value(f"{option} {key}", value)


def key_values(text: str, option: str = "--grid") -> tuple[str, list[Any]]:
    """Key and values of ``key=value,value,...``.

    Examples
    --------
    >>> key_values("lr=0.1,0.01")
    ('lr', [0.1, 0.01])
    """
    key, values = _parted(text, option, "key=value,value,...")
    found: list[Any] = parse_yaml(f"{option} {key}", f"[{values}]")
    if not found:
        raise bad(option, "key=value,value,...", text)
    return key, found


def _parted(text: str, option: str, form: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise bad(option, form, text)
    return key, value


def read_yaml_file(argument: str, path: str | Path) -> Any:
    """The plain value in a YAML file, which must exist and be UTF-8 text."""
    path = Path(path)
    if not path.is_file():
        raise bad(argument, "an existing YAML file", str(path))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise bad(f"{argument} {path}", "UTF-8 text", _Words(problem)) from None
    return parse_yaml(f"{argument} {path}", text)


class _Words(str):
    """Text that an error shows without quotes."""

    __slots__ = ()

    def __new__(cls, text: object) -> _Words:
        return super().__new__(cls, " ".join(str(text).split()))

    def __repr__(self) -> str:
        return str(self)


class _Twice(ValueError):
    """A mapping has a key twice."""


def _start(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")


def _reason(text: str, problem: Any) -> str:
    """Where YAML stopped making sense, in one line."""
    mark, why = getattr(problem, "problem_mark", None), getattr(problem, "problem", None)
    if mark is None or why is None:
        return f"{_start(text)} ({problem})"
    place = f"line {mark.line + 1}, " if "\n" in text.strip() else ""
    return f"{_start(text)} ({place}column {mark.column + 1}: {why})"


def dump_yaml(value: Any) -> str:
    """A plain value as YAML text, keys in the order given.

    Examples
    --------
    >>> print(dump_yaml({"lr": 0.1, "hidden": [32, 16]}), end="")
    lr: 0.1
    hidden:
    - 32
    - 16
    """
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text


def _loaded(text: str) -> Any:
    """The value of a text, by libyaml where both are sure to agree: it is ten times as fast.

    To the loader written in Python are left: tabs, tags and blocks of text, where libyaml takes
    what YAML refuses; deep nesting, to which libyaml knows no end; and the words for what is wrong.
    """
    import yaml

    levels = sum(text.count(sign) for sign in "[{-?:")  # no text is nested more deeply
    if yaml.__with_libyaml__ and levels < MOST_LEVELS and not set("\t!|>") & set(text):
        with suppress(yaml.YAMLError):
            return yaml.load(text, Loader=_loader("CSafeLoader"))
    return yaml.load(text, Loader=_loader("SafeLoader"))


@cache
def _loader(base: str) -> Any:
    import yaml

    class Strict(getattr(yaml, base)):  # type: ignore[misc]
        """The safe loader, which takes the last of equal keys; this one takes none."""

        def flatten_mapping(self, node: Any) -> None:
            # Before `<<` is resolved: what a mapping adds to the merged one may well override.
            lines: dict[Hashable, int] = {}
            for key_node, _ in node.value:
                if key_node.tag == "tag:yaml.org,2002:merge":
                    continue
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, Hashable):
                    continue  # the loader's own error is about to follow
                here = key_node.start_mark.line + 1
                if key in lines:
                    first = lines[key]
                    lines_of = f"lines {first} and {here}" if first != here else f"line {here}"
                    raise _Twice(f"{key!r} twice, in {lines_of}")
                lines[key] = here
            super().flatten_mapping(node)

    return Strict


def _size(value: Any, known: dict[int, float]) -> float:
    """Values inside a value, as often as they are referred to; infinite where it holds itself."""
    if not isinstance(value, (Mapping, list)):
        return 1.0
    if id(value) not in known:
        known[id(value)] = inf  # until it is counted: who comes back here goes in a circle
        inner = value.values() if isinstance(value, Mapping) else value
        known[id(value)] = 1.0 + sum(_size(one, known) for one in inner)
    return known[id(value)]
