"""Assignments ``key=value``, as of ``--set``, that change values of plain recipes or options of
the methods and detectors in them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from engram import methods
from engram.data.catalogue import data_options
from engram.engine.training import Training
from engram.errors import BadArgument, bad, edit_distance, suggest_name, unknown
from engram.experiments.build_methods import build_method, resolve_method_class
from engram.experiments.plain_values import to_plain
from engram.experiments.recipe_sections import (
    COMMON_STREAM_FIELDS,
    DEFAULT_MODEL,
    stream_kind,
    stream_options,
)
from engram.io import parse_key_value
from engram.memory.budget import BUDGETS
from engram.models.build import model_options
from engram.renamed import FIELDS, new_name

SECTIONS = (
    "stream",
    "model",
    "method",
    "training",
    "seeds",
    "keep",
    "evaluate_unseen",
    "average",
    "label",
    "probes",
    "detectors",
    "outside",
    "orders",
    "tuning",
)
NESTED = (*SECTIONS[:4], "outside", "orders")  # sections with fields
MAPPINGS = ("balance", "data_options", "search")  # fields of a stream with fields
Content = dict[str, Any]


def set_value(content: Content, assignment: str) -> None:
    """Apply ``key=value`` to a plain recipe; a bare field name works if it is unique.

    Examples
    --------
    >>> content = {"stream": {"data": "digits"}, "method": {"name": "EWC"}}
    >>> set_value(content, "epochs=3")
    >>> set_value(content, "method.strength=10")
    >>> set_value(content, "hidden=[32]")
    >>> content["training"], content["method"], content["model"]
    ({'epochs': 3}, {'name': 'EWC', 'strength': 10}, {'name': 'mlp', 'hidden': [32]})
    """
    set_key(content, *parse_key_value(assignment))


def set_values(recipes: Sequence[Content], assignment: str) -> None:
    """Apply ``key=value`` to every plain recipe that has such a field; at least one must.

    A key that begins with the name of a method or detector applies to that one only.

    Examples
    --------
    >>> recipes = [{"stream": {"data": "digits"}, "method": one} for one in ("Finetune", "ER")]
    >>> set_values(recipes, "ER.memory.total=200")
    >>> recipes[0]["method"], recipes[1]["method"]["memory"]["total"]
    ({'name': 'Finetune'}, 200)
    """
    set_key_in_all(recipes, *parse_key_value(assignment))


def set_key_in_all(recipes: Sequence[Content], key: str, value: Any) -> None:
    """Apply a key and a value as `set_values` does."""
    for content in recipes:
        content["method"] = expand_method(
            content["method"]
        )  # an earlier assignment may have changed it
    meant = [
        (one, option) for content in recipes for one in _methods(content)
        if (option := option_after_name(key, one["name"]))
    ]  # fmt: skip
    for method, option in meant:
        _set_field(method, option, value)
    if meant or sum(set_detector_option(content, key, value) for content in recipes):
        return
    failures = []
    for content in recipes:
        try:
            set_key(content, key, value)
        except BadArgument as error:
            if error.kind != "unknown" or not str(error).startswith("--set:"):
                raise
            failures.append(error)
    if len(failures) == len(recipes):
        raise min(failures, key=lambda error: _suggestion_distance(key, error))


@contextmanager
def name_option_in_errors(option: str) -> Iterator[None]:
    """Return a context in which errors about an assignment name the command-line option.

    Examples
    --------
    >>> with name_option_in_errors("--grid"):
    ...     set_key({"method": {"name": "ER"}}, "memry.total", 3)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: --grid: unknown name 'memry', did you mean 'memory'? ...
    """
    try:
        yield
    except BadArgument as error:
        if not str(error).startswith("--set:"):
            raise
        said = BadArgument(f"{option}:{str(error).removeprefix('--set:')}").with_kind(error.kind)
        said.near = error.near
        raise said from None


def set_key(content: Content, key: str, value: Any) -> None:
    """Set a value by its key; a field may have fields itself.

    Examples
    --------
    >>> content = {"stream": {"data": "faces", "balance": True}, "method": "ER"}
    >>> set_key(content, "balance.degrees", 10)
    >>> content["stream"]["balance"]
    {'degrees': 10}
    """
    first, _, rest = key.removeprefix("method.").partition(".")
    if not rest or (first in SECTIONS and not key.startswith("method.")):
        _set_section(content, key, value)
        return
    content["method"] = expand_method(content["method"])
    known = [f.name for f in fields(resolve_method_class(content["method"]))]
    if first not in known and first in MAPPINGS and not key.startswith("method."):
        _set_section(content, f"stream.{key}", value)
        return
    if first not in known:
        raise unknown_name_error(key, [content], [*known, *SECTIONS, *MAPPINGS])
    _set_field(content["method"], f"{first}.{rest}", value)


def _set_field(method: Content, key: str, value: Any) -> None:
    """Set a field of a method, or a field inside one, such as memory.total."""
    name, _, inner = key.partition(".")
    if not inner:
        method[name] = value
        return
    current = _field_value(method, name)
    if not is_dataclass(current):
        expected = f"a field of {method['name']} that has fields itself"
        raise bad("--set", expected, key).with_kind("unknown")  # another method may have it
    values = {k: v for k, v in to_plain(current).items() if v is not None}
    if inner in BUDGETS and BUDGETS[0] in {f.name for f in fields(current)}:
        values = {k: v for k, v in values.items() if k not in BUDGETS}  # one budget at a time
    _set_section({"method": values}, f"method.{inner}", value)
    method[name] = values


def _field_value(method: Content, name: str) -> Any:
    """Return the value of a field, ignoring the others, which later assignments may complete."""
    needed = {f.name for f in fields(resolve_method_class(method))
              if f.init and f.default is MISSING and f.default_factory is MISSING}  # fmt: skip
    some = {k: v for k, v in method.items() if k in {"name", "parts", name, *needed}}
    return getattr(build_method(some), name, None)


def _set_section(content: Content, key: str, value: Any) -> None:
    path = key.split(".")
    if len(path) == 1 and key not in SECTIONS:
        path = [*_find_owner(content, key), key]
    if path[0] not in SECTIONS:
        raise unknown("--set", path[0], SECTIONS)
    if path[0] == "training":
        path[1:] = [new_name(Training, name) for name in path[1:]]
    if not all(path) or (len(path) > 1 and path[0] not in NESTED):
        raise bad("--set", f"a field of {', '.join(NESTED)}", key)
    target = content
    for depth, name in enumerate(path[:-1]):
        inner = target.get(name)
        if not isinstance(inner, dict):
            inner = _expand_section(name, inner) if depth == 0 else _empty_section(key, name, inner)
        target[name] = inner
        target = inner
    target[path[-1]] = value


def _suggestion_distance(key: str, error: BadArgument) -> float:
    """Return the distance of an error's suggested name from the given one."""
    return edit_distance(key, error.near) if error.near else math.inf


