"""`StreamOutline`: what a method may know of a stream: row numbers, masks and shapes, no data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from torch import Tensor, nn

from engram.data.dataset import Data
from engram.errors import Forbidden, plural, suggest_name
from engram.streams.stream import Stream, Task

_DATA = ("x", "y", "labels", "train", "test", "valid", "attributes", "gather", "fingerprint")
_STREAM = ("targets", "view", "pick", "to_dict", "fingerprint")
BATCH_HINT = "inputs and visible labels come through learner.batch"


def refuse_attribute(
    owner: str, name: str, closed: tuple[str, ...], known: tuple[str, ...]
) -> NoReturn:
    """Raise for an attribute that a method may not have, or that does not exist."""
    if name.startswith("__"):  # looked up by Python: copy, pickle, inspect
        raise AttributeError(name)
    if name in closed:
        raise Forbidden(f"{owner}.{name} is not available to methods: {BATCH_HINT}")
    near = suggest_name(name, known)
    hint = f", did you mean {near!r}?" if near else "."
    raise AttributeError(f"{owner} has no {name!r}{hint} It has {', '.join(sorted(known))}.")


class DataOutline:
    """Shape and names of a data set, without its rows."""

    __slots__ = ("_rows", "classes", "name", "sample_bytes", "sample_shape", "tokens", "unit_range")

    def __init__(self, data: Data) -> None:
        self._rows, self.name, self.classes = len(data), data.name, data.classes
        self.sample_shape, self.sample_bytes = data.sample_shape, data.sample_bytes
        # whether the dtype implies inputs in [0, 1]: bytes that are not standardised
        self.unit_range = str(data.x.dtype).endswith("uint8") and not data.mean
        self.tokens = data.tokenizer is not None  # whether inputs are token ids

    def __len__(self) -> int:
        return self._rows

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    def __repr__(self) -> str:
        return f"DataOutline({self.name!r}: {len(self)} rows of {self.sample_shape})"

    def __getattr__(self, name: str) -> Any:
        known = ("classes", "n_classes", "name", "sample_shape", "tokens", "unit_range")
        refuse_attribute("stream.data", name, _DATA, known)


class LatentOutline(NamedTuple):
    """Shape and range of the outputs of a model's root."""

    shape: tuple[int, ...]  # of one latent
    unit_range: bool  # whether all values are in [0, 1]


class BlockOutline(NamedTuple):
    """The sizes of a transformer, for what a method inserts into its blocks."""

    depth: int
    width: int  # of a token
    maps: Mapping[str, tuple[int, int]]  # (out, in) of the linear maps of a block


def _refuse_to_build() -> NoReturn:
    raise Forbidden("stream.build_model is available in networks(stream) only")


class StreamOutline:
    """A stream without inputs and labels, as methods receive it.

    Methods get one in ``networks(stream)`` and as ``learner.stream``. In the former, `features` is
    the width of the model's features, `latents` describes the outputs of its root, if any, `blocks`
    the blocks of a transformer, and
    `build_model` builds a further network like the main one, with initial weights of its own.
    ``len(stream)`` is the number of tasks; where it is not known (`engram.Learner`), that of the
    tasks so far, and networks are asked for again when another one comes.

    Examples
    --------
    >>> from engram.streams import class_incremental
    >>> data = Data.from_arrays([[float(i)] for i in range(20)], [0, 1, 2, 3] * 5)
    >>> stream = StreamOutline.from_stream(class_incremental(data))
    >>> len(stream), stream.order, stream.data.sample_shape, len(stream.tasks[0].train)
    (2, (0, 1, 2, 3), (1,), 8)
    >>> stream.data.x
    Traceback (most recent call last):
    ...
    engram.errors.Forbidden: stream.data.x is not available to methods: inputs and ...
    """

    __slots__ = ("_room", "blocks", "build_model", "data", "features", "head", "labels", "latents",
                 "name", "online", "opening", "order", "position", "task_labels", "tasks",
                 "visible")  # fmt: skip

    def __init__(self, stream: Stream) -> None:
        self.data = DataOutline(stream.data)
        self.tasks, self.order = stream.tasks, stream.order
        self.head, self.labels, self.name = stream.head, stream.labels, stream.name
        self.online, self.task_labels = stream.online, stream.task_labels
        # copies, so that writing into them cannot open a class or reveal a label
        self.position, self.opening = stream.position.clone(), stream.opening.clone()
        self.visible: Tensor = stream.visible.clone()
        self.features: int | None = None
        self.latents: LatentOutline | None = None
        self.blocks: BlockOutline | None = None
        self.build_model: Callable[[], nn.Module] = _refuse_to_build
        self._room: int = getattr(stream, "room", 0)

    def with_features(
        self, features: int, latents: LatentOutline | None, build_model: Callable[[], nn.Module],
        blocks: BlockOutline | None = None,
    ) -> StreamOutline:  # fmt: skip
        """Return the outline with what the model has, and how to build another."""
        found = copy.copy(self)
        found.features, found.latents, found.build_model = features, latents, build_model
        found.blocks = blocks
        return found

    def with_input_shape(self, shape: tuple[int, ...]) -> StreamOutline:
        """Return the outline for a network whose inputs have another shape."""
        if self.data.sample_shape == shape:
            return self
        found = copy.copy(self)
        found.data = copy.copy(self.data)
        found.data.sample_shape, found.data.unit_range = shape, False
        found.data.tokens = False
        return found

    @classmethod
    def from_stream(cls, stream: Stream) -> StreamOutline:
        """Return the outline of a stream, which is cached."""
        if "_outline" not in stream.__dict__:
            stream.__dict__["_outline"] = cls(stream)
        known: StreamOutline = stream.__dict__["_outline"]
        return known

    def __len__(self) -> int:
        return max(len(self.tasks), self._room)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __getitem__(self, which: int) -> Task:
        return self.tasks[which]

    def __repr__(self) -> str:
        tasks, classes = plural(len(self), "task"), plural(len(self.order), "class")
        return f"StreamOutline({self.name!r}: {tasks}, {classes})"

    def __getattr__(self, name: str) -> Any:
        known = tuple(one for one in self.__slots__ if one[0] != "_")
        refuse_attribute("stream", name, _STREAM, known)
