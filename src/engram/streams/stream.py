"""`Stream` and `Task`: row numbers and class masks over one `Data`, with their origin, validity
checks, JSON form and tables.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, ParamSpec, overload

import torch
from torch import Tensor

from engram.data.dataset import Data, DataSource
from engram.data.standardization import fit_standardization, undo_standardization
from engram.errors import bad, check_choice, plural
from engram.html_repr import escape, html_table, join_blocks
from engram.streams.input_views import View, join_views, restage, view_from_description
from engram.streams.row_numbers import ROW_PARTS, check_rows, pack_rows, unpack_rows

P = ParamSpec("P")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How a stream was made; changed streams (a slice, `replace`) have no origin.

    Parameters
    ----------
    kind
        Name of the scenario.
    options
        Its options, defaults included.
    data, source
        Name of the data, and how it can be loaded again, None if it is only in memory.
    """

    kind: str
    options: Mapping[str, Any]
    data: str
    source: DataSource | None = None

    def change(self, **options: Any) -> Origin:
        """Return the origin with further options."""
        return replace(self, options={**self.options, **options})


def scenario(make: Callable[P, Stream], kind: str = "") -> Callable[P, Stream]:
    """Decorate a function from data to a stream so that the stream records its origin.

    `kind` is the name by which it is found; by default that of the function.

    Examples
    --------
    >>> from engram import class_incremental, load
    >>> origin = class_incremental(load("blobs"), classes_per_task=5).origin
    >>> origin.kind, origin.options["classes_per_task"], origin.options["valid"]
    ('class_incremental', 5, 0.0)
    """
    signature = inspect.signature(make)
    given, *others = signature.parameters.values()
    defaults = {one.name: one.default for one in others if one.default is not one.empty}

    @wraps(make)
    def made(*args: P.args, **options: P.kwargs) -> Stream:
        if args and not isinstance(args[0], Data):
            expected = "Data, such as engram.load('digits') or Data.from_arrays(x, y)"
            raise bad(given.name, expected, args[0])
        stream = make(*args, **options)
        whole = {**defaults, **signature.bind(*args, **options).arguments}
        if not isinstance(stream, Stream):
            raise bad(f"stream.kind: {kind or make.__name__}", "a Stream to be returned", stream)
        return with_origin(stream, _origin(kind or make.__name__, whole, whole.pop(given.name)))

    setattr(made, "__kwdefaults__", defaults)  # noqa: B010 - defaults of options, for introspection
    return made


def _origin(kind: str, options: Mapping[str, Any], data: Data) -> Origin:
    return Origin(kind=kind, options=options, data=data.name, source=data.source)


def with_origin(stream: Stream, origin: Origin | None) -> Stream:
    """Set the origin of a stream and return it."""
    object.__setattr__(stream, "origin", origin)
    return stream


# -- Task and Stream -------------------------------------------------------------------------------

