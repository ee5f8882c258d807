from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from engram.checks.toy_runs import EXACT, largest_gap, make_clouds, make_runs
from engram.engine import host_verbs
from engram.engine.engine import Engine
from engram.engine.loop import open_task
from engram.learner.learner import RunLearner
from engram.learner.tensor_tree import leaves, stack
from engram.methods.fisher import bernoulli_nll, visible_label_nll
from engram.methods.method import Method
from engram.per_run import PerRun
from engram.streams import class_incremental

DATA = make_clouds()
SIZES = ([2, 2, 2], [1, 3, 2], [3, 1, 2])


@dataclass(frozen=True, kw_only=True)
class Asks(Method):
    """Asks for several averages, one of them depending on an earlier answer."""

    group: int | str = 1
    scale: PerRun = 1.0

    def finish(self, learner: RunLearner, task: Any) -> None:
        first = learner.average_gradient(visible_label_nll, group=self.group)
        second = learner.average_gradient(bernoulli_nll, transform=torch.abs)
        rows = task.train[first.argmax() % 3 :]
        third = learner.average_gradient(visible_label_nll, group="full", rows=rows)
        learner.state = {"sum": self.scale * (first + second + third)}


def entered(methods: list[Method], model: str = "plain") -> list[RunLearner]:
    streams = [class_incremental(DATA, classes_per_task=sizes) for sizes in SIZES[: len(methods)]]
    runs = make_runs(methods, streams, model=model)
    engine = Engine(runs, device="cpu")
    learners = [engine.learner(run) for run in runs]
    open_task(learners, methods, EXACT, 0)
    return learners


