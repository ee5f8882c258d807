"""What was asked of a run directory, kept there so that ``engram resume`` can go on with it."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from engram.errors import RecordError

FOLDER = "requests"
# no part of the question
HOW = ("device", "address", "compile", "deterministic", "checkpoint_every", "log")


@dataclass(frozen=True, kw_only=True)
class Request:
    """Recipes as plain values, and how to run them.

    `pool` is one of `engram.pools`; `search` are the options of a search over the one recipe;
    `folder` is where the command was given: relative paths and own modules are found from there.
    """

    recipes: list[dict[str, Any]]
    root: str | None = None
    device: str = "auto"
    pool: str = "auto"
    workers: int = 0
    address: str | None = None
    compile: bool = False
    deterministic: bool = False
    checkpoint_every: str = "5m"
    log: list[str] = field(default_factory=list)
    search: dict[str, Any] | None = None
    folder: str = field(default_factory=os.getcwd)
    command: str = field(default_factory=lambda: shlex.join(["engram", *sys.argv[1:]]))

    def write(self, out: Path) -> Path:
        """Keep the request in a run directory; the same one twice is kept once."""
        from engram.disk import make_folders
        from engram.records.files import plain, write_yaml

        content = plain(asdict(self))
        if self.search is None:
            del content["search"]
        same = {k: v for k, v in content.items() if k not in ("command", *HOW)}
        text = json.dumps(same, sort_keys=True, default=str)
        path = out / FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
        make_folders(out)
        make_folders(path.parent)
        return write_yaml(path, content)

    @classmethod
    def read(cls, path: Path) -> Request:
        """A request from its file."""
        from engram.records.files import read_yaml

        content = read_yaml(path)
        names = {f.name for f in fields(cls)}
        if not isinstance(content, Mapping) or not {"recipes"} <= set(content) <= names:
            raise RecordError(f"{path}: is not a request of this version")
        return cls(**content)


def request_files(out: Path) -> list[Path]:
    """The files of everything that was asked of a directory, oldest first."""
    return sorted((out / FOLDER).glob("[!.]*.yaml"), key=lambda path: path.stat().st_mtime)


def requests(out: Path) -> list[Request]:
    """Everything that was asked of a directory, oldest first."""
    return [Request.read(path) for path in request_files(out)]