HEADS = ("single", "multi")
INFORMATION = ("incomplete", "complete")
JUDGED_ON = ("test", "valid", "post_valid")
# settings that hold for all tasks of a stream
_SETTINGS = ("head", "online", "task_labels", "information", "judged_on")
_NO_ROWS = torch.empty(0, dtype=torch.long)
__all__ = ["HEADS", "ROW_PARTS", "Stream", "Task", "View"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """One step of a stream.

    Parameters
    ----------
    train, valid, post_valid, test
        Row numbers: training, in-task validation, post-task validation, test.
    new
        Class ids introduced by the task, in order.
    visible
        Class ids whose labels are visible for this task's rows; all others are hidden. Empty means
        the `new` ones.
    domain
        Name of the domain, if tasks differ in their inputs.
    """

    train: Tensor
    test: Tensor
    valid: Tensor = field(default_factory=lambda: _NO_ROWS)
    post_valid: Tensor = field(default_factory=lambda: _NO_ROWS)
    new: tuple[int, ...] = ()
    visible: tuple[int, ...] = ()
    domain: str = ""

    def __post_init__(self) -> None:
        for kind in ROW_PARTS:
            object.__setattr__(self, kind, check_rows(kind, getattr(self, kind)))
        object.__setattr__(self, "new", tuple(self.new))
        object.__setattr__(self, "visible", tuple(self.visible))

    def __repr__(self) -> str:
        name = f" {self.domain!r}" if self.domain else ""
        return f"Task({len(self.train)} rows, new classes {list(self.new)}{name})"

    @property
    def shown(self) -> tuple[int, ...]:
        """Class ids whose labels are visible for this task's rows."""
        return self.visible or self.new


@dataclass(frozen=True, eq=False, kw_only=True)
class Stream:
    """A sequence of tasks over one data set.

    `head` is how the stream is evaluated: ``single`` (all seen classes compete) or ``multi`` (the
    task is known, its classes compete). `online` streams allow one pass over each task.
    `information` says which labels of a task's rows are visible in training: those of the task's
    classes or, if ``complete``, all opened so far. `judged_on` says what the `test` rows are:
    validation rows while hyper-parameters are tuned (`validation_streams.make_search_stream`).

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
    origin: Origin | None = field(init=False, default=None, repr=False)  # set by scenarios

    def __post_init__(self) -> None:
        check_choice("head", self.head, HEADS)
        check_choice("information", self.information, INFORMATION)
        check_choice("judged_on", self.judged_on, JUDGED_ON)
        object.__setattr__(self, "tasks", tuple(self.tasks))
        check_stream(self)
        object.__setattr__(self, "data", fit_standardization(self.data, self.tasks[0].train))

    def __len__(self) -> int:
        return len(self.tasks)

    def may_be_empty(self, stage: int) -> bool:
        """Whether a task may have no training rows: never, if all rows are known in advance."""
        return False

    @property
    def train_sizes(self) -> tuple[int, ...]:
        """Number of training rows of each task."""
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
        """Return the stream of the given tasks, in this order.

        A class shown by a task and introduced by no earlier one becomes new in that task.
        """
        tasks = update_new_classes([self.tasks[stage] for stage in stages], self.order)
        view = restage(self.view, stages, len(self))
        return replace(self, data=undo_standardization(self.data), tasks=tasks, view=view)

    def __add__(self, other: Stream) -> Stream:
        """Concatenate the tasks of two streams over the same data."""
        if not isinstance(other, Stream):
            return NotImplemented
        if other.data is not self.data and other.data.fingerprint() != self.data.fingerprint():
            raise bad("other", f"a stream over the same data ({self.data.name!r})", other.data.name)
        for setting in _SETTINGS:
            if getattr(self, setting) != getattr(other, setting):
                mine, theirs = getattr(self, setting), getattr(other, setting)
                raise bad("other", f"a stream with {setting}={mine!r}, like the first one", theirs)
        tasks = update_new_classes([*self.tasks, *other.tasks], [*self.order, *other.order])
        view = join_views(self.view, len(self), other.view, len(other))
        return replace(self, data=undo_standardization(self.data), tasks=tasks, view=view)

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
        return stream_html(self)

    def plot(self, name: str | None = None) -> Any:
        """Draw a picture of the stream (plotly), which notebooks display.

        Parameters
        ----------
        name
            ``samples``: training images of each task as networks see them; ``rows``: how many rows
            of each label a task has; ``views``: what each task does to an image (permuted,
            rotated); ``tree``: superclasses and classes, in the colour of the task that introduces
            them. None: what says most about this stream.
        """
        from importlib import import_module

        # imported here because pictures build on reports, which build on streams
        return import_module("engram.report.stream_pictures").plot_stream(self, name)

    def __str__(self) -> str:
        return stream_table(self)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Class ids in order of introduction; the index of a class is its output column."""
        return tuple(dict.fromkeys(c for task in self.tasks for c in task.new))

    @cached_property
    def position(self) -> Tensor:
        """[classes of the data] output column of each class id, -1 for those not in the stream."""
        place = torch.full((self.data.n_classes,), -1, dtype=torch.long)
        place[list(self.order)] = torch.arange(len(self.order))
        return place

    @property
    def labels(self) -> str:
        """``single`` if each row of the data has one label, ``set`` if some row has several.

        Decides how predictions are scored: by their argmax, or as the set of labels above a
        threshold.
        """
        return "set" if self.data.is_multilabel else "single"

    @cached_property
    def held_out(self) -> str:
        """Kind of the validation rows scored besides test rows: post_valid, valid, "" for none."""
        if self.judged_on != "test":
            return ""
        found = [k for k in ("post_valid", "valid") if any(len(getattr(t, k)) for t in self.tasks)]
        return found[0] if found else ""

    @cached_property
    def targets(self) -> Tensor:
        """[N, L] labels of every row as output columns, padded with -1."""
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
        """[T, C] whether the labels of a column are visible for rows of a task."""
        mask = torch.zeros(len(self), len(self.order), dtype=torch.bool)
        for k, task in enumerate(self.tasks):
            mask[k, self.position[list(task.shown)]] = True
        return mask

    def count_groups(self) -> int:
        """Count the classes of all tasks, which at least need an item of a memory each."""
        return int(self.visible.sum())

    @cached_property
    def used_in_training(self) -> Tensor:
        """[T, C] whether training uses the labels of a column for rows of a task."""
        if self.information == "complete":
            return self.opening <= torch.arange(len(self))[:, None]
        return self.visible

    def describe(self) -> dict[str, object]:
        """Describe the stream in plain values, without its data and row numbers."""
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
        """Return settings that differ from their defaults."""
        usual = {"information": INFORMATION[0], "judged_on": JUDGED_ON[0]}
        return {k: getattr(self, k) for k, v in usual.items() if getattr(self, k) != v}

    def fingerprint(self) -> str:
        """Return a hash of tasks, view, head and data, but not of the name."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return stream_fingerprint(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the stream without its data, as values that JSON can hold."""
        return {
            "name": self.name, "head": self.head, "online": self.online,
            "task_labels": self.task_labels, "data": self.data.fingerprint(),
            "view": self.view.describe() if self.view else {},
            "tasks": [task_to_dict(task) for task in self.tasks], **self._more(),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Data, plain: Mapping[str, Any], *, view: View | None = None) -> Stream:
        """Make a stream from the result of `to_dict`, over the same data.

        `view` is needed only for views defined outside of this package.
        """
        check_stream_dict(data, plain, view)
        tasks = [Task(**task_fields_from_dict(k, task)) for k, task in enumerate(plain["tasks"])]
        rest = {key: plain[key] for key in ("name", *_SETTINGS) if key in plain}
        return cls(
            data=data, tasks=tuple(tasks), view=view or view_from_description(plain["view"]), **rest
        )


# -- validity of a stream: rows exist, parts are disjoint, every task shows labels -----------------

_DISJOINT_PARTS = (
    ("train", "test"), ("train", "valid"), ("train", "post_valid"),
    ("valid", "test"), ("post_valid", "test"),
)  # fmt: skip


def check_stream(stream: Stream) -> None:
    """Raise if the stream is invalid."""
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
    for a, b in _DISJOINT_PARTS:
        if (a, b) == (stream.judged_on, "test"):
            continue  # these validation rows are the test rows
        both = (masks[a] & masks[b]).nonzero()
        if len(both):
            raise bad("tasks", f"no row that is both a {a} and a {b} row, in any task",
                      f"{len(both)} such rows, first {int(both[0])}")  # fmt: skip


def _check_copies(stream: Stream, masks: dict[str, Tensor]) -> None:
    """Raise unless copies and the rows they are made from are used for training only."""
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


# -- new classes of reordered tasks ----------------------------------------------------------------


def update_new_classes(tasks: Sequence[Task], order: Sequence[int]) -> tuple[Task, ...]:
    """Update `new` of tasks for the sequence in which they are given."""
    place = {c: i for i, c in reversed(list(enumerate(order)))}
    seen: set[int] = set()
    result = []
    for task in tasks:
        late = sorted(set(task.shown) - set(task.new), key=place.__getitem__)
        fresh = tuple(c for c in [*task.new, *late] if c not in seen)
        seen.update(fresh)
        same = fresh == task.new
        result.append(task if same else replace(task, new=fresh, visible=task.shown))
    return tuple(result)


# -- conversion to and from JSON values ------------------------------------------------------------


def task_to_dict(task: Task) -> dict[str, Any]:
    """Return a task as plain values."""
    return {**{kind: pack_rows(getattr(task, kind)) for kind in ROW_PARTS}, "new": list(task.new),
            "visible": list(task.visible), "domain": task.domain}  # fmt: skip


def task_fields_from_dict(k: int, plain: Any) -> dict[str, Any]:
    """Return the fields of a task from its plain values."""
    needed = {*ROW_PARTS, "new", "visible", "domain"}
    if not isinstance(plain, Mapping) or set(plain) != needed:
        got = sorted(plain) if isinstance(plain, Mapping) else plain
        raise bad(f"tasks[{k}]", f"a mapping with the keys {sorted(needed)}", got)
    rows = {kind: unpack_rows(f"tasks[{k}].{kind}", plain[kind]) for kind in ROW_PARTS}
    return {**plain, **rows}


def stream_fingerprint(stream: Stream) -> str:
    """Compute `Stream.fingerprint`."""
    plain = {**stream.describe(), "name": "", "task_labels": stream.task_labels,
             "visible": [sorted(t.shown) for t in stream.tasks]}  # fmt: skip
    del plain["labels"]  # part of the fingerprint of the data
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode())
    digest.update(stream.data.fingerprint().encode())
    for task in stream.tasks:
        for kind in ROW_PARTS:
            digest.update(getattr(task, kind).cpu().numpy().tobytes() + b"|")
    return digest.hexdigest()[:16]