@pytest.mark.parametrize("size", [1, 4, 100])
def test_batches_of_all_are_those_of_each(size):
    learners = entered([Asks()] * 3)
    items = [learner.items() for learner in learners]
    groups = max(-(-len(one.rows) // size) for one in items)
    found = host_verbs._batches(learners, items, size, groups)
    pairs = zip(learners, items, strict=True)
    expected = stack([one.group_batch(its, size, 0, groups) for one, its in pairs])
    for mine, theirs in zip(leaves(found), leaves(expected), strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("model", ["plain", "normed", "dropped"])
@pytest.mark.parametrize("group", [1, 4, "full"])
def test_answers_are_those_of_one_alone(group, model):
    methods: list[Method] = [Asks(group=group)] * 3
    together = entered(methods, model)
    host_verbs.call_for_all(together, methods, "finish")
    for place, learner in enumerate(entered(methods, model)):
        methods[place].finish(learner, learner.task)
        assert largest_gap(together[place].state, learner.state) < 1e-12
        assert learner.ledger.to_dict() == together[place].ledger.to_dict()
    assert all(one._average is None for one in together)


def test_methods_that_differ_answer_for_themselves():
    methods: list[Method] = [Asks(scale=1.0), Asks(scale=2.0), Asks(group=4)]
    together = entered(methods)
    host_verbs.call_for_all(together, methods, "finish")
    for place, learner in enumerate(entered(methods)):
        methods[place].finish(learner, learner.task)
        assert largest_gap(together[place].state, learner.state) < 1e-12


@dataclass(frozen=True, kw_only=True)
class Reads(Method):
    """One of its terms reads a field, the other does not."""

    scale: PerRun = 1.0

    def weighted(self, net: Any, batch: Any) -> torch.Tensor:
        return self.scale * visible_label_nll(net, batch)

    def finish(self, learner: RunLearner, task: Any) -> None:
        own = learner.average_gradient(self.weighted)
        learner.state = {"own": own, "plain": learner.average_gradient(visible_label_nll)}


def test_strengths_share_the_passes_that_do_not_depend_on_them(monkeypatch):
    methods: list[Method] = [Reads(scale=1.0), Reads(scale=2.0), Reads(scale=2.0)]
    passes, usual = [], host_verbs._compute_mapped
    monkeypatch.setattr(
        host_verbs,
        "_compute_mapped",
        lambda some, *rest: passes.append(len(some)) or usual(some, *rest),
    )
    together = entered(methods)
    host_verbs.call_for_all(together, methods, "finish")
    assert sorted(passes) == [1, 2, 3]
    for place, learner in enumerate(entered(methods)):
        methods[place].finish(learner, learner.task)
        assert largest_gap(together[place].state, learner.state) < 1e-12


def test_small_chunks_change_nothing(monkeypatch):
    methods: list[Method] = [Asks()] * 3
    whole, parts = entered(methods), entered(methods)
    host_verbs.call_for_all(whole, methods, "finish")
    monkeypatch.setattr(host_verbs, "ENTRIES_AT_ONCE", 1)
    host_verbs.call_for_all(parts, methods, "finish")
    assert all(largest_gap(a.state, b.state) < 1e-12 for a, b in zip(whole, parts, strict=True))


@dataclass(frozen=True, kw_only=True)
class Uneven(Method):
    """Some learners ask more often than others."""

    def finish(self, learner: RunLearner, task: Any) -> None:
        total = torch.zeros_like(learner.vector)
        for _ in range(1 + learner.seed):
            total = total + learner.average_gradient(visible_label_nll)
        learner.state = {"total": total}


def test_some_may_ask_more_often():
    methods: list[Method] = [Uneven()] * 3
    together = entered(methods)
    host_verbs.call_for_all(together, methods, "finish")
    for place, learner in enumerate(entered(methods)):
        methods[place].finish(learner, learner.task)
        assert largest_gap(together[place].state, learner.state) < 1e-12


@dataclass(frozen=True, kw_only=True)
class Apart(Method):
    """Learners take different ways through the same method."""

    def finish(self, learner: RunLearner, task: Any) -> None:
        if learner.seed == 1:
            found = learner.average_gradient(bernoulli_nll)
        elif learner.seed == 2:
            found = learner.average_gradient(visible_label_nll, transform=torch.abs, group=3)
        else:
            found = learner.average_gradient(visible_label_nll)
        learner.state = {"found": found}


def test_different_questions_get_different_answers():
    methods: list[Method] = [Apart()] * 3
    together = entered(methods)
    host_verbs.call_for_all(together, methods, "finish")
    for place, learner in enumerate(entered(methods)):
        methods[place].finish(learner, learner.task)
        assert largest_gap(together[place].state, learner.state) < 1e-12


@dataclass(frozen=True, kw_only=True)
class Fails(Method):
    def finish(self, learner: RunLearner, task: Any) -> None:
        learner.average_gradient(visible_label_nll)
        if learner.seed == 1:
            raise KeyError("mine")


def test_an_error_reaches_the_caller():
    methods: list[Method] = [Fails()] * 3
    learners = entered(methods)
    with pytest.raises(KeyError, match="mine"):
        host_verbs.call_for_all(learners, methods, "finish")
    assert all(one._average is None for one in learners)


def test_verbs_run_one_at_a_time():
    inside, most, lock = [0], [0], threading.Lock()

    @dataclass(frozen=True, kw_only=True)
    class Counts(Method):
        def start(self, learner: RunLearner, task: Any) -> None:
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            for _ in range(2000):
                pass
            with lock:
                inside[0] -= 1

    entered([Counts()] * 3)
    assert most[0] == 1


def test_verbs_that_ask_for_nothing_share_a_thread():
    seen: list[threading.Thread] = []

    @dataclass(frozen=True, kw_only=True)
    class Looks(Method):
        def start(self, learner: RunLearner, task: Any) -> None:
            seen.append(threading.current_thread())

    methods: list[Method] = [Looks()] * 3
    learners = entered(methods)
    seen.clear()
    host_verbs.call_for_all(learners, methods, "start")
    assert len(seen) == 3
    assert len(set(seen)) == 1


@pytest.mark.parametrize("asking", [{1}, {0, 2}, {1, 2}])
def test_those_who_ask_are_answered_together(asking, monkeypatch):
    order: list[int] = []
    passes: list[int] = []
    answer = host_verbs._compute_gradients
    monkeypatch.setattr(
        host_verbs, "_compute_gradients", lambda asked: passes.append(len(asked)) or answer(asked)
    )

    @dataclass(frozen=True, kw_only=True)
    class Some(Method):
        def finish(self, learner: RunLearner, task: Any) -> None:
            order.append(learner.seed)
            if learner.seed in asking:
                learner.state = {"found": learner.average_gradient(visible_label_nll)}

    methods: list[Method] = [Some()] * 3
    together = entered(methods)
    host_verbs.call_for_all(together, methods, "finish")
    assert order == [0, 1, 2]
    assert passes == [len(asking)]
    for place, learner in enumerate(entered(methods)):
        methods[place].finish(learner, learner.task)
        assert bool(learner.state) == (place in asking)
        assert largest_gap(together[place].state, learner.state) < 1e-12


def test_an_error_ends_the_threads_that_wait():
    methods: list[Method] = [Fails()] * 3
    learners, before = entered(methods), set(threading.enumerate())
    with pytest.raises(KeyError, match="mine"):
        host_verbs.call_for_all(learners, methods, "finish")
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()
