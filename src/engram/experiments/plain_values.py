"""Conversion of dataclasses to plain values and back, with errors that name the field; durations
such as 90s or 1h30m.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from engram.errors import bad, unknown
from engram.memory import Memory
from engram.renamed import rename_fields


def to_plain(value: Any) -> Any:
    """Convert dataclasses, tuples and arrays to nested plain values for YAML and hashing.

    Examples
    --------
    >>> from engram.memory import Memory
    >>> to_plain(Memory(total=500))["total"]
    500
    """
    if isinstance(value, Memory):
        plain = {f.name: to_plain(getattr(value, f.name)) for f in fields(value) if f.init}
        return {**plain, "policy": plain_policy(value.policy)}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value) if f.init}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return code_name(value)


def plain_policy(policy: Any) -> Any:
    """Convert a memory policy to its name; a user's to ``module:name``, with options if any.

    Examples
    --------
    >>> plain_policy("herding")
    'herding'
    """
    if isinstance(policy, str):
        return policy
    options = to_plain(policy) if is_dataclass(policy) else {}
    return {"name": code_name(policy), **options} if options else code_name(policy)


def code_name(value: Any) -> str:
    """Return ``module:name`` of a function or class, or of an object's class.

    It is loaded by that name from the working directory: what lies in a script, or in a file
    elsewhere, is named by its file.

    Examples
    --------
    >>> import math
    >>> code_name(math.sqrt), code_name(object())
    ('math:sqrt', 'builtins:object')
    """
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{_name_module(named.__module__)}:{named.__qualname__}"


def _name_module(name: str) -> str:
    """Return a module's name, or its file if a process begun here could not import it by name."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or "." in name or Path(file).suffix != ".py":
        return name
    path, here = Path(file).resolve(), Path.cwd()
    if path.name == "__init__.py" or (path.stem == name and _is_searched(path.parent, here)):
        return name
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _is_searched(folder: Path, here: Path) -> bool:
    """Whether modules of a folder are found by name: not those that only lie beside a script."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    beside = None if script is None else Path(script).resolve().parent
    if folder == here:
        return True
    return folder != beside and any(Path(one).resolve() == folder for one in sys.path)


def from_plain(cls: type[Any], values: Mapping[str, Any], *, path: str) -> Any:
    """Build a dataclass from plain values; errors name the wrong field.

    Examples
    --------
    >>> from engram.engine.training import Training
    >>> from_plain(Training, {"epoch": 3}, path="training")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: training: unknown name 'epoch', did you mean 'epochs'? Valid: ...
    """
    if not isinstance(values, Mapping):
        raise bad(path, f"a mapping of the fields of {cls.__name__}", values)
    values = rename_fields(cls, values)
    known = {f.name: f for f in fields(cls) if f.init}
    for name in values:
        if name not in known:
            raise unknown(path, name, known)
    hints = type_hints(cls)
    for name, value in values.items():
        if hints[name] is str and not isinstance(value, str):
            _refuse_object(cls, name, value)
    given = {n: convert(hints[n], v, path=f"{path}.{n}") for n, v in values.items()}
    for name, field in known.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and name not in given:
            raise bad(f"{path}.{name}", "a value (it has no default)", "nothing")
    return cls(**given)


def _refuse_object(cls: type[Any], name: str, value: Any) -> None:
    """Raise for a PyTorch class or object in place of a name, and suggest the name.

    Examples
    --------
    >>> import torch
    >>> from engram.engine.training import Training
    >>> _refuse_object(Training, "optimizer", torch.optim.AdamW)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: optimizer: unknown name 'AdamW', did you mean 'adamw'? Valid: ...
    """
    home = value if hasattr(value, "__qualname__") else type(value)
    if home.__module__.partition(".")[0] == "torch":
        word = str(value) if home is type(value) and home.__name__ == "dtype" else home.__name__
        with suppress(TypeError):  # of a class with other required fields
            cls(**{name: word})  # raises with the valid names


def type_hints(what: Any) -> Mapping[str, Any]:
    """Return the evaluated annotations of a class or function.

    Examples
    --------
    >>> from engram.memory import Memory
    >>> type_hints(Memory)["total"]
    int | None
    """
    return _cached_type_hints(what)


@lru_cache(maxsize=1024)  # called for every recipe
def _cached_type_hints(what: Any) -> Mapping[str, Any]:
    return MappingProxyType(get_type_hints(what))


@lru_cache(maxsize=1024)
def _adapter(hint: Any, _written: str) -> Any:
    """Return the validator of a type, by its text: int | str and str | int are equal."""
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))


def _adapter_of(hint: Any) -> Any:
    try:
        return _adapter(hint, repr(hint))
    except TypeError:  # parts of an annotation need not be hashable
        return _adapter.__wrapped__(hint, "")


def convert(hint: Any, value: Any, *, path: str) -> Any:
    """Convert a plain value to the annotated type, with lenient rules for numbers and lists."""
    from pydantic import ValidationError

    nested = _dataclass_in(hint)
    if nested is not None and isinstance(value, Mapping):
        return from_plain(nested, value, path=path)
    if nested is not None:
        if isinstance(value, nested) or (value is None and type(None) in get_args(hint)):
            return value
        whole = nested is Memory and isinstance(value, int)
        such = f", such as {{total: {value}}} (--set memory.total={value})" if whole else ""
        raise bad(path, f"a mapping of the fields of {nested.__name__}{such}", value)
    if isinstance(value, bool) and not _takes_bool(hint):
        raise bad(path, "a value that is not true or false", value)
    if isinstance(value, bool) and str in (kinds := (hint, *get_args(hint))) and bool not in kinds:
        value = str(value).lower()  # a word: EWC has labels=true, which YAML reads as a boolean
    try:
        return _adapter_of(hint).validate_python(value)
    except ValidationError as error:
        raise bad(path, _describe_expected(error.errors()[0], value), value) from None


def _describe_expected(problem: Mapping[str, Any], value: Any) -> str:
    """Describe the value that a type expects."""
    kind = str(problem["type"])
    if kind in ("tuple_type", "list_type", "sequence_str") and len(problem["loc"]) <= 1:
        return f"a list, such as {[value]!r}"
    for start, words in (("int_", "a whole number"), ("float_", "a number"), ("string_", "a name")):
        if kind.startswith(start):
            return words
    return str(problem["msg"]).lower().removeprefix("input should be ")


def _takes_bool(hint: Any) -> bool:
    """Return whether a type takes booleans as such, and not as 1 and 0."""
    return bool in (hint, *get_args(hint)) or not {int, float} & {hint, *get_args(hint)}


def _dataclass_in(hint: Any) -> type[Any] | None:
    """Return the dataclass among the alternatives of an annotation, if there is one."""
    for part in (hint, *getattr(hint, "__args__", ())):
        if isinstance(part, type) and is_dataclass(part):
            return part
    return None


# Durations.


UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = r"(\d+(?:\.\d+)?)\s*([smhd])"


def parse_duration(duration: str | float, argument: str = "budget") -> float:
    """Parse a duration such as 90s, 10m or 1h30m to seconds; a bare number is in seconds.

    Examples
    --------
    >>> parse_duration("10m"), parse_duration("1h30m"), parse_duration("45")
    (600.0, 5400.0, 45.0)
    >>> parse_duration("ten minutes")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: budget: expected a duration such as 90s, 10m or 1h30m, ...
    """
    expected = "a duration such as 90s, 10m or 1h30m, or a number of seconds"
    if isinstance(duration, bool) or not isinstance(duration, (str, int, float)):
        raise bad(argument, expected, duration)
    line = str(duration).strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", line):
        return float(line)
    if not re.fullmatch(rf"({_PART}\s*)+", line):
        raise bad(argument, expected, duration)
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(_PART, line))


def format_duration(amount: float) -> str:
    """Format a number of seconds as a duration.

    Examples
    --------
    >>> format_duration(7.26), format_duration(131), format_duration(7300), format_duration(200_000)
    ('7.3 s', '2 min 11 s', '2 h 1 min', '55 h 33 min')
    """
    if amount < 60:
        return f"{amount:.1f} s"
    if amount < 3600:
        return f"{int(amount) // 60} min {int(amount) % 60} s"
    return f"{int(amount) // 3600} h {int(amount) % 3600 // 60} min"