def _methods(content: Content) -> Iterator[Content]:
    """Iterate over the recipe's method and, if it joins several, their parts."""
    method = content["method"]
    yield method
    yield from (part for part in method.get("parts", ()) if isinstance(part, dict))


def expand_method(method: Any) -> Content:
    """Expand a method section, and its parts, to mappings with a name."""
    found = {"name": method} if isinstance(method, str) else method
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise bad("method", "a name, or a mapping with a name", method)
    parts = found.get("parts", [])
    if not isinstance(parts, list):
        raise bad("method.parts", "a list of methods", parts)
    return {**found, "parts": [expand_method(one) for one in parts]} if "parts" in found else found


def _expand_section(section: str, value: Any) -> dict[str, Any]:
    """Expand a section given by a name to a mapping."""
    if value is None:
        return {"name": DEFAULT_MODEL} if section == "model" else {}
    if section in ("training", "orders") or not isinstance(value, (str, os.PathLike)):
        raise bad(section, "a mapping of fields", value)
    return {"data" if section in ("stream", "outside") else "name": value}


def _empty_section(key: str, name: str, value: Any) -> dict[str, Any]:
    switched = name in MAPPINGS and isinstance(value, bool)  # on or off, with its defaults
    if value is not None and not switched:
        raise bad("--set", f"a field of something that has fields, {name} is {value!r}", key)
    return {}


