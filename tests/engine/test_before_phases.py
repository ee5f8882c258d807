"""Before a phase of a task a method may edit its learner."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch

import engram
from engram.checks import check, toy_runs
from engram.engine.engine import Engine
from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods import EWC, Join
from engram.methods.method import Method, Phase
from engram.per_run import PerRun
from tests.refusals import refuses


@dataclass(frozen=True, kw_only=True)
class Pruned(Method):
    """Small weights of the backbone are set to 0 after a first training, and stay there."""

    share: PerRun = 0.5

    def phases(self, stage):
        return Phase(epochs=2), Phase(name="again", epochs=2, before=self.prune)

    def prune(self, learner, task):
        free = learner.free.clone()
        for name, weight in learner.params.items():
            if weight.ndim == 2 and "head" not in name:
                small = weight.abs() < weight.abs().median() * (2 * self.share)
                weight[small] = 0.0
                learner.layout(free)[name][small] = False
        learner.free = free
        learner.state = {"pruned": (~free).to(learner.vector)}

    def loss(self, net, batch, state):
        return {net.phase: net.task(batch)}


@dataclass(frozen=True, kw_only=True)
class Balanced(Method):
    """The head alone is trained again, on exemplars that are chosen after the first training."""

    memory: Memory = field(default=Memory(total=12, policy="herding"))

    def phases(self, stage):
        return (
            Phase(),
            Phase(rows="memory", trainable=("net.head",), epochs=2, before=self.choose),
        )

    def choose(self, learner, task):
        learner.exemplars = self.memory.update(learner, task.train)


@pytest.mark.parametrize("together", [True, False])
def test_what_it_froze_stands_still_until_the_task_ends(together):
    group = toy_runs.make_runs(Pruned(), toy_runs.make_streams())
    for stage in Engine(group, device="cpu", together=together).stages():
        learner = stage.learner
        pruned = learner.state["pruned"].bool()
        columns = ~learner.networks.free(learner.seen, learner.stage)
        assert (pruned & ~columns).sum() > 10
        assert not learner.vector[pruned & ~columns].any()
        assert learner.vector[~pruned].any()
        assert {name for _, terms in stage.losses for name in terms} >= {"task", "again"}


def test_a_memory_may_be_chosen_between_phases():
    for stage in Engine(
        toy_runs.make_runs(Balanced(), toy_runs.make_streams()[:1]), device="cpu"
    ).stages():
        assert len(stage.learner.exemplars) == 12
        assert stage.steps > len(stage.learner.task.train) // toy_runs.EXACT.batch_size


@dataclass(frozen=True, kw_only=True)
class Halved(Method):
    """Every task begins with half of the weights; the first phase has a `before`, too."""

    share: PerRun = 0.5

    def phases(self, stage):
        return Phase(before=self.shrink), Phase(name="again")

    def shrink(self, learner, task):
        halved = learner.vector * self.share
        learner.vector = torch.where(learner.free, halved, learner.vector)
        learner.state = {"begun": learner.vector.clone()}

    def loss(self, net, batch, state):
        away = (net.vector - state["begun"]).square().sum()
        return {net.phase: net.task(batch), "penalty": 0.01 * away}


def test_it_is_called_before_the_first_phase_after_start():
    calls = []

    class Noted(Halved):
        def start(self, learner, task):
            calls.append(("start", learner.vector.abs().sum()))

        def shrink(self, learner, task):
            super().shrink(learner, task)
            calls.append(("shrink", learner.vector.abs().sum()))

    runs = toy_runs.make_runs(Noted(), toy_runs.make_streams()[:1])
    calls.clear()  # a start on trial, to choose a model
    stages = len([*Engine(runs, device="cpu").stages()])
    assert [name for name, _ in calls] == ["start", "shrink"] * stages
    assert calls[1][1] < 0.75 * calls[0][1]


@pytest.mark.parametrize("together", [True, False])
def test_every_method_calls_its_own(together):
    methods = [Halved(share=0.5), Halved(share=0.25)]
    streams = toy_runs.make_streams()[:1]
    runs = [toy_runs.make_runs(method, streams)[0] for method in methods]
    assert Engine(runs, device="cpu", together=together).groups() == [[0, 1]]
    fresh, met = Engine(runs, device="cpu").learner(runs[0]).vector, []
    for stage in Engine(runs, device="cpu", together=together).stages():
        if not stage.stage:
            begun = stage.learner.state["begun"]
            free = stage.learner.networks.free(stage.learner.seen, stage.learner.stage)
            met.append(torch.equal(begun[free], (fresh * methods[stage.run].share)[free]))
    assert met == [True, True]


def test_a_phase_that_never_trains_calls_nothing():
    for wrong in ({"rows": "none", "before": print}, {"before": "prune"}):
        with refuses("phase.before"):
            Phase(**wrong)


def test_the_old_verb_is_refused_with_what_to_write():
    class Old(Method):
        def between(self, learner, task, phase):
            pass

    with pytest.raises(BadArgument, match=r"Old\.between is not called any more: .*before="):
        toy_runs.make_runs(Old(), toy_runs.make_streams()[:1])


@pytest.mark.parametrize("method", [Balanced(), Halved(), Join(Pruned(), EWC(strength=0.1))])
def test_the_contract_holds(method):
    report = check(method)
    assert report.ok, str(report)


class Explosive(Pruned):
    """The rows of one class throw its weights away; `prune` does not expect such numbers."""

    def prune(self, learner, task):
        assert bool(torch.isfinite(learner.vector).all())
        super().prune(learner, task)


def test_a_run_that_diverged_holds_up_no_other():
    data = toy_runs.make_clouds()
    x = torch.as_tensor(data.x).clone()
    x[data.y[:, 0] == 5] = torch.nan
    data = replace(data, x=x)
    group = toy_runs.make_streams(data, ((0, 1, 2, 3), (5, 1, 2, 3)))
    ends = {}
    for stage in Engine(
        toy_runs.make_runs(Explosive(), group), device="cpu", together=True
    ).stages():
        ends[stage.run, stage.stage] = stage.learner.diverged
    assert ends[1, 0] == 0
    assert ends[0, 1] == -1


def test_it_edits_and_returns_nothing():
    class Returns(Pruned):
        def prune(self, learner, task):
            return learner.vector

    with pytest.raises(BadArgument, match=r"Returns\.before: expected nothing to be returned"):
        list(
            Engine(
                toy_runs.make_runs(Returns(), toy_runs.make_streams()[:1]), device="cpu"
            ).stages()
        )


class Chained(Pruned):
    """`finish` needs what `prune` left."""

    def finish(self, learner, task):
        learner.state = {"pruned": learner.state["pruned"], "anchor": learner.vector.clone()}


def test_a_learner_grows_by_classes():
    data = toy_runs.make_clouds()
    x, y = torch.as_tensor(data.x), data.y[:, 0]
    learner = engram.Learner(Chained(), {"name": "mlp", "hidden": (8,)}, capacity=2, epochs=2)
    for classes in ((0, 1), (2, 3), (4, 5)):
        rows = torch.isin(y, torch.tensor(classes))
        learner.learn(x[rows], y[rows])
    assert set(learner.predict(x)) <= set(range(6))
