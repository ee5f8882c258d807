"""User code loaded by name, ``module:name`` or ``file.py:name``, unless that is forbidden."""

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
    """A recipe names user code, which has not been allowed to run."""


_forbidden: ContextVar[str] = ContextVar("forbidden", default="")  # the reason
_NOT_USER_MODULES = {"engram", *sys.stdlib_module_names}


@contextmanager
def forbid_user_code(why: str) -> Iterator[None]:
    """Refuse to load user code inside the context, by raising `Untrusted`.

    For recipes that were found rather than given by the user: importing a module runs it.

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
    """Whether user code may be loaded."""
    return not _forbidden.get()


def load_user_object(name: str, *, what: str = "name") -> Any:
    """Import the object called ``module:name``; the module may be a file path ending in .py.

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
        if user_code_location(error):  # the module exists, but one of its imports does not
            raise
        if path.suffix == ".py":
            raise bad(what, f"an existing file in {name!r}", str(path)) from None
        raise bad(what, f"an importable module in {name!r} ({error})", module_name) from None
    finally:
        sys.path[:] = usual
    # do not accept another module of the same name instead of the file
    if path.suffix == ".py" and Path(getattr(module, "__file__", None) or "").name != path.name:
        USER_MODULES.discard(module_name)
        raise bad(what, f"an existing file in {name!r}", str(path))
    loaded = getattr(module, class_name, None)
    if loaded is None:
        raise unknown(f"class of {module_name}", class_name, _defined_names(module))
    return loaded


def unknown_name(what: str, name: object, valid: Iterable[str]) -> BadArgument:
    """Return the error for an unknown name; for a file it says how to name a class in it."""
    if not isinstance(name, str) or not name.endswith(".py") or not os.path.isfile(name):
        return unknown(what, name, valid)
    try:
        statements = ast.parse(Path(name).read_bytes()).body
    except (SyntaxError, ValueError):  # reported when it is imported
        statements = []
    names = [one.name for one in statements if isinstance(one, (ast.ClassDef, ast.FunctionDef))]
    listed = ", ".join(one for one in names if one[0] != "_") or "nothing"
    return bad(what, f"{name}:NAME with a name defined there ({listed})", name)


def _defined_names(module: ModuleType) -> list[str]:
    """List the public names that a module defines itself."""
    return [
        name for name, value in vars(module).items()
        if name[0] != "_" and not isinstance(value, ModuleType)
        and not (isinstance(value, (type, FunctionType)) and value.__module__ != module.__name__)
    ]  # fmt: skip


def _forget_module(module_name: str, path: Path, what: str) -> None:
    """Unload a user module of the same name from another file; refuse if it is not a user's."""
    loaded = sys.modules.get(module_name)
    if loaded is None or not path.is_file():
        return
    file = getattr(loaded, "__file__", None)
    if file is not None and Path(file).resolve() == path.resolve():
        return
    if module_name not in USER_MODULES:
        raise bad(what, f"a file that is not named like the module {module_name!r}", str(path))
    del sys.modules[module_name]
