"""A new task of a learner: checked inputs, labels and tables (`NewTask`), and the stream of all
tasks so far and this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
from torch import Tensor

from engram import keys
from engram.data.conversion import (
    refuse_repeated_labels,
    refuse_sparse,
    to_class_ids,
    to_inputs,
)
from engram.data.dataset import Data
from engram.data.label_checks import check_one_type, to_whole_numbers
from engram.data.tables.table_rows import is_table
from engram.data.tables.table_schema import TableReport
from engram.data.texts.tokenization import Tokenizer, are_texts, check_texts, make_tokenizer
from engram.deploy.table_inputs import describe_first, encode_inputs
from engram.engine.portable_state import PortableState
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import bad
from engram.methods.method import Method
from engram.models.pretrained_folders import choose_tokenizer
from engram.streams.stream import Stream, Task

_NO_ROWS = torch.empty(0, dtype=torch.long)
ROOM = 64  # tokens, at least, of the rows of a learner that learns texts
TEXTS_HINT = "other rows, unless by a model of texts (transformer, minilm) or with a Data.from_text"
MADE_TOKENS = 64  # ids of made-up texts
DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "int32": torch.int32}


@dataclass(frozen=True, eq=False, kw_only=True)
class LearnerSettings:
    """Settings of a learner: a run without its stream."""

    method: Method
    model: Any
    training: Training
    seed: int = 0
    capacity: int = 16  # initial number of columns
    head: str = "single"

    def run(self, stream: OpenEndedStream) -> Run:
        """Make the run over a stream."""
        return Run(
            stream=stream, method=self.method, model=self.model, training=self.training,
            seed=self.seed, begun=len(stream) > 1,
        )  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class NewTask:
    """Rows to learn: inputs as they are stored, and the classes of each row."""

    x: Tensor
    y: Tensor  # [n, L] places in `classes`, -1 pads
    classes: list[str]  # each once, sorted as numbers or alphabetically
    kind: str  # kind of the labels
    sets: bool  # whether rows have sets of labels
    valid_x: Tensor
    valid_y: Tensor
    about: dict[str, Any]  # description of the inputs, fixed by the first task
    report: TableReport | None = None  # what a table had that the first one did not

    @property
    def labels(self) -> list[Any]:
        """The label of each row, or the list of its labels."""
        names = names_to_labels(self.classes, self.kind).tolist()
        rows = [[names[place] for place in row if place >= 0] for row in self.y.tolist()]
        return rows if self.sets else [row[0] for row in rows]

    @classmethod
    def from_arrays(cls, x: Any, y: Any, valid: Any, about: dict[str, Any] | None) -> NewTask:
        """Check rows and make a task; `about` describes the inputs, after the first task."""
        rows = convert_inputs(x, about)
        if not len(rows):
            raise bad("x", "at least one row", "none")
        labels = RowLabels.read(y, len(rows))
        classes = labels.classes
        held, held_y = rows[:0], torch.empty(0, 1, dtype=torch.long)
        if valid is not None:
            if not isinstance(valid, (tuple, list)) or len(valid) != 2:
                raise bad("valid", "a pair (x, y) of validation rows", type(valid).__name__)
            held = convert_inputs(valid[0], about or describe_inputs(rows), "valid")
            other = RowLabels.read(valid[1], len(held), "valid")
            if other.kind != labels.kind:
                raise bad("valid", f"labels of the kind of y ({labels.kind})", other.kind)
            unknown = sorted(set(other.classes) - set(classes))
            if unknown:
                raise bad("valid", "labels that occur in y", unknown[:5])
            held_y = other.places(classes)
        return cls(
            x=rows, y=labels.places(classes), classes=classes, kind=labels.kind, sets=labels.sets,
            valid_x=held, valid_y=held_y, about=about or describe_inputs(rows),
        )  # fmt: skip


def describe_inputs(x: Tensor) -> dict[str, Any]:
    """Describe inputs, to check later ones."""
    return {"shape": list(x.shape[1:]), "dtype": str(x.dtype).removeprefix("torch."),
            "mean": [], "std": [], "crop": None, "name": "learner", "channel_axis": 0,
            "fill": [], "columns": []}  # fmt: skip


def convert_inputs(x: Any, about: dict[str, Any] | None, argument: str = "x") -> Tensor:
    """Convert inputs to the shape and type of training, [n, ...]; bytes take 0 to 255.

    A learner of texts takes texts, or the token ids that its tokeniser makes of them. Tables are
    encoded as the first one was; what it did not have is warned about.
    """
    refuse_sparse(argument, x)
    if about is not None and is_table(x):
        x, report = encode_inputs(x, about, argument)
        if report is not None:
            report.warn()
    if are_texts(x):
        return _encode_texts(x, about, argument)
    if about is not None and about["fill"]:
        x = _fill_missing(x, about)
    found = to_inputs(argument, x)
    tensor = found if isinstance(found, Tensor) else torch.from_numpy(np.array(found))
    if about is None:
        return tensor.detach().cpu()
    shape = tuple(about["shape"])
    if tuple(tensor.shape[1:]) != shape:
        hint = " (one input: x[None])" if tuple(tensor.shape) == shape else ""
        if len(shape) == 1 and tensor.ndim == 2:  # in scikit-learn's words
            has, wants = tensor.shape[1], shape[0]
            hint = f": X has {has} features, but Learner is expecting {wants} features as input"
        raise bad(argument, f"rows of shape {shape}, as in training{hint}", tuple(tensor.shape[1:]))
    wanted = DTYPES[about["dtype"]]
    if wanted == torch.int32 and not bool(((tensor >= 0) & (tensor % 1 == 0)).all()):
        raise bad(argument, "texts, or token ids, as in training", "other numbers")
    if tensor.dtype != wanted and wanted == torch.uint8:
        as_bytes = tensor.clamp(0, 255).to(torch.uint8)
        if not torch.equal(as_bytes.to(tensor.dtype), tensor):
            expected = "whole numbers from 0 to 255, because it was trained on bytes"
            raise bad(argument, expected, "other numbers")
        return as_bytes.cpu()
    return tensor.detach().to("cpu", wanted)


def _encode_texts(x: Any, about: dict[str, Any] | None, argument: str) -> Tensor:
    if about is None:
        raise bad(argument, TEXTS_HINT, "texts")
    if "tokenizer" not in about:
        raise bad(argument, f"rows of shape {tuple(about['shape'])}, as in training", "texts")
    reader = Tokenizer.from_facts(about["tokenizer"])
    return reader.encode(check_texts(argument, x), about["shape"][0])


def describe_texts(texts: Any, model: Any) -> dict[str, Any]:
    """Describe the texts that a learner learns first, by the tokens of its model.

    Examples
    --------
    >>> describe_texts(["one", "two"], "transformer")["shape"]
    [64]
    """
    reader = choose_tokenizer(model)
    if reader is None:
        raise bad("x", TEXTS_HINT, "texts")
    told = check_texts("x", texts)
    longest = make_tokenizer(reader).encode(told).shape[1]
    some = ["text"] * len(told)
    test = told[:1], some[:1]
    room = max(longest, ROOM)
    data = Data.from_text(told, some, test=test, tokenizer=reader, length=room)
    return describe_first(data)


def make_inputs(about: dict[str, Any], uniform: Tensor) -> Tensor:
    """Made-up rows of the type of training, from numbers in [0, 1)."""
    if about["dtype"] == "int32":
        return (1 + uniform.double() * (MADE_TOKENS - 1)).floor().to(torch.int32)
    return (255 * uniform if about["dtype"] == "uint8" else uniform).to(DTYPES[about["dtype"]])


def _fill_missing(x: Any, about: dict[str, Any]) -> Any:
    """Replace NaN in inputs by the means of training."""
    try:
        array = np.asarray(x, np.float32)
    except (TypeError, ValueError):  # text, or rows of unequal length
        return x  # raises later
    if array.shape[1:] != tuple(about["shape"]):
        return array  # raises later
    means = np.float32(about["fill"]).reshape(channel_shape(about))
    return np.where(np.isnan(array), means, array)


def channel_shape(about: dict[str, Any]) -> tuple[int, ...]:
    """Return the shape in which numbers per channel broadcast with a sample."""
    axes = range(len(about["shape"]))
    return tuple(-1 if axis == about["channel_axis"] else 1 for axis in axes)


def choose_capacity(found: PortableState | None, settings: LearnerSettings, classes: int) -> int:
    """Choose the number of columns: doubled until all classes have room."""
    columns = settings.capacity if found is None else found.columns
    while columns < classes:
        columns *= 2
    return columns


def known_classes(found: PortableState | None) -> list[str]:
    """Return the names of the classes learnt so far, by column."""
    return [] if found is None else list(found.facts["classes"])


def extend_stream(
    found: PortableState | None, new: NewTask, settings: LearnerSettings
) -> OpenEndedStream:
    """Build the stream of all tasks so far and a new one, over the remaining and new rows."""
    before = known_classes(found)
    fresh = [name for name in new.classes if name not in before]
    names = [*before, *fresh]
    column = {name: place for place, name in enumerate(names)}
    width = choose_capacity(found, settings, len(names))
    old_x, old_y, old_stage = remaining_rows(found, new.x)
    columns = torch.tensor([*(column[name] for name in new.classes), -1])  # -1 pads
    parts = old_y, columns[new.y], columns[new.valid_y]
    y = torch.cat(pad_labels(parts))
    start, train = len(old_x), torch.arange(len(new.x)) + len(old_x)
    about = new.about if found is None else found.facts["inputs"]
    data = make_data(torch.cat([old_x, new.x, new.valid_x]), y, names, width, about, train)
    past = [] if found is None else found.facts["tasks"]
    shown = sorted(column[name] for name in new.classes)
    task = Task(
        train=train, valid=torch.arange(len(new.valid_x)) + start + len(new.x), test=_NO_ROWS,
        new=tuple(column[name] for name in fresh), visible=tuple(shown),
    )  # fmt: skip
    tasks = [_make_past_task(one, k, old_stage) for k, one in enumerate(past)]
    return OpenEndedStream(
        data=data, tasks=(*tasks, task), head=settings.head, name="learner",
        reserved=tuple(range(len(names), width)),
        sizes=(*(one["rows"] for one in past), len(new.x)),
        sets=new.sets if found is None else learns_sets(found),
        information="incomplete" if found is None else found.facts["information"],
        room=0 if found is None else found.facts.get("room", 0),
    )  # fmt: skip


def remaining_stream(found: PortableState, settings: LearnerSettings) -> OpenEndedStream:
    """Build the stream of all tasks so far over the remaining rows."""
    about, past = found.facts["inputs"], found.facts["tasks"]
    like = torch.empty(0, *about["shape"], dtype=DTYPES[about["dtype"]])
    x, y, stage = remaining_rows(found, like)
    tasks = [_make_past_task(one, k, stage) for k, one in enumerate(past)]
    names = known_classes(found)
    data = make_data(x, y, names, found.columns, about, tasks[-1].train)
    return OpenEndedStream(
        data=data, tasks=tuple(tasks), head=settings.head, name="learner",
        reserved=tuple(range(len(names), found.columns)), sets=learns_sets(found),
        sizes=tuple(one["rows"] for one in past), information=found.facts["information"],
        room=found.facts.get("room", 0),
    )  # fmt: skip


def remaining_rows(found: PortableState | None, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, columns and tasks of the rows that the state contains."""
    if found is None:
        return like[:0], torch.empty(0, 1, dtype=torch.long), _NO_ROWS
    y, stage = hide_later_labels(found), found.tensors["rows/stage"]
    if found.facts["rows_left_out"]:
        if len(y):
            raise bad(
                "model", "one with its memory, to go on learning", found.facts["rows_left_out"]
            )
        return like[:0], y, stage
    return found.tensors["rows/x"].reshape(-1, *like.shape[1:]), y, stage


