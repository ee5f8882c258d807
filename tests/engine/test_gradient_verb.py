"""`gradient`: what it may ask for, alone and in lockstep."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from engram.checks import toy_runs
from engram.engine.engine import Engine
from engram.methods.method import Method
from engram.per_run import PerRun


@dataclass(frozen=True, kw_only=True)
class Sharp(Method):
    """The gradient at the worst place nearby (sharpness-aware minimisation)."""

    rho: PerRun = 0.05

    def gradient(self, grad, batch, state):
        up = grad(batch)
        return grad(batch, at=grad.vector + self.rho * up / up.norm().clamp(min=1e-12))


@dataclass(frozen=True, kw_only=True)
class HalfFirst(Method):
    """Half the gradient for the first layer, found by name."""

    def gradient(self, grad, batch, state):
        found = grad(batch).clone()
        grad.layout(found)["net.backbone.first.weight"].mul_(0.5)
        return found


@dataclass(frozen=True, kw_only=True)
class TermByTerm(Method):
    """Asks for every term on its own."""

    def loss(self, net, batch, state):
        return {"task": net.task(batch), "small": 0.01 * net.vector.square().sum()}

    def gradient(self, grad, batch, state):
        return grad(batch, "task") + grad(batch, "small")


@dataclass(frozen=True, kw_only=True)
class Away(Method):
    """A loss that pulls other weights back to those of the run."""

    def loss(self, net, batch, state):
        here = batch.values.get("here", net.vector.detach())
        return {"task": 0.5 * (net.vector - here).square().sum() + 0 * net.task(batch)}

    def gradient(self, grad, batch, state):
        grad(batch)
        here = grad.vector
        return grad(batch._replace(values={"here": here}), at=here + 2.0)


@dataclass(frozen=True, kw_only=True)
class Elsewhere(Method):
    """The usual gradient, after which others are asked for far away, or none."""

    far: bool = True

    def gradient(self, grad, batch, state):
        found = grad(batch).clone()
        if self.far:
            grad(batch, at=grad.vector + 10.0)
        return found


@pytest.mark.parametrize("together", [True, False])
def test_other_weights_do_not_overwrite_those_of_the_run(together):
    """Weights that must move by -2 times the rate do."""
    training = replace(toy_runs.EXACT, optimizer="sgd", momentum=0.0, lr=0.25, batch_size=0,
                       epochs=1)  # fmt: skip
    runs = toy_runs.make_runs(Away(), toy_runs.make_streams()[:2], training=training)
    engine = Engine(runs, device="cpu", together=together)
    before = [engine.learner(run).vector for run in runs]
    for stage in engine.stages():
        if stage.stage == 0:
            free = stage.learner.free
            moved = (stage.learner.vector - before[stage.run])[free]
            assert torch.allclose(moved, torch.full_like(moved, -0.5), atol=1e-12)


@pytest.mark.parametrize("together", [True, False])
def test_other_weights_leave_running_statistics_alone(together):
    found = []
    for far in (True, False):
        runs = toy_runs.make_runs(Elsewhere(far=far), toy_runs.make_streams()[:2], model="normed")
        stages = Engine(runs, device="cpu", together=together).stages()
        found.append(tuple(stage.learner.buffers for stage in stages))
    assert found[0][0]
    assert toy_runs.largest_gap(found[0], found[1]) < toy_runs.CLOSE


@pytest.mark.parametrize("method", [Sharp(), HalfFirst(), TermByTerm()], ids=str)
def test_lockstep_is_the_loop(method):
    group = toy_runs.make_runs(method, toy_runs.make_streams(), model="normed")
    together = toy_runs.train_runs(group, together=True)
    for place, run in enumerate(group):
        alone = toy_runs.train_runs([run])
        for stage in range(3):
            pair = together[place, stage].tensors, alone[0, stage].tensors
            assert toy_runs.largest_gap(*pair) < toy_runs.CLOSE


@pytest.mark.parametrize("together", [True, False])
def test_the_log_speaks_of_the_first_gradient_of_a_batch(together):
    """Asking twice does not count twice."""
    losses = []
    for method in (Method(), TermByTerm(), Sharp()):
        runs = toy_runs.make_runs(method, toy_runs.make_streams()[:2])
        (first, *_) = Engine(runs, device="cpu", together=together).stages()
        losses.append(first.losses[0][1]["task"])
    assert losses[1] == pytest.approx(losses[0], rel=0.2)
    assert losses[2] == pytest.approx(losses[0], rel=0.2)


def test_a_sharp_step_by_hand():
    run = toy_runs.make_runs(Sharp(), toy_runs.make_streams()[:1])[0]
    learner = Engine([run], device="cpu").learner(run)
    learner.open_classes(0)
    batch = learner.batch()

    def gradient(vector):
        weights = vector.clone().requires_grad_(True)
        net = learner.net()
        net._params = learner.layout(weights)
        return torch.autograd.grad(net.task(batch), weights)[0]

    up = gradient(learner.vector)
    wanted = gradient(learner.vector + 0.05 * up / up.norm())
    assert float((wanted - up).norm()) > 1e-4

    class Told(Sharp):
        """Tells what it found, on the whole task at once."""

        def gradient(self, grad, batch, state):
            found.append(super().gradient(grad, batch, state))
            return found[-1]

    found: list[torch.Tensor] = []
    training = replace(toy_runs.EXACT, batch_size=0, epochs=1)
    list(
        Engine(
            toy_runs.make_runs(Told(), toy_runs.make_streams()[:1], training=training), device="cpu"
        ).stages()
    )
    free = learner.free
    assert torch.allclose(found[0][free], wanted[free], atol=1e-10)
