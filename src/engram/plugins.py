"""A user's own code by name (``module:name`` or a file), imported unless that is forbidden."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from engram.errors import USER_MODULES, BadArgument, EngramError, bad, unknown, user_code_location


class Untrusted(EngramError):
    """A recipe names code that is not the library's, where nobody said that it may run."""


_forbidden: ContextVar[str] = ContextVar("forbidden", default="")  # why, in words
_NOT_USER_MODULES = {
    "engram",
    *sys.stdlib_module_names,
}  # modules that are nobody's own, by whatever name


@contextmanager
def forbid_user_code(why: str) -> Iterator[None]:
    """While this lasts, names of code that is not the library's are refused: `Untrusted`.

    For recipes that are found, not given: importing a module runs it.

    Examples
    --------
    >>> with forbid_user_code("reading runs no code"):
    ...     load_user_object("antigravity:Method")
    Traceback (most recent call last):
    ...
    engram.plugins.Untrusted: antigravity:Method: reading runs no code
    """
    token = _forbidden.set(why)
    try:
        yield
    finally:
        _forbidden.reset(token)


def is_user_code_allowed() -> bool:
    """Whether nobody has forbidden code that is not the library's."""
    return not _forbidden.get()


def load_user_object(name: str, *, what: str = "name") -> Any:
    """What a user calls ``module:name``; the module may be a file path ending in .py.

    Examples
    --------
    >>> load_user_object("math:pi")
    3.14...
    """
    module_name, _, class_name = name.partition(":")
    if not module_name or not class_name:
        raise bad(what, "a name, or module:name", name)
    if (why := _forbidden.get()) and module_name.partition(".")[0] != "engram":
        raise Untrusted(f"{name}: {why}")
    usual, path = list(sys.path), Path(module_name)
    sys.path.insert(0, str(Path.cwd()))
    try:
        if path.suffix == ".py":
            sys.path.insert(0, str(path.resolve().parent))
            module_name = path.stem
            _forget_module(module_name, path, what)
        if path.suffix == ".py" or module_name.partition(".")[0] not in _NOT_USER_MODULES:
            USER_MODULES.add(module_name)
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if user_code_location(error):  # found, but something that it imports is not
            raise
        if path.suffix == ".py":
            raise bad(what, f"an existing file in {name!r}", str(path)) from None
        raise bad(what, f"an importable module in {name!r} ({error})", module_name) from None
    finally:
        sys.path[:] = usual
    # a file may lie where a run was begun; another module of its name is not meant
    if path.suffix == ".py" and Path(getattr(module, "__file__", None) or "").name != path.name:
        USER_MODULES.discard(module_name)
        raise bad(what, f"an existing file in {name!r}", str(path))
    found = getattr(module, class_name, None)
    if found is None:
        raise unknown(f"class of {module_name}", class_name, _defined_names(module))
    return found


def unknown_name(what: str, name: object, valid: Iterable[str]) -> BadArgument:
    """The error for a name that is not known; a file alone is told how its classes are named."""
    if not isinstance(name, str) or not name.endswith(".py") or not os.path.isfile(name):
        return unknown(what, name, valid)
    try:
        written = ast.parse(Path(name).read_bytes()).body
    except (SyntaxError, ValueError):  # told when it is imported
        written = []
    made = [one.name for one in written if isinstance(one, (ast.ClassDef, ast.FunctionDef))]
    listed = ", ".join(one for one in made if one[0] != "_") or "nothing"
    return bad(what, f"{name}:NAME with a name defined there ({listed})", name)


def _defined_names(module: ModuleType) -> list[str]:
    """What a module defines, without what it imports."""
    return [
        name for name, value in vars(module).items()
        if name[0] != "_" and not isinstance(value, ModuleType)
        and not (isinstance(value, (type, FunctionType)) and value.__module__ != module.__name__)
    ]  # fmt: skip


def _forget_module(module_name: str, path: Path, what: str) -> None:
    """Forget an own module of the same name from another file; another's module is in the way."""
    loaded = sys.modules.get(module_name)
    if loaded is None or not path.is_file():
        return
    file = getattr(loaded, "__file__", None)
    if file is not None and Path(file).resolve() == path.resolve():
        return
    if module_name not in USER_MODULES:
        raise bad(what, f"a file that is not named like the module {module_name!r}", str(path))
    del sys.modules[module_name]
