"""From an exception to the line of a method's own file that caused it."""

from __future__ import annotations

import inspect
import traceback
from typing import Any

from engram.errors import AccessError, EngramError

CONTRACTS = ("builtins", "engram.methods.base", "engram.novelty.base", "engram.novelty.outputs",
             "engram.probes.base", "torch.nn.modules.module")  # fmt: skip
# What torch says, and what helps. Only errors that torch raised are looked up: a user's own error
# may contain any word.
HINTS = (
    (("data-dependent control flow", "GuardOnDataDependent", "Could not guard on"),
     "it decides by a tensor's value: use torch.where and weights in place of `if`"),
    ((".item()", "DataDependentOutput", "unbacked"),
     "it reads a number out of a tensor: keep it a tensor"),
    (("dynamic shape", "nonzero", "masked_select"),
     "its shape depends on values: multiply by weights in place of boolean indexing"),
    (("called random operation",),
     "it draws from torch's generator: draw with engram.keys and batch.key, and in a network let "
     "nn.Dropout do it"),
    (("one_hot",),
     "F.one_hot does not map: compare with torch.arange"),
    (("same dtype", "expected scalar type", "must have the same dtype", "Found dtype"),
     "two precisions meet: give new tensors the dtype of batch.x (engram.keys draws float64, "
     "torch makes float32)"),
)  # fmt: skip


def own_files(target: Any) -> set[str]:
    """Source files of a target's classes, those of the contract left out."""
    target = getattr(target, "maker", target)  # a network on trial stands for its class
    kinds = (target if isinstance(target, type) else type(target)).__mro__
    files = set()
    for kind in kinds:
        if kind.__module__ not in CONTRACTS:
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


def place_of(kind: type, name: str) -> str:
    """``file.py:12: ``, where a class writes one of its functions, or nothing."""
    found = inspect.unwrap(getattr(kind, name, None) or kind)
    try:
        file, line = inspect.getfile(found), inspect.getsourcelines(found)[1]
    except (TypeError, OSError):  # made at run time
        return ""
    return f"{file.rsplit('/', 1)[-1]}:{line}: "


READING = (".item(", ".tolist(", ".numpy(", "float(", "int(")


def hint_of(error: BaseException, line: str = "") -> str:
    """What usually helps against an error that came through a line, or nothing."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, AccessError) and "row" in text:
        return "read the task's own rows, or what the memory holds"
    if isinstance(error, EngramError) or not _from_torch(error):
        return ""
    reads = any(sign in line for sign in READING) and "if " not in line
    if reads and any(sign in text for sign in HINTS[0][0]):
        return HINTS[1][1]  # torch says the same of both
    return next((words for signs, words in HINTS if any(sign in text for sign in signs)), "")


def _from_torch(error: BaseException) -> bool:
    """Whether torch raised an error: in its Python code, or below a line of anybody's."""
    frames = traceback.extract_tb(error.__traceback__)
    if type(error).__module__.startswith("torch") or (frames and "/torch/" in frames[-1].filename):
        return True
    raised = bool(frames) and (frames[-1].line or "").lstrip().startswith("raise")
    return isinstance(error, RuntimeError | NotImplementedError) and not raised


def explain(error: BaseException, target: Any) -> str:
    """What went wrong, where, and what usually helps."""
    first = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    line = line_of(error, target)
    parts = (line, hint_of(error, line), first)
    return "\n".join(part for part in parts if part)
