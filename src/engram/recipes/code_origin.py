"""Whose code it is: the user's own, or that of a package which is known by name and version."""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
from pathlib import Path

_LIBRARIES = ("builtins", "engram", "numpy", "torch")  # versions of these: environment-*.json


def digest(content: bytes | bytearray | memoryview) -> str:
    """16 bytes that stand for many."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def library_name(module: str, name: str) -> str | None:
    """How to call code that is not the user's own, None for what is.

    The standard library and what this package is built on go by name. Of other installed packages
    the version and the file count, too.

    Examples
    --------
    >>> library_name("torch.nn.modules.linear", "Linear"), library_name("__main__", "Own")
    ('torch.nn.modules.linear:Linear', None)
    """
    top = module.partition(".")[0]
    if top in _LIBRARIES:
        return f"{top if top == 'engram' else module}:{name}"
    if top in ("__main__", "__mp_main__"):  # a notebook's is a file of its kernel
        return None
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    if file is None:
        return f"{module}:{name}" if top in sys.stdlib_module_names else None
    place = _place(file)
    if place == "own":
        return None
    if place == "python":
        return f"{module}:{name}"
    version = getattr(sys.modules.get(top), "__version__", "")
    return f"{module}:{name} {version} {_file(file)}"


@functools.cache
def _place(file: str) -> str:
    path = Path(file).resolve()
    paths = sysconfig.get_paths()
    if any(path.is_relative_to(Path(paths[key]).resolve()) for key in ("purelib", "platlib")):
        return "installed"
    if {"site-packages", "dist-packages"} & {*path.parts}:
        return "installed"
    python = any(
        path.is_relative_to(Path(paths[key]).resolve()) for key in ("stdlib", "platstdlib")
    )
    return "python" if python else "own"


@functools.cache
def _file(file: str) -> str:
    path = Path(file)
    return digest(path.read_bytes()) if path.is_file() else ""