def check_stream_dict(data: Data, plain: Any, view: View | None) -> None:
    """Raise for values that are not a stream, or one over other data or with another view."""
    needed = {"name", "head", "online", "task_labels", "data", "view", "tasks"}
    if not isinstance(plain, Mapping) or set(plain) - {"information", "judged_on"} != needed:
        got = sorted(plain) if isinstance(plain, Mapping) else plain
        raise bad("plain", f"a mapping with the keys {sorted(needed)}", got)
    if plain["data"] != data.fingerprint():
        raise bad("data", f"the data with fingerprint {plain['data']}", data.fingerprint())
    if view is not None and view.describe() != plain["view"]:
        raise bad("view", f"a view that describes itself as {plain['view']}", view.describe())


# -- representation as text and HTML ---------------------------------------------------------------

MAX_TASKS_SHOWN = 30  # lines of a table in a notebook


def _cells(stream: Stream) -> tuple[list[list[str]], list[int]]:
    """Return titles with one row per task, and the columns to show."""
    rows = [[str(k), *(str(len(getattr(t, kind))) for kind in ROW_PARTS), _names(stream, t)]
            for k, t in enumerate(stream.tasks)]  # fmt: skip
    titles = ["task", *(kind.replace("_", "-") for kind in ROW_PARTS), "new classes"]
    used = [i for i in range(6) if i in (0, 1, 5) or any(row[i] != "0" for row in rows)]
    return [titles, *rows], used


