"""Build methods and memory policies from names, user code included, and convert them back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from engram import methods
from engram.errors import bad, unknown
from engram.experiments.plain_values import code_name, from_plain, to_plain
from engram.methods.method import Method
from engram.plugins import (
    Untrusted,
    forbid_user_code,
    is_user_code_allowed,
    load_user_object,
    unknown_name,
)

__all__ = [
    "Untrusted",
    "build_method",
    "build_policy",
    "resolve_method_class",
    "method_class",
    "method_label",
    "load_user_class",
    "is_user_code_allowed",
    "plain_method",
    "forbid_user_code",
]


def method_class(name: str) -> type[Method]:
    """Return the class of a method by its name.

    Examples
    --------
    >>> method_class("Finetune").__name__
    'Finetune'
    """
    if ":" in name:
        return load_user_class(name, Method)
    if name not in methods.__all__:
        raise unknown_name("method", name, methods.__all__)
    found: type[Method] = getattr(methods, name)
    return found


def load_user_class(name: str, base: type[Any], *, what: str = "method") -> type[Any]:
    """Import a user's class ``module:Class``; the module may be a path ending in .py."""
    found = load_user_object(name, what=what)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise bad(what, f"a subclass of {base.__name__}", found)
    return found


def parse_method_name(text: str) -> dict[str, Any]:
    """Parse a method's name to plain values; ``A+B`` joins two methods.

    Examples
    --------
    >>> parse_method_name("ER+EWC")
    {'name': 'Join', 'parts': [{'name': 'ER'}, {'name': 'EWC'}]}
    >>> parse_method_name("DER++")
    {'name': 'DER++'}
    """
    names = [name.strip() for name in text.split("+")]
    if len(names) == 1 or not all(names):
        return {"name": text.strip()}
    return {"name": "Join", "parts": [{"name": name} for name in names]}


def resolve_method_class(spec: Any) -> type[Method]:
    """Return the class of a method specification, without checking its values.

    Examples
    --------
    >>> (
    ...     resolve_method_class({"name": "LGR", "root": "external"}).__name__,
    ...     resolve_method_class("ER+EWC").__name__,
    ... )
    ('LGR', 'Join')
    """
    if isinstance(spec, Method):
        return type(spec)
    if isinstance(spec, type) and issubclass(spec, Method):
        return spec
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    if not isinstance(name, str):
        raise bad("method", "a method, its class or name, or a mapping with a name", spec)
    return method_class(parse_method_name(name)["name"])


def build_method(spec: Any) -> Method:
    """Build a method from its name or class, a mapping with ``name`` and fields, or a method.

    ``A+B`` joins two methods.

    Examples
    --------
    >>> build_method({"name": "ER", "memory": {"total": 200}}).memory.total
    200
    >>> [type(part).__name__ for part in build_method("ER+EWC").parts]
    ['ER', 'EWC']
    """
    if isinstance(spec, Method):
        return spec
    if isinstance(spec, type) and issubclass(spec, Method):
        try:
            return spec()
        except TypeError as error:
            raise bad(
                "method", f"a method, or a class whose fields have defaults ({error})", spec
            ) from error
    alone = isinstance(spec, Mapping) and list(spec) == ["name"]  # as command lines and YAML do
    if isinstance(text := spec["name"] if alone else spec, str):
        spec = parse_method_name(text)
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise bad("method", "a method, its class or name, or a mapping with a name", spec)
    cls = method_class(spec["name"])
    values = {k: v for k, v in spec.items() if k != "name"}
    if "parts" in values and issubclass(cls, methods.Join):
        if len(values) > 1:
            raise unknown(
                f"method.{cls.__name__}", next(k for k in values if k != "parts"), ["parts"]
            )
        if not isinstance(values["parts"], (list, tuple)):
            raise bad("method.parts", "a list of methods", values["parts"])
        return cls(*(build_method(part) for part in values["parts"]))
    if isinstance(kept := values.get("memory"), Mapping) and "policy" in kept:
        values["memory"] = {**kept, "policy": build_policy(kept["policy"])}
    made: Method = from_plain(cls, values, path=f"method.{cls.__name__}")
    return made


def build_policy(spec: Any) -> Any:
    """Build a memory policy from its name, ``module:Class``, or a mapping with name and options.

    Examples
    --------
    >>> build_policy("herding")
    'herding'
    """
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    if not isinstance(name, str) or ":" not in name:
        return spec
    found = load_user_object(name, what="policy")
    options = {k: v for k, v in spec.items() if k != "name"} if isinstance(spec, Mapping) else {}
    if not isinstance(found, type):
        return found  # a function
    if not hasattr(found, "rank"):
        raise bad("policy", "a class with a method rank(learner, rows, column, count)", name)
    return from_plain(found, options, path=f"policy.{found.__name__}") if is_dataclass(found) \
        else found(**options)  # fmt: skip


def plain_method(method: Method) -> dict[str, Any]:
    """Convert a method to a mapping, the inverse of `build_method`."""
    cls = type(method)
    name = cls.__name__ if cls.__module__.startswith("engram.") else code_name(cls)
    if isinstance(method, methods.Join):
        return {"name": name, "parts": [plain_method(part) for part in method.parts]}
    return {"name": name, **to_plain(method)}


def method_label(method: Method) -> str:
    """Return a short label: the class and the options that differ from their defaults.

    Examples
    --------
    >>> method_label(build_method({"name": "EWC", "strength": 10.0}))
    'EWC strength=10'
    """
    if isinstance(method, methods.Join):
        return " + ".join(method_label(part) for part in method.parts)
    words = [type(method).__name__]
    for field in fields(method):
        value, default = getattr(method, field.name), field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if field.init and value != default:
            shown = f"{value:g}" if isinstance(value, float) else value
            shown = value.describe() if hasattr(value, "describe") else shown
            words.append(f"{field.name}={shown}")
    return " ".join(words)
