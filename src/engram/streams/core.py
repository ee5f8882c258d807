"""Task and Stream: row numbers and class masks over one Data, never copies of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, overload

import torch
from torch import Tensor

from engram.data.core import Data
from engram.data.standard import fitted, unfitted
from engram.errors import bad, choose
from engram.spelling import plural
from engram.streams._check import check_stream
from engram.streams._new import renewed
from engram.streams._plain import check_plain, fields_of_task, fingerprint_of, plain_task
from engram.streams._rows import ROWS, as_rows
from engram.streams._show import html_of, table_of
from engram.streams.origin import Origin
from engram.streams.views import View, joined, restage, view_from

HEADS = ("single", "multi")
INFORMATION = ("incomplete", "complete")
JUDGED_ON = ("test", "valid", "post_valid")
# of all tasks of a stream
_SETTINGS = ("head", "online", "task_labels", "information", "judged_on")
_NO_ROWS = torch.empty(0, dtype=torch.long)
__all__ = ["HEADS", "ROWS", "Stream", "Task", "View"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """One step of a stream.

    Parameters
    ----------
    train, valid, post_valid, test
        Row numbers: training, in-task validation, post-task validation, test.
    new
        Class ids that appear here for the first time, in order of introduction.
    visible
        Class ids whose labels are shown for this task's rows. Labels outside are hidden.
        Empty means the `new` ones.
    domain
        Name of the domain, where tasks differ in their inputs.
    """

    train: Tensor
    test: Tensor
    valid: Tensor = field(default_factory=lambda: _NO_ROWS)
    post_valid: Tensor = field(default_factory=lambda: _NO_ROWS)
    new: tuple[int, ...] = ()
    visible: tuple[int, ...] = ()
    domain: str = ""

    def __post_init__(self) -> None:
        for kind in ROWS:
            object.__setattr__(self, kind, as_rows(kind, getattr(self, kind)))
        object.__setattr__(self, "new", tuple(self.new))
        object.__setattr__(self, "visible", tuple(self.visible))

    def __repr__(self) -> str:
        name = f" {self.domain!r}" if self.domain else ""
        return f"Task({len(self.train)} rows, new classes {list(self.new)}{name})"

    @property
    def shown(self) -> tuple[int, ...]:
        """Class ids whose labels are shown for this task's rows."""
        return self.visible or self.new


