"""A stream as values that JSON can hold, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engram.data.core import Data
from engram.errors import bad
from engram.streams._rows import ROWS, pack, unpack

if TYPE_CHECKING:
    from engram.streams.core import Stream, Task
    from engram.streams.views import View


def plain_task(task: Task) -> dict[str, Any]:
    """A task as plain values."""
    return {**{kind: pack(getattr(task, kind)) for kind in ROWS}, "new": list(task.new),
            "visible": list(task.visible), "domain": task.domain}  # fmt: skip


def fields_of_task(k: int, plain: Any) -> dict[str, Any]:
    """The fields of the task that was written as `plain`."""
    needed = {*ROWS, "new", "visible", "domain"}
    if not isinstance(plain, Mapping) or set(plain) != needed:
        got = sorted(plain) if isinstance(plain, Mapping) else plain
        raise bad(f"tasks[{k}]", f"a mapping with the keys {sorted(needed)}", got)
    rows = {kind: unpack(f"tasks[{k}].{kind}", plain[kind]) for kind in ROWS}
    return {**plain, **rows}


def fingerprint_of(stream: Stream) -> str:
    """See `Stream.fingerprint`."""
    plain = {**stream.describe(), "name": "", "task_labels": stream.task_labels,
             "visible": [sorted(t.shown) for t in stream.tasks]}  # fmt: skip
    del plain["labels"]  # the data says it
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode())
    digest.update(stream.data.fingerprint().encode())
    for task in stream.tasks:
        for kind in ROWS:
            digest.update(getattr(task, kind).cpu().numpy().tobytes() + b"|")
    return digest.hexdigest()[:16]


def check_plain(data: Data, plain: Any, view: View | None) -> None:
    """Complain about what is no stream, or one over other data or with another view."""
    needed = {"name", "head", "online", "task_labels", "data", "view", "tasks"}
    if not isinstance(plain, Mapping) or set(plain) - {"information", "judged_on"} != needed:
        got = sorted(plain) if isinstance(plain, Mapping) else plain
        raise bad("plain", f"a mapping with the keys {sorted(needed)}", got)
    if plain["data"] != data.fingerprint():
        raise bad("data", f"the data with fingerprint {plain['data']}", data.fingerprint())
    if view is not None and view.describe() != plain["view"]:
        raise bad("view", f"a view that describes itself as {plain['view']}", view.describe())