def hide_later_labels(found: PortableState) -> Tensor:
    """Return the columns of the rows [n, L], padded with -1, without labels not learnt so far.

    Rows of a run's data may have labels of its later tasks, which a learner has not been told;
    the next class that it meets takes the column of one of those.
    """
    y = found.tensors["rows/y"]
    y = torch.where(y < len(known_classes(found)), y, -1)
    return y.gather(1, (y < 0).to(torch.uint8).argsort(dim=1, stable=True))


def pad_labels(parts: Sequence[Tensor]) -> list[Tensor]:
    """Return label columns [n, L] of one width, padded with -1."""
    width = max(part.shape[1] for part in parts)
    return [functional.pad(part, (0, width - part.shape[1]), value=-1) for part in parts]


def learns_sets(found: PortableState) -> bool:
    """Return whether rows have sets of labels."""
    return bool(found.facts["labels"] == "set")


def make_data(
    x: Tensor, y: Tensor, names: Sequence[str], width: int, about: dict[str, Any], train: Tensor
) -> Data:
    """Make a data set of rows, whose class ids are output columns."""
    spare = [f"(column {c})" for c in range(len(names), width)]
    crop = about["crop"]
    data = Data(
        x=x, y=y, train=train, test=_NO_ROWS, classes=(*names, *spare), name=about["name"],
        mean=tuple(about["mean"]), std=tuple(about["std"]),
        crop=None if crop is None else (crop[0], crop[1]), columns=tuple(about["columns"]),
        tokenizer=Tokenizer.from_facts(about["tokenizer"]) if "tokenizer" in about else None,
    )  # fmt: skip
    if not about["channel_axis"]:
        return data
    series = replace(data, standardize=True)  # by feature, not by step
    series.__dict__["_unfitted"] = data  # keep the scales of the first task
    return series


