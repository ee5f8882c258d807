"""Forgetting of rows and classes: what a learner's state loses, and what stays in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.data.fingerprint import hash_rows
from engram.deploy.calibration import CalibrationRows
from engram.deploy.new_task import Array, NewTask, hide_later_labels
from engram.engine.checkpoints import tree_structure
from engram.engine.portable_state import PortableState
from engram.errors import EngramError, bad, plural, unknown
from engram.learner.tensor_tree import flatten

WEIGHTS = "the weights were trained on them (retrain=True trains new ones without them)"


class Forgotten(NamedTuple):
    """What `Learner.forget` has removed, and what it cannot remove."""

    rows: int  # of the memory
    exemplars: int  # entries of the memory, with their values; a row may have several
    calibration: int
    classes: tuple[str, ...]
    retrained: bool
    remains: tuple[str, ...]  # what of them is left, in words

    def retrained_of(self, names: Sequence[str], found: PortableState) -> Forgotten:
        """Return what is left after training anew, where `names` were known before."""
        gone = [one for one in names if one not in (*found.facts["classes"], *self.classes)]
        rest = [one for one in self.remains if one.startswith("scales")]
        if gone:
            rest.append(f"no rows are left of {', '.join(gone)}, which are unknown now")
        return self._replace(retrained=True, remains=tuple(rest))

    def __str__(self) -> str:
        gone = f"{plural(self.rows, 'row')} of the memory and {self.calibration} calibration rows"
        parts = [f"forgot {gone}"]
        if self.classes:
            parts.append(f"classes {', '.join(self.classes)} are not predicted any more")
        return "; ".join([*parts, *self.remains])


class Wanted(NamedTuple):
    """What shall be forgotten: rows by their hashes, classes by their names."""

    hashes: Array
    classes: tuple[str, ...]

    @classmethod
    def of(cls, rows: Tensor | None, classes: Sequence[str]) -> Wanted:
        """Describe rows, as they are stored, and classes."""
        hashes = np.empty(0, np.uint64) if rows is None else np.unique(hash_rows(rows.numpy()))
        return cls(hashes, tuple(classes))

    def find(self, x: Tensor | None, y: Array, names: Sequence[str]) -> Array:
        """Return which rows [n] with columns [n] or [n, L] are meant; without `x` by class only."""
        columns = [c for c, name in enumerate(names) if name in self.classes]
        among: Array = np.isin(y, columns)
        found: Array = np.asarray(among.any(1)) if among.ndim > 1 else among
        if x is not None and len(x) and len(self.hashes):
            found = found | np.isin(hash_rows(x.numpy()), self.hashes)
        return found


def check_classes(found: PortableState, classes: Sequence[str]) -> tuple[str, ...]:
    """Return names of classes that a learner knows; raise for others, and if none were left."""
    known = [n for c, n in enumerate(found.facts["classes"]) if c not in forgotten_columns(found)]
    for name in classes:
        if name not in known:
            raise unknown("classes", name, known)
    if not set(known) - set(classes):
        raise bad("classes", "some of the classes that are known", "all of them")
    return tuple(dict.fromkeys(classes))


def forgotten_columns(found: PortableState) -> list[int]:
    """Return the columns of classes that were forgotten."""
    columns: list[int] = found.facts.get("forgotten", [])
    return columns


def remove_rows(found: PortableState, wanted: Wanted) -> tuple[PortableState, Forgotten]:
    """Remove rows from a state: of the memory, with their values, and of the calibration rows.

    States of detectors that were fitted to rows are removed as well, classes are closed.
    """
    tensors, facts = dict(found.tensors), dict(found.facts)
    names = facts["classes"]
    gone = torch.from_numpy(
        wanted.find(tensors.get("rows/x"), hide_later_labels(found).numpy(), names)
    )
    entries = _remove_from_memory(tensors, facts, gone)
    held, lost = CalibrationRows.from_state(found), 0
    if held is not None:
        out = torch.from_numpy(wanted.find(held.x, held.y.numpy(), names))
        seen, lost = held.seen.clone(), int(out.sum())
        seen[[c for c, name in enumerate(names) if name in wanted.classes and c < len(seen)]] = 0
        tensors |= CalibrationRows(held.x[~out], held.y[~out], seen).tensors()
    if wanted.classes:
        columns = {c for c, name in enumerate(names) if name in wanted.classes}
        facts["forgotten"] = sorted({*forgotten_columns(found), *columns})
    removed = Forgotten(
        int(gone.sum()), entries, lost, wanted.classes, False, _describe_rest(found, wanted)
    )
    return PortableState(tensors, facts), removed


def _remove_from_memory(tensors: dict[str, Tensor], facts: dict[str, Any], gone: Tensor) -> int:
    """Remove rows of the memory in place; return how many of its entries went with them."""
    place = (~gone).cumsum(0) - 1
    rows = tensors["exemplars/rows"]
    stay = ~gone[rows]
    for name in tensors:
        if name.startswith("rows/"):
            tensors[name] = tensors[name][~gone].contiguous()
        elif name.startswith(("exemplars/", "values/")):
            tensors[name] = tensors[name][stay].contiguous()
    tensors["exemplars/rows"] = place[tensors["exemplars/rows"]]
    if not bool(stay.all()):
        tensors["exemplars/ranks"] = close_gaps(
            *(tensors[f"exemplars/{name}"] for name in ("stages", "columns", "ranks"))
        )
        # a reservoir goes on as one that has seen no more rows than it holds
        facts["seen"] = min(facts["seen"], int(stay.sum()))
    return int((~stay).sum())


def close_gaps(stages: Tensor, columns: Tensor, ranks: Tensor) -> Tensor:
    """Number the entries of every group (task, class) from 0, in the order of their ranks.

    Examples
    --------
    >>> zeros = torch.zeros(3, dtype=torch.long)
    >>> close_gaps(zeros, zeros, torch.tensor([4, 0, 2])).tolist()
    [2, 0, 1]
    """
    found = ranks.clone()
    groups = torch.stack([stages, columns], 1)
    for group in groups.unique(dim=0):
        own = (groups == group).all(1).nonzero()[:, 0]
        found[own] = ranks[own].argsort(stable=True).argsort()
    return found


def drop_detectors(found: PortableState, keys: Collection[str]) -> PortableState:
    """Return a state without what some detectors were fitted to."""
    lost = tuple(f"probes/{key}/" for key in keys)
    tensors = {name: one for name, one in found.tensors.items() if not name.startswith(lost)}
    parts = found.facts["structure"]["dict"]
    kept = {k: v for k, v in parts["probes"]["dict"].items() if k not in keys}
    structure = {"dict": {**parts, "probes": {"dict": kept}}}
    return PortableState(tensors, {**found.facts, "structure": structure})


def add_detectors(found: PortableState, states: Mapping[str, Any]) -> PortableState:
    """Return a state with what some detectors were fitted to."""
    tensors = {name: one.cpu().contiguous() for name, one in flatten({"probes": states}).items()}
    parts = found.facts["structure"]["dict"]
    every = {**parts["probes"]["dict"], **tree_structure(dict(states))["dict"]}
    structure = {"dict": {**parts, "probes": {"dict": every}}}
    return PortableState({**found.tensors, **tensors}, {**found.facts, "structure": structure})


def _describe_rest(found: PortableState, wanted: Wanted) -> tuple[str, ...]:
    """Say what of forgotten rows stays in a state."""
    rest = [WEIGHTS]
    states = sorted({
        name.partition("/")[2].partition("/")[0] for name in found.tensors
        if name.startswith(("state/", "opt/"))
    })  # fmt: skip
    if states:
        rest.append(f"so were what the method and its optimiser keep ({', '.join(states)})")
    if any(found.facts["inputs"][name] for name in ("mean", "std", "fill")):
        rest.append("scales and fill values of inputs were computed from the first task")
    if len(wanted.hashes) and found.facts["rows_left_out"]:
        rest.append(f"the memory's rows are not here ({found.facts['rows_left_out']})")
    return tuple(rest)


def remaining_tasks(found: PortableState) -> list[NewTask]:
    """Return the remaining rows of every task as tasks to learn, for a learner trained anew."""
    if found.facts["rows_left_out"] or not len(found.tensors["rows/y"]):
        why = found.facts["rows_left_out"] or "the method keeps none"
        raise EngramError(f"retrain: needs rows of the memory to train on ({why})")
    x, stage = found.tensors["rows/x"], found.tensors["rows/stage"]
    y, names = hide_later_labels(found), found.facts["classes"]
    x = x.reshape(-1, *found.facts["inputs"]["shape"])
    tasks = []
    for number in stage.unique().tolist():
        rows = (stage == number).nonzero()[:, 0]
        own = y[rows]
        columns = own[own >= 0].unique()
        places = torch.where(own >= 0, torch.searchsorted(columns, own), -1)
        tasks.append(NewTask(
            x=x[rows], y=places, classes=[names[c] for c in columns.tolist()], kind="",
            sets=found.facts["labels"] == "set", valid_x=x[:0],
            valid_y=torch.empty(0, 1, dtype=torch.long), about=found.facts["inputs"],
        ))  # fmt: skip
    return tasks


def move_calibration(found: PortableState, onto: PortableState) -> PortableState:
    """Return a state with the calibration rows of another one, whose columns may differ."""
    held = CalibrationRows.from_state(found)
    if held is None:
        return onto
    place: Mapping[str, int] = {name: c for c, name in enumerate(onto.facts["classes"])}
    names = found.facts["classes"]
    columns = torch.tensor([place.get(name, -1) for name in names])
    y = columns[held.y]
    known, seen = y >= 0, torch.zeros(len(place), dtype=torch.long)
    for c, count in enumerate(held.seen.tolist()):
        if columns[c] >= 0:
            seen[columns[c]] = count
    rows = CalibrationRows(held.x[known], y[known], seen)
    return PortableState({**onto.tensors, **rows.tensors()}, onto.facts)