def _find_owner(content: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Find the section, or the options of the data, to which a bare field name belongs."""
    method = resolve_method_class(content.get("method", "Finetune"))
    kind = stream_kind(content.get("stream", {}))
    model = content.get("model", DEFAULT_MODEL)
    model = model.get("name") if isinstance(model, Mapping) else model
    owners = {
        "model": set(model_options(model) if isinstance(model, str) else ()),
        "training": {f.name for f in fields(Training)},
        "method": {f.name for f in fields(method) if f.init},
        "stream": {*stream_options(kind), *COMMON_STREAM_FIELDS},
    }
    found = [section for section, names in owners.items() if key in names]
    if not found and key in FIELDS["Training"]:
        found = ["training"]
    if len(found) == 1:
        return (found[0],)
    stream = content.get("stream", {})
    source = stream.get("data", "") if isinstance(stream, Mapping) else stream
    if not found and key in data_options(str(source)):
        return "stream", "data_options"
    if not found:
        raise _no_owner_error(key, {*SECTIONS}.union(*owners.values()), method.__name__)
    choices = " or ".join(f"{section}.{key}" for section in found)
    raise bad("--set", f"one of {choices}, because the bare name is in both", key)


def _no_owner_error(key: str, known: set[str], method: str) -> BadArgument:
    """Make the error for an unknown bare name, with suggestions from other methods' fields."""
    elsewhere: dict[str, list[str]] = {}
    for name in methods.__all__:
        for field in fields(getattr(methods, name)):
            elsewhere.setdefault(field.name, []).append(name)
    plain = unknown("--set", key, known)
    guess = suggest_name(key, [*known, *elsewhere])
    if guess is None or guess in known:
        return plain
    owners = f"a field of {', '.join(elsewhere[guess])}"
    text = f"unknown name {key!r}, did you mean {guess!r}, {owners}?"
    text = text if guess != key else f"{key} is {owners}, not of {method}"
    error = BadArgument(f"--set: {text}").with_kind("unknown")
    error.near = guess
    return error


# ``NAME.option=value``: an option of the methods or detectors of that name in a recipe.


OptionContent = dict[str, Any]


def option_after_name(key: str, name: str) -> str:
    """Return what follows ``NAME.`` in a key; "" if the key begins otherwise.

    User classes may be given by their class name alone, since full names contain dots.

    Examples
    --------
    >>> (
    ...     option_after_name("EWC.strength", "EWC"),
    ...     option_after_name("EWC", "EWC"),
    ...     option_after_name("SI.strength", "EWC"),
    ... )
    ('strength', '', '')
    >>> own = "own/quiet.py:Quiet"
    >>> option_after_name("own/quiet.py:Quiet.size", own), option_after_name("Quiet.size", own)
    ('size', 'size')
    """
    for one in (name, name.rpartition(":")[2]):
        if key.startswith(f"{one}."):
            return key.removeprefix(f"{one}.")
    return ""


def set_detector_option(content: OptionContent, key: str, value: Any) -> bool:
    """Set an option of the detectors that a key names, tuned or not; returns whether any match.

    Examples
    --------
    >>> content = {"detectors": ["Softmax", {"name": "Tuned", "detector": "ODIN"}]}
    >>> (
    ...     set_detector_option(content, "ODIN.temperature", 10),
    ...     set_detector_option(content, "KNN.k", 5),
    ... )
    (True, False)
    >>> content["detectors"][1]
    {'name': 'Tuned', 'detector': {'name': 'ODIN', 'temperature': 10}}
    """
    specs = _list_detectors(content.get("detectors"))
    if not any(option_after_name(key, one) for one in detector_names(specs)):
        return False
    content["detectors"] = [_set_option(one, key, value) for one in specs]
    return True


def _set_option(spec: Any, key: str, value: Any) -> Any:
    opened = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(opened, Mapping):
        return spec
    if opened.get("detector") is not None:
        opened = {**opened, "detector": _set_option(opened["detector"], key, value)}
    option = option_after_name(key, str(opened.get("name")))
    if option:
        return {**opened, option: value}
    return spec if opened == {"name": spec} else opened


def _list_detectors(specs: Any) -> list[Any]:
    """Return detectors as a list, unchecked."""
    if isinstance(specs, (str, Mapping)):
        return [specs]
    return list(specs) if isinstance(specs, (list, tuple)) else []


def detector_names(specs: Any) -> Iterator[str]:
    """Iterate over the names of detectors, and of detectors inside them."""
    for spec in _list_detectors(specs):
        if isinstance(spec, Mapping):
            yield str(spec.get("name"))
            yield from detector_names([spec["detector"]] if spec.get("detector") else ())
        elif isinstance(spec, str):
            yield spec


def unknown_name_error(
    key: str, recipes: Sequence[OptionContent], known: Iterable[str]
) -> BadArgument:
    """Make the error for a key whose first part is an unknown name.

    Examples
    --------
    >>> print(
    ...     unknown_name_error(
    ...         "Quite.size", [{"method": {"name": "own/quiet.py:Quiet"}}], ["stream"]
    ...     )
    ... )
    --set: unknown name 'Quite', did you mean 'Quiet'? Valid: Quiet, stream
    """
    named = [str(one["method"].get("name")) for one in recipes]
    named += [name for one in recipes for name in detector_names(one.get("detectors"))]
    short = [name.rpartition(":")[2] for name in named]
    return unknown("--set", key.partition(".")[0], [*known, *short])