def _make_past_task(one: dict[str, Any], stage: int, stages: Tensor) -> Task:
    return Task(
        train=(stages == stage).nonzero()[:, 0], test=_NO_ROWS, new=tuple(one["new"]),
        visible=tuple(one["visible"]), domain=one["domain"],
    )  # fmt: skip


def make_placeholder_stream(
    found: PortableState, width: int, classes: int = 1, room: int = 0
) -> OpenEndedStream:
    """Make a stream that fixes shapes only: two made-up rows per class, and room for tasks."""
    about = found.facts["inputs"]
    drawn = keys.uniform(keys.fold(0, "made up"), 2 * classes, *about["shape"])
    blank = make_inputs(about, drawn)
    y = torch.arange(2 * classes)[:, None] % classes
    names = [str(c) for c in range(classes)]
    rows = torch.arange(2 * classes)
    data = make_data(blank, y, names, width, about, rows)
    task = Task(train=rows, test=_NO_ROWS, new=tuple(range(classes)))
    return OpenEndedStream(
        data=data, tasks=(task,), head=found.facts["head"], reserved=tuple(range(classes, width)),
        sets=learns_sets(found),
        room=max(room, found.facts.get("room", 0)),
    )  # fmt: skip


# Labels as a user writes them, and their names.


Array = npt.NDArray[Any]


