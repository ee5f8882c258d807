"""Numbers of IIRC's data: samples of every part, classes of every kind, samples of some classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch

from engram.reproduce.cells import Cell
from engram.reproduce.papers.iirc_preset import ALIASES, Preset, recipe
from engram.reproduce.table import Entry
from engram.streams.tree import FINE, SUPER

if TYPE_CHECKING:
    from torch import Tensor

    from engram.streams.core import Stream

Count = Callable[["Stream"], float]
# ImageNet's classes are known by wnid.
WNIDS = {
    "ostrich": "n01518878", "leopard": "n02128385", "grand piano": "n03452741",
    "wooden spoon": "n04597913",
}  # fmt: skip
PLACES = {"bus": 0, "squirrel": 1, "mushroom": -1, "ostrich": 0, "leopard": 1, "grand piano": 2,
          "wooden spoon": -1}  # fmt: skip


def counted(preset: Preset, cell: Cell) -> Entry:
    """Samples of a part of the data (table 3.1), or classes of a kind (table 3.2)."""
    return _entry(preset, cell, _samples(cell) or _classes(cell))


def pair_counted(preset: Preset, cell: Cell) -> Entry:
    """Samples of a superclass and of one of its subclasses (table 3.3)."""
    names = dict(part.split("=") for part in cell["setting"].split(";"))

    def count(stream: Stream) -> float:
        above, below = _pair(stream, names["superclass"], names["subclass"])
        if cell["metric"] == "superclass_size":
            return len(_rows_of(stream, above))
        if cell["metric"] == "subclass_size":
            return len(_rows_of(stream, below))
        found = stream.data.attributes["superclass"] == above
        return len(stream.data.attributes["fine"][found].unique())

    return _entry(preset, cell, count)


def _entry(preset: Preset, cell: Cell, count: Count) -> Entry:
    dataset = ALIASES.get(cell["dataset"], cell["dataset"])
    made = recipe(preset, dataset, "finetune")
    return Entry(counted=(made, count), tolerance=0.0, reasons=preset.reasons(dataset))


def _samples(cell: Cell) -> Count | None:
    parts = {
        "n_samples_train": "train", "n_samples_in_task_validation": "valid",
        "n_samples_post_task_validation": "post_valid", "n_samples_test": "test",
    }  # fmt: skip
    part = parts.get(cell["metric"])
    if part is None:
        return None
    twice = cell["setting"] == "with_duplicates"
    return lambda stream: _length((getattr(task, part) for task in stream), twice)


def _length(rows: Iterable[Tensor], twice: bool) -> int:
    found = torch.cat(list(rows))
    return len(found) if twice else len(found.unique())


def _classes(cell: Cell) -> Count:
    """Classes by kind: superclasses, fine classes that have one, fine classes that have none."""

    def kinds(stream: Stream) -> dict[str, int]:
        names = [stream.data.classes[c] for c in stream.order]
        fine, above = (stream.data.attributes[name] for name in ("fine", "superclass"))
        subclasses = len(fine[above >= 0].unique())
        return {
            "n_superclasses": sum(name.startswith(SUPER) for name in names),
            "n_subclasses": subclasses,
            "n_orphan_subclasses": sum(name.startswith(FINE) for name in names) - subclasses,
            "n_classes": len(names),
        }  # fmt: skip

    return lambda stream: kinds(stream)[cell["metric"]]


def _pair(stream: Stream, above: str, below: str) -> tuple[int, int]:
    """Ids of a superclass (-1 for none) and of a subclass, or of others where names are unknown."""
    names = list(stream.data.classes)
    sub = FINE + WNIDS.get(below, below) if FINE + below not in names else FINE + below
    top = SUPER + above.replace(" ", "_") if SUPER + above not in names else SUPER + above
    if sub in names and (not above or top in names):
        return (names.index(top) if above else -1), names.index(sub)
    fine, over = (stream.data.attributes[name] for name in ("fine", "superclass"))
    tops = sorted(set(over[over >= 0].tolist()))
    place = PLACES[below]  # drawn shapes: the first kinds, and the first orphan
    chosen = tops[place] if above else -1
    return chosen, int(fine[over == chosen].min())


def _rows_of(stream: Stream, label: int) -> Tensor:
    """Training rows of the task that introduces a class, as far as they are of the class."""
    task = next(task for task in stream if label in task.new)
    mine = (stream.data.y[task.train] == label).any(-1)
    return task.train[mine]
