"""Rows that a method sets aside are in no batch of the task."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from engram.checks import check, toy_runs
from engram.engine.engine import Engine
from engram.errors import AccessError
from engram.memory import Memory
from engram.methods.method import Method, Phase, ReplaySpec
from tests.refusals import refuses

SOME = Memory(total=24)


@dataclass(frozen=True, kw_only=True)
class Holds(Method):
    """Every third row of the task and every second exemplar is set aside."""

    kind: str = "union"
    renew: str = "task"
    rows: str = "task"
    memory: Memory = field(default=SOME)

    def replay(self, stage):
        return ReplaySpec(self.kind, renew=self.renew)

    def phases(self, stage):
        first = Phase(before=self.set_more_aside) if self.rows == "task" else Phase()
        return first, Phase(rows=self.rows)

    def start(self, learner, task):
        if self.rows == "memory":
            learner.exemplars = self.memory.update(learner, task.train)
        learner.set_aside(learner.exemplars.rows[1::2])
        learner.state = {"held": self._mask(learner, task.train[:0])}
        if self.rows != "task":
            self.set_more_aside(learner, task)

    def set_more_aside(self, learner, task):
        learner.set_aside(task.train[::3])
        learner.state = {"held": self._mask(learner, task.train[::3])}

    def _mask(self, learner, more):
        held = torch.zeros(sum(toy_runs.SIZES) + 6 * toy_runs.TESTS, dtype=torch.bool)
        held[torch.cat([learner.exemplars.rows[1::2], more])] = True
        return held

    def finish(self, learner, task):
        if self.renew == "task":
            learner.exemplars = self.memory.update(learner, task.train)


def rows_of_batches(monkeypatch, method, together):
    """By stage of each run: the rows that were in batches, and those that were set aside."""
    from engram.engine import sampler

    met, original = [], sampler.Sampler._choose

    def noting(self, source, index, real):
        found = original(self, source, index, real)
        met.append((self.stage, found))
        return found

    monkeypatch.setattr(sampler.Sampler, "_choose", noting)
    runs = toy_runs.make_runs(method, toy_runs.make_streams()[:2])
    met.clear()
    held = {}
    for stage in Engine(runs, device="cpu", together=together).stages():
        held[stage.run, stage.stage] = stage.learner.state["held"].clone()
        assert stage.learner.aside is None
    shown = {}
    for stage, found in met:
        for place in range(len(found.rows)):
            run = place if together else None
            real = found.rows[place][found.w[place] > 0]
            shown.setdefault((run, stage), []).append(real)
    return {key: torch.cat(parts) for key, parts in shown.items()}, held


@pytest.mark.parametrize(
    "method",
    [
        Holds(), Holds(kind="pair"), Holds(kind="separate"), Holds(kind="tasks"),
        Holds(rows="both"), Holds(rows="memory"),
    ],
    ids=str,
)  # fmt: skip
def test_no_batch_holds_them(method, monkeypatch):
    shown, held = rows_of_batches(monkeypatch, method, True)
    assert {stage for _, stage in shown} == {0, 1, 2}
    for key, rows in shown.items():
        assert held[key].sum() > 5
        assert not held[key][rows].any()
    free = {key: len(rows.unique()) for key, rows in shown.items()}
    assert min(free.values()) > 5


def test_they_come_back_in_the_next_task(monkeypatch):
    shown, held = rows_of_batches(monkeypatch, Holds(), True)
    again = [held[run, 0][rows].any() for (run, stage), rows in shown.items() if stage]
    assert any(again)


class Forgetful(Holds):
    """The same without a list of the rows, which no method may keep."""

    def _mask(self, learner, more):
        return torch.zeros(())


@pytest.mark.parametrize("method", [Forgetful(), Forgetful(kind="pair", rows="both")], ids=str)
def test_the_contract_holds(method):
    report = check(method)
    assert report.ok, str(report)


def test_what_cannot_be_set_aside():
    runs = toy_runs.make_runs(Method(), toy_runs.make_streams()[:1])
    learner = Engine(runs, device="cpu").learner(runs[0])
    with refuses("learner.set_aside"):
        learner.set_aside(torch.tensor([0]))
    learner.open_classes(0)
    with pytest.raises(AccessError, match="no batch of this task could hold it"):
        learner.set_aside(learner.task.test[:1])
    with pytest.raises(AccessError, match="no batch of this task could hold it"):
        learner.set_aside(learner.stream.tasks[1].train[:1])
    with refuses("rows"):
        learner.set_aside([3])
    learner.set_aside(learner.task.train[:2])
    learner.set_aside(learner.task.train[1:3])
    assert len(learner.aside) == 3
    learner.open_classes(1)
    assert not len(learner.aside)


def test_something_must_be_left():
    class Greedy(Method):
        def start(self, learner, task):
            learner.set_aside(task.train)

    runs = toy_runs.make_runs(Greedy(), toy_runs.make_streams()[:1])
    with refuses("learner.set_aside"):
        list(Engine(runs, device="cpu").stages())


def test_not_in_finish():
    class Late(Method):
        def finish(self, learner, task):
            learner.set_aside(task.train[:1])

    runs = toy_runs.make_runs(Late(), toy_runs.make_streams()[:1])
    with refuses("learner.set_aside"):
        list(Engine(runs, device="cpu").stages())


def test_exemplars_of_a_reservoir_that_is_renewed_in_every_step():
    method = Holds(kind="pair", renew="step", memory=Memory(total=12, policy="reservoir"))
    runs = toy_runs.make_runs(method, toy_runs.make_streams()[:1])
    with refuses("learner.set_aside"):
        list(Engine(runs, device="cpu").stages())
