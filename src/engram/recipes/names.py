"""Methods by name: those of the library, and users' own as ``module:Class``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from engram import methods
from engram.errors import OWN_MODULES, EngramError, bad, own_place, unknown
from engram.methods.base import Method
from engram.recipes.plain import from_plain, to_plain


def method_class(name: str) -> type[Method]:
    """The class of a method's name.

    Examples
    --------
    >>> method_class("Finetune").__name__
    'Finetune'
    """
    if ":" in name:
        return own_class(name, Method)
    if name not in methods.__all__:
        raise unknown("method", name, methods.__all__)
    found: type[Method] = getattr(methods, name)
    return found


class Untrusted(EngramError):
    """A recipe names code that is not the library's, where nobody said that it may run."""


_forbidden: ContextVar[str] = ContextVar("forbidden", default="")  # why, in words


@contextmanager
def without_own_code(why: str) -> Iterator[None]:
    """While this lasts, names of code that is not the library's are refused: `Untrusted`.

    For recipes that are found, not given: importing a module runs it.

    Examples
    --------
    >>> with without_own_code("reading runs no code"):
    ...     own_class("antigravity:Method", Method)
    Traceback (most recent call last):
    ...
    engram.recipes.names.Untrusted: antigravity:Method: reading runs no code
    """
    token = _forbidden.set(why)
    try:
        yield
    finally:
        _forbidden.reset(token)


def own_code_may_run() -> bool:
    """Whether nobody has forbidden code that is not the library's."""
    return not _forbidden.get()


def own_class(name: str, base: type[Any], *, what: str = "method") -> type[Any]:
    """A user's class ``module:Class``; the module may be a file path ending in .py."""
    module_name, _, class_name = name.partition(":")
    if not module_name or not class_name:
        raise bad(what, "a name, or module:Class", name)
    if (why := _forbidden.get()) and module_name.partition(".")[0] != "engram":
        raise Untrusted(f"{name}: {why}")
    usual = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        if module_name.endswith(".py"):
            path = Path(module_name)
            sys.path.insert(0, str(path.resolve().parent))
            module_name = path.stem
            _make_way(module_name, path, what)
        OWN_MODULES.add(module_name)
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if own_place(error):  # found, but something that it imports is not
            raise
        raise bad(what, f"an importable module in {name!r} ({error})", module_name) from None
    finally:
        sys.path[:] = usual
    found = getattr(module, class_name, None)
    if found is None:
        raise unknown(
            f"class of {module_name}", class_name, [n for n in vars(module) if n[0] != "_"]
        )
    if not (isinstance(found, type) and issubclass(found, base)):
        raise bad(what, f"a subclass of {base.__name__}", found)
    return found


def _make_way(module_name: str, path: Path, what: str) -> None:
    """Forget an own module of the same name from another file; another's module is in the way."""
    loaded = sys.modules.get(module_name)
    if loaded is None or not path.is_file():
        return
    file = getattr(loaded, "__file__", None)
    if file is not None and Path(file).resolve() == path.resolve():
        return
    if module_name not in OWN_MODULES:
        raise bad(what, f"a file that is not named as the module {module_name!r}", str(path))
    del sys.modules[module_name]


def build_method(spec: Any) -> Method:
    """A method from its name, a mapping with ``name`` and fields, or a method.

    Examples
    --------
    >>> build_method({"name": "ER", "memory": {"total": 200}}).memory.total
    200
    """
    if isinstance(spec, Method):
        return spec
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise bad("method", "a name, or a mapping with a name", spec)
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
    made: Method = from_plain(cls, values, path=f"method.{cls.__name__}")
    return made


def plain_method(method: Method) -> dict[str, Any]:
    """The mapping `build_method` takes back."""
    cls = type(method)
    name = (
        cls.__name__ if cls.__module__.startswith("engram.") else f"{cls.__module__}:{cls.__name__}"
    )
    if hasattr(method, "parts"):
        return {"name": name, "parts": [plain_method(part) for part in method.parts]}
    return {"name": name, **to_plain(method)}


def method_label(method: Method) -> str:
    """A short name: the class and what differs from its defaults.

    Examples
    --------
    >>> method_label(build_method({"name": "EWC", "strength": 10.0}))
    'EWC strength=10'
    """
    if hasattr(method, "parts"):
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
