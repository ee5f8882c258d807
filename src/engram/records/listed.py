"""The order in which recipes were asked for, in which a run directory shows its numbers."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from engram.disk import names
from engram.errors import read_as
from engram.records.files import read_json, write_json


def add_listed(folder: Path, recipes: Iterable[str]) -> None:
    """Note recipes that are not in the list yet; several processes may do so at once.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> add_listed(folder, ["c", "a"])
    >>> add_listed(folder, ["a", "b", "c"])
    >>> read_listed(folder)
    ['c', 'a', 'b']
    """
    known = set(read_listed(folder))
    fresh = [one for one in dict.fromkeys(recipes) if one not in known]
    if fresh:
        name = f"listed-{time.time_ns():019d}-{os.getpid():07d}-{secrets.token_hex(3)}.json"
        write_json(folder / name, fresh)


def read_listed(folder: Path) -> list[str]:
    """Recipes as they were first asked for; none where nobody noted it."""
    files = [folder / name for name in names(folder, "listed-", ".json")]
    found: dict[str, None] = {}
    for path in files:
        with read_as(path, "list of recipes"):
            found |= dict.fromkeys(str(one) for one in read_json(path))
    return list(found)
