"""Honest methods and probes of many families: what checks once held against them, they pass."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import engram
from engram.checks import (
    equality_rules,
    leakage_rules,
    learning_rules,
    method_family_rules,
    probe_rules,
    toy_runs,
)
from engram.checks.check_report import check_name, run_check
from engram.errors import BadArgument
from engram.losses import mean
from engram.memory import Memory
from engram.methods.method import Method, Phase

outside = dataclass(frozen=True, kw_only=True)


def passes(check, target) -> str:
    """What a check that passes says beside its name."""
    found = run_check(check, target)
    assert found.passed, found.message
    return found.message


def fails(check, target) -> str:
    found = run_check(check, target)
    assert not found.passed, found.message
    return found.message


# -- buffers of one's own ------------------------------------------------------------------------
class Prototypes(nn.Module):
    """A running mean of the features of each class."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(classes, width))


@outside
class WritesPrototypes(Method):
    """Sets the prototypes of a class when its task ends."""

    def networks(self, stream):
        return {"prototypes": Prototypes(len(stream.order), stream.features)}

    def answer(self, net, x, state, stage):
        output = net(x)
        near = (output.features[:, None] - net.statistics()["prototypes.mean"]).norm(dim=-1)
        return output._replace(logits=output.logits - 0.1 * near)

    def finish(self, learner, task):
        found, y = learner.outputs(task.train).features, learner.labels(task.train)[:, 0]
        means = learner.buffers["prototypes.mean"].clone()
        for column in learner.new.nonzero()[:, 0]:
            means[column] = found[y == column].mean(0)
        learner.buffers = {**learner.buffers, "prototypes.mean": means}


# -- a method that never trains ------------------------------------------------------------------
@outside
class NearestExemplar(Method):
    """The class of the nearest exemplar under the weights that the network began with."""

    memory: Memory = Memory(total=60)

    def phases(self, stage):
        return (Phase(rows="none"),)

    def finish(self, learner, task):
        learner.exemplars = self.memory.update(learner, task.train)
        kept = learner.exemplars
        features = learner.outputs(kept.rows, kept.stages).features
        size, shape = 60, (60, features.shape[1])
        held = torch.zeros(shape, dtype=features.dtype)
        held[: len(features)] = features
        y = torch.full((size,), -1)
        y[: len(kept)] = kept.columns
        learner.state = {"features": held, "y": y}

    def answer(self, net, x, state, stage):
        output = net(x)
        if not state:
            return output
        away = torch.cdist(output.features, state["features"])  # [B, M]
        mine = state["y"] == torch.arange(output.logits.shape[1])[:, None]  # [C, M]
        near = torch.where(mine, -away[:, None], -1e3).amax(-1)
        return output._replace(logits=near)


# -- moments of one's own ------------------------------------------------------------------------
@outside
class OwnAdam(Method):
    """Adam in `step`, with moments that outlive a task."""

    lr: float = 0.01

    def start(self, learner, task):
        if not learner.state:
            none = torch.zeros_like(learner.vector)
            learner.state = {"first": none, "second": none.clone(), "count": none[:1].clone()}

    def step(self, update, state):
        count = state["count"] + 1
        first = 0.9 * state["first"] + 0.1 * update.grad
        second = 0.99 * state["second"] + 0.01 * update.grad.square()
        size = (second / (1 - 0.99**count)).sqrt() + 1e-8
        weights = update.before - self.lr * first / (1 - 0.9**count) / size
        return weights, {"first": first, "second": second, "count": count}


@outside
class Moments(Method):
    """A moving average of gradients."""

    decay: float = 0.9

    def start(self, learner, task):
        learner.state = learner.state or {"mean": torch.zeros_like(learner.vector)}

    def step(self, update, state):
        return {"mean": state["mean"].lerp(update.grad, 1 - self.decay)}


@outside
class RowGradients(Method):
    """The fault: gradients of single rows, which are the rows."""

    def start(self, learner, task):
        none = torch.zeros_like(learner.vector)
        learner.state = learner.state or {"one": none, "two": none.clone()}

    def gradient(self, grad, batch, state):
        grad.keep(one=grad(batch.select(slice(0, 1))), two=grad(batch.select(slice(1, 2))))
        return grad(batch)

    def step(self, update, state):
        return dict(update.kept)


