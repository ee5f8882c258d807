"""Host verbs of many learners, with their average gradients computed in one mapped pass.

``start``, ``finish`` and ``Phase.before`` are plain Python for one learner. Called one after the
other, their importance passes would dominate a study of hundreds of runs. Therefore verbs run in a
thread until one requests an average gradient: that thread is paused, and another one continues with
the rest. When all are waiting or done, one mapped pass computes all requested gradients. This is
transparent to methods, and verbs without requests need no thread of their own.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from engram import keys
from engram.engine.backend import default_dtype
from engram.engine.stored_values import complete_values, snapshot_memory
from engram.learner.batch import NO_VALUES, Batch, TrainingRows
from engram.learner.gradients import Term, Transform, Weights, average_gradient
from engram.learner.learner import RunLearner
from engram.learner.learner_proxy import call_verb
from engram.learner.objectives import competing_classes
from engram.learner.structural_key import structural_key
from engram.learner.tensor_tree import stack
from engram.methods.method import HostVerb, Method

ENTRIES_AT_ONCE = 1 << 28  # input or gradient entries of one mapped pass


class _Request(NamedTuple):
    """Arguments of a `RunLearner.average_gradient` requested by a verb."""

    learner: RunLearner
    items: TrainingRows
    term: Term
    transform: Transform
    size: int
    batch_statistics: bool


class _VerbThread:
    """A thread that runs verbs until one requests an average gradient, and pauses there.

    `rest`, a queue of (learner, name, verb), is shared by all threads; only one runs at a time.
    """

    def __init__(self, rest: deque[tuple[RunLearner, str, HostVerb]]) -> None:
        self.request: _Request | None = None
        self.gradient: Tensor | None = None
        self._error: BaseException | None = None
        self._rest = rest
        # each lock is acquired by one thread and released by the other; faster than semaphores
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()

    def start(self) -> None:
        """Run verbs of `rest` until one makes a request or none is left."""
        threading.Thread(target=self._main, daemon=True).start()
        self._wait()

    def resume(self) -> None:
        """Continue with the gradient until the next request or the end."""
        self._go.release()
        self._wait()

    def abandon(self) -> None:
        """Let a paused verb fail, so that its thread ends."""
        self.gradient = None
        self._go.release()

    def _wait(self) -> None:
        self._back.acquire()
        if self._error is not None:
            raise self._error

    def _main(self) -> None:
        try:
            while self._rest:
                learner, name, verb = self._rest.popleft()
                learner._average = self._request
                call_verb(name, verb, learner)
        except BaseException as error:  # handed to the caller of `start` or `resume`
            self._error = error
        self._back.release()

    def _request(self, *request: Any) -> Tensor:
        """Pause the thread, and return the gradient when it is resumed."""
        self.request = _Request(*request)
        self._back.release()
        self._go.acquire()
        self.request = None
        if self.gradient is None:
            raise RuntimeError("resumed without a gradient")
        gradient, self.gradient = self.gradient, None
        return gradient


def call_for_all_with_values(
    learners: Sequence[RunLearner], methods: Sequence[Method], verb: str, phase: int = 0
) -> None:
    """Call `call_for_all`, then compute missing values of `Method.remember` for all exemplars."""
    if not learners:  # all have diverged
        return
    before = [snapshot_memory(one) for one in learners]
    with default_dtype(learners[0].vector.dtype):
        call_for_all(learners, methods, verb, phase)
        for learner, method, memory in zip(learners, methods, before, strict=True):
            rewrites = verb == "finish" and method.replay(learner.stage).rewrites
            complete_values(learner, method, memory, rewrites)


def call_for_all(
    learners: Sequence[RunLearner], methods: Sequence[Method], verb: str, phase: int = 0
) -> None:
    """Call ``start``, ``finish`` or ``before``, that of a phase, of each learner's own method."""
    # if methods differ, so do the structural keys of terms that read their fields
    rest = deque(
        (learner, f"{type(method).__name__}.{verb}", function)
        for learner, method in zip(learners, methods, strict=True)
        if (function := _find_host_verb(method, verb, learner.stage, phase)) is not None
    )
    if len(rest) == 1:
        learner, name, function = rest.popleft()
        call_verb(name, function, learner)
    waiting: list[_VerbThread] = []
    try:
        while rest:
            waiting.append(_VerbThread(rest))
            waiting[-1].start()
        while waiting := [worker for worker in waiting if worker.request is not None]:
            for part in _group_alike(waiting):
                gradients = _compute_gradients([one.request for one in part if one.request])
                for worker, gradient in zip(part, gradients, strict=True):
                    worker.gradient = gradient
            for worker in waiting:
                worker.resume()
    finally:
        rest.clear()
        for worker in waiting:  # some are left only if one failed
            if worker.request is not None:
                worker.abandon()
        for learner in learners:
            learner._average = None


