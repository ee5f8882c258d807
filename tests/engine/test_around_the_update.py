"""What a loss, a gradient and a step know of the training, and what a step may change."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

import pytest
import torch

from engram.checks.toy_runs import (
    CLOSE,
    EXACT,
    copy_stage,
    largest_gap,
    make_clouds,
    make_runs,
    make_streams,
    train_runs,
)
from engram.engine.engine import Engine
from engram.engine.trainers import compiled
from engram.errors import BadArgument
from engram.methods import SI, Join
from engram.methods.method import Method, Phase
from engram.models.functional_call import differentiate
from engram.per_run import PerRun
from engram.streams import class_incremental
from tests.refusals import refuses

SHORT = replace(EXACT, epochs=2, batch_size=16)


def gap_to_the_loop(method, training=SHORT, model="plain", **options):
    """Largest difference between runs together and each alone."""
    group = make_runs(method, make_streams(), model=model, training=training)
    together = train_runs(group, together=True, **options)
    gaps = []
    for place, run in enumerate(group):
        alone = train_runs([run])
        gaps += [largest_gap(together[place, s].tensors, alone[0, s].tensors) for s in range(3)]
    return max(gaps)


# -- the clock -------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Diary(Method):
    """Writes down what the clock shows in every step: of the loss, and of the step."""

    def phases(self, stage):
        return (Phase(), Phase(epochs=1, lr=0.005))

    def start(self, learner, task):
        learner.state = {"told": torch.zeros(99, 5).double(), "heard": torch.zeros(99).double()}

    def gradient(self, grad, batch, state):
        grad.keep(step=batch.clock.step)
        return grad(batch) * batch.clock.lr / batch.clock.lr

    def step(self, update, state):
        clock, here = update.clock, torch.arange(99) == update.number - 1
        now = (clock.step, clock.steps, clock.progress, clock.epoch_progress, clock.lr)
        told = torch.where(here[:, None], torch.stack([one.double() for one in now]), state["told"])
        heard = torch.where(here, update.kept["step"].double(), state["heard"])
        return {"told": told, "heard": heard}


@pytest.mark.parametrize("together", [True, False])
def test_the_clock(together):
    runs = make_runs(Diary(), make_streams(), training=SHORT)
    for stage in Engine(runs, device="cpu", together=together).stages():
        rows = len(runs[stage.run].stream.tasks[stage.stage].train)
        each = -(-rows // 16)
        told = stage.learner.state["told"]
        assert stage.learner.state["heard"][: 3 * each].tolist() == told[: 3 * each, 0].tolist()
        for number in range(3 * each):
            steps, rate = (2 * each, EXACT.lr) if number < 2 * each else (each, 0.005)
            step = number if number < 2 * each else number - 2 * each
            wanted = (step, steps, step / max(steps - 1, 1), step % each / max(each - 1, 1), rate)
            assert told[number].tolist() == pytest.approx(wanted)
        assert not told[3 * each :].any()


def test_the_clock_of_iterations():
    training = replace(SHORT, iterations=9)
    (run,) = make_runs(Diary(), make_streams()[:1], training=training)
    stage = next(iter(Engine([run], device="cpu").stages()))
    each = len(run.stream.tasks[0].train) // 16
    told = stage.learner.state["told"][:9]
    assert told[:, 1].tolist() == [9] * 9
    assert told[:, 3].tolist() == [n % each / max(each - 1, 1) for n in range(9)]


def test_a_batch_of_the_host_has_no_clock():
    (run,) = make_runs(Method(), make_streams()[:1])
    learner = Engine([run], device="cpu").learner(run)
    learner.open_classes(0)
    with pytest.raises(BadArgument, match=r"batch\.clock"):
        learner.batch().clock  # noqa: B018


@dataclass(frozen=True, kw_only=True)
class Annealed(Method):
    """A loss that changes in the course of an epoch and of a phase."""

    def loss(self, net, batch, state):
        clock = batch.clock
        return {"task": net.task(batch) * (0.5 + clock.progress + clock.epoch_progress)}


# -- a step that changes the weights ---------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Clipped(Method):
    """Keeps every weight within a bound, and counts how often it had to."""

    bound: PerRun = 0.2

    def start(self, learner, task):
        learner.state = {"count": torch.zeros_like(learner.vector)}

    def step(self, update, state):
        after = update.after.clamp(-self.bound, self.bound)
        return after, {"count": state["count"] + (after != update.after)}


@dataclass(frozen=True, kw_only=True)
class Kept(Method):
    """Goes half of the way along a gradient that it computed itself."""

    def gradient(self, grad, batch, state):
        found = grad(batch)
        grad.keep(half=grad.vector - 0.5 * batch.clock.lr * found)
        return found

    def step(self, update, state):
        return update.kept["half"], state


@pytest.mark.parametrize("together", [True, False])
def test_a_step_changes_weights_that_may_move(together):
    runs = make_runs(Clipped(), make_streams(), training=replace(SHORT, weight_decay=0.1))
    engine = Engine(runs, device="cpu", together=together)
    first = [engine.learner(run).vector for run in runs]
    counted = 0
    for stage in engine.stages():
        learner, free = stage.learner, stage.learner.free
        assert float(learner.vector[free].abs().max()) <= 0.2
        assert torch.equal(learner.vector[~free], first[stage.run][~free])
        assert bool((learner.state["count"] > 0).any())
        counted += int((~free).sum())
    assert counted


def test_half_a_step_is_a_step_at_half_the_rate():
    found = []
    for method, lr in ((Kept(), 0.02), (Method(), 0.01)):
        training = replace(SHORT, lr=lr, momentum=0.0)
        run = make_runs(method, make_streams()[:1], training=training)
        found.append(train_runs(run)[0, 2].tensors)
    assert largest_gap(*found) < CLOSE


@pytest.mark.parametrize("precision", ["float64", "fp16"])
def test_an_average_follows_the_changed_weights(precision):
    training = replace(SHORT, ema=0.5, precision=precision)
    runs = make_runs(Clipped(bound=0.05), make_streams()[:2], training=training)
    for stage in Engine(runs, device="cpu", together=False).stages():
        learner = stage.learner
        assert float(learner.vector[learner.free].abs().max()) <= 0.0501


def test_a_part_of_a_join_sees_the_weights_that_earlier_parts_left():
    class Watched(SI):
        def step(self, update, state):
            assert float(update.after.abs().max()) <= 0.01
            assert not torch.equal(update.after, update.before)
            return super().step(update, state)

    both = Join(Clipped(bound=0.01), Watched())
    (run,) = make_runs(both, [class_incremental(make_clouds())], training=SHORT)
    train_runs([run])


@pytest.mark.parametrize(
    "found", [3, torch.zeros(2), (torch.zeros(2), {}), (1, 2, 3)], ids=["int", "t", "short", "3"]
)
def test_what_a_step_may_return(found):
    class Wrong(Method):
        def step(self, update, state):
            return found

    with refuses("Wrong.step"):
        train_runs(make_runs(Wrong(), make_streams()[:1], training=SHORT))


# -- differentiable other weights ------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Inner(Method):
    """The loss after an inner step on the first half of the batch (MAML)."""

    rate: PerRun = 0.1

    def loss(self, net, batch, state):
        support, half = batch.select(slice(8)), net.weights
        slope = differentiate(lambda v: net.given(v).task(support))(half)
        return {"task": net.given(half - self.rate * slope).task(batch)}


@dataclass(frozen=True, kw_only=True)
class Looks(Method):
    """Weighs its update by the loss that a virtual step would leave."""

    def gradient(self, grad, batch, state):
        found = grad(batch)
        moved = grad.given(grad.vector - 0.1 * found)
        return found / (1 + moved.task(batch))


METHODS = [Kept(), Join(Clipped(), Annealed())]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_lockstep_is_the_loop(method):
    assert gap_to_the_loop(method) < CLOSE


@pytest.mark.parametrize(
    ("method", "model"), [(Inner(), "normed"), (Inner(), "dropped"), (Looks(), "dropped")], ids=str
)
def test_other_weights_in_lockstep(method, model):
    assert gap_to_the_loop(method, replace(SHORT, epochs=1), model) < CLOSE


def test_an_inner_step_by_hand():
    (run,) = make_runs(Inner(), make_streams()[:1])
    learner = Engine([run], device="cpu").learner(run)
    learner.open_classes(0)
    batch = learner.batch()
    weights = learner.vector.clone().requires_grad_(True)

    def task(vector, rows):
        return learner.net().given(vector).task(rows)

    (slope,) = torch.autograd.grad(task(weights, batch.select(slice(8))), weights,
                                   create_graph=True)  # fmt: skip
    (wanted,) = torch.autograd.grad(task(weights - 0.1 * slope, batch), weights)
    start, seen = learner.vector, []

    class Told(Inner):
        def loss(self, net, batch, state):
            terms = super().loss(net, batch, state)
            if net.__class__.__name__ == "BoundNet" and not seen:
                seen.append(torch.autograd.grad(terms["task"], net.parameters, retain_graph=True))
            return terms

        def phases(self, stage):
            return (Phase(iterations=1),)

    training = replace(EXACT, batch_size=0, epochs=1, optimizer="sgd", momentum=0.0, lr=0.1)
    (run,) = make_runs(Told(), make_streams()[:1], training=training)
    end = train_runs([run])[0, 0].tensors
    assert seen
    moved = torch.where(learner.free, start - 0.1 * wanted, start)
    assert float((end["vector"] - moved).abs().max()) < CLOSE


compiler = pytest.mark.skipif(
    not any(map(shutil.which, compiled.COMPILERS)), reason="no C++ compiler to test with"
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@compiler
def test_compiled_steps_know_the_time_and_change_the_weights(monkeypatch):
    method = Join(Annealed(), Clipped())
    group = make_runs(method, make_streams()[:2], training=replace(SHORT, epochs=1))
    monkeypatch.setattr(torch, "compile", lambda graph, **how: graph)  # the trace itself runs
    monkeypatch.setattr(compiled, "_KNOWN", {})
    engine = Engine(group, device="cpu", together=True, compile=True)
    traced = {(s.run, s.stage): copy_stage(s) for s in engine.stages()}
    ends = train_runs(group, together=True), traced
    for place, stage in ends[0]:
        pair = ends[0][place, stage].tensors, ends[1][place, stage].tensors
        assert largest_gap(*pair) < 1e-9