# -- learning that is slow -----------------------------------------------------------------------
@outside
class SlowAnswers(Method):
    """A slow average of the weights answers."""

    rate: float = 0.02

    def start(self, learner, task):
        if not learner.state:
            learner.state = {"slow": learner.snapshot()}

    def step(self, update, state):
        slow = state["slow"]
        vector = slow["vector"] + self.rate * (update.after - slow["vector"])
        return {"slow": {**slow, "vector": vector}}

    def answer(self, net, x, state, stage):
        return net.frozen(state["slow"])(x)


@outside
class Merges(Method):
    """When a task ends, the weights are the mean over those after each task."""

    def start(self, learner, task):
        learner.state = {"before": learner.vector.clone()}

    def finish(self, learner, task):
        share = 1 / (learner.stage + 1)
        if learner.stage:
            learner.vector = learner.state["before"].lerp(learner.vector, share)


@outside
class PooledMeans(Method):
    """The nearest mean of a class over all tasks, under the weights of the beginning."""

    def phases(self, stage):
        return (Phase(rows="none"),)

    def finish(self, learner, task):
        features, y = learner.outputs(task.train).features, learner.labels(task.train)[:, 0]
        shown = (y[:, None] == torch.arange(len(learner.opened))).to(features)
        sums, counts = shown.T @ features, shown.sum(0)
        if learner.stage:
            sums, counts = sums + learner.state["sums"], counts + learner.state["counts"]
        learner.state = {"sums": sums, "counts": counts}

    def answer(self, net, x, state, stage):
        output = net(x)
        if not state:
            return output
        means = state["sums"] / state["counts"].clamp(min=1)[:, None]
        away = torch.cdist(output.features, means)
        return output._replace(logits=torch.where(state["counts"] > 0, -away, -1e3))


@outside
class NewClassesAlone(Method):
    """The fault: only rows of classes that a task opens are learnt."""

    def loss(self, net, batch, state):
        fresh = batch.new[batch.target].to(batch.w)
        return {"task": net.task(batch._replace(w=batch.w * fresh)) + 0 * net(batch.x).logits.sum()}


# -- what is not smooth ---------------------------------------------------------------------------
@outside
class AbsoluteAnchor(Method):
    """A pull of the same strength, however near a weight is to its place."""

    strength: engram.PerRun = 0.05

    def start(self, learner, task):
        learner.state = {"anchor": learner.vector.clone()} if learner.stage else {}

    def loss(self, net, batch, state):
        terms = {"task": net.task(batch)}
        if state:
            terms["penalty"] = self.strength * (net.vector - state["anchor"]).abs().sum()
        return terms


@outside
class SignSteps(Method):
    """Steps of one size, in the direction of the gradient's signs."""

    def gradient(self, grad, batch, state):
        return 0.1 * grad(batch).sign()


@outside
class Unseeded(Method):
    """The fault: a number that no seed decides."""

    def start(self, learner, task):
        CALLS.append(1)
        learner.state = {"turn": torch.tensor(len(CALLS) % 7, dtype=learner.vector.dtype)}

    def loss(self, net, batch, state):
        return {"task": (1 + 0.1 * state["turn"]) * net.task(batch)}


CALLS: list[int] = []


# -- streams that a method has no use for --------------------------------------------------------
@outside
class OneHead(Method):
    """Refuses streams that give the task of a row, and those whose tasks have one class."""

    def start(self, learner, task):
        if learner.stream.head == "multi" or int(learner.new.sum()) < 2:
            raise BadArgument("stream: expected one head, and several new classes in every task")


@outside
class LateRefusal(Method):
    """The fault: it refuses in the middle of a stream."""

    def start(self, learner, task):
        if learner.stage and not bool(learner.new.any()):
            raise BadArgument("stream: expected new classes in every task")


