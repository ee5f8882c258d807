"""`EvaluationItems`: the facts about test items that turn stored scores into metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.errors import RecordError, bad, wrap_read_errors
from engram.io import TensorFile, save_tensors

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
HEADS = ("single", "multi")
_FORMAT = "engram-items-1"
_ATTRIBUTE = "attribute/"


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluationItems:
    """Test items of a stream, in the order in which scores are stored, without the inputs.

    A row of the data that is tested in several tasks is one item per task.

    Parameters
    ----------
    rows
        [n] row number in the data.
    task
        [n] task to which the item belongs.
    targets
        [n, L] true labels as output columns, -1 where there are fewer than L.
    opening
        [C] the stage that introduces each column.
    visible
        [T, C] the columns that belong to each task.
    classes
        [C] class id of each column, that is, class ids in order of introduction.
    names
        [C] name of each column's class.
    multilabel
        Whether a prediction is a set of labels (scores above a threshold) rather than one label.
    attributes
        [n] further attributes of the items by name, such as subject, gender, view.
    attribute_names
        Name of each value of an attribute, where the data has them.
    parent
        [C] for label sets: the label listed before each one in the data, -1 for none;
        empty: found in `targets`.
    task_given
        Whether scores were computed with the task of each item given: they hold for no other view
        than ``multi``.
    """

    rows: Ints
    task: Ints
    targets: Ints
    opening: Ints
    visible: Bools
    classes: Ints
    names: tuple[str, ...] = ()
    multilabel: bool = False
    attributes: Mapping[str, Ints] = field(default_factory=dict)
    attribute_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parent: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    task_given: bool = False

    def __post_init__(self) -> None:
        for name in ("rows", "task", "targets", "opening", "classes", "parent"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.int64))
        facts = {key: np.asarray(values, np.int64) for key, values in self.attributes.items()}
        object.__setattr__(self, "attributes", facts)
        object.__setattr__(self, "visible", np.asarray(self.visible, np.bool_))
        if self.targets.ndim == 1:
            object.__setattr__(self, "targets", self.targets[:, None])
        names = tuple(self.names) or tuple(map(str, self.classes))
        object.__setattr__(self, "names", names)
        if self.multilabel and not len(self.parent):
            object.__setattr__(self, "parent", parents(self.targets, len(self.opening)))
        self._check()

    def _check(self) -> None:
        n, width = len(self.rows), len(self.opening)
        if self.task.shape != (n,) or len(self.targets) != n:
            got = (self.task.shape, self.targets.shape)
            raise bad("task and targets", f"{n} entries, one per row", got)
        if self.visible.ndim != 2 or self.visible.shape[1] != width:
            raise bad("visible", f"a mask [tasks, {width}]", self.visible.shape)
        if len(self.classes) != width or len(self.names) != width:
            raise bad("classes and names", f"{width} entries", (len(self.classes), len(self.names)))
        if len(self.parent) not in (0, width):
            raise bad("parent", f"{width} entries", len(self.parent))
        if n and not (self.task.min() >= 0 and self.task.max() < len(self.visible)):
            raise bad("task", f"numbers from 0 to {len(self.visible) - 1}", self.task.max())
        if self.targets.size and self.targets.max() >= width:
            raise bad("targets", f"columns below {width}", self.targets.max())
        for key, values in self.attributes.items():
            if values.shape != (n,):
                raise bad(f"attributes[{key!r}]", f"{n} entries, one per row", values.shape)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"EvaluationItems({len(self)} test items, {self.tasks} tasks, {self.width} classes)"

    @property
    def tasks(self) -> int:
        """Number of tasks T."""
        return len(self.visible)

    @property
    def width(self) -> int:
        """Number of output columns C."""
        return len(self.opening)

    @property
    def heads(self) -> tuple[str, ...]:
        """The head views that these items have.

        A row with a label set belongs to the tasks of all its labels: given one task, a
        network could not predict the others, so there is no ``multi``. Where scores depend on the
        task that was given, there is no ``single``.
        """
        return HEADS[:1] if self.multilabel else HEADS[1:] if self.task_given else HEADS

    def counted(self, stage: int) -> Bools:
        """Mark the items of the tasks up to `stage`, [n]; a row with a label set only once.

        Examples
        --------
        >>> items = EvaluationItems(
        ...     rows=[4, 5, 4],
        ...     task=[0, 0, 1],
        ...     targets=[[0, 1], [0, -1], [0, 1]],
        ...     opening=[0, 1],
        ...     visible=[[1, 0], [0, 1]],
        ...     classes=[7, 3],
        ...     multilabel=True,
        ... )
        >>> items.counted(1).tolist()
        [True, True, False]
        """
        seen = self.task <= stage
        if not self.multilabel:
            return np.asarray(seen)
        places = np.flatnonzero(seen)
        _, first = np.unique(self.rows[places], return_index=True)
        once = np.zeros(len(self), np.bool_)
        once[places[first]] = True
        return once

    def first(self, count: int) -> EvaluationItems:
        """Return the first `count` items, or all if there are no more; cached.

        Where only learnt tasks were scored, scores belong to the first items.
        """
        if count >= len(self):
            return self
        known: dict[int, EvaluationItems] = self.__dict__.setdefault("_first", {})
        if count not in known:
            known[count] = replace(
                self, rows=self.rows[:count], task=self.task[:count], targets=self.targets[:count],
                attributes={key: values[:count] for key, values in self.attributes.items()},
            )  # fmt: skip
        return known[count]

    def thin(self, most: int) -> EvaluationItems:
        """Return at most so many items of each task (0: all), evenly spread over them; cached."""
        if not most:
            return self
        known: dict[int, EvaluationItems] = self.__dict__.setdefault("_thin", {})
        if most not in known:
            where = spread_places(self.task, most)
            known[most] = replace(
                self, rows=self.rows[where], task=self.task[where], targets=self.targets[where],
                attributes={key: values[where] for key, values in self.attributes.items()},
            )  # fmt: skip
        return known[most]

    def up_to(self, stage: int) -> EvaluationItems:
        """Return the items of the tasks up to `stage`; items must be in the order of their tasks.

        Examples
        --------
        >>> items = EvaluationItems(
        ...     rows=[4, 5, 6],
        ...     task=[0, 0, 1],
        ...     targets=[0, 0, 1],
        ...     opening=[0, 1],
        ...     visible=[[1, 0], [0, 1]],
        ...     classes=[7, 3],
        ... )
        >>> items.up_to(0)
        EvaluationItems(2 test items, 2 tasks, 2 classes)
        """
        return self.first(int(np.searchsorted(self.task, stage, side="right")))

    def scored_tasks(self, stage: int) -> int:
        """Number of tasks with items, counted from the first, and at least the learnt ones."""
        return 1 + max(stage, int(self.task.max(initial=-1)))

    @classmethod
    def of_stream(
        cls, stream: Any, kind: str = "test", *, task_given: bool = False
    ) -> EvaluationItems:
        """Collect the test items of a stream task by task, or its rows of another kind.

        Cached: a study needs them after every stage of hundreds of runs over one stream.
        """
        known: dict[Any, EvaluationItems] = stream.__dict__.setdefault("_items", {})
        if (kind, False) not in known:
            known[kind, False] = cls._made(stream, kind)
        if (kind, task_given) not in known:
            known[kind, task_given] = replace(known[kind, False], task_given=task_given)
        return known[kind, task_given]

    @classmethod
    def _made(cls, stream: Any, kind: str) -> EvaluationItems:
        tests = [np.asarray(getattr(task, kind).cpu()) for task in stream]
        rows = np.concatenate(tests)
        task = np.repeat(np.arange(len(tests)), [len(t) for t in tests])
        targets, order = np.asarray(stream.targets.cpu()), list[int](stream.order)
        sets = stream.labels == "set"
        return cls(
            rows=rows, task=task, targets=targets[rows], opening=np.asarray(stream.opening.cpu()),
            visible=np.asarray(stream.visible.cpu()), classes=np.asarray(order, np.int64),
            names=tuple(str(stream.data.classes[c]) for c in order),
            multilabel=sets, parent=parents(targets, len(order) if sets else 0),
            attributes={k: np.asarray(v.cpu())[rows] for k, v in stream.data.attributes.items()},
            attribute_names=dict(stream.data.attribute_names),
        )  # fmt: skip


def spread_places(task: npt.NDArray[Any], most: int) -> Ints:
    """Return the places of at most so many items of each task, evenly spread; ascending.

    `task` [n] is ascending.

    Examples
    --------
    >>> spread_places(np.array([0, 0, 0, 0, 1, 1]), 2).tolist()
    [0, 2, 4, 5]
    """
    _, starts, counts = np.unique(task, return_index=True, return_counts=True)
    pairs = zip(starts, counts, strict=True)
    found = [start + np.arange(min(n, most)) * n // min(n, most) for start, n in pairs]
    return np.concatenate([*found, np.zeros(0, np.int64)]).astype(np.int64)


def parents(targets: npt.NDArray[Any], width: int) -> Ints:
    """Find the label listed before each one in label sets [n, L], -1 for none; [width].

    Examples
    --------
    >>> parents(np.array([[0, 1], [0, -1], [2, -1]]), 3).tolist()
    [-1, 0, -1]
    """
    found = np.full(width, -1, np.int64)
    for row in np.unique(targets, axis=0) if width else ():
        line = row[row >= 0]
        found[line[1:]] = line[:-1]
    return found


def write_items(
    path: str | os.PathLike[str], items: EvaluationItems, *, recipe: str, order: str
) -> Path:
    """Write the items of one recipe and order atomically."""
    small = {
        "rows": items.rows.astype(np.int32) if items.rows.max(initial=0) < 2**31 else items.rows,
        "task": items.task.astype(np.int16),
        "targets": items.targets.astype(np.int32),
        "opening": items.opening.astype(np.int16),
        "visible": items.visible.astype(np.uint8),
        "classes": items.classes.astype(np.int32),
        "parent": items.parent.astype(np.int32),
        **{_ATTRIBUTE + key: values for key, values in items.attributes.items()},
    }
    facts = {
        "format": _FORMAT, "recipe": recipe, "order": order,
        "names": json.dumps(items.names), "multilabel": json.dumps(items.multilabel),
        "attribute_names": json.dumps(items.attribute_names),
        **({"task_given": "true"} if items.task_given else {}),
    }  # fmt: skip
    return save_tensors(path, {k: np.ascontiguousarray(v) for k, v in small.items()}, facts)


def read_items(path: str | os.PathLike[str]) -> EvaluationItems:
    """Read the items of one recipe and order; raises `RecordError` for a broken file."""
    file = TensorFile(path, what="items file")
    facts, arrays = file.facts, {name: file.get(name) for name in file.keys()}  # noqa: SIM118
    if facts.get("format") != _FORMAT:
        raise RecordError(f"{path}: not an items file of this version")
    with wrap_read_errors(path, "items file"):
        names = json.loads(facts["attribute_names"])
        found = [name for name in arrays if name.startswith(_ATTRIBUTE)]
        return EvaluationItems(
            attributes={name.removeprefix(_ATTRIBUTE): arrays.pop(name) for name in found},
            attribute_names={key: tuple(map(str, values)) for key, values in names.items()},
            **arrays, names=tuple(map(str, json.loads(facts["names"]))),
            multilabel=bool(json.loads(facts["multilabel"])),
            task_given=bool(json.loads(facts.get("task_given", "false"))),
        )  # fmt: skip