class RowLabels(NamedTuple):
    """The labels of some rows: class names, and places among them.

    Examples
    --------
    >>> found = RowLabels.read([["pet", "cat"], ["oak"]], 2)
    >>> found.classes, found.sets, found.places(["oak", "cat", "pet"]).tolist()
    (['cat', 'oak', 'pet'], True, [[2, 1], [0, -1]])
    """

    ids: Tensor  # [n, L] places in `classes`, -1 pads
    classes: list[str]  # those that occur, sorted as numbers or alphabetically
    kind: str
    sets: bool

    @classmethod
    def read(cls, y: Any, rows: int, argument: str = "y") -> RowLabels:
        """Read a label for each row, or a set of labels: a list of lists, or a matrix.

        A matrix is as for `Data.from_arrays`: class ids padded with -1, or an indicator matrix.
        """
        lists = are_lists(y)
        if not lists and (y.ndim if hasattr(y, "ndim") else 1) != 2:
            labels, kind = convert_labels(y, rows, argument)
            names, places = np.unique(labels, return_inverse=True)
            return cls(torch.from_numpy(places)[:, None], labels_to_names(names), kind, False)
        if len(y) != rows or (not lists and y.shape[1] == 1):
            raise bad(argument, f"one label for each of {rows} rows", f"shape {_shape(y)}")
        flat = check_one_type([one for row in y for one in row] if lists else y)
        found, every = to_class_ids([y], None)
        refuse_repeated_labels(found)
        empty = (found < 0).all(1).nonzero()[:, 0]
        if len(empty):
            raise bad(argument, "at least one label for each row", f"none in row {int(empty[0])}")
        occur = found[found >= 0].unique()
        ids = torch.where(found >= 0, torch.searchsorted(occur, found), -1)
        kind = "str" if flat.dtype.kind == "U" else "int"
        several = bool(((ids >= 0).sum(1) > 1).any())
        return cls(ids, [every[c] for c in occur.tolist()], kind, lists or several)

    def places(self, classes: Sequence[str]) -> Tensor:
        """Return the place of each label in a list of classes, [n, L]; -1 pads."""
        place = {name: at for at, name in enumerate(classes)}
        return torch.tensor([*(place.get(name, -1) for name in self.classes), -1])[self.ids]