# -- two passes over the same rows ---------------------------------------------------------------
@outside
class Agreement(Method):
    """Two answers under dropout shall agree."""

    def again(self, x):
        return x.clone()

    def loss(self, net, batch, state):
        first, second = (net(x, batch.w).logits for x in (batch.x, self.again(batch.x)))
        away = mean((first - second).square().sum(-1), batch.w)
        return {"task": net.task(batch), "agree": 0.1 * away}


@outside
class SelfAgreement(Agreement):
    """The fault: both answers are one pass."""

    def again(self, x):
        return x


# -- probes --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Drift(engram.Probe):
    """How far the features of the first task's test rows have moved since the last task."""

    needs = ("features",)

    def after_stage(self, view):
        now = view.features
        found = {}
        if "features" in view.state:
            old = view.state["features"]
            found = {"drift": (now[:, : old.shape[1]] - old).norm(dim=-1).mean(1)}
        else:
            found = {"drift": torch.zeros(len(view))}
        view.keep({"features": now})
        return found


@dataclass(frozen=True)
class Centred(Drift):
    """The fault: what it keeps of a row depends on the others."""

    def after_stage(self, view):
        view.keep({"features": view.features - view.features.mean(1, keepdim=True)})
        return {"mean": view.features.mean((1, 2))}


STATISTICS = learning_rules.check_finish_leaves_statistics_alone
SAMPLES = leakage_rules.check_keeps_no_samples_outside_its_memory
KNOWN = learning_rules.check_known_classes_are_learnt
NORMED = equality_rules.check_lockstep_with_batch_norm
SHARED = method_family_rules.check_no_term_vanishes_in_a_shared_pass
TESTS = probe_rules.check_test_rows_change_no_state
HONEST = [
    (STATISTICS, WritesPrototypes()),
    (STATISTICS, NearestExemplar()),
    (STATISTICS, PooledMeans()),
    (leakage_rules.check_exemplars_are_trained_on, NearestExemplar()),
    (SAMPLES, OwnAdam(lr=0.05)),
    (SAMPLES, Moments(decay=0.0)),
    (KNOWN, Merges()),
    (KNOWN, SlowAnswers(rate=0.002)),
    (KNOWN, PooledMeans()),
    (learning_rules.check_beats_chance, SlowAnswers(rate=0.002)),
    (learning_rules.check_task_incremental, SlowAnswers(rate=0.002)),
    (SHARED, Agreement()),
    (TESTS, Drift()),
]


@pytest.mark.parametrize(
    ("check", "target"), HONEST, ids=[f"{type(t).__name__} {check_name(c)}" for c, t in HONEST]
)
def test_the_honest_pass(check, target):
    assert "does not apply" not in passes(check, target)


@pytest.mark.parametrize(
    ("check", "target", "words"),
    [
        (KNOWN, NewClassesAlone(), "with other labels in that task its answers are no worse"),
        (KNOWN, LateRefusal(), "refuses the stream after 1 task"),
        (NORMED, Unseeded(), "keep nothing on self"),
        (SAMPLES, RowGradients(), "state/one and learner.state/two hold 2 inputs"),
        (SHARED, SelfAgreement(), "'agree' of loss is 0"),
        (TESTS, Centred(), "state depends on test rows"),
    ],
    ids=lambda value: getattr(type(value), "__name__", ""),
)
def test_the_faults_beside_them_are_found(check, target, words):
    assert words in fails(check, target)


@pytest.mark.parametrize("method", [AbsoluteAnchor(), SignSteps()])
def test_what_rounding_decides_is_called_so(method):
    assert "which rounding decides" in passes(NORMED, method)


@pytest.mark.parametrize(
    "check", [learning_rules.check_task_incremental, learning_rules.check_single_class_tasks]
)
def test_a_stream_may_be_refused_before_any_training(check):
    assert "it refuses such streams (stream: expected one head" in passes(check, OneHead())


def test_a_network_without_normalisation_has_no_statistics(monkeypatch):
    monkeypatch.setitem(toy_runs.MODELS, "normed", toy_runs.MODELS["plain"])
    assert "no batch normalisation" in passes(STATISTICS, Merges())
