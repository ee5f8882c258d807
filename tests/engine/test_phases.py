"""A task may consist of several trainings, or of none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch

from engram.checks import toy_runs
from engram.engine.engine import Engine
from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods import GDumb
from engram.methods.method import Method, Phase

HEAD = Phase(rows="memory", name="head", trainable=("net.head",), epochs=3, lr=0.05)


@dataclass(frozen=True, kw_only=True)
class Twice(Method):
    """The task, then the head alone on the memory."""

    second: Phase = HEAD
    memory: Memory = field(default=Memory(total=12))

    def phases(self, stage):
        return Phase(), self.second

    def start(self, learner, task):
        learner.exemplars = self.memory.update(learner, task.train)

    def loss(self, net, batch, state):
        return {net.phase: net.task(batch)}


def stages(method, runs=3, **options):
    training = options.pop("training", toy_runs.EXACT)
    group = toy_runs.make_runs(method, toy_runs.make_streams()[:runs], training=training)
    return [toy_runs.copy_stage(s) for s in Engine(group, device="cpu", **options).stages()]


@pytest.mark.parametrize("model", ["plain", "normed"])
def test_lockstep_is_the_loop(model):
    group = toy_runs.make_runs(Twice(), toy_runs.make_streams(), model=model)
    together = toy_runs.train_runs(group, together=True)
    for place, run in enumerate(group):
        alone = toy_runs.train_runs([run])
        for stage in range(3):
            pair = together[place, stage].tensors, alone[0, stage].tensors
            assert toy_runs.largest_gap(*pair) < toy_runs.CLOSE


def test_only_what_is_named_moves():
    class Watched(Twice):
        pass

    first = stages(Watched(second=Phase(rows="none")), runs=1)[0]
    both = stages(Watched(), runs=1)[0]
    layout = both.stage.learner.layout
    before, after = layout(first.vector), layout(both.vector)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved == {"net.head.weight", "net.head.bias"}
    assert torch.equal(both.stage.learner.free, first.stage.learner.free)


def test_the_loss_knows_the_phase_and_steps_go_on():
    outcome = stages(Twice(), runs=1)[0].stage
    names = [set(terms) - {"total"} for _, terms in outcome.losses]
    assert names[0] == {"task"}
    assert names[-1] == {"head"}
    steps = [step for step, _ in outcome.losses]
    assert steps == sorted(steps)
    assert outcome.steps == steps[-1]


def test_no_training_leaves_the_weights_alone():
    method = Twice(second=Phase(rows="none"))
    object.__setattr__(method, "__class__", type("Still", (Twice,), {
        "phases": lambda self, stage: (Phase(rows="none"),)
    }))  # fmt: skip
    first, *_, last = stages(method, runs=1)
    assert torch.equal(first.vector, last.vector)
    assert last.stage.steps == 0


def test_a_fresh_phase_forgets_the_tasks_before():
    """GDumb after the last task = GDumb that meets the same exemplars at once."""
    method = GDumb(memory=Memory(total=12), epochs=4)
    group = toy_runs.make_runs(method, toy_runs.make_streams()[:1])
    engine = Engine(group, device="cpu")
    for stage in engine.stages():
        learner = stage.learner
    fresh = engine.learner(group[0])
    fresh.open_classes(2)
    vector, _ = fresh.networks.initial()
    kept = learner.exemplars
    x, y = learner.feed(kept.rows, kept.stages), learner.stream.targets[kept.rows, 0]
    own = learner.layout(vector)
    weights = [own[k].clone().requires_grad_(True) for k in own]
    # as one batch holds all exemplars, plain gradient descent is the whole method
    rate = toy_runs.EXACT.lr
    momenta = [torch.zeros_like(w) for w in weights]
    for _ in range(4):
        hidden = torch.relu(x.flatten(1) @ weights[0].T + weights[1])
        logits = hidden @ weights[2].T + weights[3]
        loss = torch.nn.functional.cross_entropy(logits, y)
        grads = torch.autograd.grad(loss, weights)
        for weight, momentum, grad in zip(weights, momenta, grads, strict=True):
            momentum.mul_(toy_runs.EXACT.momentum).add_(grad)
            weight.data -= rate * momentum
    found = list(learner.params.values())
    assert (
        max(float((a - b).abs().max()) for a, b in zip(found, map(torch.detach, weights))) < 1e-12
    )


def test_phases_draw_otherwise():
    """Two equal phases are not the same epochs twice."""
    phase = Phase(rows="both", epochs=1)
    method = Twice(second=phase)
    training = replace(toy_runs.EXACT, epochs=1, batch_size=4)
    seen = []

    class Looking(Twice):
        def loss(self, net, batch, state):
            seen.append(batch.x[:, 0, 0, 0].tolist())
            return super().loss(net, batch, state)

        def phases(self, stage):
            return phase, phase

    object.__setattr__(method, "__class__", Looking)
    stages(method, runs=1, training=training)
    half = seen.index(seen[0], 1) if seen[0] in seen[1:] else len(seen)
    assert half == len(seen)


class TestErrors:
    def test_a_memory_that_is_empty(self):
        class Empty(GDumb):
            def start(self, learner, task):
                pass

        with pytest.raises(BadArgument, match=r"fill it in Empty\.start"):
            stages(Empty(), runs=1)

    def test_a_name_that_no_parameter_has(self):
        with pytest.raises(BadArgument, match=r"phase\.trainable: unknown name 'net\.heat'"):
            stages(Twice(second=Phase(rows="memory", trainable=("net.heat",))), runs=1)

    @pytest.mark.parametrize(
        "values", [{"rows": "test"}, {"epochs": 1, "iterations": 2}, {"lr": -1.0}]
    )
    def test_bad_phases(self, values):
        with pytest.raises(BadArgument, match="phase"):
            Phase(**values)