def _find_host_verb(method: Method, verb: str, stage: int, phase: int) -> HostVerb | None:
    if verb == "before":
        return method.phases(stage)[phase].before
    own: dict[str, HostVerb] = {"start": method.start, "finish": method.finish}
    return own[verb] if method.implements(verb) else None


def _group_alike(waiting: Sequence[_VerbThread]) -> list[list[_VerbThread]]:
    """Group threads with equal requests, since methods may make different ones."""
    found: dict[Any, list[_VerbThread]] = {}
    for worker in waiting:
        if (request := worker.request) is not None:
            # terms defined inside a verb are different objects, but compare equal by structural key
            size: int | str = request.size
            if request.size > 1 and request.size == len(request.items.rows):
                size = "full"
            kind = structural_key((request.term, request.transform, size, request.batch_statistics))
            found.setdefault(kind, []).append(worker)
    return list(found.values())


def _compute_gradients(requests: list[_Request]) -> list[Tensor]:
    """Compute the requested gradients in mapped passes over chunks that fit in memory."""
    learners, items = [one.learner for one in requests], [one.items for one in requests]
    _, _, term, transform, _, batch_statistics = requests[0]
    full = all(one.size == len(one.items.rows) for one in requests)
    size = max(one.size for one in requests)
    groups = 1 if full else max(-(-len(one.rows) // size) for one in items)
    per_run = size * groups * max(1, math.prod(learners[0].stream.data.stored_shape))
    per_run = max(per_run, len(learners[0].vector))
    chunk = max(1, ENTRIES_AT_ONCE // per_run)
    gradients: list[Tensor] = []
    for start in range(0, len(learners), chunk):
        part = slice(start, start + chunk)
        gradients += _compute_mapped(
            learners[part], items[part], term, transform, size, groups, batch_statistics
        )
    return gradients


def _batches(
    learners: list[RunLearner], items: list[TrainingRows], size: int, groups: int
) -> Batch:
    """Compute `RunLearner.group_batch` [R, groups, size, ...] of all runs at once."""
    first = learners[0]
    device, dtype, feed = first.device, first.feed.dtype, first.feed
    runs, place = len(learners), torch.arange(groups * size)
    ends = [len(one.rows) - 1 for one in items]
    index = [place.clamp(max=end) for end in ends]  # padding repeats a real row, weight 0
    rows, stage, y, _, slot = (
        torch.stack([leaf[where] for leaf, where in zip(leaves, index, strict=True)]).to(device)
        for leaves in zip(*items, strict=True)
    )
    real = place <= torch.tensor(ends)[:, None]
    tables = [competing_classes(o.scope, o.opened, o.stream.visible, o.stage) for o in learners]
    spread = stage[..., None].expand(*stage.shape, tables[0].shape[-1])
    open_ = torch.stack(tables).to(device).gather(1, spread)
    now = torch.tensor([one.stage for one in learners]).to(device)
    old = (stage < now[:, None]).to(dtype)
    key = torch.tensor([keys.fold(one.seed, "host", one.stage) for one in learners]).to(device)
    parts = (feed(rows, stage), y, real.to(device, dtype), stage, old, open_, slot)
    opened = torch.stack([one.opened for one in learners]).to(device)
    key = torch.as_tensor(keys.fold(key[:, None], torch.arange(groups, device=device)))
    return Batch._make([
        *(leaf.reshape(runs, groups, size, *leaf.shape[2:]) for leaf in parts),
        opened[:, None].expand(-1, groups, -1), now[:, None].expand(-1, groups), key,
        (), NO_VALUES, (),
    ])  # fmt: skip


def _compute_mapped(
    learners: list[RunLearner], items: list[TrainingRows], term: Term, transform: Transform,
    size: int, groups: int, batch_statistics: bool,
) -> list[Tensor]:  # fmt: skip
    networks = learners[0].networks
    vectors = torch.stack([one.vector for one in learners])
    buffers = stack([one.buffers for one in learners])
    batches = _batches(learners, items, size, groups)

    def one_run(vector: Tensor, own: Any, batch: Any) -> Tensor:
        return average_gradient(
            networks, Weights(vector, own), batch, term, transform, batch_statistics
        )

    return list(vmap(one_run)(vectors, buffers, batches).unbind(0))
