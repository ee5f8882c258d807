"""The learner as a method sees it: what it may read, what it may write, and no way around."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from engram.errors import AccessError, Forbidden, bad
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import leaves
from engram.memory.exemplars import Exemplars
from engram.streams.stream import ROW_PARTS, Task
from engram.streams.stream_outline import StreamOutline, refuse_attribute

WRITABLE = ("vector", "buffers", "free", "state", "opt", "exemplars")  # to be read and written
READABLE = ("seed", "stage", "scope", "reads", "device", "task", "seen", "new", "known", "diverged",
         "params", "networks", "layout", "snapshot", "net", "class_weights", "nbytes")  # fmt: skip
GUARDED = (
    "labels",
    "batch",
    "outputs",
    "average_gradient",
)  # the ways to data, all of them guarded
COPIED = ("opened", "stream")  # copies, made on request
HIDDEN = ("feed", "guard", "ledger", "items", "complete_items", "collate", "grouped",
          "open_classes", "enter", "units", "latents")  # fmt: skip
KNOWN = (*WRITABLE, *READABLE, *GUARDED, *COPIED)
_PLAIN = frozenset((*WRITABLE, *READABLE))


class LearnerProxy:
    """What host verbs (and memory policies) get in place of the engine's Learner.

    Its public attributes are exactly those a method may use, so no name leads past the guard.
    Exemplars are checked when they are assigned, before data is read, and when the verb returns.

    Examples
    --------
    >>> from engram.checks.toy_runs import make_runs, make_streams
    >>> from engram.engine.engine import Engine
    >>> from engram.methods import Finetune
    >>> runs = make_runs(Finetune(), make_streams()[:1])
    >>> learner = Engine(runs, device="cpu").learner(runs[0])
    >>> learner.open_classes(0)
    >>> with open_proxy(learner) as seen:
    ...     seen.feed(seen.task.test)
    Traceback (most recent call last):
    ...
    engram.errors.Forbidden: learner.feed is not available to methods: inputs and visible labels ...
    """

    __slots__ = ("_before", "_learner", "_sound")
    _before: tuple[Tensor, Tensor]  # rows and stages of the memory when the verb began
    _learner: RunLearner
    _sound: tuple[Any, ...]

    def __init__(self, learner: RunLearner) -> None:
        own = object.__setattr__
        own(self, "_learner", learner)
        own(self, "_before", tuple(part.clone() for part in learner.exemplars[:2]))
        own(self, "_sound", _versions(learner.exemplars))

    @property
    def opened(self) -> Tensor:
        """[C] the stage that opened each output column, -1 = not yet."""
        return self._learner.opened.clone()

    @property
    def stream(self) -> StreamOutline:
        """The stream without its data."""
        return StreamOutline.of(self._learner.stream).with_input_shape(
            self._learner.feed.data.sample_shape
        )

    def __getattr__(self, name: str) -> Any:
        if name not in _PLAIN:
            if name not in GUARDED:
                refuse_attribute("learner", name, HIDDEN, KNOWN)
            self._look_at_exemplars()
        return getattr(self._learner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in WRITABLE:
            why = "is the engine's" if name in (*KNOWN, *HIDDEN) else "does not exist"
            raise Forbidden(
                f"learner.{name} {why}: a method may assign {', '.join(WRITABLE)}, and keeps "
                "what it needs in learner.state"
            )
        setattr(self._learner, name, value)
        if name == "exemplars":
            self._look_at_exemplars()

    def __dir__(self) -> list[str]:
        return sorted(KNOWN)

    def __repr__(self) -> str:
        return f"LearnerProxy(task {self._learner.stage}, seed {self._learner.seed})"

    def _look_at_exemplars(self) -> None:
        """Refuse exemplars that are not what they were, unless it may keep them."""
        one = self._learner
        exemplars = one.exemplars
        if self._sound == _versions(exemplars):
            return
        _check_form(exemplars, len(one.opened))
        assert one.guard is not None  # a proxy is proxy_of within a task
        one.guard.allow_kept(exemplars.rows, exemplars.stages, *self._before)
        object.__setattr__(self, "_sound", _versions(exemplars))


def _versions(exemplars: Any) -> tuple[Any, ...]:
    """Changes whenever exemplars are replaced or written into."""
    if not isinstance(exemplars, Exemplars):
        return (exemplars,)
    return tuple((id(part), _version(part)) for part in exemplars[:4])


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _check_form(exemplars: Any, classes: int) -> None:
    if not isinstance(exemplars, Exemplars):
        raise bad("exemplars", "Exemplars, as Memory.update returns them", exemplars)
    for name, part in zip(Exemplars._fields, exemplars[:4], strict=False):
        good = isinstance(part, Tensor) and part.dtype == torch.long and part.device.type == "cpu"
        if not good or part.shape != (len(exemplars),):
            expected = f"int64 numbers [{len(exemplars)}] on the CPU, one per item"
            raise bad(f"exemplars.{name}", expected, part)
    columns = exemplars.columns
    if len(exemplars) and not -1 <= int(columns.min()) <= int(columns.max()) < classes:
        raise bad("exemplars.columns", f"output columns from -1 to {classes - 1}", columns)


@contextmanager
def open_proxy(learner: RunLearner) -> Iterator[LearnerProxy]:
    """The proxy of a learner for the length of a verb; what the verb left is checked at its end."""
    tasks = learner.stream.tasks
    before = _row_versions(tasks)
    proxy = LearnerProxy(learner)
    yield proxy
    proxy._look_at_exemplars()
    if _row_versions(tasks) != before:
        raise AccessError("the row numbers of a task were written into: work on a copy of them")


def _row_versions(tasks: tuple[Task, ...]) -> list[int]:
    return [_version(getattr(task, kind)) for task in tasks for kind in ROW_PARTS]


def call_verb(verb: Callable[..., Any], learner: RunLearner, *more: Any) -> None:
    """``method.start``, ``method.between`` or ``method.finish`` for one learner."""
    shape = learner.vector.shape
    with open_proxy(learner) as seen:
        found = verb(seen, learner.task, *more)
    name = f"{type(getattr(verb, '__self__', None)).__name__}.{verb.__name__}"
    if found is not None:
        edits = "it edits the learner: learner.state = {...} keeps tensors"
        raise bad(name, f"nothing to be returned, because {edits}", found)
    _check_result(name, learner, shape)


def _check_result(verb: str, learner: RunLearner, shape: torch.Size) -> None:
    """Refuse weights and state that cannot be stacked, saved or trained on."""
    state: Any = learner.state
    vector: Any = learner.vector
    if not isinstance(state, dict) or not all(isinstance(one, Tensor) for one in leaves(state)):
        wanted = "a dict of tensors, or of dicts and tuples of them"
        raise bad(f"learner.state after {verb}", wanted, state)
    if not isinstance(vector, Tensor) or vector.shape != shape:
        got = f"a tensor {tuple(vector.shape)}" if isinstance(vector, Tensor) else vector
        raise bad(f"learner.vector after {verb}", f"a vector {tuple(shape)}", got)
