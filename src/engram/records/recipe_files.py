"""Recipes of a run directory: one file each, which never becomes another experiment's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engram.errors import RecordError
from engram.records.files import plain, read_text, read_yaml, write_yaml

_IDENTITY = ("method", "stream", "model", "training", "memory")
_IDENTITY_LINES = re.compile(r"^identity:\n((?:  \w+: '?\w+'?\n)+)(?! )", re.MULTILINE)


def write_recipe(path: Path, content: Mapping[str, Any]) -> Path:
    """Keep a recipe as a nested plain dict; another one under the same name is refused."""
    fresh = plain(dict(content))
    if path.exists():
        known = read_recipe(path)
        # the same experiment may be named in several ways: its identity decides, if it has one
        whole = "identity" in known and "identity" in fresh
        for key in ("identity",) if whole else _IDENTITY:
            if _without_runs(known.get(key)) != _without_runs(fresh.get(key)):
                raise RecordError(f"{path}: already holds another recipe ({key} differs)")
        if known == fresh:
            return path
    return write_yaml(path, fresh)


def read_recipe(path: Path) -> dict[str, Any]:
    """A recipe as a nested plain dict."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise RecordError(f"{path}: is not a recipe")
    return content


def read_identity(path: Path) -> dict[str, Any]:
    """What makes a recorded experiment the one it is; nothing if the file does not say.

    Quick, because thousands may have to be looked at: the rest of the file is not parsed.
    """
    text = read_text(path)
    if (found := _IDENTITY_LINES.search(text)) is None:
        return dict(read_recipe(path).get("identity") or {})
    lines = (line.strip().split(": ", 1) for line in found[1].splitlines())
    return {key: int(value) if key == "form" else value.strip("'") for key, value in lines}


def _without_runs(content: Any) -> Any:
    """A recipe's part without seeds, orders and names of data: they are not its identity."""
    if isinstance(content, dict):
        skip = ("seed", "seeds", "order", "orders", "asked", "data_root", "data_in_memory")
        return {k: _without_runs(v) for k, v in content.items() if k not in skip}
    return content
