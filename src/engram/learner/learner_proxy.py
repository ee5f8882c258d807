"""`LearnerProxy`: what a method may read and write of its learner, enforced at run time."""

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

# Attributes of a learner by what a method may do with them.
WRITABLE = ("vector", "buffers", "free", "state", "opt", "exemplars")  # read and assign
READABLE = ("seed", "stage", "scope", "reads", "device", "task", "seen", "new", "known", "diverged",
         "params", "networks", "layout", "snapshot", "net", "class_weights", "nbytes")  # fmt: skip
# access to data, checked
GUARDED = ("labels", "batch", "outputs", "answers", "average_gradient", "set_aside")
COPIED = ("opened", "stream")  # returned as copies
HIDDEN = ("feed", "guard", "ledger", "items", "complete_items", "collate", "group_batch",
          "open_classes", "enter", "units", "latents", "aside", "answer",
          "tells_task", "joined")  # fmt: skip
KNOWN = (*WRITABLE, *READABLE, *GUARDED, *COPIED)
_PLAIN = frozenset((*WRITABLE, *READABLE))


class LearnerProxy:
    """The learner as host verbs and memory policies receive it, instead of a `RunLearner`.

    It has exactly the public attributes that a method may use, so none of them bypasses the guard.
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

    __slots__ = ("_before", "_checked_versions", "_learner")
    _before: tuple[Tensor, Tensor]  # rows and stages of the memory when the verb began
    _learner: RunLearner
    _checked_versions: tuple[Any, ...]

    def __init__(self, learner: RunLearner) -> None:
        own = object.__setattr__
        own(self, "_learner", learner)
        own(self, "_before", tuple(part.clone() for part in learner.exemplars[:2]))
        own(self, "_checked_versions", _versions(learner.exemplars))

    @property
    def opened(self) -> Tensor:
        """[C] the stage that opened each output column, -1 = not yet."""
        return self._learner.opened.clone()

    @property
    def stream(self) -> StreamOutline:
        """The stream without its data."""
        return StreamOutline.from_stream(self._learner.stream).with_input_shape(
            self._learner.feed.data.sample_shape
        )

    def __getattr__(self, name: str) -> Any:
        if name not in _PLAIN:
            if name not in GUARDED:
                refuse_attribute("learner", name, HIDDEN, KNOWN)
            self._check_exemplars()
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
            self._check_exemplars()

    def __dir__(self) -> list[str]:
        return sorted(KNOWN)

    def __repr__(self) -> str:
        return f"LearnerProxy(task {self._learner.stage}, seed {self._learner.seed})"

    def _check_exemplars(self) -> None:
        """Refuse changed exemplars that the method may not keep."""
        learner = self._learner
        exemplars = learner.exemplars
        if self._checked_versions == _versions(exemplars):
            return
        _check_form(exemplars, len(learner.opened))
        assert learner.guard is not None  # a proxy exists only within a task
        learner.guard.allow_kept(exemplars.rows, exemplars.stages, *self._before)
        object.__setattr__(self, "_checked_versions", _versions(exemplars))


@contextmanager
def enter_part(learner: Any, states: dict[str, Any], part: str) -> Iterator[None]:
    """Let the learner have the state of one of several joined methods inside the context."""
    whole: RunLearner = learner._learner if isinstance(learner, LearnerProxy) else learner
    learner.state, whole.joined = states[part], (states, part)
    try:
        yield
    finally:
        whole.joined = None
    states[part] = learner.state


def _versions(exemplars: Any) -> tuple[Any, ...]:
    """Return a value that changes whenever exemplars are replaced or written into."""
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
    """Yield the proxy of a learner for the duration of a verb, and check the result at its end."""
    tasks = learner.stream.tasks
    before = _row_versions(tasks)
    proxy = LearnerProxy(learner)
    yield proxy
    proxy._check_exemplars()
    if _row_versions(tasks) != before:
        raise AccessError(
            "the row numbers of a task were modified in place: work on a copy of them"
        )


def _row_versions(tasks: tuple[Task, ...]) -> list[int]:
    return [_version(getattr(task, kind)) for task in tasks for kind in ROW_PARTS]


def call_verb(name: str, verb: Callable[..., Any], learner: RunLearner) -> None:
    """Call ``method.start``, ``method.finish`` or what a phase calls before it for one learner."""
    shape = learner.vector.shape
    with open_proxy(learner) as proxy:
        returned = verb(proxy, learner.task)
    if returned is not None:
        edits = "it edits the learner: learner.state = {...} keeps tensors"
        raise bad(name, f"nothing to be returned, because {edits}", returned)
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
