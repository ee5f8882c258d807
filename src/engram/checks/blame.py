"""From an exception to the line of a method's own file that caused it."""

from __future__ import annotations

import inspect
import traceback
from typing import Any

from engram.errors import AccessError

HINTS = (
    (("data-dependent control flow", "GuardOnDataDependent", "Could not guard on"),
     "it decides by a tensor's value: use torch.where and weights in place of `if`"),
    (("item()", ".item", "DataDependentOutput", "unbacked"),
     "it reads a number out of a tensor: keep it a tensor"),
    (("dynamic shape", "nonzero", "masked_select"),
     "its shape depends on values: multiply by weights in place of boolean indexing"),
    (("randomness",),
     "it draws from torch's generator: draw with engram.keys and batch.key"),
    (("one_hot",),
     "F.one_hot does not map: compare with torch.arange"),
)  # fmt: skip


def own_files(target: Any) -> set[str]:
    """Source files of a target's classes, those of the contract left out."""
    kinds = (target if isinstance(target, type) else type(target)).__mro__
    files = set()
    for kind in kinds:
        if kind.__module__ not in ("builtins", "engram.methods.base"):
            try:
                files.add(inspect.getfile(kind))
            except (TypeError, OSError):  # made at run time: no file to point to
                continue
    return files


def line_of(error: BaseException, target: Any) -> str:
    """``file.py:12: code`` of the innermost frame in the target's own files, or nothing."""
    files = own_files(target)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in files]
    if not frames:
        return ""
    last = frames[-1]
    return f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}: {last.line}"


def blame(error: BaseException, target: Any) -> str:
    """What went wrong, where, and what usually helps."""
    text = f"{type(error).__name__}: {error}".strip()
    hint = next((words for signs, words in HINTS if any(sign in text for sign in signs)), "")
    if isinstance(error, AccessError):
        hint = "read the task's own rows, or what the memory holds"
    where = line_of(error, target)
    first = text.splitlines()[0]
    return "\n".join(part for part in (where, hint, first) if part)