def are_lists(y: Any) -> bool:
    """Return whether each row has a list of labels.

    Examples
    --------
    >>> are_lists([["cat"], ["dog"]]), are_lists([{1, 2}, {3}]), are_lists(["cat", "dog"])
    (True, True, False)
    """
    if isinstance(y, np.ndarray) and y.dtype == object and y.ndim == 1:
        y = y.tolist()
    kinds = (list, tuple, set, frozenset)
    return isinstance(y, (list, tuple)) and bool(len(y)) and all(isinstance(r, kinds) for r in y)


def _shape(y: Any) -> tuple[int, ...]:
    return tuple(y.shape) if hasattr(y, "shape") else (len(y),)


def label_kind(names: Sequence[str]) -> str:
    """Return the kind of labels behind names: numbers, if all names are numbers.

    Examples
    --------
    >>> label_kind(["0", "12"]), label_kind(["cat", "7"]), label_kind(["007"])
    ('int', 'str', 'str')
    """
    numbers = (name.removeprefix("-") for name in names)
    return (
        "int" if all(n.isascii() and n.isdigit() and str(int(n)) == n for n in numbers) else "str"
    )


def convert_labels(y: Any, rows: int, argument: str = "y") -> tuple[Array, str]:
    """Convert labels, one for each row, to an array [n] and their kind."""
    found = check_one_type(y)
    if found.ndim != 1 or len(found) != rows:
        raise bad(argument, f"one label for each of {rows} rows", f"shape {found.shape}")
    if found.dtype.kind in "iuf":
        return to_whole_numbers(argument, found), "int"
    return found, "bool" if found.dtype.kind == "b" else "str"


def names_to_labels(names: Sequence[str], kind: str) -> Array:
    """Convert names back to the labels that a user gave.

    Examples
    --------
    >>> names_to_labels(["3", "1"], "int").tolist(), names_to_labels(["True"], "bool").tolist()
    ([3, 1], [True])
    """
    if kind == "int":
        return np.array([int(name) for name in names], dtype=np.int64)
    if kind == "bool":
        return np.array([name == "True" for name in names], dtype=np.bool_)
    return np.array(list(names), dtype=np.str_)


def labels_to_names(labels: Array) -> list[str]:
    """Convert labels to names."""
    return [str(label) for label in labels.tolist()]


# The stream of a learner, which has no known end.


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenEndedStream(Stream):
    """Stream of the tasks so far over their remaining rows, with reserved columns for new classes.

    Only rows of earlier tasks that are in the memory remain, so all tasks but the last may be
    empty.

    Parameters
    ----------
    reserved
        Class ids that no task has introduced yet; their columns come last and stay closed.
    sizes
        Number of training rows of each task when it was learnt. Empty: the present number.
    sets
        Whether rows have sets of labels, even if every row so far has only one.
    room
        Number of tasks for which networks that grow with the tasks are made, if that is more.

    Examples
    --------
    >>> from engram.data.dataset import Data
    >>> from engram.streams.stream import Task
    >>> data = Data.from_arrays([[0.0], [1.0]], [1, 1], test=([[2.0]], [1]), classes="abcd")
    >>> gone = Task(train=[], test=[], new=(0,))
    >>> now = Task(train=[0, 1], test=[], new=(1,))
    >>> stream = OpenEndedStream(data=data, tasks=(gone, now), reserved=(2, 3), sizes=(50, 2))
    >>> stream.order, stream.opening.tolist(), stream.train_sizes
    ((0, 1, 2, 3), [0, 1, 2, 2], (50, 2))
    """

    reserved: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    sets: bool = False
    room: int = 0

    def may_be_empty(self, stage: int) -> bool:
        return stage < len(self.tasks) - 1

    @property
    def labels(self) -> str:
        return "set" if self.sets else "single"

    @property
    def train_sizes(self) -> tuple[int, ...]:
        return self.sizes or super().train_sizes

    def count_groups(self) -> int:
        """Count the classes: one that came in many tasks need not keep items of each of them."""
        return int(self.visible.any(0).sum())

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Class ids in order of introduction, then the reserved ones."""
        introduced = (c for task in self.tasks for c in task.new)
        return tuple(dict.fromkeys((*introduced, *self.reserved)))

    @cached_property
    def opening(self) -> Tensor:
        """The task that introduces each output column, [C]; beyond the last for reserved ones."""
        stage = self._introduced()
        return torch.tensor([stage.get(c, len(self.tasks)) for c in self.order], dtype=torch.long)
