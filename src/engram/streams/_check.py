"""What every stream must satisfy, whoever built it: rows exist, nothing leaks, labels are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engram.errors import bad

if TYPE_CHECKING:
    from engram.streams.core import Stream

_APART = (
    ("train", "test"), ("train", "valid"), ("train", "post_valid"),
    ("valid", "test"), ("post_valid", "test"),
)  # fmt: skip


def check_stream(stream: Stream) -> None:
    """Raise for the first thing that is wrong."""
    if not stream.tasks:
        raise bad("tasks", "at least one task", "none")
    for k, task in enumerate(stream.tasks):
        if len(task.train) == 0 and not stream.may_be_empty(k):
            raise bad(f"tasks[{k}].train", "at least one training row", "no rows")
    _check_classes(stream)
    _check_rows(stream)
    _check_labels(stream)


def _check_classes(stream: Stream) -> None:
    opened: set[int] = set()
    valid = range(stream.data.n_classes)
    for k, task in enumerate(stream.tasks):
        for c in (*task.new, *task.visible):
            if isinstance(c, bool) or not isinstance(c, int) or c not in valid:
                raise bad(f"tasks[{k}]", f"class ids from 0 to {len(valid) - 1}", c)
        opened.update(task.new)
        if not task.shown:
            raise bad(f"tasks[{k}].visible", "the classes whose labels are shown", "none")
        closed = sorted(set(task.shown) - opened)
        if closed:
            names = [stream.data.classes[c] for c in closed]
            raise bad(f"tasks[{k}].visible", "classes that are new here or before", names)


def _check_rows(stream: Stream) -> None:
    masks = {}
    for kind in ("train", "valid", "post_valid", "test"):
        masks[kind] = torch.zeros(len(stream.data), dtype=torch.bool)
        for k, task in enumerate(stream.tasks):
            rows: Tensor = getattr(task, kind)
            if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= len(stream.data)):
                wrong = int(rows.min()) if int(rows.min()) < 0 else int(rows.max())
                raise bad(f"tasks[{k}].{kind}", f"rows from 0 to {len(stream.data) - 1}", wrong)
            masks[kind][rows.cpu()] = True
    _check_copies(stream, masks)
    for a, b in _APART:
        if (a, b) == (stream.judged_on, "test"):
            continue  # they take the place of test rows
        both = (masks[a] & masks[b]).nonzero()
        if len(both):
            raise bad("tasks", f"no row that is both a {a} and a {b} row, in any task",
                      f"{len(both)} such rows, first {int(both[0])}")  # fmt: skip


def _check_copies(stream: Stream, masks: dict[str, Tensor]) -> None:
    """Copies are for training, and so are the rows they come from."""
    if stream.data.copies is None:
        return
    stored = len(stream.data.x)
    used = masks["train"][stored:].nonzero()[:, 0] + stored
    behind = stream.data.sources(used)
    for kind in ("valid", "post_valid", "test"):
        if bool(masks[kind][stored:].any()):
            raise bad("tasks", f"no generated copy among the {kind} rows", "some")
        if bool(masks[kind][behind].any()):
            raise bad("tasks", f"no training copies of {kind} rows", "some")


def _check_labels(stream: Stream) -> None:
    for k, task in enumerate(stream.tasks):
        shown = torch.zeros(stream.data.n_classes + 1, dtype=torch.bool)  # the last is for -1
        shown[list(task.shown)] = True
        for kind in ("train", "valid"):
            rows: Tensor = getattr(task, kind).cpu()
            hidden = ~shown[stream.data.y[rows].cpu()].any(dim=1)
            if bool(hidden.any()):
                row = int(rows[hidden][0])
                names = [stream.data.classes[c] for c in stream.data.y[row].tolist() if c >= 0]
                got = f"row {row} of {names}"
                raise bad(f"tasks[{k}].{kind}", "rows with a visible label", got)
