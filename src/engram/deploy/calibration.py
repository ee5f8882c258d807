"""Calibration rows of a learner, held out of training and kept of every class, and the alarms
that they make possible (`Alarms`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as functional
from torch import Tensor

from engram import keys
from engram.deploy.new_task import Array, NewTask, known_classes
from engram.engine.portable_state import CALIBRATION, PortableState

DEFAULT_RATE = 0.05  # of false alarms


class Alarms(NamedTuple):
    """Novelty of some rows, [n] each."""

    novelty: Array  # scores of the detector, higher is more novel
    p_value: Array  # share of calibration rows, the row itself included, that are as novel
    alarm: Array  # whether the p-value is at most the rate
    compared: Array  # number of calibration rows that the row was compared with


class CalibrationRows(NamedTuple):
    """Rows of every known class that a learner does not train on."""

    x: Tensor  # [n, ...] inputs as they are stored
    y: Tensor  # [n] columns
    seen: Tensor  # [classes] rows of each class so far, trained on or held out

    @classmethod
    def from_state(cls, found: PortableState | None) -> Self | None:
        """Return the rows that a state contains, or None."""
        if found is None or CALIBRATION + "x" not in found.tensors:
            return None
        return cls(*(found.tensors[CALIBRATION + name] for name in cls._fields))

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the tensors by their names in a state."""
        return {CALIBRATION + name: one.contiguous() for name, one in self._asdict().items()}


def hold_out_rows(
    new: NewTask, found: PortableState | None, *, most: int, seed: int
) -> tuple[NewTask, CalibrationRows]:
    """Hold calibration rows out of a task: return the rest, and all calibration rows.

    Of every class at most `most` rows are kept, and at most half of the rows of a task. If
    a known class comes again, its rows are drawn from all its tasks in proportion to their rows.

    Examples
    --------
    >>> new = NewTask.from_arrays(torch.zeros(9, 2), [0] * 6 + [1] * 3, None, None)
    >>> rest, held = hold_out_rows(new, None, most=2, seed=0)
    >>> len(rest.x), held.y.tolist(), held.seen.tolist()
    (6, [0, 0, 1], [6, 3])
    """
    known = known_classes(found)
    names = [*known, *(name for name in new.classes if name not in known)]
    column = torch.tensor([names.index(name) for name in new.classes])[new.y[:, 0]]
    nothing = CalibrationRows(new.x[:0], column[:0], column[:0])
    before = CalibrationRows.from_state(found) or nothing
    seen = functional.pad(before.seen, (0, len(names) - len(before.seen)))
    key = keys.fold(seed, "calibration", 0 if found is None else found.stage + 1)
    fresh_order = keys.uniform(keys.fold(key, "new"), len(column)).argsort()
    old_order = keys.uniform(keys.fold(key, "old"), len(before.y)).argsort()
    rounding = keys.uniform(keys.fold(key, "round"), len(names)).tolist()
    held, kept = [], [torch.arange(len(before.y))[~torch.isin(before.y, column)]]
    for c in column.unique().tolist():
        rows = fresh_order[column[fresh_order] == c]
        old = old_order[before.y[old_order] == c]
        share = most * len(rows) / (len(rows) + int(seen[c]))
        count = min(len(rows) // 2, max(most - len(old), int(share + rounding[c])))
        held.append(rows[:count])
        kept.append(old[: most - count])
        seen[c] += len(rows)
    out, stay = torch.cat(held).sort().values, torch.cat(kept).sort().values
    rest = torch.ones(len(column), dtype=torch.bool)
    rest[out] = False
    return replace(new, x=new.x[rest], y=new.y[rest]), CalibrationRows(
        torch.cat([before.x[stay].reshape(-1, *new.x.shape[1:]), new.x[out]]),
        torch.cat([before.y[stay], column[out]]), seen,
    )  # fmt: skip


def explain_no_alarm(held: CalibrationRows | None, facts: Mapping[str, Any], rate: float) -> str:
    """Explain why no alarm can be raised at a rate; empty if it can."""
    if facts["head"] == "multi":
        return "alarms need one head for all tasks, and this learner has one for each"
    if facts["labels"] == "set":
        return "alarms need one label per row, and this learner has sets of labels"
    if held is None:
        return "alarms need calibration rows: Learner(calibration=50) holds 50 of every class out"
    present = set(held.y.tolist())
    present |= set(facts.get("forgotten", ()))
    missing = [name for c, name in enumerate(facts["classes"]) if c not in present]
    if missing:
        return f"alarms need calibration rows of every class, and of {missing[:5]} there are none"
    rows = len(held.y)
    if rate < 1 / (rows + 1):
        least = f"at least {1 / (rows + 1):.3g}, for {rows} calibration rows"
        return f"rate: expected {least}, got {rate}"
    return ""