@dataclass(frozen=True, eq=False, kw_only=True)
class Stream:
    """A sequence of tasks over one data set.

    `head` is the stream's own evaluation view: ``single`` (all seen classes compete) or ``multi``
    (the task is known, its classes compete). `online` streams allow one pass over each task.
    `information` is which labels of a task's rows are visible in training: those of the task's
    classes, or, if ``complete``, all that were opened so far. `judged_on` is what the rows under
    `test` are: validation rows while hyper-parameters are tuned (`for_search`).

    Streams are immutable and compare by content. ``stream[:3]`` is the stream of the first three
    tasks, ``stream[:2] + stream[3:]`` leaves the third out, ``print(stream)`` shows the tasks.

    Examples
    --------
    >>> data = Data.from_arrays([[float(i)] for i in range(20)], [0, 1, 2, 3] * 5)
    >>> a = Task(train=[0, 4, 1], test=[16, 17], new=(0, 1))
    >>> b = Task(train=[2, 3], test=[18, 19], new=(2, 3))
    >>> stream = Stream(data=data, tasks=(a, b))
    >>> stream
    Stream('stream': 2 tasks, 4 classes, single head)
    >>> stream[:1] + stream[1:] == stream
    True
    """

    data: Data
    tasks: tuple[Task, ...]
    head: str = "single"
    name: str = "stream"
    view: View | None = None
    online: bool = False
    task_labels: bool = True
    information: str = "incomplete"
    judged_on: str = "test"
    origin: Origin | None = field(init=False, default=None, repr=False)  # of a scenario's own

    def __post_init__(self) -> None:
        choose("head", self.head, HEADS)
        choose("information", self.information, INFORMATION)
        choose("judged_on", self.judged_on, JUDGED_ON)
        object.__setattr__(self, "tasks", tuple(self.tasks))
        check_stream(self)
        object.__setattr__(self, "data", fitted(self.data, self.tasks[0].train))

    def __len__(self) -> int:
        return len(self.tasks)

    def may_be_empty(self, stage: int) -> bool:
        """Whether a task need not have training rows: never, where all of them are known."""
        return False

    @property
    def train_sizes(self) -> tuple[int, ...]:
        """How many training rows each task has."""
        return tuple(len(task.train) for task in self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    @overload
    def __getitem__(self, which: int) -> Task: ...
    @overload
    def __getitem__(self, which: slice) -> Stream: ...
    def __getitem__(self, which: int | slice) -> Task | Stream:
        if isinstance(which, slice):
            return self.pick(range(len(self))[which])
        return self.tasks[which]

    def pick(self, stages: Sequence[int]) -> Stream:
        """The stream of these tasks, in this order.

        A class that a task shows and no earlier task has introduced becomes new there.
        """
        tasks = renewed([self.tasks[stage] for stage in stages], self.order)
        view = restage(self.view, stages, len(self))
        return replace(self, data=unfitted(self.data), tasks=tasks, view=view)

    def __add__(self, other: Stream) -> Stream:
        """The tasks of both streams, one after the other, over the same data."""
        if not isinstance(other, Stream):
            return NotImplemented
        if other.data is not self.data and other.data.fingerprint() != self.data.fingerprint():
            raise bad("other", f"a stream over the same data ({self.data.name!r})", other.data.name)
        for setting in _SETTINGS:
            if getattr(self, setting) != getattr(other, setting):
                mine, theirs = getattr(self, setting), getattr(other, setting)
                raise bad("other", f"a stream with {setting}={mine!r}, like the first one", theirs)
        tasks = renewed([*self.tasks, *other.tasks], [*self.order, *other.order])
        view = joined(self.view, len(self), other.view, len(other))
        return replace(self, data=unfitted(self.data), tasks=tasks, view=view)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        return self is other or self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    def __repr__(self) -> str:
        once = ", online" if self.online else ""
        counts = f"{plural(len(self), 'task')}, {plural(len(self.order), 'class')}"
        sets = ", label sets" if self.labels == "set" else ""
        return f"Stream({self.name!r}: {counts}, {self.head} head{sets}{once})"

    def _repr_html_(self) -> str:
        return html_of(self)

    def __str__(self) -> str:
        return table_of(self)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Class ids in order of introduction; the place of a class is its output column."""
        return tuple(dict.fromkeys(c for task in self.tasks for c in task.new))

    @cached_property
    def position(self) -> Tensor:
        """[classes of the data] output column of each class id, -1 for those not in the stream."""
        place = torch.full((self.data.n_classes,), -1, dtype=torch.long)
        place[list(self.order)] = torch.arange(len(self.order))
        return place

    @property
    def labels(self) -> str:
        """``single`` where each row of the data has one label, ``set`` where one has several.

        It says how predictions are judged: by their argmax, or as the set of all that lie above a
        threshold. A part of a stream is judged as the whole.
        """
        return "set" if self.data.several else "single"

    @cached_property
    def held_out(self) -> str:
        """The validation rows that are scored beside test rows: post_valid, valid, "" for none."""
        if self.judged_on != "test":
            return ""
        found = [k for k in ("post_valid", "valid") if any(len(getattr(t, k)) for t in self.tasks)]
        return found[0] if found else ""

    @cached_property
    def targets(self) -> Tensor:
        """[N, L] labels of every row as output columns, -1 where there is none."""
        y = self.data.y
        return torch.where(y >= 0, self.position.to(y.device)[y.clamp(min=0)], -1)

    @cached_property
    def opening(self) -> Tensor:
        """[C] the task that introduces each output column."""
        stage = self._introduced()
        return torch.tensor([stage[c] for c in self.order], dtype=torch.long)

    def _introduced(self) -> dict[int, int]:
        """The task that introduces each class."""
        stage: dict[int, int] = {}
        for k, task in enumerate(self.tasks):
            for c in task.new:
                stage.setdefault(c, k)
        return stage

    @cached_property
    def visible(self) -> Tensor:
        """[T, C] whether labels of a column are shown for rows of a task."""
        mask = torch.zeros(len(self), len(self.order), dtype=torch.bool)
        for k, task in enumerate(self.tasks):
            mask[k, self.position[list(task.shown)]] = True
        return mask

    @cached_property
    def told(self) -> Tensor:
        """[T, C] whether training is told the labels of a column for rows of a task."""
        if self.information == "complete":
            return self.opening <= torch.arange(len(self))[:, None]
        return self.visible

    def describe(self) -> dict[str, object]:
        """Plain values: what the stream is, without its data and its row numbers."""
        stored = len(self.data.x)
        copies = [int((task.train >= stored).sum()) for task in self.tasks]
        return {
            "name": self.name, "head": self.head, "labels": self.labels, "tasks": len(self),
            "order": list(self.order),
            "new": [list(t.new) for t in self.tasks], "domains": [t.domain for t in self.tasks],
            "rows": [[len(t.train), len(t.valid), len(t.test)] for t in self.tasks],
            "view": self.view.describe() if self.view else {}, "online": self.online,
            **({"copies": copies} if any(copies) else {}), **self._more(),
        }  # fmt: skip

    def _more(self) -> dict[str, str]:
        """What most streams need not say."""
        usual = {"information": INFORMATION[0], "judged_on": JUDGED_ON[0]}
        return {k: getattr(self, k) for k, v in usual.items() if getattr(self, k) != v}

    def fingerprint(self) -> str:
        """Hash of tasks, view, head and data; the name is only a label."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint_of(self)

    def to_dict(self) -> dict[str, Any]:
        """The whole stream but its data, as values that JSON can hold."""
        return {
            "name": self.name, "head": self.head, "online": self.online,
            "task_labels": self.task_labels, "data": self.data.fingerprint(),
            "view": self.view.describe() if self.view else {},
            "tasks": [plain_task(task) for task in self.tasks], **self._more(),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Data, plain: Mapping[str, Any], *, view: View | None = None) -> Stream:
        """The stream that wrote `plain`, over the data it was written for.

        `view` is needed only for views that this package does not know.
        """
        check_plain(data, plain, view)
        tasks = [Task(**fields_of_task(k, task)) for k, task in enumerate(plain["tasks"])]
        rest = {key: plain[key] for key in ("name", *_SETTINGS) if key in plain}
        return cls(data=data, tasks=tuple(tasks), view=view or view_from(plain["view"]), **rest)