def stream_html(stream: Stream) -> str:
    """Format the first `MAX_TASKS_SHOWN` tasks as HTML."""
    (titles, *rows), used = _cells(stream)
    shown = [[row[i] for i in used] for row in rows[:MAX_TASKS_SHOWN]]
    more = len(rows) - len(shown)
    return join_blocks(
        f"<p>{escape(repr(stream))} over {escape(repr(stream.data.name))}</p>",
        html_table([titles[i] for i in used], shown),
        f"<p>and {more} more tasks</p>" if more else "",
    )


def stream_table(stream: Stream) -> str:
    """Format a stream as text with one line per task: numbers of rows and new classes."""
    (titles, *rows), used = _cells(stream)
    wide = [max(len(row[i]) for row in [titles, *rows]) for i in range(6)]
    lines = ["  ".join(row[i].ljust(wide[i]) if i == 5 else row[i].rjust(wide[i]) for i in used)
             for row in [titles, *rows]]  # fmt: skip
    return "\n".join([f"{stream!r} over {stream.data.name!r}", *(line.rstrip() for line in lines)])


def _names(stream: Stream, task: Task, limit: int = 60) -> str:
    names = [stream.data.classes[c] for c in task.new]
    text = ", ".join(names) or "-"
    if len(text) > limit:
        end = text.rfind(",", 0, limit)
        text = f"{text[: end if end > 0 else limit]}, ... ({len(names)})"
    return f"{text}  [{task.domain}]" if task.domain else text
