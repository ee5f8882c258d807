"""Host verbs of many learners, with their heavy passes mapped together.

``start`` and ``finish`` are plain Python for one learner. Run one after the other, their importance
passes would dominate a study of hundreds of runs. So each learner's verb runs in a thread of its
own, one at a time, until it asks for an average gradient; when all have asked (or are done), one
mapped pass answers them together. Method code does not notice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from engram.learner.gradients import Term, Transform, Weights, average_gradient
from engram.learner.learner import Items, Learner
from engram.learner.tree import stack
from engram.methods.base import Method, overrides

ENTRIES_AT_ONCE = 1 << 28  # input or gradient entries of one mapped pass


class _Worker:
    """A verb of one learner that pauses where it asks for an average gradient."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.request: tuple[Any, ...] | None = None
        self.answer: Tensor | None = None
        self.error: BaseException | None = None
        self.done = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._call = call
        threading.Thread(target=self._main, daemon=True).start()

    def _main(self) -> None:
        self._go.acquire()
        try:
            self._call()
        except BaseException as error:  # handed to the caller of `resume`
            self.error = error
        self.done = True
        self._back.release()

    def resume(self) -> None:
        """Run until the next request or the end."""
        self.request = None
        self._go.release()
        self._back.acquire()
        if self.error is not None:
            raise self.error

    def ask(self, *request: Any) -> Tensor:
        """Called inside the thread: pause, and return the answer."""
        self.request = request
        self._back.release()
        self._go.acquire()
        if self.answer is None:
            raise RuntimeError("resumed without an answer")
        answer, self.answer = self.answer, None
        return answer


def each(learners: Sequence[Learner], methods: Sequence[Method], verb: str) -> None:
    """Call ``method.start`` or ``method.finish`` for every learner."""
    if not any(overrides(m, verb) for m in methods):
        return
    if len(learners) == 1:
        getattr(methods[0], verb)(learners[0], learners[0].task)
        return
    # only runs with equal methods may share a pass: a term may read its method's fields
    groups: list[list[int]] = []
    for index, method in enumerate(methods):
        for group in groups:
            if methods[group[0]] == method:
                group.append(index)
                break
        else:
            groups.append([index])
    for group in groups:
        _together([learners[i] for i in group], [methods[i] for i in group], verb)


def _together(learners: list[Learner], methods: list[Method], verb: str) -> None:
    workers: list[_Worker] = []
    for learner, method in zip(learners, methods, strict=True):
        worker = _Worker(lambda one=learner, m=method: getattr(m, verb)(one, one.task))  # type: ignore[misc]
        learner._average = lambda _self, *request, w=worker: w.ask(*request)
        workers.append(worker)
    try:
        waiting = list(range(len(workers)))
        while waiting:
            for index in waiting:
                workers[index].resume()
            waiting = [i for i in waiting if not workers[i].done]
            for part in _alike(waiting, workers):
                requests = [workers[i].request for i in part]
                answers = _answer([learners[i] for i in part], requests)
                for index, answer in zip(part, answers, strict=True):
                    workers[index].answer = answer
    finally:
        for learner in learners:
            learner._average = None


def _alike(waiting: Sequence[int], workers: Sequence[_Worker]) -> list[list[int]]:
    """Those who ask the same: learners may take different ways through their method."""
    found: dict[Any, list[int]] = {}
    for index in waiting:
        _, term, transform, size, batch_statistics = workers[index].request or (None,) * 5
        # a term made inside the verb is another object for each learner, of the same code
        kind = (getattr(term, "__code__", term), transform, size == 1, batch_statistics)
        found.setdefault(kind, []).append(index)
    return list(found.values())


def _answer(learners: list[Learner], requests: list[Any]) -> list[Tensor]:
    """One mapped pass for all; runs are cut into chunks that fit in memory."""
    items: list[Items] = [request[0] for request in requests]
    term, transform, batch_statistics = requests[0][1], requests[0][2], requests[0][4]
    full = all(request[3] == len(one.rows) for request, one in zip(requests, items, strict=True))
    size = max(request[3] for request in requests)
    if not full and any(request[3] != size for request in requests):
        raise ValueError("learners of one group asked for gradients of different group sizes")
    groups = 1 if full else max(-(-len(one.rows) // size) for one in items)
    sample = learners[0].stream.data.x[:1]
    per_run = (
        size * groups * max(1, int(sample.numel() if isinstance(sample, Tensor) else sample.size))
    )
    per_run = max(per_run, len(learners[0].vector))
    chunk = max(1, ENTRIES_AT_ONCE // per_run)
    answers: list[Tensor] = []
    for start in range(0, len(learners), chunk):
        part = slice(start, start + chunk)
        answers += _mapped(
            learners[part], items[part], term, transform, size, groups, batch_statistics
        )
    return answers


def _mapped(
    learners: list[Learner], items: list[Items], term: Term, transform: Transform,
    size: int, groups: int, batch_statistics: bool,
) -> list[Tensor]:  # fmt: skip
    networks = learners[0].networks
    vectors = torch.stack([one.vector for one in learners])
    buffers = stack([one.buffers for one in learners])
    pairs = zip(learners, items, strict=True)
    batches = stack([one.grouped(its, size, 0, groups) for one, its in pairs])

    def one_run(vector: Tensor, own: Any, batch: Any) -> Tensor:
        return average_gradient(
            networks, Weights(vector, own), batch, term, transform, batch_statistics
        )

    return list(vmap(one_run)(vectors, buffers, batches).unbind(0))
